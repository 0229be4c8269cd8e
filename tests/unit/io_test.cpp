// Token files in all formats, broken ones too; replacing files; the step log; traces.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "llvm/Support/JSON.h"
#include "runtime/io/log.h"
#include "runtime/io/tokens.h"
#include "runtime/io/trace.h"
#include "tests/unit/temporary.h"

namespace planc {
namespace {

template <class T>
std::string raw(std::vector<T> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string npy(const std::string& type, const std::string& shape, const std::string& data) {
  std::string header =
      "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize(118, ' ');
  return std::string("\x93NUMPY\x01\x00", 8) + raw(std::vector<uint16_t>{118}) + header + data;
}

std::vector<int32_t> all(const TokenFile& file) {
  std::vector<int32_t> tokens(size_t(file.size()), 0);
  EXPECT_FALSE(bool(file.read(0, tokens)));
  return tokens;
}

TEST(Tokens, ReadsEveryFormat) {
  TemporaryFolder folder;
  std::vector<int32_t> llmc(256, 0);
  llmc[0] = 20240520;
  llmc[1] = 1;
  llmc[2] = 3;
  std::string shorts = raw(std::vector<uint16_t>{7, 50256, 65535});
  struct {
    const char* name;
    std::string bytes;
    std::vector<int32_t> expected;
  } cases[] = {
      {"text.txt", std::string("a\0\xff", 3), {97, 0, 255}},
      {"nano.bin", shorts, {7, 50256, 65535}},
      {"llmc.bin", raw(llmc) + shorts, {7, 50256, 65535}},
      {"u1.npy", npy("|u1", "(3,)", std::string("\x01\x02\xff", 3)), {1, 2, 255}},
      {"u2.npy", npy("<u2", "(3,)", shorts), {7, 50256, 65535}},
      {"i4.npy", npy("<i4", "(2,)", raw(std::vector<int32_t>{5, -1})), {5, -1}},
      {"i8.npy", npy("<i8", "(2,)", raw(std::vector<int64_t>{128000, 0})), {128000, 0}},
      {"empty.txt", "", {}},
  };
  for (const auto& c : cases) {
    auto file = TokenFile::open(folder.write(c.name, c.bytes));
    ASSERT_OK(file);
    EXPECT_EQ(all(*file), c.expected) << c.name;
  }
}

TEST(Tokens, RefusesBrokenFiles) {
  TemporaryFolder folder;
  std::vector<int32_t> llmc(256, 0);
  llmc[0] = 20240520;
  llmc[1] = 2;
  std::string version2 = raw(llmc);
  llmc[1] = 1;
  llmc[2] = 9;
  struct {
    const char* name;
    std::string bytes, error;
  } cases[] = {
      {"odd.bin", "abc", "3 bytes of tokens, not a multiple of 2"},
      {"v2.bin", version2, "version 2"},
      {"short.bin", raw(llmc) + "ab", "has 1 tokens, its header says 9"},
      {"no.npy", "hello, world, not numpy", "not a .npy file"},
      {"tiny.npy", "\x93NUM", "not a .npy file"},
      {"float.npy", npy("<f4", "(1,)", "abcd"), "element type '<f4'"},
      {"big.npy", npy(">u2", "(1,)", "ab"), "element type '>u2'"},
      {"two.npy", npy("<u2", "(1, 1)", "ab"), "shape (1, 1)"},
      {"none.npy", npy("<u2", "()", "ab"), "shape ()"},
      {"many.npy", npy("<u2", "(7,)", "ab"), "has 1 tokens, its header says 7"},
      {"huge.npy", npy("<u2", "(99999999999999999999,)", "ab"), "shape (9999"},
      {"negative.npy", npy("<u2", "(-1,)", "ab"), "shape (-1)"},
      {"cut.npy", npy("<u2", "(1,)", "ab").substr(0, 60), "header of 118 bytes"},
  };
  for (const auto& c : cases) {
    std::string path = folder.write(c.name, c.bytes);
    std::string error = text(TokenFile::open(path));
    EXPECT_HAS(error, c.error);
    EXPECT_HAS(error, path);
  }
  EXPECT_HAS(text(TokenFile::open(folder.file("absent"))), "No such file");
  EXPECT_HAS(text(TokenFile::open(folder.path())), "is a folder");
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_HAS(text(TokenFile::open(folder.file("pipe"))), "not a regular file");
}

TEST(Tokens, EveryTruncationOfAnNpyIsAnError) {
  TemporaryFolder folder;
  std::string whole = npy("<u2", "(3,)", raw(std::vector<uint16_t>{1, 2, 3}));
  for (size_t length = 0; length < whole.size(); ++length) {
    text(TokenFile::open(folder.write("x.npy", llvm::StringRef(whole).take_front(length))));
  }
}

TEST(Tokens, ChecksLengthAndVocabulary) {
  TemporaryFolder folder;
  std::vector<uint16_t> tokens(600000, 3);
  tokens[599990] = 50;
  auto file = TokenFile::open(folder.write("x.bin", raw(tokens)));
  ASSERT_OK(file);
  ASSERT_DONE(file->check(64, 51));
  ASSERT_DONE(file->check(599999, 51));
  EXPECT_HAS(text(file->check(64, 50)),
             "token 50 at position 599990 is outside the vocabulary of 50");
  EXPECT_HAS(text(file->check(600000, 51)), "has 600000 tokens");
  EXPECT_HAS(text(file->check(600000, 51)), "need at least 600001");
  auto negative = TokenFile::open(
      folder.write("x.npy", npy("<i8", "(3,)", raw(std::vector<int64_t>{1, -1, 1ll << 40}))));
  ASSERT_OK(negative);
  EXPECT_HAS(text(negative->check(2, 1 << 30)), "token -1 at position 1");
}

TEST(Tokens, WindowsDependOnSeedAndSampleOnly) {
  TemporaryFolder folder;
  std::vector<uint16_t> tokens(1000);
  std::iota(tokens.begin(), tokens.end(), 0);
  auto file = TokenFile::open(folder.write("x.bin", raw(tokens)));
  ASSERT_OK(file);
  std::set<int32_t> starts;
  for (uint64_t i = 0; i < 2000; ++i) {
    std::vector<int32_t> window(9);
    ASSERT_DONE(file->sample(42, i, window));
    EXPECT_EQ(window[0], windowOffset(42, i, 1000, 8));
    for (int32_t k = 0; k < 9; ++k) EXPECT_EQ(window[size_t(k)], window[0] + k);
    starts.insert(window[0]);
  }
  EXPECT_GT(starts.size(), 800u);
  EXPECT_EQ(*starts.begin(), 0);
  EXPECT_LE(*starts.rbegin(), 991);
  EXPECT_EQ(windowOffset(7, 3, 9, 8), 0);
  EXPECT_NE(windowOffset(1, 0, 1 << 30, 8), windowOffset(2, 0, 1 << 30, 8));
}

TEST(Tokens, DocumentsEndWithTheirSeparator) {
  auto numbers = [](std::vector<int32_t> tokens) {
    numberDocuments(tokens, 9);
    return tokens;
  };
  using List = std::vector<int32_t>;
  EXPECT_EQ(numbers({1, 2, 9, 3, 9, 9, 4}), (List{0, 0, 0, 1, 1, 2, 3}));
  EXPECT_EQ(numbers({9, 1}), (List{0, 1}));
  EXPECT_EQ(numbers({1, 2}), (List{0, 0}));
  EXPECT_EQ(numbers({}), (List{}));
}

TEST(ReplacingFile, ReplacesWholeOrNotAtAll) {
  TemporaryFolder folder;
  std::string path = folder.write("x", "old");
  {
    auto file = ReplacingFile::create(path);
    ASSERT_OK(file);
    ASSERT_DONE(file->write(llvm::StringRef("half of the new")));
    EXPECT_EQ(contents(path), "old");
    EXPECT_EQ(folder.names().size(), 2u);
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x"});
  EXPECT_EQ(contents(path), "old");
  auto file = ReplacingFile::create(path);
  ASSERT_OK(file);
  ASSERT_DONE(file->write(llvm::StringRef("new")));
  ASSERT_DONE(file->commit());
  EXPECT_EQ(contents(path), "new");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x"});
}

TEST(ReplacingFile, FollowsLinksAndReplacesNoDevice) {
  TemporaryFolder folder;
  std::string path = folder.write("x", "old"), link = folder.file("link");
  ASSERT_EQ(::symlink(path.c_str(), link.c_str()), 0);
  auto linked = ReplacingFile::create(link);
  ASSERT_OK(linked);
  ASSERT_DONE(linked->write(llvm::StringRef("new")));
  ASSERT_DONE(linked->commit());
  EXPECT_EQ(contents(path), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(link));

  // A pipe stands for any device: it must still be one afterwards.
  std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  auto file = ReplacingFile::create(pipe);
  ASSERT_OK(file);
  ASSERT_DONE(file->write(llvm::StringRef("through")));
  ASSERT_DONE(file->commit());
  char got[8] = {};
  EXPECT_EQ(::read(reader, got, 7), 7);
  EXPECT_STREQ(got, "through");
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

TEST(ReplacingFile, AFullDiskLosesNothing) {
  TemporaryFolder folder;
  std::string path = folder.write("x", "old");
  // A limit on file sizes is a full disk that needs no privileges.
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limited = before;
  limited.rlim_cur = 4096;
  auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
  std::string error;
  if (auto file = ReplacingFile::create(path)) {
    error = text(file->write(llvm::StringRef(std::string(100000, 'x'))));
  } else {
    ADD_FAILURE() << text(std::move(file));
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_HAS(error, folder.path());
  EXPECT_HAS(error, "File too large");
  EXPECT_EQ(contents(path), "old");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x"});
}

TEST(ReplacingFile, NamesWhatCannotBeWritten) {
  TemporaryFolder folder;
  EXPECT_HAS(text(ReplacingFile::create(folder.file("absent/x"))), "absent");
  std::string path = folder.write("x", "old");
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  // Root may write everywhere, so it becomes nobody for this.
  uid_t user = ::geteuid();
  if (user == 0) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  auto file = ReplacingFile::create(path);
  if (user == 0) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  std::string error = text(std::move(file));
  EXPECT_HAS(error, "Permission denied");
  EXPECT_HAS(error, folder.path());
  EXPECT_EQ(contents(path), "old");
}

TEST(File, AFullDeviceIsAnError) {
  auto file = File::openWrite("/dev/full");
  if (!file) {
    llvm::consumeError(file.takeError());
    GTEST_SKIP() << "no /dev/full here";
  }
  EXPECT_HAS(text(file->write(llvm::StringRef("x"))), "No space left");
}

TEST(StepLog, WritesOneJsonLineAStep) {
  TemporaryFolder folder;
  std::string path = folder.write("log.jsonl", "stale\n");
  StepRecord record{3, double(5.5412f), 0.1, 3e-4, 12345.678, INFINITY};
  {
    auto log = StepLog::open(path, false);
    ASSERT_OK(log);
    ASSERT_DONE(log->write(record));
    EXPECT_EQ(contents(path), stepLine(record) + "\n");  // flushed at once
  }
  auto log = StepLog::open(path, true);
  ASSERT_OK(log);
  ASSERT_DONE(log->write(record));
  EXPECT_EQ(contents(path), stepLine(record) + "\n" + stepLine(record) + "\n");
  auto json = llvm::json::parse(stepLine(record));
  ASSERT_OK(json);
  const auto& object = *json->getAsObject();
  EXPECT_EQ(*object.getInteger("step"), 3);
  EXPECT_EQ(float(*object.getNumber("loss")), 5.5412f);
  EXPECT_EQ(*object.getNumber("grad_norm"), 0.1);
  EXPECT_EQ(*object.getNumber("lr"), 3e-4);
  EXPECT_EQ(object.get("seconds")->kind(), llvm::json::Value::Null);
  EXPECT_HAS(stepLine(record), "\"loss\":5.5412,");
}

TEST(StepLog, SummariesAreJson) {
  RankSummary summary{2, {{"data", 1}, {"pipe", 0}}, 7, int64_t{1} << 40};
  summary.sent = {{"all_reduce", {"data", "pipe"}, 14, 7}, {"send", {"pipe"}, 0, 8}};
  EXPECT_EQ(summaryLine(summary),
            "{\"rank\":2,\"at\":{\"data\":1,\"pipe\":0},\"steps\":7,\"arena_bytes\":1099511627776,"
            "\"sent\":[{\"op\":\"all_reduce\",\"axes\":[\"data\",\"pipe\"],\"first_bytes\":14,"
            "\"last_bytes\":7},{\"op\":\"send\",\"axes\":[\"pipe\"],\"first_bytes\":0,"
            "\"last_bytes\":8}]}");
  EXPECT_EQ(summaryLine({}),
            "{\"rank\":0,\"at\":{},\"steps\":0,\"arena_bytes\":0,\"sent\":[]}");
}

TEST(StepLog, ListsTheExpertsLoads) {
  StepRecord record{3, 5.5, 0.1, 3e-4, 100, 1};
  record.experts = {{"layer.moe", {0}, {30, 34, 0, 0}, 4}, {"layer.moe", {1}, {16, 16, 16, 16}, 0}};
  EXPECT_HAS(stepLine(record), "\"seconds\":1,\"experts\":[{\"name\":\"layer.moe\",\"at\":[0],"
                               "\"load\":[30,34,0,0],\"dropped\":4},");
  auto json = llvm::json::parse(stepLine(record));
  ASSERT_OK(json);
  EXPECT_EQ(json->getAsObject()->getArray("experts")->size(), 2u);
  EXPECT_EQ(expertsText(record.experts), "  busiest expert 2.12 x mean, 3.1 % dropped");
  EXPECT_EQ(expertsText({}), "");
}

TEST(Trace, IsJsonThatPerfettoReads) {
  TemporaryFolder folder;
  for (int bars : {0, 1, 5000}) {
    auto file = TraceFile::open(folder.file("t.json"));
    ASSERT_OK(file);
    Trace trace;
    auto start = Trace::now();
    for (int i = 0; i < bars; ++i) {
      trace.add("einsum \"q\"\n\xff", "einsum", "%q = \\", start,
                 start + std::chrono::microseconds(3));
    }
    if (bars > 0) trace.nameRow("rank 0");
    ASSERT_DONE(file->write({trace.events()}));
    auto json = llvm::json::parse(contents(folder.file("t.json")));
    ASSERT_OK(json);
    const llvm::json::Array* events = json->getAsObject()->getArray("traceEvents");
    ASSERT_NE(events, nullptr);
    ASSERT_EQ(events->size(), size_t(bars > 0 ? bars + 1 : 0));
    if (bars == 0) continue;
    const llvm::json::Object& bar = *(*events)[0].getAsObject();
    EXPECT_EQ(*bar.getString("ph"), "X");
    EXPECT_EQ(*bar.getNumber("dur"), 3.0);
  }
}

}  // namespace
}  // namespace planc
