// The last pass: the module becomes a rank program, in which every variable and value has its place.
// A `write` whose value was made in place stays: it costs nothing to run, and tells the verifier
// where a slot's contents come from. Tested by tests/passes/emit.
#include "passes/passes.h"

namespace planc {

void emit(Module& module, Diagnostics&) { module.level = Level::Rank; }

}  // namespace planc
