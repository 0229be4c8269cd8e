// Prints ops.def. Tested by tests/checks/docs.py: docs/ir.md must hold this very table.
#include "ir/table.h"

#include "ir/op.h"
#include "llvm/Support/Format.h"

namespace planc {

static std::string traitNames(uint32_t traits) {
  static const std::pair<Trait, llvm::StringRef> kNames[] = {
      {Elementwise, "elementwise"}, {InPlace, "in place"}, {Effect, "effect"}, {Var, "variable"},
      {Accumulates, "accumulates"}, {Gradient, "gradient"}};
  std::string text;
  for (const auto& [trait, name] : kNames)
    if (traits & trait) text += (text.empty() ? "" : ", ") + name.str();
  return text;
}

void printOpTable(llvm::raw_ostream& out, bool markdown) {
  if (markdown)
    out << "| op | operands | results | special dims | traits | meaning |\n"
           "| --- | --- | --- | --- | --- | --- |\n";
  for (const OpInfo& op : allOps()) {
    std::string operands = std::to_string(op.minOperands);
    if (op.maxOperands < 0) operands += "...";
    else if (op.maxOperands != op.minOperands) operands += "-" + std::to_string(op.maxOperands);
    std::string results = op.results < 0 ? "any" : std::to_string(op.results);
    if (markdown) {
      std::string doc;
      for (char c : op.doc) doc += c == '|' ? std::string("\\|") : std::string(1, c);
      out << "| `" << op.text << "` | " << operands << " | " << results << " | "
          << (op.special.empty() ? "" : "`" + op.special.str() + "`") << " | "
          << traitNames(op.traits) << " | " << doc << " |\n";
    } else {
      out << llvm::left_justify(op.text, 20) << op.doc << '\n';
    }
  }
}

}  // namespace planc
