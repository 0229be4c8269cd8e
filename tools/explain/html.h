// `planc explain -o report.html`.
#pragma once

#include <string>

#include "tools/explain/report.h"

namespace planc {

// One self-contained page: no scripts, no fonts, no network. The same report gives the same bytes.
std::string reportHtml(const Report& report);

}  // namespace planc
