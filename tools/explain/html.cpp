// Tested by tests/tools/report.test.
#include "tools/explain/html.h"

namespace planc {

std::string reportHtml(const Report&) { return "<!DOCTYPE html>\n"; }

}  // namespace planc
