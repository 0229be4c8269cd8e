// The canonical layout of a plan file. Works on tokens, so that nothing is lost and comments stay
// where they are; the AST says where statements begin. No token is added or dropped: the formatted
// text parses to the same AST. A statement begins a line; line breaks inside one are kept, indented
// by four; runs of like lines are aligned. Tested by tests/frontend/fmt and
// tests/unit/frontend_test.cpp.
#include <algorithm>
#include <map>

#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "frontend/parse.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

namespace planc {
namespace {

struct Token {
  enum Kind { Word, Number, String, Sign, LineComment, BlockComment } kind = Sign;
  llvm::StringRef text;
  uint32_t line = 0, column = 0;
  unsigned newlines = 0;  // line ends between the token before and this one

  bool is(llvm::StringRef t) const { return text == t && kind != String; }
  bool isComment() const { return kind == LineComment || kind == BlockComment; }
};

// The tokens of a text that parses, comments included.
std::vector<Token> lex(llvm::StringRef text) {
  std::vector<Token> tokens;
  uint32_t line = 1;
  size_t lineStart = 0;
  unsigned newlines = 0;
  auto isWord = [](char c) { return llvm::isAlnum(c) || c == '_'; };
  for (size_t at = text.take_front(3) == "\xEF\xBB\xBF" ? 3 : 0; at < text.size();) {
    char c = text[at];
    if (c == '\n') {
      ++line, ++newlines, lineStart = ++at;
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\r') {
      ++at;
      continue;
    }
    llvm::StringRef rest = text.drop_front(at);
    Token token;
    size_t length = 1;
    if (rest.take_front(2) == "//") {
      token.kind = Token::LineComment;
      length = rest.find('\n');
    } else if (rest.take_front(2) == "/*") {
      token.kind = Token::BlockComment;
      length = rest.find("*/", 2) + 2;
    } else if (c == '"') {
      token.kind = Token::String;
      length = rest.find('"', 1) + 1;
    } else if (llvm::isDigit(c)) {
      token.kind = Token::Number;
      length = rest.find_if_not(llvm::isDigit);
      auto digitsFrom = [&](size_t from) {
        size_t end = rest.find_if_not(llvm::isDigit, from);
        if (from < rest.size() && end != from) length = end;
      };
      if (length < rest.size() && rest[length] == '.') digitsFrom(length + 1);
      if (length < rest.size() && (rest[length] == 'e' || rest[length] == 'E')) {
        llvm::StringRef sign = rest.substr(length + 1, 1);
        bool isSigned = sign == "-" || sign == "+";
        digitsFrom(length + (isSigned ? 2 : 1));
      }
    } else if (isWord(c)) {
      token.kind = Token::Word;
      length = rest.find_if_not(isWord);
    } else if (rest.take_front(2) == "==" || rest.take_front(2) == "!=" ||
               rest.take_front(2) == "<=" || rest.take_front(2) == ">=") {
      length = 2;
    }
    token.text = rest.take_front(length);
    token.line = line;
    token.column = uint32_t(at - lineStart + 1);
    token.newlines = newlines;
    newlines = 0;
    line += uint32_t(token.text.count('\n'));
    if (size_t last = token.text.rfind('\n'); last != token.text.npos) lineStart = at + last + 1;
    at += token.text.size();
    tokens.push_back(token);
  }
  return tokens;
}

// Where statements (Body) and entries in braces (Entry) begin.
enum class Start { Body, Entry };
using Starts = std::map<std::pair<uint32_t, uint32_t>, Start>;

class StartFinder {
 public:
  Starts starts;

