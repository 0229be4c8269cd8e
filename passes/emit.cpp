// The last pass: the module becomes a rank program, in which every variable and value has its place.
// A `write` whose value was made in place stays: it costs nothing to run, and tells the verifier
// where a slot's contents come from. Tested by tests/passes/emit.
#include "llvm/ADT/STLExtras.h"
#include "passes/passes.h"

namespace planc {

void emit(Module& module, Diagnostics& diags) {
  bool isPlaced = llvm::all_of(module.vars, [](const auto& var) { return bool(var->place); });
  for (const auto& function : module.functions)
    for (const Op* op : function->body->ops)
      for (const Value* result : op->results()) isPlaced &= bool(result->place);
  if (isPlaced) module.level = Level::Rank;
  else diags.report({}, Diag::PassOrder, "emit", "every function called and placed by 'memory'");
}

}  // namespace planc
