// The compiler, read top to bottom: every pass in order, what it does and why it stands here. A pass
// takes what it needs from the plan's settings in the module and leaves verified IR without dead
// ops; user errors go to the diagnostics. docs/passes.md is generated from kPasses.
#pragma once

#include "ir/diagnostics.h"
#include "ir/op.h"
#include "llvm/ADT/ArrayRef.h"

namespace planc {

// Adds @backward: the gradient of the loss for every weight, added up over microbatches in
// `gradient` variables; what it needs of @forward is saved in `slot` variables, which the forward
// writes:
//   %y = einsum(%x, %w)      =>   write @x(%x)          and in @backward
//                                 %x = read @x
//                                 %dw = einsum(%x, %dy)
//                                 accum @grad.w(%dw) {first = 1}
// First, because every later pass sees one program with all its work in it.
void autodiff(Module& module, Diagnostics& diags);

// Recomputes in @backward what the plan's `recompute` names (ops, or whole layers) instead of saving
// it: reads of such a slot become copies of the ops that made it. Behind autodiff, which says what
// is saved; before any pass that counts memory.
void recompute(Module& module, Diagnostics& diags);

// With `precision bf16`: a weight read and cast in every microbatch gets a copy in compute precision
// that the step renews. Before `optimizer`, which writes the copies.
void precision(Module& module, Diagnostics& diags);

// Adds @update: global-norm clipping, the learning rate's schedule, AdamW or SGD on every weight.
void optimizer(Module& module, Diagnostics& diags);

// Types every value from the plan's splits and `shard`s; a `reshard` stands where a value's type and a
// use's differ. Behind the optimizer, so that the step is sharded by the same rule; docs/sharding.md.
void shard(Module& module, Diagnostics& diags);

// Each `reshard` becomes the cheapest collectives that serve it.
void collectives(Module& module, Diagnostics& diags);

// Cuts the model between its layers into the stages of the plan's pipeline, one module a stage: its
// functions for each chunk, what it sends and receives, and the order in which it works
// (ir/schedule.h). Behind `collectives`, so that what crosses a boundary is what ranks hold. Without a
// pipeline there is one stage, the module itself.
Modules pipeline(std::unique_ptr<Module> module, Diagnostics& diags);

// Attention whose tokens are cut by ring: a loop over blocks of keys that travel, forward and back.
void ring(Module& module, Diagnostics& diags);

// Each `reshard` of packed rows becomes an exchange with counts between the ranks that pack them and
// those that hold their experts.
void experts(Module& module, Diagnostics& diags);

// Elementwise chains become one `fused` op, also with the sum that ends them; a sum or product that
// is only added to a gradient accumulates in place. Behind everything that makes such ops.
void fuse(Module& module, Diagnostics& diags);

// A `repeat` that gathers each layer's weights gathers them a layer ahead and carries them:
//   repeat(%x) body(%x) {            =>   %0 = read @w {index = 0}
//     %w = read @w                        %1 = all_gather(%0)
//     %g = all_gather(%w)                 repeat(%x, %1) body(%x, %g) {
//     %y = einsum(%x, %g)                   %n = read @w {ahead = 1}
//     yield(%y)                             %h = all_gather(%n) {unless_last = 1}
//   }                                       %y = einsum(%x, %g)
//                                           yield(%y, %h)
//                                         }
// Before `overlap`, which waits for the gather where the body ends.
void prefetch(Module& module, Diagnostics& diags);

// Collectives become start and wait, apart as far as may be; small ones with one aim are joined.
// Behind `fuse`, so that the order of ops is final.
void overlap(Module& module, Diagnostics& diags);

// Gives every variable and value its place in one arena: liveness over the whole step, results laid
// on dying operands, saved values computed where they are saved. The arena's size is exact. After
// `fuse`, which decides what needs memory at all.
void memory(Module& module, Diagnostics& diags);

// The module becomes a rank program: the verifier now demands a place of every variable and value.
void emit(Module& module, Diagnostics& diags);

struct PassInfo {
  llvm::StringRef name;
  void (*run)(Module&, Diagnostics&);  // null: `split` is there
  Modules (*split)(std::unique_ptr<Module>, Diagnostics&);
  llvm::StringRef summary;
};

// The pass list, in order.
llvm::ArrayRef<PassInfo> allPasses();

}  // namespace planc
