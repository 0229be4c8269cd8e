#include "passes/passes.h"

namespace planc {

Modules pipeline(std::unique_ptr<Module> module, Diagnostics&) {
  Modules stages;
  stages.push_back(std::move(module));
  return stages;
}

}  // namespace planc
