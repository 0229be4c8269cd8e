// The .planx reader: what was written reads back; cut at any byte or with any bit of a sample flipped
// it is an error, never a crash.
#include "compile.h"

namespace planc {
namespace {

std::string bytesOf(const std::string& plan) {
  auto model = test::compileFile(std::string(PLANC_SOURCE_DIR) + plan);
  auto program = cloneModule(*model);
  test::runAll(*program);
  Planx planx;
  planx.model = std::move(model);
  planx.roles.push_back(std::move(program));
  return writePlanx(planx);
}

TEST(Planx, ReadsBack) {
  std::string bytes = bytesOf("/tests/golden/moe.plan");
  auto planx = readPlanx(bytes);
  ASSERT_TRUE(bool(planx)) << llvm::toString(planx.takeError());
  EXPECT_EQ(writePlanx(*planx), bytes);
}

TEST(Planx, DocumentsReadBack) {
  Diagnostics diags;
  auto model = parseModule(
      diags.addFile(
          "t.ir",
          "module m model {\n"
          "  var @tokens : i32[s 5, t 6] input vocab 7\n"
          "  var @documents : i32[s 5, t 6] input vocab 6 documents @tokens separator 3\n}\n"),
      diags);
  ASSERT_TRUE(model) << test::messages(diags);
  std::string text;
  llvm::raw_string_ostream out(text);
  printModule(*model, out);
  EXPECT_NE(out.str().find("input vocab 6 documents @tokens separator 3"), std::string::npos)
      << text;
  Planx planx;
  Module& role = *planx.roles.emplace_back(cloneModule(*model));
  role.level = Level::Rank;
  role.arenaBytes = 256;
  for (size_t i = 0; i < 2; ++i) role.vars[i]->place = Place{int64_t(128 * i), {}};
  planx.model = std::move(model);
  auto read = readPlanx(writePlanx(planx));
  ASSERT_TRUE(bool(read)) << llvm::toString(read.takeError());
  for (const Module* module : {read->model.get(), read->roles[0].get()}) {
    EXPECT_EQ(module->findVar("documents")->documents, "tokens");
    EXPECT_EQ(module->findVar("documents")->separator, 3);
  }
}

TEST(Planx, CutAnywhereIsAnError) {
  std::string bytes = bytesOf("/tests/golden/llama.plan");
  for (size_t size = 0; size < bytes.size(); size += size < 128 ? 1 : 37) {
    auto planx = readPlanx(llvm::StringRef(bytes).take_front(size));
    EXPECT_FALSE(bool(planx)) << size;
    llvm::consumeError(planx.takeError());
  }
  auto longer = readPlanx(bytes + "x");
  EXPECT_FALSE(bool(longer));
  llvm::consumeError(longer.takeError());
}

TEST(Planx, FlippedBitIsAnError) {
  std::string bytes = bytesOf("/tests/golden/llama.plan");
  for (size_t i = 0; i < bytes.size() * 8; i += i < 512 ? 1 : 101) {
    std::string altered = bytes;
    altered[i / 8] = char(altered[i / 8] ^ (1 << (i % 8)));
    auto planx = readPlanx(altered);
    EXPECT_FALSE(bool(planx)) << "bit " << i;
    llvm::consumeError(planx.takeError());
  }
}

// Types divide by the sizes of axes before anything is verified.
TEST(Planx, AnAxisWithoutRanksIsAnError) {
  for (int64_t size : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    Planx planx;
    planx.model = std::make_unique<Module>();
    planx.model->grid.axes = {{"data", size}};
    auto read = readPlanx(writePlanx(planx));
    EXPECT_FALSE(bool(read)) << size;
    llvm::consumeError(read.takeError());

    Diagnostics diags;
    std::string text = "module m sharded {\ngrid data " + std::to_string(size) +
                       "\nvar @x : f32[a 4/data] slot\n}\n";
    EXPECT_FALSE(parseModule(diags.addFile("t.ir", text), diags)) << size;
    EXPECT_TRUE(diags.failed()) << size;
  }
}

// Without the checksums in the way: the decoder and the verifier must cope with anything.
TEST(Planx, AlteredPayloadWithAGoodChecksum) {
  auto model = test::compileFile(std::string(PLANC_SOURCE_DIR) + "/tests/golden/moe.plan");
  std::string text = test::print(*model);
  uint64_t state = 1;
  for (int round = 0; round < 300; ++round) {
    std::string altered = text;
    for (int k = 0; k < 3; ++k) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      altered[(state >> 33) % altered.size()] = char('0' + (state >> 20) % 10);
    }
    Diagnostics diags;
    auto module = parseModule(diags.addFile("t.ir", altered), diags);
    EXPECT_TRUE(module || diags.failed());
  }
}

}  // namespace
}  // namespace planc
