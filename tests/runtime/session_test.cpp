// A rank's inputs are its piece of the samples that one rank would have; whole tensors come together
// from pieces and partial sums; what ranks tell each other arrives.
#include "runtime/session.h"

#include "runtime/assemble.h"
#include "runtime/talk.h"
#include "tests/runtime/ranks.h"
#include "tests/unit/temporary.h"

namespace planc {
namespace {

using test::dim;

const Grid kGrid{{{"data", 2}, {"x", 3}}};

// A data file's byte.
int64_t byteAt(int64_t i) { return (i * 5 + i / 7) % 11; }

TEST(Session, InputsArePiecesOfTheSameSamples) {
  TemporaryFolder folder;
  std::string bytes;
  for (int64_t i = 0; i < 500; ++i) bytes += char(byteAt(i));
  std::string path = folder.write("data.txt", bytes);
  struct Positions {
    int64_t size;
    Words axes;
    int64_t zigzag;
  };
  for (const auto& [size, axes, zigzag] :
       {Positions{9, {}, 0}, {9, {"x"}, 0}, {12, {}, 3}, {12, {"x"}, 3}, {12, {"x"}, 1}}) {
    Dim seq = dim(kGrid, "seq", size, axes);
    seq.zigzag = zigzag;
    Module module;
    module.grid = kGrid;
    module.settings.set("seed", int64_t{5});
    for (const char* name : {"documents", "tokens", "targets"}) {
      Variable var;
      var.name = name;
      var.kind = VarKind::Input;
      var.vocab = 256;
      if (var.name == "targets") var.follows = "tokens";
      if (var.name == "documents") var.documents = "tokens", var.separator = 4;
      var.type = {Elem::I32, {dim(kGrid, "microbatch", 2), dim(kGrid, "batch", 4, {"data"}), seq}};
      module.addVar(var);
    }
    Variable number;
    number.name = "step";
    number.kind = VarKind::Step;
    number.type = {Elem::I32, {}};
    module.addVar(number);
    test::place(module);
    test::onGoodRanks(6, [&, size = size](Communicator& comm) -> llvm::Error {
      Coordinates rank(kGrid, comm.rank());
      auto data = TokenFile::open(path);
      auto device = makeCpuDevice(1, rank);
      auto session = Session::create(module, *device, comm);
      if (!data || !session) return joinErrors(data.takeError(), session.takeError());
      EXPECT_EQ((*session)->tokensPerStep(), 2 * 4 * size);
      EXPECT_EQ((*session)->positions(), size);
      for (int64_t step = 0; step < 3; ++step) {
        auto record = (*session)->step(*data);
        if (!record) return record.takeError();
        EXPECT_EQ(record->step, step + 1);
        for (const char* name : {"documents", "tokens", "targets"}) {
          const Variable& var = *module.findVar(name);
          test::expectPiece(
              var.type, rank, (*session)->interpreter().data(var),
              [&](int64_t e) {
                int64_t start = windowOffset(5, uint64_t(step * 8 + e / size), 500, size);
                int64_t at = start + e % size + !var.follows.empty(), ended = 0;
                for (int64_t before = start; before < at; ++before) ended += byteAt(before) == 4;
                return double(var.documents.empty() ? byteAt(at) : ended);
              },
              name);
        }
        EXPECT_EQ(fetch(Elem::I32, (*session)->interpreter().data(*module.findVar("step")), 0),
                  double(step + 1));
      }
      return llvm::Error::success();
    });
  }
}

// A file for `planrun eval` may have documents of its own, or leave them to its tokens.
TEST(Session, EvalDerivesDocuments) {
  TemporaryFolder folder;
  Module module;
  module.grid = kGrid;
  for (const char* name : {"tokens", "documents"}) {
    Variable var;
    var.name = name;
    var.kind = VarKind::Input;
    var.vocab = 11;
    if (var.name == "documents") var.documents = "tokens", var.separator = 4;
    var.type = {Elem::I32, {dim(kGrid, "batch", 4, {"data"}), dim(kGrid, "seq", 9, {"x"})}};
    module.addVar(var);
  }
  test::place(module);
  std::vector<int32_t> tokens, given(36, 7);
  for (int64_t i = 0; i < 36; ++i) tokens.push_back(int32_t(byteAt(i)));
  Type whole = module.vars[0]->type.whole();
  for (bool isGiven : {false, true}) {
    std::vector<TensorSource> tensors{{"tokens", whole, tokens.data()}};
    if (isGiven) tensors.insert(tensors.begin(), {"documents", whole, given.data()});
    std::string in = folder.write("in", ""), out = folder.write("out", "");
    ASSERT_EQ(llvm::toString(writeSafetensors(in, tensors)), "");
    test::onGoodRanks(6, [&](Communicator& comm) -> llvm::Error {
      Coordinates rank(kGrid, comm.rank());
      auto device = makeCpuDevice(1, rank);
      auto session = Session::create(module, *device, comm);
      if (!session) return session.takeError();
      if (llvm::Error error = (*session)->evaluate(in, out)) return error;
      const Variable& var = *module.findVar("documents");
      auto document = [&](int64_t e) {
        int64_t ended = 0;
        for (int64_t before = e - e % 9; before < e; ++before) ended += tokens[size_t(before)] == 4;
        return double(isGiven ? 7 : ended);
      };
      test::expectPiece(var.type, rank, (*session)->interpreter().data(var), document, "documents");
      return llvm::Error::success();
    });
  }
}

TEST(Session, AssemblesPiecesAndPartialSums) {
  std::vector<Type> types = {
      {Elem::F32, {}},
      {Elem::F32, {dim(kGrid, "a", 6, {"data", "x"}), dim(kGrid, "b", 2)}},
      {Elem::BF16, {dim(kGrid, "b", 2), dim(kGrid, "a", 7, {"x"})}},
      {Elem::F64, {dim(kGrid, "a", 4, {"data"})}, test::axes(kGrid, {"x"})},
      {Elem::I32, {dim(kGrid, "a", 4)}, test::axes(kGrid, {"data", "x"})},
      {Elem::F32, {dim(kGrid, "a", 4)}, test::axes(kGrid, {"data"})},
      {Elem::F32, {dim(kGrid, "b", 2), dim(kGrid, "a", 12, {"x"})}, test::axes(kGrid, {"data"})},
  };
  types.back().dims[1].zigzag = 3;
  for (const Type& type : types) {
    test::onGoodRanks(6, [&](Communicator& comm) -> llvm::Error {
      Coordinates rank(kGrid, comm.rank());
      std::vector<std::byte> piece(size_t(type.bytes()));
      test::fill(type, rank, piece.data(),
                 [&](int64_t e) { return double(e + 1) * double(rank.index(type.partial) + 1); });
      std::vector<RankPiece> pieces;
      for (int64_t r = 0; r < 6; ++r)
        if (Coordinates(kGrid, r).isFirstCopy(type)) pieces.push_back({int(r), type, 0, piece.data()});
      auto whole = assemble(comm, kGrid, type.whole(), pieces);
      if (!whole) return whole.takeError();
      EXPECT_EQ(whole->empty(), comm.rank() != 0);
      int64_t n = ranksOver(type.partial);
      Type inOrder = type.whole();
      for (Dim& dim : inOrder.dims) dim.zigzag = 0;
      if (comm.rank() == 0)
        test::expectPiece(
            inOrder, {}, whole->data(),
            [&](int64_t e) { return double(e + 1) * double(n * (n + 1) / 2); }, "whole");
      return llvm::Error::success();
    });
  }
}

TEST(Session, RanksTalk) {
  test::onGoodRanks(5, [](Communicator& comm) -> llvm::Error {
    auto numbers = gather(comm, (int64_t{1} << 40) * comm.rank());
    auto word = fromFirst(comm, comm.rank() == 0 ? "hello" : "");
    auto texts = toFirst(comm, std::string(size_t(comm.rank()), 'x'));
    auto none = any(comm, false), one = any(comm, comm.rank() == 3);
    auto bad = agree(comm, comm.rank() == 1 ? llvm::Expected<int>(fileError("a", "b")) : 7);
    EXPECT_EQ(text(std::move(bad)), "rank 1: 'a': b");
    for (bool failed : {!numbers, !word, !texts, !none, !one}) EXPECT_FALSE(failed);
    EXPECT_EQ((*numbers)[4], int64_t{4} << 40);
    EXPECT_EQ(*word, "hello");
    EXPECT_EQ(*none, false);
    EXPECT_EQ(*one, true);
    if (comm.rank() == 0)
      EXPECT_EQ(*texts, (std::vector<std::string>{"", "x", "xx", "xxx", "xxxx"}));
    else EXPECT_TRUE(texts->empty());
    return llvm::Error::success();
  });
}

TEST(Session, OneRankThatCannotReadEndsAll) {
  // Data that grew short after it was opened, on one rank.
  TemporaryFolder folder;
  Module module;
  module.grid = kGrid;
  Variable var;
  var.name = "tokens";
  var.kind = VarKind::Input;
  var.vocab = 256;
  var.type = {Elem::I32, {dim(kGrid, "batch", 2, {"data"}), dim(kGrid, "seq", 9)}};
  module.addVar(var);
  test::place(module);
  std::string good = folder.write("good", std::string(100, 'a'));
  std::string cut = folder.write("cut", std::string(100, 'a'));
  auto team = makeThreadTeam(6, std::chrono::seconds(10));
  std::vector<std::string> errors(6);
  std::vector<std::thread> threads;
  for (int r = 0; r < 6; ++r)
    threads.emplace_back([&, r] {
      auto comm = team->communicator(r);
      auto run = [&]() -> llvm::Error {
        auto device = makeCpuDevice(1, Coordinates(kGrid, r));
        auto session = Session::create(module, *device, *comm);
        if (!session) return session.takeError();
        auto data = TokenFile::open(r == 4 ? cut : good);
        if (!data) return data.takeError();
        if (r == 4) std::filesystem::resize_file(cut, 1);
        auto record = (*session)->step(*data);
        return record ? any(*comm, false).takeError() : record.takeError();
      };
      errors[size_t(r)] = llvm::toString(run());
    });
  for (std::thread& thread : threads) thread.join();
  for (int r = 0; r < 6; ++r) EXPECT_HAS(errors[size_t(r)], "ends too early");
  EXPECT_HAS(errors[0], "rank 4");
}

}  // namespace
}  // namespace planc
