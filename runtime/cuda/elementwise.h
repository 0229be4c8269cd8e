// One kernel for every elementwise op and fused chain: the chain is a small program in its
// argument, which each thread runs for a few neighbouring elements held in registers.
//
// A program works on `acc` and slots. All inputs are loaded into slots first, so that many loads
// are under way at once and results may lie on operands; then each step does
//   acc = kind(a, b);  slot[to] = acc
// where a and b name acc, a slot or a constant.
//
// The space is cut into cells and items: the sum, where there is one, adds a cell's items. Without
// a sum all loops are cells'. The innermost loop, of cells or items, is cut into units of V
// elements.
#pragma once

#include "runtime/cuda/kernel.h"

namespace planc::cuda {

// The kinds that steps share with OpKind.
#define PLANC_STEPS(X)                                                                       \
  X(Add) X(Sub) X(Mul) X(Div) X(Max) X(Min) X(Ge) X(Neg) X(Exp) X(Log) X(Sqrt) X(Rsqrt)      \
  X(Square) X(Tanh) X(Sigmoid) X(Relu) X(Silu) X(Gelu) X(GeluTanh) X(ReluGrad) X(SiluGrad)   \
  X(GeluGrad) X(GeluTanhGrad)

enum class StepKind : uint8_t {
#define KIND(Kind) Kind,
  PLANC_STEPS(KIND)
#undef KIND
  Move,   // acc = a
  Store,  // result `to` = acc, rounded to its type
};

// `a` and `b`: kAcc, a slot from 0 on, or a constant: ~2 - its number.
inline constexpr int16_t kAcc = -1, kNoSlot = -1;
inline constexpr int16_t constantCode(int number) { return int16_t(-2 - number); }

struct Step {
  StepKind kind;
  int16_t a, b, to;
};

// How the V elements of a unit lie: next to each other and aligned; one for all; `step` apart.
enum class Access : uint8_t { Vector, Same, Strided };

// What the blocks do, in cells and items (of units, where the innermost loop is theirs).
struct Split {
  int64_t cells, items;
  int32_t chunks;       // the items are cut into so many runs, one a row of blocks
  int32_t itemThreads;  // of a block share a cell's items: a power of 2
  int32_t unitLoop;     // the loop of units; -1: in front of none
  int64_t unitSize;     // elements of that loop
  bool sums, addsUp;    // addsUp: items are units, whose elements are summed too
  bool adds;            // to what the result holds
};

inline constexpr int kChainThreads = 128;
inline constexpr int kChainLoops = 4, kChainTensors = 16, kChainSteps = 48, kChainConstants = 16;

struct ChainTensor {
  void* data;
  int64_t strides[kChainLoops];  // by loop, in elements; of the loop of units: from unit to unit
  int64_t step;                  // in a unit
  Elem elem;
  Access access;
};

// Loops stand innermost first, first the cells', then the items'. Tensors: the inputs, in the order
// of their slots, then results, then the sum's target.
struct ChainArgs {
  Split split;
  int32_t cellLoops, loops, inputs, outputs, steps;
  int64_t chunkStride;  // of the target: partial sums
  uint32_t sizes[kChainLoops];
  ChainTensor tensors[kChainTensors];
  Step code[kChainSteps];
  float constants[kChainConstants];
};
static_assert(sizeof(ChainArgs) <= 4000);

// By how many slots a chain needs: V 8 with 3 (or 2 and a sum), V 8 with 6, V 4 with 12.
inline constexpr int kFewSlots = 3, kFewSumSlots = 2, kSomeSlots = 6, kManySlots = 12;
extern const Kernel<ChainArgs> kChainFew, kChainSome, kChainMany;
extern const Kernel<ChainArgs> kChainSumFew, kChainSumSome, kChainSumMany;

// Any chain, one element at a time (V 1): slots in shared memory, the program in device memory.
// Also what computes in double.
inline constexpr int kLongLoops = 8, kLongTensors = 256;

struct LongTensor {
  int64_t strides[kLongLoops];
  Elem elem;
};
struct LongArgs {
  Split split;
  int32_t cellLoops, loops, inputs, outputs, steps;
  int32_t slots;
  int64_t chunkStride;
  int64_t sizes[kLongLoops];
  const LongTensor* tensors;
  const Step* code;
  const double* constants;
  LongTensor target;
  void* data[kLongTensors];
};
static_assert(sizeof(LongArgs) <= 4000);

extern const Kernel<LongArgs> kLongChainF32, kLongChainF64;

// Copies [planes][rows][columns] to where rows lie next to each other: tiles through shared memory.
inline constexpr int kTransposeThreads = 256, kTile = 64, kPlaneLoops = 6;
struct TransposeArgs {
  ConstRef from;
  Ref to;
  int64_t rows, columns;
  int64_t fromRow, toColumn;  // strides; the others are 1
  int32_t planeLoops;         // innermost first
  int64_t planeSizes[kPlaneLoops], fromPlanes[kPlaneLoops], toPlanes[kPlaneLoops];
};
extern const Kernel<TransposeArgs> kTransposeF32, kTransposeF64;

}  // namespace planc::cuda
