// Collects and renders user errors. Rendering sorts by place and cuts long lines round the caret.
// Tested by tests/frontend/errors and tests/unit/ir_test.cpp.
#include "ir/diagnostics.h"

#include <algorithm>
#include <string>

namespace planc {

namespace {
struct DiagInfo {
  llvm::StringRef name;
  Severity severity;
  const char* text;
};
const DiagInfo kDiags[] = {
#define DIAG(id, severity, text) {#id, Severity::severity, text},
#include "ir/diagnostics.def"
};
constexpr size_t kMaxLine = 160;       // columns of source shown
constexpr size_t kMaxMessages = 2000;  // kept; further errors are only counted
constexpr size_t kMaxDropped = 100;    // whose references stay valid
}  // namespace

llvm::StringRef name(Diag id) { return kDiags[size_t(id)].name; }
Severity severity(Diag id) { return kDiags[size_t(id)].severity; }
const char* text(Diag id) { return kDiags[size_t(id)].text; }

uint32_t Diagnostics::addFile(llvm::StringRef path, std::string text) {
  paths_.push_back(path.str());
  sources_.push_back(std::move(text));
  return uint32_t(paths_.size() - 1);
}

Diagnostic& Diagnostics::add(Diag id, Loc loc, std::string text) {
  std::string key = std::to_string(size_t(id)) + ':' + std::to_string(loc.file) + ':' +
                    std::to_string(loc.line) + ':' + std::to_string(loc.column) + ':' + text;
  bool isNew = messages_.size() < kMaxMessages ? seen_.insert(key).second : true;
  if (isNew && severity(id) == Severity::Error) ++errors_;
  if (isNew && messages_.size() < kMaxMessages)
    return messages_.emplace_back(Diagnostic{id, loc, std::move(text), {}, {}});
  dropped_ = Diagnostic{id, loc, std::move(text), {}, {}};
  return dropped_;
}

void Diagnostics::printLine(llvm::raw_ostream& out, Loc loc) const {
  if (!loc.known() || loc.file >= sources_.size()) return;
  llvm::StringRef text = sources_[loc.file];
  for (uint32_t line = 1; line < loc.line && !text.empty(); ++line) text = text.split('\n').second;
  llvm::StringRef line = text.split('\n').first.rtrim('\r');
  size_t column = std::min<size_t>(loc.column ? loc.column - 1 : 0, line.size());
  size_t start = column > kMaxLine / 2 && line.size() > kMaxLine ? column - kMaxLine / 2 : 0;
  llvm::StringRef shown = line.substr(start, kMaxLine);
  // Anything that is not printable ASCII could move the caret or the terminal: show it as `?`; a
  // tab as a blank.
  auto plain = [](char c) { return c == '\t' ? ' ' : c >= 32 && c < 127 ? c : '?'; };
  for (char c : shown) out << plain(c);
  out << '\n';
  out.indent(unsigned(column - start)) << '^';
  size_t room = shown.size() - std::min(shown.size(), column - start);
  for (size_t i = 1; i < std::min<size_t>(loc.length, room); ++i) out << '~';
  out << '\n';
}

void Diagnostics::print(llvm::raw_ostream& out, bool showIds, unsigned limit) const {
  std::vector<const Diagnostic*> sorted;
  for (const Diagnostic& message : messages_) sorted.push_back(&message);
  auto key = [](const Diagnostic* m) {
    return std::tuple(m->loc.file, m->loc.line, m->loc.column);
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Diagnostic* a, const Diagnostic* b) { return key(a) < key(b); });

  auto place = [&](Loc loc) {
    if (loc.file < paths_.size()) {
      out << paths_[loc.file] << ':';
      if (loc.known()) out << loc.line << ':' << loc.column << ':';
      out << ' ';
    }
  };
  unsigned errors = 0;
  for (const Diagnostic* message : sorted) {
    bool isError = severity(message->id) == Severity::Error;
    if (isError && errors++ >= limit) continue;
    place(message->loc);
    out << (isError ? "error: " : "warning: ") << message->text;
    if (showIds) out << " [" << name(message->id) << ']';
    out << '\n';
    printLine(out, message->loc);
    for (const Note& note : message->notes) {
      place(note.loc);
      out << "note: " << note.text << '\n';
      printLine(out, note.loc);
    }
    if (!message->help.empty()) out << "  help: " << message->help << '\n';
  }
  if (errors_ > limit) out << "and " << errors_ - limit << " more errors\n";
}

std::string nearest(llvm::StringRef word, llvm::ArrayRef<std::string> names) {
  std::string best;
  unsigned bestDistance = unsigned(std::max<size_t>(1, (word.size() + 1) / 3)) + 1;
  for (const std::string& candidate : names) {
    // Letters in another order are one slip of the hand.
    bool isSwapped = word.size() == candidate.size() && word.size() > 2 &&
                     std::is_permutation(word.begin(), word.end(), candidate.begin());
    unsigned distance = isSwapped ? 0 : word.edit_distance(candidate, true, bestDistance);
    if (distance < bestDistance && candidate != word) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best;
}

}  // namespace planc
