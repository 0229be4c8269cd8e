// `planc explain -o report.html`.
#pragma once

#include <string>

#include "tools/explain/report.h"

namespace planc {

// One self-contained page: no scripts from elsewhere, no fonts, no network.
std::string reportHtml(const Report& report);

}  // namespace planc
