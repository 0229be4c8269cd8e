// safetensors files: round trips, files as other programs write them, every kind of broken header,
// and damage at every byte.
#include "runtime/io/safetensors.h"

#include <cstring>

#include "tests/unit/temporary.h"

namespace planc {
namespace {

Type type(Elem elem, std::vector<int64_t> sizes) {
  Type type{elem, {}};
  for (int64_t size : sizes) {
    type.dims.push_back({"d" + std::to_string(type.dims.size()), size, ""});
  }
  return type;
}

std::string bytes(llvm::StringRef header, llvm::StringRef data) {
  uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + (header + data).str();
}

const std::vector<float> kWeight = {1, -2, 0.5f, 3e38f, 0, -0.0f};
const std::vector<int32_t> kIds = {7, -1};

std::string writeSample(const TemporaryFolder& folder) {
  std::string path = folder.file("x.safetensors");
  TensorSource tensors[] = {{"layer.wq", type(Elem::F32, {2, 3}), kWeight.data()},
                            {"ids", type(Elem::I32, {2}), kIds.data()}};
  EXPECT_FALSE(bool(writeSafetensors(path, tensors, {{"step", "12"}, {"seed", "42"}})));
  return path;
}

TEST(Safetensors, RoundTrip) {
  TemporaryFolder folder;
  auto file = SafetensorsFile::open(writeSample(folder));
  ASSERT_OK(file);
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x.safetensors"});
  EXPECT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->metadata("step"), "12");
  EXPECT_EQ(file->metadata("seed"), "42");
  EXPECT_EQ(file->metadata("absent"), "");
  std::vector<float> weight(6);
  ASSERT_DONE(file->read("layer.wq", type(Elem::F32, {2, 3}), weight.data()));
  EXPECT_EQ(std::memcmp(weight.data(), kWeight.data(), 24), 0);
  std::vector<double> wide(6);
  ASSERT_DONE(file->read("layer.wq", type(Elem::F64, {2, 3}), wide.data()));
  EXPECT_EQ(wide, std::vector<double>(kWeight.begin(), kWeight.end()));
  std::vector<int32_t> ids(2);
  ASSERT_DONE(file->read("ids", type(Elem::I32, {2}), ids.data()));
  EXPECT_EQ(ids, kIds);
  EXPECT_HAS(text(file->read("wk", type(Elem::F32, {6}), weight.data())), "no tensor 'wk'");
  EXPECT_HAS(text(file->read("layer.wq", type(Elem::F32, {6}), weight.data())),
             "has shape [2, 3], needed is [6]");
  EXPECT_HAS(text(file->read("ids", type(Elem::F32, {2}), weight.data())),
             "has dtype I32, needed is F32");
}

TEST(Safetensors, ReadsOtherElementTypes) {
  TemporaryFolder folder;
  auto open = [&](const std::string& dtype, std::string data, int64_t count) {
    std::string header = "{\"x\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + std::to_string(count) +
                         "],\"data_offsets\":[0," + std::to_string(data.size()) + "]}}  ";
    return SafetensorsFile::open(folder.write("x", bytes(header, data)));
  };
  float f = 0;
  // 1.5, the smallest subnormal, -infinity.
  for (auto [bits, value] : {std::pair(uint16_t(0x3E00), 1.5f),
                             {uint16_t(1), 0x1p-24f},
                             {uint16_t(0xFC00), -INFINITY}}) {
    auto file = open("F16", std::string(reinterpret_cast<const char*>(&bits), 2), 1);
    ASSERT_OK(file);
    ASSERT_DONE(file->read("x", type(Elem::F32, {1}), &f));
    EXPECT_EQ(f, value);
  }
  uint16_t bf16 = 0xBFC0;  // -1.5
  auto narrow = open("BF16", std::string(reinterpret_cast<const char*>(&bf16), 2), 1);
  ASSERT_OK(narrow);
  ASSERT_DONE(narrow->read("x", type(Elem::F32, {1}), &f));
  EXPECT_EQ(f, -1.5f);
  float third = 1.0f / 3;
  auto wide = open("F32", std::string(reinterpret_cast<const char*>(&third), 4), 1);
  ASSERT_OK(wide);
  ASSERT_DONE(wide->read("x", type(Elem::BF16, {1}), &bf16));
  EXPECT_EQ(bf16, 0x3EAB);  // rounded to nearest
  int64_t ids[] = {5, int64_t{1} << 40};
  int32_t id[2];
  auto large = open("I64", std::string(reinterpret_cast<const char*>(ids), 16), 2);
  ASSERT_OK(large);
  EXPECT_HAS(text(large->read("x", type(Elem::I32, {2}), id)), "1099511627776");
  EXPECT_EQ(id[0], 5);
  auto signedByte = open("I8", "\xff", 1);
  ASSERT_OK(signedByte);
  ASSERT_DONE(signedByte->read("x", type(Elem::I32, {1}), id));
  EXPECT_EQ(id[0], -1);
}

TEST(Safetensors, RefusesHostileHeaders) {
  struct {
    std::string header;
    int64_t data;
    std::string error;
  } cases[] = {
      {"", 0, "not JSON"},
      {"[]", 0, "not a JSON object"},
      {std::string(100000, '['), 0, "nests deeper"},
      {"{\"a\":[[[[[[[[[1]]]]]]]]]}", 0, "nests deeper"},
      {"{\"a\":1}", 0, "not described by an object"},
      {"{\"__metadata__\":[]}", 0, "metadata is not a JSON object"},
      {"{\"__metadata__\":{\"a\":1}}", 0, "metadata 'a' is not a string"},
      {R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "no dtype"},
      {R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})", 4, "dtype 'F8_E4M3'"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "no shape"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "whole number"},
      {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "whole number"},
      {R"({"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}})", 4, "whole number"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4,
       "too large"},
      {R"({"a":{"dtype":"F32","shape":[1]}})", 4, "no data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "no data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "outside"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4, "outside"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 4, "outside the file's 4"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "holds 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       6, "overlap at data byte 2"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "0 to 4 belong to no"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8, "4 to 8 belong to no"},
      {"{\"\xff\":1}", 0, "not JSON"},
  };
  for (const auto& c : cases) {
    EXPECT_HAS(text(parseSafetensorsHeader(c.header, c.data)), c.error);
  }
  // Legal oddities: no tensors; scalars; empty tensors.
  EXPECT_TRUE(bool(parseSafetensorsHeader("{}", 0)));
  EXPECT_TRUE(
      bool(parseSafetensorsHeader(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                                  R"("b":{"dtype":"F32","shape":[0,9],"data_offsets":[4,4]}} )",
                                  4)));
}

