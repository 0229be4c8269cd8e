// What a compiled plan says it sends is what its ranks send, also where the last layer leaves out what
// the others gather for the next.
#include "runtime/interpreter.h"
#include "tests/runtime/ranks.h"
#include "tests/unit/sharded.h"

namespace planc {
namespace {

TEST(Prefetch, SendsWhatTrafficCounts) {
  for (const char* recompute : {"none", "layer"}) {
    auto module =
        test::sharded(test::dense(std::string(test::kTensor) +
                                  "shard weights over data microbatches 2 recompute " + recompute),
                      "emit");
    ASSERT_TRUE(module);
    int64_t expected = trafficOf(*module).total().bytes;
    test::onGoodRanks(4, [&](Communicator& comm) -> llvm::Error {
      auto device = makeCpuDevice(1, Coordinates(module->grid, comm.rank()));
      auto made = Interpreter::create(*module, *device, &comm);
      if (!made) return made.takeError();
      for (const Call& call : module->schedule)
        if (llvm::Error error = (*made)->run(call, 0, 1)) return error;
      EXPECT_EQ(comm.bytesSent(), expected) << "rank " << comm.rank();
      return llvm::Error::success();
    });
  }
}

}  // namespace
}  // namespace planc
