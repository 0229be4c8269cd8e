// Checkpoints from any grid into any grid: the file is the same to the byte, and every rank finds its
// piece; padding is never in it. Weights start from the same numbers on every grid. An error on one
// rank is one of all and leaves the last checkpoint.
#include <sys/stat.h>

#include <cmath>

#include "runtime/random.h"
#include "runtime/session.h"
#include "tests/runtime/ranks.h"
#include "tests/unit/temporary.h"

namespace planc {
namespace {

using test::dim;

// How a grid holds vocab 17, layer 3, model 8, ff 12; the copy of `w` may be held otherwise.
struct Layout {
  const char* name;
  Grid grid;
  Words vocab = {}, model = {}, ff = {}, copy = {};
};

std::vector<Layout> layouts() {
  Grid one, two{{{"x", 2}}}, four{{{"x", 4}}}, plane{{{"data", 2}, {"x", 2}, {"y", 2}}};
  return {
      {"one", one},
      {"copies", two},
      {"two", two, {"x"}, {}, {"x"}, {"x"}},
      {"four", four, {"x"}, {}, {"x"}, {}},
      {"sharded_optimizer", plane, {}, {}, {"data"}, {}},
      {"plane", plane, {"x", "y"}, {"data"}, {"x"}, {"x"}},
      {"all", plane, {"data", "x", "y"}, {}, {"y", "x"}, {"y"}},
  };
}

// Two weights, a moment of each, a copy of one.
void build(const Layout& layout, Module& module) {
  const Grid& grid = layout.grid;
  module.name = "small";
  module.grid = grid;
  module.settings.set("seed", int64_t{11});
  auto add = [&](const char* name, VarKind kind, const char* of, Elem elem, std::vector<Dim> dims,
                 const char* init) {
    Variable var;
    var.name = name;
    var.kind = kind;
    var.of = of;
    var.type = {elem, llvm::SmallVector<Dim, 4>(dims.begin(), dims.end())};
    var.init.kind = init;
    module.addVar(var);
  };
  std::vector<Dim> table = {dim(grid, "vocab", 17, layout.vocab),
                            dim(grid, "model", 8, layout.model)};
  std::vector<Dim> w = {dim(grid, "layer", 3), dim(grid, "model", 8),
                        dim(grid, "ff", 12, layout.ff)};
  std::vector<Dim> copy = w;
  copy[2] = dim(grid, "ff", 12, layout.copy);
  add("table", VarKind::Weight, "", Elem::F32, table, "normal");
  add("w", VarKind::Weight, "", Elem::F32, w, "uniform");
  add("w.bf16", VarKind::Copy, "w", Elem::BF16, copy, "normal");
  add("table.m", VarKind::Moment, "table", Elem::F32, table, "const");
  add("w.m", VarKind::Moment, "w", Elem::F64, w, "const");
  test::place(module);
}

llvm::Error withSession(const Module& module, Communicator& comm,
                        const std::function<llvm::Error(Session&)>& body) {
  auto device = makeCpuDevice(1, Coordinates(module.grid, comm.rank()));
  auto session = Session::create(module, *device, comm);
  return session ? body(**session) : session.takeError();
}

double momentOf(int64_t element) { return double(element) / 8 - 3; }

// Initialised weights, moments set by hand, saved in `folder`.
void saveFrom(const Layout& layout, const std::string& folder) {
  Module module;
  build(layout, module);
  test::onGoodRanks(layout.grid.ranks(), [&](Communicator& comm) {
    return withSession(module, comm, [&](Session& session) -> llvm::Error {
      if (llvm::Error error = session.initialise()) return error;
      Coordinates rank(module.grid, comm.rank());
      for (const auto& var : module.vars)
        if (var->kind == VarKind::Moment) {
          test::fill(var->type, rank, session.interpreter().data(*var), momentOf);
        }
      return session.save(folder);
    });
  });
}

double weightOf(const Variable& var, const std::string& name, int64_t element) {
  uint64_t key = randomKey(11, name);
  double value = var.init.value;
  return double(float(name == "w" ? value * uniformAt(key, uint64_t(element))
                                  : value * normalAt(key, uint64_t(element))));
}

void expectState(const Module& module, Session& session, int rank, bool hasMoments,
                 const std::string& what) {
  Coordinates here(module.grid, rank);
  for (const auto& var : module.vars) {
    test::expectPiece(
        var->type, here, session.interpreter().data(*var),
        [&](int64_t e) {
          if (var->kind == VarKind::Moment) return hasMoments ? momentOf(e) : 0.0;
          if (var->kind == VarKind::Weight) return weightOf(*var, var->name, e);
          return double(toFloat(toBf16(float(weightOf(*module.findVar("w"), "w", e)))));
        },
        what + " @" + var->name);
  }
}

TEST(Checkpoint, WeightsStartAlikeOnEveryGrid) {
  for (const Layout& layout : layouts()) {
    Module module;
    build(layout, module);
    test::onGoodRanks(layout.grid.ranks(), [&](Communicator& comm) {
      return withSession(module, comm, [&](Session& session) -> llvm::Error {
        // Padding is zero whatever was there.
        for (const auto& var : module.vars)
          memset(session.interpreter().data(*var), 7, size_t(var->type.bytes()));
        if (llvm::Error error = session.initialise()) return error;
        expectState(module, session, comm.rank(), false, layout.name);
        return llvm::Error::success();
      });
    });
  }
}

TEST(Checkpoint, IsTheSameFileFromEveryGrid) {
  TemporaryFolder folder;
  std::string first;
  for (const Layout& layout : layouts()) {
    saveFrom(layout, folder.file("c"));
    std::string bytes = contents(folder.file("c/checkpoint.safetensors"));
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << layout.name;
    // One reader checks what many have summed.
    ASSERT_OK(SafetensorsFile::open(folder.file("c/checkpoint.safetensors")));
  }
  EXPECT_EQ(folder.names().size(), 1u);
}

TEST(Checkpoint, LoadsIntoEveryGrid) {
  TemporaryFolder folder;
  for (const Layout& from : layouts()) {
    saveFrom(from, folder.file("c"));
    for (const Layout& to : layouts()) {
      Module module;
      build(to, module);
      test::onGoodRanks(to.grid.ranks(), [&](Communicator& comm) {
        return withSession(module, comm, [&](Session& session) -> llvm::Error {
          for (const auto& var : module.vars)
            memset(session.interpreter().data(*var), 7, size_t(var->type.bytes()));
          std::string note;
          if (llvm::Error error = session.load(folder.file("c"), note)) return error;
          EXPECT_EQ(note, "");
          expectState(module, session, comm.rank(), true,
                      std::string(from.name) + " to " + to.name);
          return llvm::Error::success();
        });
      });
    }
  }
}

TEST(Checkpoint, AnErrorOnOneRankIsOneOfAll) {
  TemporaryFolder folder;
  Layout layout = layouts()[3];
  saveFrom(layout, folder.file("c"));
  std::string path = folder.file("c/checkpoint.safetensors"), good = contents(path);
  Module module;
  build(layout, module);
  auto errors = test::onRanks(4, [&](Communicator& comm) {
    return withSession(module, comm, [&](Session& session) -> llvm::Error {
      if (llvm::Error error = session.initialise()) return error;
      auto* table = reinterpret_cast<float*>(session.interpreter().data(*module.findVar("table")));
      if (comm.rank() == 2) table[3] = NAN;
      return session.save(folder.file("c"));
    });
  });
  for (const std::string& error : errors)
    EXPECT_HAS(error, "rank 2: '" + folder.file("c") + "': 'table' is not finite after step 0");
  EXPECT_TRUE(contents(path) == good);

  // Damage in the last rank's share of the file is seen by all.
  std::string damaged = good;
  damaged.back() ^= 1;
  for (const std::string& bytes : {damaged, good.substr(0, good.size() - 5)}) {
    folder.write("damaged.safetensors", bytes);
    errors = test::onRanks(4, [&](Communicator& comm) {
      return withSession(module, comm, [&](Session& session) -> llvm::Error {
        std::string note;
        return session.load(folder.file("damaged.safetensors"), note);
      });
    });
    for (const std::string& error : errors) EXPECT_HAS(error, "ranks 0-3: '" + folder.path());
  }
}

TEST(Checkpoint, AFullDiskLeavesTheLastOne) {
  TemporaryFolder folder;
  Layout layout = layouts()[3];
  saveFrom(layout, folder.file("c"));
  std::string path = folder.file("c/checkpoint.safetensors"), good = contents(path);
  // A folder in the place of the new file: its rename fails at the very end.
  ASSERT_EQ(rename(path.c_str(), folder.file("kept").c_str()), 0);
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  folder.write("c/checkpoint.safetensors/x", "x");
  Module module;
  build(layout, module);
  auto errors = test::onRanks(4, [&](Communicator& comm) {
    return withSession(module, comm, [&](Session& session) -> llvm::Error {
      if (llvm::Error error = session.initialise()) return error;
      return session.save(folder.file("c"));
    });
  });
  for (const std::string& error : errors) EXPECT_HAS(error, "rank 0: '");
  EXPECT_EQ(contents(folder.file("kept")), good);
  // And nothing is left beside it.
  size_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.file("c"))) {
    EXPECT_EQ(entry.path().filename(), "checkpoint.safetensors");
    ++entries;
  }
  EXPECT_EQ(entries, 1u);
}

}  // namespace
}  // namespace planc
