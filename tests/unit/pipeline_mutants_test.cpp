#include <gtest/gtest.h>

#include <chrono>

#include "ir/protocol.h"
#include "stages.h"

namespace planc {
namespace {

std::string verdict(const Planx& planx) {
  llvm::Error error = checkFits(planx);
  if (!error) error = checkProtocol(planx);
  return llvm::toString(std::move(error));
}

TEST(Pipeline, StagesFit) {
  for (int stages : {2, 3, 4})
    for (int chunks : {1, 2, 3})
      for (bool isAhead : {false, true})
        for (int microbatches : {1, 2, 7, 12}) {
          if (chunks > 1 && (microbatches % stages != 0)) continue;
          Planx planx = test::stages({.stages = stages,
                                      .chunks = chunks,
                                      .microbatches = microbatches,
                                      .collectives = 1,
                                      .isAhead = isAhead});
          EXPECT_EQ(verdict(planx), "") << stages << " stages, " << chunks << " chunks, " << isAhead << ", "
                                        << microbatches << " microbatches";
        }
}

// Llama 3 405B's size: 16 stages, 128 layers, thousands of calls a stage.
TEST(Pipeline, ManyCallsAreFast) {
  for (int chunks : {1, 2, 4}) {
    Planx planx = test::stages({.stages = 16,
                                .chunks = chunks,
                                .microbatches = 128,
                                .layers = 8 / chunks,
                                .collectives = 16,
                                .isAhead = true});
    auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(verdict(planx), "");
    double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_LT(seconds, 0.7) << chunks << " chunks";
    printf("%d chunks: %zu calls, %.3f s\n", chunks, planx.roles[0]->schedule.size(), seconds);
  }
}

}  // namespace
}  // namespace planc
