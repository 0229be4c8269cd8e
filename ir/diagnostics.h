// User errors: a place in a source, what is wrong in numbers, notes at other places, help. Many per
// run; rendered with the source line and a caret. Ids and texts stand in diagnostics.def.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "ir/op.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/raw_ostream.h"

namespace planc {

enum class Severity : uint8_t { Error, Warning, Note };

enum class Diag : uint16_t {
#define DIAG(id, severity, text) id,
#include "ir/diagnostics.def"
};
llvm::StringRef name(Diag id);
Severity severity(Diag id);
const char* text(Diag id);

struct Note {
  Loc loc;
  std::string text;
};

struct Diagnostic {
  Diag id{};
  Loc loc;
  std::string text;
  std::vector<Note> notes;
  std::string help;  // empty: none

  template <class... Args>
  Diagnostic& note(Loc at, Diag id, Args&&... args) {
    notes.push_back({at, llvm::formatv(planc::text(id), std::forward<Args>(args)...).str()});
    return *this;
  }
  // `help: ...` under the message: what would be right.
  Diagnostic& suggest(const llvm::Twine& what) {
    help = what.str();
    return *this;
  }
};

class Diagnostics {
 public:
  // Registers a source and gives its number for Loc::file. The first file has number 0.
  uint32_t addFile(llvm::StringRef path, std::string text);
  const std::vector<std::string>& paths() const { return paths_; }
  llvm::StringRef source(uint32_t file) const { return sources_[file]; }

  // Adds a message. The reference stays valid, until the next one if it was not kept: a second
  // message with the same id, place and text is dropped.
  template <class... Args>
  Diagnostic& report(Loc loc, Diag id, Args&&... args) {
    return add(id, loc, llvm::formatv(planc::text(id), std::forward<Args>(args)...).str());
  }

  bool failed() const { return errors_ > 0; }
  unsigned errors() const { return errors_; }
  const std::deque<Diagnostic>& messages() const { return messages_; }

  // `path:line:col: error: text`, the source line, the caret, notes, help; sorted by place. After
  // `limit` errors only their number is told.
  void print(llvm::raw_ostream& out, bool showIds = false, unsigned limit = 50) const;

 private:
  Diagnostic& add(Diag id, Loc loc, std::string text);
  void printLine(llvm::raw_ostream& out, Loc loc) const;

  std::vector<std::string> paths_;
  std::deque<std::string> sources_;
  std::deque<Diagnostic> messages_;
  Diagnostic dropped_;  // what a caller adds to a message that is not kept
  llvm::StringSet<> seen_;
  unsigned errors_ = 0;
};

// The nearest of `names` to a misspelt one, or empty: for "did you mean".
std::string nearest(llvm::StringRef word, llvm::ArrayRef<std::string> names);

}  // namespace planc