  void visit(const ast::File& file) {
    for (const ast::Item& item : file.items) {
      if (auto* device = std::get_if<ast::Device>(&item)) entries(device->entries);
      if (auto* cluster = std::get_if<ast::Cluster>(&item))
        for (const auto& level : cluster->levels) {
          add(level.name.loc, Start::Body);
          entries(level.entries);
        }
      if (auto* module = std::get_if<ast::Module>(&item)) visit(module->body);
      if (auto* plan = std::get_if<ast::Plan>(&item))
        for (const ast::PlanStmt& stmt : plan->body) {
          add(stmt.loc, Start::Body);
          if (auto* p = std::get_if<ast::Precision>(&stmt.node)) entries(p->entries);
          if (auto* o = std::get_if<ast::Optimizer>(&stmt.node)) entries(o->entries);
        }
    }
  }

 private:
  void add(Loc loc, Start start) { starts[{loc.line, loc.column}] = start; }
  template <class Entries>
  void entries(const Entries& list) {
    for (const auto& entry : list) add(entry.key.loc, Start::Entry);
  }
  // `dim` is a reserved word, and one statement makes several DimDecls: the layout goes by the
  // word.
  void visit(const std::vector<ast::Stmt>& body) {
    for (const ast::Stmt& stmt : body) {
      if (!std::holds_alternative<ast::DimDecl>(stmt.node)) add(stmt.loc, Start::Body);
      if (auto* repeat = std::get_if<ast::Repeat>(&stmt.node)) visit(repeat->body);
      if (auto* branch = std::get_if<ast::If>(&stmt.node)) {
        visit(branch->then);
        visit(branch->otherwise);
        // The `if` of an `else if` has its condition's place.
        if (branch->otherwise.size() == 1) elseIf(branch->otherwise.front());
      }
    }
  }
  void elseIf(const ast::Stmt& stmt) {
    auto* inner = std::get_if<ast::If>(&stmt.node);
    if (inner != nullptr && stmt.loc.length != 2) starts.erase({stmt.loc.line, stmt.loc.column});
  }
};

struct Line {
  unsigned indent = 0;
  bool blankBefore = false;
  std::string text;
  std::string comment;         // at its end
  char alignKind = 0;          // lines of one kind that follow each other are aligned...
  size_t alignAt = 0;          // ... here
  std::vector<size_t> breaks;  // where a line that is too long may be broken
  bool continues = false;      // begins inside a statement
};

constexpr size_t kColumns = 100;

class Layout {
 public:
  explicit Layout(const Starts& starts) : starts_(starts) {}

  std::string run(std::vector<Token> tokens) {
    tokens_ = std::move(tokens);
    for (at_ = 0; at_ < tokens_.size(); ++at_) {
      const Token& token = tokens_[at_];
      if (token.isComment()) comment(token);
      else place(token);
    }
    align();
    wrap();
    return print();
  }

 private:
  struct Group {
    bool isBody = false;       // one statement a line
    bool isMultiline = false;  // bodies, and groups of entries that the user broke
  };

  const Token* before() const {
    for (size_t i = at_; i-- > 0;)
      if (!tokens_[i].isComment()) return &tokens_[i];
    return nullptr;
  }
  const Token* after() const { return at_ + 1 < tokens_.size() ? &tokens_[at_ + 1] : nullptr; }

  bool startsItem() const {
    const Token* last = before();
    return groups_.empty() && parens_ == 0 &&
           (last == nullptr || last->is("}") || last->kind == Token::String);
  }
  bool startsLine(const Token& token) const {
    if (startsItem()) return true;
    if (groups_.empty() || !groups_.back().isMultiline) return false;
    if (item_ == "module" && token.is("dim") && parens_ == 0) return true;
    auto start = starts_.find({token.line, token.column});
    if (start == starts_.end()) return false;
    const Token* last = before();
    if (token.is("if") && last != nullptr && last->is("else")) return false;
    return start->second == Start::Body || !groups_.back().isBody;
  }

  void newLine(unsigned indent, bool blankBefore, bool continues = false) {
    lines_.push_back({indent, blankBefore && !lines_.empty(), "", "", 0, 0, {}, continues});
    lineOpen_ = true;
  }
  unsigned bodyIndent() const {
    unsigned indent = 0;
    for (const Group& group : groups_) indent += group.isMultiline ? 2 : 0;
    return indent;
  }
  // A line may begin with blank space before it unless it opens a body.
  bool wantsBlank(const Token& token) const {
    return token.newlines > 1 && !(at_ > 0 && opensGroup_);
  }