TEST(Safetensors, RefusesFalseLengths) {
  TemporaryFolder folder;
  for (uint64_t length : {uint64_t(3), uint64_t(100'000'001), ~uint64_t(0)}) {
    std::string file(reinterpret_cast<const char*>(&length), 8);
    EXPECT_HAS(text(SafetensorsFile::open(folder.write("x", file + "{}"))), "header would be");
  }
  EXPECT_HAS(text(SafetensorsFile::open(folder.write("x", "{}"))), "too short");
}

TEST(Safetensors, EveryTruncationIsFound) {
  TemporaryFolder folder;
  std::string whole = contents(writeSample(folder));
  for (size_t length = 0; length < whole.size(); ++length) {
    text(SafetensorsFile::open(folder.write("y", llvm::StringRef(whole).take_front(length))));
  }
  text(SafetensorsFile::open(folder.write("y", whole + "x")));
}

TEST(Safetensors, EveryFlippedBitIsFoundOrHarmless) {
  TemporaryFolder folder;
  std::string whole = contents(writeSample(folder));
  size_t harmless = 0;
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = char(damaged[bit / 8] ^ (1 << bit % 8));
    auto file = SafetensorsFile::open(folder.write("y", damaged));
    if (!file) {
      llvm::consumeError(file.takeError());
      continue;
    }
    // Only the names of our own two metadata entries may change without notice.
    ++harmless;
    std::vector<float> weight(6);
    ASSERT_DONE(file->read("layer.wq", type(Elem::F32, {2, 3}), weight.data()));
    EXPECT_EQ(std::memcmp(weight.data(), kWeight.data(), 24), 0);
    EXPECT_EQ(file->metadata("step"), "12");
    EXPECT_EQ(file->metadata("seed"), "42");
  }
  EXPECT_LT(harmless, 120u);
}

TEST(Safetensors, AFailedWriteNamesThePathAndKeepsTheOldFile) {
  TemporaryFolder folder;
  std::string path = writeSample(folder), before = contents(path);
  float value = 1;
  TensorSource tensor{"w", type(Elem::F32, {}), &value};
  EXPECT_HAS(text(writeSafetensors(folder.file("absent/x"), tensor)), folder.file("absent"));
  EXPECT_HAS(text(writeSafetensors(folder.path(), tensor)), folder.path());
  EXPECT_EQ(contents(path), before);
  ASSERT_DONE(writeSafetensors(path, tensor));
  auto file = SafetensorsFile::open(path);
  ASSERT_OK(file);
  EXPECT_EQ(file->tensors().size(), 1u);
  EXPECT_EQ(file->tensors().at("w").elements(), 1);
}

}  // namespace
}  // namespace planc
