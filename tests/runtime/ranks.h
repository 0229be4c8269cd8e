// Programs and ranks for tests: ranks as threads, variables with places.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "ir/op.h"
#include "runtime/comm.h"
#include "runtime/elements.h"
#include "runtime/runs.h"

namespace planc::test {

// Runs `body` as each rank; what each returned as an error, empty where it did well.
inline std::vector<std::string> onRanks(int64_t ranks,
                                        const std::function<llvm::Error(Communicator&)>& body) {
  auto team = makeThreadTeam(int(ranks), std::chrono::seconds(10));
  std::vector<std::string> errors{size_t(ranks)};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < int(ranks); ++rank)
    threads.emplace_back([&, rank] {
      auto comm = team->communicator(rank);
      errors[size_t(rank)] = llvm::toString(body(*comm));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(team->failure(), "");
  return errors;
}

// The same, when all must do well.
inline void onGoodRanks(int64_t ranks, const std::function<llvm::Error(Communicator&)>& body) {
  for (const std::string& error : onRanks(ranks, body)) EXPECT_EQ(error, "");
}

// `a.b 12/x`: a dim over axes of the grid.
inline Dim dim(const Grid& grid, const std::string& name, int64_t whole, const Words& over = {}) {
  Axes axes;
  for (const std::string& axis : over) axes.push_back(grid.find(axis).front());
  return splitDim({name, whole}, axes);
}

inline Axes axes(const Grid& grid, const Words& names) {
  Axes list;
  for (const std::string& name : names) list.push_back(grid.find(name).front());
  return list;
}

// Gives everything a place of its own; what is read lies in its variable.
inline void place(Module& module) {
  module.level = Level::Rank;
  auto next = [&](const Type& type) {
    Place place{module.arenaBytes, {}};
    module.arenaBytes += (type.bytes() + 63) / 64 * 64;
    return place;
  };
  for (const auto& var : module.vars) var->place = next(var->type);
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) {
      for (Value* result : op->results())
        result->place = op->kind == OpKind::Read ? *op->var->place : next(result->type);
      // A wait's results lie where those of the op it ends do.
      if (op->kind == OpKind::Wait)
        for (Value* result : op->results()) result->place = op->operand(result->index())->place;
    });
}

// Sets a rank's piece of a variable, padding too, element by element of the whole.
template <class F>
void fill(const Type& type, const Coordinates& rank, void* data, F&& value, double padding = -9) {
  for (int64_t i = 0; i < type.elements(); ++i) store(type.elem, data, i, padding);
  Runs runs = pieceRuns(type, rank);
  runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) {
    for (int64_t i = 0; i < count; ++i) store(type.elem, data, a + i, value(b + i));
  });
}

// Whether a rank's piece is that, and its padding zero.
template <class F>
void expectPiece(const Type& type, const Coordinates& rank, const void* data, F&& value,
                 const std::string& what) {
  std::vector<double> expected(size_t(type.elements()), 0), found;
  Runs runs = pieceRuns(type, rank);
  runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) {
    for (int64_t i = 0; i < count; ++i) expected[size_t(a + i)] = value(b + i);
  });
  for (int64_t i = 0; i < type.elements(); ++i) found.push_back(fetch(type.elem, data, i));
  EXPECT_EQ(found, expected) << what << ": " << type.str() << " on rank " << rank.rank();
}

}  // namespace planc::test