  void comment(const Token& token) {
    std::string text = token.text.rtrim().str();
    text.erase(std::remove(text.begin(), text.end(), '\r'), text.end());
    if (token.newlines == 0 && at_ > 0) {
      if (token.kind == Token::BlockComment && after() != nullptr && after()->newlines == 0 &&
          !atLineStart()) {
        append(text, !lines_.back().text.empty());
      } else {
        // A second trailing comment can only be a block's.
        std::string& end = lines_.back().comment;
        end += (end.empty() ? "" : " ") + text;
        lineOpen_ = false;
      }
      return;
    }
    bool isBetweenItems = groups_.empty() && parens_ == 0 && (before() == nullptr || startsItem());
    bool blank = wantsBlank(token) ||
                 (isBetweenItems && before() != nullptr && before()->is("}") && !commentOpen_);
    newLine(bodyIndent() + (isBetweenItems || atStatementStart() ? 0 : 4), blank);
    append(text, false);
    lineOpen_ = token.kind == Token::BlockComment && after() != nullptr && after()->newlines == 0;
    commentOpen_ = true;
    opensGroup_ = false;
  }

  // Whether what follows the comment at hand begins a line.
  bool atLineStart() {
    return atStatementStart() &&
           (after() == nullptr || !after()->is("}") || groups_.back().isMultiline);
  }
  // Whether it is a statement, an entry, or a group's end.
  bool atStatementStart() {
    size_t here = at_;
    for (; at_ < tokens_.size() && tokens_[at_].isComment(); ++at_) {
    }
    bool starts = at_ == tokens_.size() || tokens_[at_].is("}") || tokens_[at_].is("else") ||
                  startsLine(tokens_[at_]);
    at_ = here;
    return starts;
  }

  void append(llvm::StringRef text, bool space) {
    Line& line = lines_.back();
    if (space) line.text += ' ';
    line.text += text;
  }

  void place(const Token& token) {
    const Token* last = before();
    if (token.is("}")) {
      closeGroup(token);
      return;
    }
    bool starts = startsLine(token) || lines_.empty();
    if (starts && startsItem()) {
      bool isImportRun = last != nullptr && last->kind == Token::String && token.is("import");
      bool blank = commentOpen_ ? wantsBlank(token) : !isImportRun || wantsBlank(token);
      if (!(commentOpen_ && lineOpen_)) newLine(0, blank);
      item_ = token.is("model") ? "module" : token.text;
    } else if (starts) {
      if (!(commentOpen_ && lineOpen_)) newLine(bodyIndent(), wantsBlank(token));
    } else if (!lineOpen_ || (token.newlines > 0 && keepsBreak(token))) {
      newLine(bodyIndent() + (token.is("else") ? 0 : 4), false, !token.is("else"));
    }
    if (starts) statement_ = token.text, statementTokens_ = 0, hasDims_ = false;
    markAlignment(token);
    append(token.text, !lines_.back().text.empty() && needsSpace(last, token));
    alignAfterAppend(token);
    ++statementTokens_;
    opensGroup_ = commentOpen_ = false;
    if (token.is("(") || token.is("[")) ++parens_, brackets_ += token.text;
    if (token.is(")") || token.is("]")) --parens_, brackets_.pop_back();
    if (token.is(",") && (brackets_ == "(" || (brackets_.empty() && item_ != "module")))
      lines_.back().breaks.push_back(lines_.back().text.size());
    if (token.is("{")) openGroup();
  }

  static bool keepsBreak(const Token& token) {
    return !token.is("{") && !token.is("else") && !token.is(",") && !token.is(")") &&
           !token.is("]");
  }

