// Wrong plans and the messages they must give, in one file. Cases are split by lines `// -----`; a
// comment in a case expects a message on its own line, on a line so many further, or (@0) one
// without a place; the column is optional, and the text a part of the message's:
//   // expected-error@+1:9 {{'kv' has 4 elements}} expected-help@+1 {{use tensor 1, 2 or 4}}
// Errors must match one to one; notes and help only where expected. A case's line
// `// with: -D layers=2 --grid data=4 --plan p compile` adds options; `compile` compiles the plan.
// Run by tests/frontend over tests/frontend/errors.
#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "frontend/parse.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Support/MemoryBuffer.h"

namespace planc {
namespace {

struct Expectation {
  std::string kind;  // error, warning, note, help
  uint32_t line = 0, column = 0;
  std::string text;
  uint32_t writtenAt = 0;
  bool met = false;
};

// Reads `expected-KIND[@OFFSET][:COLUMN] {{text}}`, all of a line.
void readExpectations(llvm::StringRef line, uint32_t number, std::vector<Expectation>& out) {
  for (;;) {
    size_t at = line.find("expected-");
    if (at == line.npos) return;
    line = line.drop_front(at + 9);
    Expectation expected;
    expected.writtenAt = expected.line = number;
    expected.kind = line.take_while([](char c) { return c >= 'a' && c <= 'z'; }).str();
    line = line.drop_front(expected.kind.size());
    if (line.consume_front("@")) {
      bool back = line.consume_front("-"), forth = line.consume_front("+");
      unsigned offset = 0;
      line.consumeInteger(10, offset);
      expected.line = back ? number - offset : forth ? number + offset : offset;
    }
    if (line.consume_front(":")) line.consumeInteger(10, expected.column);
    size_t open = line.find("{{"), close = line.find("}}");
    if (open == line.npos || close == line.npos || close < open) return;
    expected.text = line.slice(open + 2, close).str();
    line = line.drop_front(close + 2);
    out.push_back(std::move(expected));
  }
}

void readOptions(llvm::StringRef line, CompileOptions& options, bool& compile) {
  size_t at = line.find("// with:");
  if (at == line.npos) return;
  llvm::SmallVector<llvm::StringRef, 8> words;
  line.drop_front(at + 8).split(words, ' ', -1, false);
  for (size_t i = 0; i < words.size(); ++i) {
    auto [key, value] = (i + 1 < words.size() ? words[i + 1] : llvm::StringRef()).split('=');
    if (words[i] == "-D") options.defines.push_back({key.str(), value.str()});
    if (words[i] == "--grid") options.grid.push_back({key.str(), value.str()});
    if (words[i] == "--plan") options.plan = key.str();
    if (words[i] == "compile") compile = true;
  }
}

class Verifier {
 public:
  Verifier(llvm::StringRef path, llvm::raw_ostream& err) : path_(path), err_(err) {}

  // A case is padded with blank lines, so that its messages have the file's line numbers.
  void check(llvm::StringRef text, uint32_t firstLine, CompileOptions options) {
    std::vector<Expectation> expected;
    bool compile = false;
    uint32_t number = firstLine;
    for (llvm::StringRef rest = text; !rest.empty(); ++number) {
      auto [line, after] = rest.split('\n');
      readExpectations(line, number, expected);
      readOptions(line, options, compile);
      rest = after;
    }
    Diagnostics diags;
    auto files = readPlanText(path_, std::string(firstLine - 1, '\n') + text.str(), diags);
    if (!diags.failed()) {
      if (compile) compilePlan(files, options, diags);
      else checkPlans(files, options, diags);
    }
    for (const Diagnostic& message : diags.messages()) compare(message, expected);
    for (const Expectation& e : expected)
      if (!e.met) fail(e.writtenAt) << "no " << e.kind << " {{" << e.text << "}}\n";
  }

  bool good() const { return good_; }

 private:
  llvm::raw_ostream& fail(uint32_t line) {
    good_ = false;
    return err_ << path_ << ':' << line << ": ";
  }

  static bool meet(std::vector<Expectation>& expected, llvm::StringRef kind, Loc loc,
                   llvm::StringRef text) {
    uint32_t line = loc.file == 0 ? loc.line : 0;
    for (Expectation& e : expected)
      if (!e.met && e.kind == kind && e.line == line && text.find(e.text) != text.npos &&
          (e.column == 0 || e.column == loc.column))
        return e.met = true;
    return false;
  }

  void compare(const Diagnostic& message, std::vector<Expectation>& expected) {
    bool isError = severity(message.id) == Severity::Error;
    llvm::StringRef kind = isError ? "error" : "warning";
    if (!meet(expected, kind, message.loc, message.text) && isError)
      fail(message.loc.line) << "unexpected at column " << message.loc.column << ": "
                             << message.text << '\n';
    for (const Note& note : message.notes) meet(expected, "note", note.loc, note.text);
    meet(expected, "help", message.loc, message.help);
  }

  llvm::StringRef path_;
  llvm::raw_ostream& err_;
  bool good_ = true;
};

}  // namespace

bool verifyDiagnostics(llvm::StringRef path, const CompileOptions& options,
                       llvm::raw_ostream& err) {
  auto buffer = llvm::MemoryBuffer::getFile(path);
  if (!buffer) {
    err << path << ": cannot read: " << buffer.getError().message() << '\n';
    return false;
  }
  Verifier verifier(path, err);
  llvm::StringRef rest = (*buffer)->getBuffer();
  uint32_t line = 1;
  while (!rest.empty()) {
    size_t cut = rest.find("// -----\n");
    llvm::StringRef text = rest.substr(0, cut);
    verifier.check(text, line, options);
    line += uint32_t(text.count('\n')) + 1;
    rest = cut == rest.npos ? "" : rest.drop_front(cut + 9);
  }
  return verifier.good();
}

}  // namespace planc
