// Every floating-point type of a module becomes f64. At rank level its buffers are laid out anew.
#pragma once

#include "ir/op.h"

namespace planc {

void widen(Module& module);

}  // namespace planc