  void openGroup() {
    bool isBody = item_ == "module" || (groups_.empty() && item_ != "device");
    bool isMultiline = isBody || (after() != nullptr && after()->newlines > 0);
    // A line comment inside forces lines.
    for (size_t i = at_ + 1, depth = 1; i < tokens_.size() && depth > 0 && !isMultiline; ++i) {
      depth += tokens_[i].is("{") ? 1 : tokens_[i].is("}") ? -1 : 0;
      isMultiline = tokens_[i].kind == Token::LineComment && depth > 0;
    }
    bool isEmpty = after() != nullptr && after()->is("}");
    groups_.push_back({isBody, isMultiline && !isEmpty});
    opensGroup_ = true;
  }

  void closeGroup(const Token&) {
    bool isMultiline = groups_.back().isMultiline;
    groups_.pop_back();
    if (isMultiline || !lineOpen_) newLine(bodyIndent(), false);
    append("}", !isMultiline && !lines_.back().text.empty());
    opensGroup_ = commentOpen_ = false;
    ++statementTokens_;
  }

  // Where `/` and `-` belong to quantities: outside of brackets in anything but a module.
  bool inQuantities() const { return item_ != "module" && parens_ == 0; }

  bool needsSpace(const Token* last, const Token& token) const {
    if (last == nullptr || tokens_[at_ - 1].isComment()) return true;
    if (token.is(",") || token.is(")") || token.is("]")) return false;
    if (last->is("(") || last->is("[")) return false;
    if (inQuantities() && (token.is("/") || last->is("/"))) return false;
    if (isUnary_) return false;
    if (token.is("(")) return !isCallee(*last);
    if (token.is("[")) return statement_ == "weight" || last->kind != Token::Word;
    return true;
  }
  bool isCallee(const Token& last) const {
    if (last.kind != Token::Word) return false;
    bool isKeyword = last.is("return") || last.is("if") ||
                     (last.is("loss") && statementTokens_ == 1 && item_ == "module");
    return !isKeyword;
  }

  // Notes what the token means for alignment and for the token after it.
  void markAlignment(const Token& token) {
    Line& line = lines_.back();
    const Token* last = before();
    bool isFirst = line.text.empty();
    if (isFirst || line.alignKind != 0 || parens_ > 0) return;
    auto mark = [&](char kind) {
      line.alignKind = kind;
      line.alignAt = line.text.size() + (needsSpace(last, token) ? 1 : 0);
    };
    static constexpr llvm::StringRef kSettings[] = {
        "grid", "microbatches", "precision", "recompute", "optimizer", "seed", "place"};
    if (item_ == "module") {
      if (statement_ == "weight" && token.is("[")) mark('w');
      if (statement_ == "input" && token.is(":")) mark('i');
      if (hasDims_ && token.is("=") && statement_ != "return") mark('a');
    } else if (item_ == "plan" && groups_.size() == 1) {
      if (token.is("over")) mark('o');
      if (statementTokens_ == 1 && llvm::is_contained(kSettings, statement_)) mark('s');
    } else if (item_ == "device" && groups_.size() == 1 && statementTokens_ == 1) {
      mark('d');
    }
  }
  void alignAfterAppend(const Token& token) {
    const Token* last = before();
    hasDims_ |= token.is("]") && item_ == "module" && statement_ != "weight";
    bool operandBefore =
        last != nullptr && (last->kind != Token::Sign || last->is(")") || last->is("]"));
    bool keywordBefore = last != nullptr && (last->is("return") || last->is("if") ||
                                             (last->is("loss") && statementTokens_ == 1));
    isUnary_ = token.is("-") && (!operandBefore || keywordBefore || inQuantities());
  }

