// A program in f64: what `planrun verify` runs, so that a real fault can't hide in rounding. Ops and
// messages stay as they are. Tested by tests/tools/verify.test.
#include "passes/widen.h"

#include "passes/passes.h"

namespace planc {

void widen(Module& module) {
  auto wide = [](Type& type) {
    if (isFloat(type.elem)) type.elem = Elem::F64;
  };
  auto value = [&](Value* v) {
    wide(v->type);
    v->place.reset();
  };
  for (const auto& var : module.vars) {
    wide(var->type);
    var->place.reset();
  }
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) {
      for (Value* result : op->results()) value(result);
      if (op->body)
        for (Value* arg : op->body->args()) value(arg);
    });
  module.settings.set("precision", std::string("f64"));
  module.settings.set("gradients", std::string("f64"));
  if (module.level != Level::Rank) return;
  module.level = Level::Sharded;
  Diagnostics none;
  memory(module, none);
  emit(module, none);
}

}  // namespace planc
