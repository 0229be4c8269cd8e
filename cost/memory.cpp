// Tested by tests/unit/memory_bill_test.cpp.
#include "cost/memory.h"

namespace planc {

MemoryBill memoryOf(const Module& role) {
  MemoryBill bill;
  bill.arena = role.arenaBytes;
  return bill;
}

}  // namespace planc