  // Aligns the runs; a line that would need much blank space ends its run.
  void align() {
    constexpr size_t kMostPadding = 30;
    for (size_t from = 0; from < lines_.size();) {
      size_t to = from + 1, least = lines_[from].alignAt, most = least;
      for (; to < lines_.size() && lines_[to].alignKind == lines_[from].alignKind &&
             lines_[to].indent == lines_[from].indent && !lines_[to].blankBefore;
           ++to) {
        size_t newLeast = std::min(least, lines_[to].alignAt);
        size_t newMost = std::max(most, lines_[to].alignAt);
        if (newMost - newLeast > kMostPadding) break;
        least = newLeast, most = newMost;
      }
      for (size_t i = from; i < to && lines_[from].alignKind != 0; ++i) {
        size_t padding = most - lines_[i].alignAt;
        lines_[i].text.insert(lines_[i].alignAt, padding, ' ');
        for (size_t& at : lines_[i].breaks) at += at > lines_[i].alignAt ? padding : 0;
      }
      from = to;
    }
  }

  // Breaks lines that are too long after arguments or parameters, as late as fits.
  void wrap() {
    std::vector<Line> wrapped;
    for (Line& line : lines_) {
      unsigned more = line.continues ? 0 : 4;
      while (line.indent + line.text.size() > kColumns) {
        size_t cut = 0;
        for (size_t at : line.breaks)
          if (at < line.text.size() && (cut == 0 || line.indent + at <= kColumns)) cut = at;
        if (cut == 0) break;
        Line rest = {
            line.indent + more, false, line.text.substr(cut + 1), line.comment, 0, 0, {}, true};
        for (size_t at : line.breaks)
          if (at > cut) rest.breaks.push_back(at - cut - 1);
        line.text.resize(cut);
        line.comment.clear();
        wrapped.push_back(std::move(line));
        line = std::move(rest);
        more = 0;
      }
      wrapped.push_back(std::move(line));
    }
    lines_ = std::move(wrapped);
  }

  std::string print() const {
    std::string out;
    size_t commentColumn = 0;
    for (size_t i = 0; i < lines_.size(); ++i) {
      const Line& line = lines_[i];
      if (line.blankBefore) out += '\n';
      size_t width = line.indent + line.text.size();
      out += std::string(line.text.empty() ? 0 : line.indent, ' ') + line.text;
      if (!line.comment.empty()) {
        bool goesOn = i > 0 && !lines_[i - 1].comment.empty() && !line.blankBefore;
        if (!goesOn) {
          commentColumn = 0;
          for (size_t j = i; j < lines_.size() && !lines_[j].comment.empty() &&
                             (j == i || !lines_[j].blankBefore);
               ++j)
            commentColumn = std::max(commentColumn, lines_[j].indent + lines_[j].text.size() + 2);
        }
        out += std::string(commentColumn - width, ' ') + line.comment;
      }
      out += '\n';
    }
    return out;
  }

  const Starts& starts_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  std::vector<Line> lines_;
  std::vector<Group> groups_;
  unsigned parens_ = 0;
  std::string brackets_;              // open ones
  llvm::StringRef item_, statement_;  // the keyword of each; `model` counts as `module`
  unsigned statementTokens_ = 0;
  bool lineOpen_ = false;     // the next token may go on the last line
  bool opensGroup_ = false;   // the token before is a `{`
  bool commentOpen_ = false;  // the token before is a comment of its own line
  bool isUnary_ = false;      // the token before is a sign of the next
  bool hasDims_ = false;      // the statement's target has dims
};

}  // namespace

std::optional<std::string> formatPlan(llvm::StringRef path, std::string text, Diagnostics& diags) {
  // A broken line may end a run of aligned ones: again, until nothing changes.
  constexpr int kRounds = 4;
  std::string result = std::move(text);
  for (int round = 0; round < kRounds; ++round) {
    uint32_t file = diags.addFile(path, result);
    std::unique_ptr<ast::File> parsed = parseText(file, diags);
    if (parsed == nullptr) return std::nullopt;
    StartFinder finder;
    finder.visit(*parsed);
    std::string next = Layout(finder.starts).run(lex(diags.source(file)));
    if (next == result) break;
    result = std::move(next);
  }
  return result;
}

}  // namespace planc
