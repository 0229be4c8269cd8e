// A plan file's text to its AST, in three steps: bytes (size, UTF-8, NUL), tokens (number, depth:
// the generated parser recurses, so hostile nesting must end before it runs), then ANTLR and a walk
// over its tree. A syntax error skips to the next line that can start something, so one run shows
// several; errors speak of what a user can type. The only file that sees ANTLR's headers.
// Tested by tests/frontend/errors/syntax.plan and tests/unit/frontend_test.cpp.
#include <cmath>
#include <cstring>

#include "PlanLexer.h"
#include "PlanParser.h"
#include "antlr4-runtime.h"
#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "frontend/parse.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/ConvertUTF.h"

namespace planc {
namespace {

using antlr4::Token;
using grammar::PlanLexer;
using grammar::PlanParser;
using TokenList = std::vector<std::unique_ptr<Token>>;

constexpr unsigned kMaxChain = 1000;       // operators in one expression
constexpr unsigned kMaxSyntaxErrors = 20;  // in one file

constexpr llvm::StringRef kItems[] = {"import", "device", "cluster", "module", "model", "plan"};

// Words that are never names.
constexpr const char* kReserved[] = {"import", "device", "cluster", "module", "plan", "dim",
                                     "input",  "weight", "repeat",  "if",     "else", "return"};
bool isReserved(llvm::StringRef word) { return llvm::is_contained(kReserved, word); }

Loc locOf(uint32_t file, const Token* token) {
  bool end = token->getType() == Token::EOF;
  size_t length = end ? 1 : token->getStopIndex() - token->getStartIndex() + 1;
  return {file, uint32_t(token->getLine()), uint32_t(token->getCharPositionInLine() + 1),
          uint32_t(length)};
}

Loc locAt(uint32_t file, llvm::StringRef text, size_t offset) {
  llvm::StringRef before = text.take_front(offset);
  size_t lineStart = before.rfind('\n') + 1;  // npos + 1 is 0
  return {file, uint32_t(before.count('\n') + 1), uint32_t(offset - lineStart + 1), 1};
}

// ---- Bytes --------------------------------------------------------------------------------------

bool checkBytes(uint32_t file, llvm::StringRef text, Diagnostics& diags) {
  if (size_t nul = text.find('\0'); nul != text.npos) {
    diags.report(locAt(file, text, nul), Diag::NulByte);
    return false;
  }
  auto* at = reinterpret_cast<const llvm::UTF8*>(text.begin());
  auto* end = reinterpret_cast<const llvm::UTF8*>(text.end());
  if (llvm::isLegalUTF8String(&at, end)) return true;
  size_t offset = size_t(reinterpret_cast<const char*>(at) - text.begin());
  diags.report(locAt(file, text, offset), Diag::NotUtf8, llvm::utohexstr(*at, false, 2))
      .suggest("plan files are UTF-8; outside of comments and strings they are plain ASCII");
  return false;
}

// The text with every byte that is not ASCII masked, so that ANTLR's positions are byte offsets.
std::string maskNonAscii(llvm::StringRef text) {
  std::string masked = text.str();
  for (char& c : masked)
    if (static_cast<unsigned char>(c) >= 128) c = '?';
  if (text.take_front(3) == "\xEF\xBB\xBF") std::memset(masked.data(), ' ', 3);
  return masked;
}

// ---- Tokens -------------------------------------------------------------------------------------

std::string describe(const Token* token) {
  if (token->getType() == Token::EOF) return "the end of the file";
  std::string text = token->getText();
  if (text.size() > 40) text = text.substr(0, 37) + "...";
  return "'" + text + "'";
}

// Reads the visible tokens, ending with EOF. False: the parser must not run.
bool readTokens(PlanLexer& lexer, uint32_t file, llvm::StringRef text, TokenList& tokens,
                Diagnostics& diags) {
  unsigned depth = 0, signs = 0;
  bool good = true;
  for (;;) {
    std::unique_ptr<Token> token = lexer.nextToken();
    if (token->getChannel() != Token::DEFAULT_CHANNEL) continue;
    size_t type = token->getType();
    Loc loc = locOf(file, token.get());
    llvm::StringRef word = text.substr(token->getStartIndex(), loc.length);
    if (type == Token::EOF) {
      tokens.push_back(std::move(token));
      return good;
    }
    if (tokens.size() >= kMaxTokens) {
      diags.report(loc, Diag::TooManyTokens, kMaxTokens).suggest("split the file and import parts");
      return false;
    }
    if (type == PlanLexer::OPEN_COMMENT) {
      diags.report(loc, Diag::OpenComment);
      return false;
    }
    if (type == PlanLexer::OPEN_STRING || type == PlanLexer::OTHER) {
      good = false;
      if (type == PlanLexer::OPEN_STRING) {
        diags.report(loc, Diag::OpenString);
      } else if (diags.errors() < kMaxSyntaxErrors) {
        // One character, which may be several bytes.
        size_t bytes = llvm::getNumBytesForUTF8(static_cast<unsigned char>(word[0]));
        diags.report(loc, Diag::StrayCharacter, text.substr(token->getStartIndex(), bytes));
        for (size_t i = 1; i < bytes; ++i) lexer.nextToken();
      }
      continue;
    }
    if (word == "(" || word == "[" || word == "{") ++depth;
    if ((word == ")" || word == "]" || word == "}") && depth > 0) --depth;
    signs = word == "-" ? signs + 1 : 0;
    if (depth > kMaxDepth || signs > kMaxDepth) {
      diags.report(loc, Diag::TooDeep, kMaxDepth).suggest("give parts of it a name");
      return false;
    }
    tokens.push_back(std::move(token));
  }
}

// ---- Syntax errors ------------------------------------------------------------------------------

// Skips and words syntax errors. ANTLR's own strategy repairs single tokens and hunts for follow
// sets, which makes one mistake several; here an error ends its statement.
class Recovery : public antlr4::DefaultErrorStrategy {
 public:
  Recovery(uint32_t file, Diagnostics& diags) : file_(file), diags_(diags) {}

  // Called before each decision. The first decision at a token knows all that may stand there; a
  // later one, after loops were left, less: so the first one is kept. And a loop over a body's
  // statements goes on after a wrong one.
  void sync(antlr4::Parser* parser) override {
    antlr4::TokenStream& in = *parser->getTokenStream();
    noteDecision(parser);
    size_t rule = parser->getRuleContext()->getRuleIndex();
    if (rule != PlanParser::RuleBlock && rule != PlanParser::RulePlan &&
        rule != PlanParser::RuleDevice && rule != PlanParser::RuleCluster)
      return;
    const antlr4::atn::ATN& atn = parser->getATN();
    antlr4::misc::IntervalSet next = atn.nextTokens(atn.states[parser->getState()]);
    if (!next.contains(parser->getTokenType("'}'"))) return;
    while (!next.contains(in.LA(1))) {
      if (isFirstOfLine(in)) endErrorCondition(parser);
      reportError(parser, antlr4::InputMismatchException(parser));
      // A declaration here means that a `}` is missing: the loop ends.
      if (in.LA(1) == Token::EOF || llvm::is_contained(kItems, textOf(in.LT(1)))) return;
      if (textOf(in.LT(1)) != "{") in.consume();
      skip(parser);
      noteDecision(parser);
    }
  }

  void noteDecision(antlr4::Parser* parser) {
    size_t index = parser->getTokenStream()->index();
    if (index == decisionIndex_) return;
    decisionIndex_ = index;
    decisionState_ = parser->getState();
    decisionContext_ = parser->getContext();
  }

  Token* recoverInline(antlr4::Parser* parser) override {
    throw antlr4::InputMismatchException(parser);
  }

  void reportError(antlr4::Parser* parser, const antlr4::RecognitionException& error) override {
    if (inErrorRecoveryMode(parser)) return;
    beginErrorCondition(parser);
    report(parser, error);
  }

  // An error before the first token of a line is taken comes back to it, in a loop for ever: when
  // it comes to the same place of the grammar, that token goes.
  void recover(antlr4::Parser* parser, std::exception_ptr) override {
    antlr4::TokenStream& in = *parser->getTokenStream();
    std::pair<size_t, size_t> here{in.index(), parser->getState()};
    if (here == lastRecovery_ && in.LA(1) != Token::EOF) in.consume();
    skip(parser);
    lastRecovery_ = {in.index(), here.second};
  }

  // To the next line that begins with a word or a `}`. Groups in braces are skipped whole, but for
  // the body of a module, `repeat` or `if` whose head is wrong: that is parsed for its own errors.
  void skip(antlr4::Parser* parser) {
    antlr4::TokenStream& in = *parser->getTokenStream();
    unsigned depth = 0;
    while (in.LA(1) != Token::EOF) {
      llvm::StringRef word = textOf(in.LT(1));
      if (depth == 0 && (word == "}" || (isFirstOfLine(in) && llvm::isAlpha(word[0])))) return;
      if (word == "{" && depth == 0 && isInModule(parser)) {
        endErrorCondition(parser);
        static_cast<PlanParser*>(parser)->block();
        beginErrorCondition(parser);
        continue;
      }
      if (word == "{") ++depth;
      if (word == "}") --depth;
      in.consume();
    }
  }

  // After an error outside of any declaration: to the next line that begins one.
  void skipToItem(antlr4::Parser* parser) {
    antlr4::TokenStream& in = *parser->getTokenStream();
    while (in.LA(1) != Token::EOF &&
           !(isFirstOfLine(in) && llvm::is_contained(kItems, textOf(in.LT(1)))))
      in.consume();
  }

 private:
  llvm::StringRef textOf(Token* token) {
    return diags_.source(file_).slice(token->getStartIndex(), token->getStopIndex() + 1);
  }
  static bool isInModule(antlr4::Parser* parser) {
    for (antlr4::tree::ParseTree* node = parser->getContext(); node != nullptr; node = node->parent)
      if (dynamic_cast<PlanParser::ModuleContext*>(node) != nullptr) return true;
    return false;
  }
  static bool isFirstOfLine(antlr4::TokenStream& in) {
    Token* before = in.LT(-1);
    return before == nullptr || before->getLine() < in.LT(1)->getLine();
  }

  void report(antlr4::Parser* parser, const antlr4::RecognitionException& error) {
    Token* found = error.getOffendingToken();
    if (found->getLine() == lastLine_ || ++count_ > kMaxSyntaxErrors) return;
    lastLine_ = found->getLine();
    antlr4::misc::IntervalSet expected;
    if (found->getTokenIndex() == decisionIndex_)
      expected = parser->getATN().getExpectedTokens(decisionState_, decisionContext_);
    else if (auto* late = dynamic_cast<const antlr4::NoViableAltException*>(&error);
             late == nullptr || late->getStartToken() == found)
      expected = error.getExpectedTokens();
    std::vector<std::string> keywords;
    std::vector<std::string> wanted = inWords(parser, expected, keywords);
    Loc loc = locOf(file_, found);
    Token* before = found->getTokenIndex() > 0
                        ? parser->getTokenStream()->get(found->getTokenIndex() - 1)
                        : nullptr;
    bool many = wanted.empty() || wanted.size() > 5;
    Diagnostic& message =
        many && before != nullptr
            ? diags_.report(loc, Diag::Unexpected, describe(found), textOf(before))
            : diags_.report(loc, Diag::Expected, join(wanted), describe(found));
    bool wantsClosing = llvm::is_contained(wanted, "')'") || llvm::is_contained(wanted, "']'");
    if (found->getType() == Token::EOF || llvm::is_contained(kItems, textOf(found)) || wantsClosing)
      noteOpenBracket(*parser->getTokenStream(), found, message);
    if (found->getType() == Token::EOF) {
      return;
    }
    if (std::string word = nearest(textOf(found), keywords); !word.empty()) {
      message.suggest("did you mean '" + word + "'?");
    } else if (std::string keyword = statementMeant(*parser->getTokenStream(), found, wanted);
               !keyword.empty()) {
      message.suggest("did you mean '" + keyword + "'?");
    } else if (isReserved(textOf(found)) && llvm::is_contained(wanted, "a name")) {
      message.suggest("'" + textOf(found) + "' is a keyword; choose another name");
    }
  }

  // `retrun x`: a misspelt keyword reads as the target of an assignment.
  std::string statementMeant(antlr4::TokenStream& in, Token* found,
                             const std::vector<std::string>& wanted) {
    if (found->getTokenIndex() == 0 || !llvm::is_contained(wanted, "'='")) return "";
    Token* before = in.get(found->getTokenIndex() - 1);
    if (before->getType() != PlanLexer::IDENT) return "";
    return nearest(textOf(before),
                   {"dim", "input", "weight", "repeat", "if", "else", "return", "loss"});
  }

  // What is expected as a user would say it; `keywords` gets those among it.
  static std::vector<std::string> inWords(antlr4::Parser* parser,
                                          const antlr4::misc::IntervalSet& expected,
                                          std::vector<std::string>& keywords) {
    std::vector<std::string> signs;
    bool name = false, number = false, string = false, end = false;
    for (ssize_t type : expected.toList()) {
      std::string text = type < 0 ? "" : parser->getVocabulary().getLiteralName(size_t(type));
      if (text.size() > 2) text = text.substr(1, text.size() - 2);
      name |= type == PlanLexer::IDENT;
      number |= type == PlanLexer::NUMBER;
      string |= type == PlanLexer::STRING;
      end |= type < 0;
      if (!text.empty()) (llvm::isAlpha(text[0]) ? keywords : signs).push_back(text);
    }
    auto takeSigns = [&](std::initializer_list<const char*> list) {
      llvm::erase_if(signs, [&](const std::string& s) { return llvm::is_contained(list, s); });
    };
    auto has = [&](const char* word) { return llvm::is_contained(keywords, word); };

    std::vector<std::string> wanted;
    if (has("import")) return {"a declaration: import, device, cluster, module, model or plan"};
    if (llvm::is_contained(signs, "@") && llvm::is_contained(signs, "+")) {
      takeSigns({"+", "-", "*", "/", "@", "(", "["});
      wanted.push_back("an operator");
    }
    bool statement = has("repeat") && has("weight");
    bool planStatement = has("split") && has("seed") && !name;
    if (statement) wanted.push_back("a statement");
    if (planStatement) wanted.push_back("a plan statement");
    if (name && number && llvm::is_contained(signs, "(")) {
      takeSigns({"(", "-"});
      wanted.push_back("an expression");
    } else if (name && !statement) {
      wanted.push_back("a name");
      // Words that may be names too: offering all of them would help nobody.
      if (keywords.size() > 8) keywords.clear();
    }
    if (number && !(name && wanted.back() == "an expression")) {
      takeSigns({"-"});
      wanted.push_back("a number");
    }
    if (string) wanted.push_back("a file name in double quotes");
    if (!statement && !planStatement && !name)
      for (const std::string& word : keywords) wanted.push_back("'" + word + "'");
    for (const std::string& sign : signs) wanted.push_back("'" + sign + "'");
    if (end) wanted.push_back("the end of the file");
    return wanted;
  }

  static std::string join(const std::vector<std::string>& words) {
    std::string text;
    for (size_t i = 0; i < words.size(); ++i)
      text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
    return text.empty() ? "something else" : text;
  }

  void noteOpenBracket(antlr4::TokenStream& in, Token* found, Diagnostic& message) {
    std::vector<Token*> open;
    for (size_t i = 0; i < found->getTokenIndex(); ++i) {
      llvm::StringRef word = textOf(in.get(i));
      if (word == "(" || word == "[" || word == "{") open.push_back(in.get(i));
      if ((word == ")" || word == "]" || word == "}") && !open.empty()) open.pop_back();
    }
    if (!open.empty() && open.back()->getLine() < found->getLine())
      message.note(locOf(file_, open.back()), Diag::OpenedHere, textOf(open.back()));
  }

  uint32_t file_;
  Diagnostics& diags_;
  size_t decisionIndex_ = size_t(-1);
  std::pair<size_t, size_t> lastRecovery_{-1, -1};  // where the last skip ended, and its state
  size_t decisionState_ = 0;
  antlr4::RuleContext* decisionContext_ = nullptr;
  size_t lastLine_ = 0;
  unsigned count_ = 0;
};

// ---- Tree to AST --------------------------------------------------------------------------------

// Walks a tree without syntax errors. Expressions keep the depth of their tree in check, so that
// every later walk may recurse.
class AstBuilder {
 public:
  AstBuilder(uint32_t file, Diagnostics& diags) : file_(file), diags_(diags) {}

  ast::Item item(PlanParser::ItemContext* ctx) {
    if (auto* c = ctx->importItem()) return importItem(c);
    if (auto* c = ctx->device()) return device(c);
    if (auto* c = ctx->cluster()) return cluster(c);
    if (auto* c = ctx->module()) return module(c);
    return plan(ctx->plan());
  }

 private:
  using Node = antlr4::ParserRuleContext;

  Loc loc(Token* token) { return locOf(file_, token); }
  Loc loc(Node* ctx) { return loc(ctx->getStart()); }

  // The text of a child that is a sign or keyword; empty for a rule.
  static std::string sign(Node* ctx, size_t i) {
    auto* leaf = dynamic_cast<antlr4::tree::TerminalNode*>(ctx->children[i]);
    return leaf == nullptr ? "" : leaf->getText();
  }
  static bool hasSign(Node* ctx, llvm::StringRef text) {
    for (size_t i = 0; i < ctx->children.size(); ++i)
      if (sign(ctx, i) == text) return true;
    return false;
  }
  Loc signLoc(Node* ctx, size_t i) {
    return loc(dynamic_cast<antlr4::tree::TerminalNode*>(ctx->children[i])->getSymbol());
  }

  ast::Ident ident(Node* ctx) {
    return ctx == nullptr ? ast::Ident{} : ast::Ident{ctx->getText(), loc(ctx)};
  }
  template <class C>
  std::vector<ast::Ident> idents(const std::vector<C*>& list, size_t from = 0,
                                 size_t to = size_t(-1)) {
    std::vector<ast::Ident> result;
    for (size_t i = from; i < std::min(to, list.size()); ++i) result.push_back(ident(list[i]));
    return result;
  }
  // How many of the children that are idents stand before the sign.
  static size_t identsBefore(Node* ctx, llvm::StringRef text) {
    size_t count = 0;
    for (size_t i = 0; i < ctx->children.size() && sign(ctx, i) != text; ++i)
      count += dynamic_cast<PlanParser::IdentContext*>(ctx->children[i]) != nullptr;
    return count;
  }

  double number(Token* token) {
    std::string text = token->getText();
    double value = std::strtod(text.c_str(), nullptr);
    if (!std::isfinite(value)) {
      diags_.report(loc(token), Diag::NumberTooLarge, llvm::StringRef(text).take_front(40));
      value = 0;
    }
    return value;
  }

  ast::Quantity quantity(PlanParser::QuantityContext* ctx) {
    ast::Quantity result;
    result.value = number(ctx->NUMBER()->getSymbol());
    if (hasSign(ctx, "-")) result.value = -result.value;
    for (auto* part : ctx->IDENT())
      result.unit += (result.unit.empty() ? "" : "/") + part->getText();
    result.loc = loc(ctx);
    result.loc.length =
        uint32_t(ctx->getStop()->getStopIndex() - ctx->getStart()->getStartIndex() + 1);
    return result;
  }
  std::vector<ast::Quantity> quantities(const std::vector<PlanParser::QuantityContext*>& list) {
    std::vector<ast::Quantity> result;
    for (auto* c : list) result.push_back(quantity(c));
    return result;
  }

  // ---- Expressions

  static ast::ExprPtr make(ast::ExprKind kind, Loc loc, std::string text = "") {
    auto result = std::make_unique<ast::Expr>();
    result->kind = kind;
    result->loc = loc;
    result->text = std::move(text);
    return result;
  }
  static void append(ast::Expr& expr, ast::ExprPtr value) {
    expr.args.push_back({{}, std::move(value)});
  }

  // `a + b - c`: children are operands with signs between them.
  template <class Operand>
  ast::ExprPtr chain(Node* ctx, Operand&& operand) {
    ast::ExprPtr result = operand(ctx->children[0]);
    for (size_t i = 1; i + 1 < ctx->children.size(); i += 2) {
      if (++operators_ > kMaxChain) {
        diags_.report(signLoc(ctx, i), Diag::ChainTooLong, kMaxChain)
            .suggest("give parts of it a name");
        return result;
      }
      std::string op = sign(ctx, i);
      ast::ExprKind kind = op == "+"   ? ast::ExprKind::Add
                           : op == "-" ? ast::ExprKind::Sub
                           : op == "*" ? ast::ExprKind::Mul
                           : op == "/" ? ast::ExprKind::Div
                           : op == "@" ? ast::ExprKind::Contract
                                       : ast::ExprKind::Compare;
      ast::ExprPtr left = std::move(result);
      result = make(kind, signLoc(ctx, i), kind == ast::ExprKind::Compare ? op : "");
      append(*result, std::move(left));
      append(*result, operand(ctx->children[i + 1]));
    }
    return result;
  }

  ast::ExprPtr wholeExpr(PlanParser::ExprContext* ctx) {
    operators_ = 0;
    return ctx == nullptr ? nullptr : expr(ctx);
  }
  ast::ExprPtr condition(PlanParser::ConditionContext* ctx) {
    operators_ = 0;
    return chain(ctx, [&](auto* c) { return expr(dynamic_cast<PlanParser::ExprContext*>(c)); });
  }
  ast::ExprPtr expr(PlanParser::ExprContext* ctx) {
    return chain(ctx, [&](auto* c) { return term(dynamic_cast<PlanParser::TermContext*>(c)); });
  }
  ast::ExprPtr term(PlanParser::TermContext* ctx) {
    return chain(ctx, [&](auto* c) { return factor(dynamic_cast<PlanParser::FactorContext*>(c)); });
  }
  ast::ExprPtr factor(PlanParser::FactorContext* ctx) {
    if (auto* c = ctx->primary()) return primary(c);
    ast::ExprPtr result = make(ast::ExprKind::Neg, loc(ctx));
    append(*result, factor(ctx->factor()));
    return result;
  }
  ast::ExprPtr primary(PlanParser::PrimaryContext* ctx) {
    if (auto* leaf = ctx->NUMBER()) {
      ast::ExprPtr result = make(ast::ExprKind::Number, loc(ctx), leaf->getText());
      result->number = number(leaf->getSymbol());
      result->isInteger =
          llvm::StringRef(result->text).find_first_of(".eE") == llvm::StringRef::npos;
      return result;
    }
    if (ctx->ident() == nullptr) return expr(ctx->expr());
    std::string name = ctx->ident()->getText();
    if (hasSign(ctx, "[")) {
      ast::ExprPtr result = make(ast::ExprKind::Lookup, loc(ctx), name);
      append(*result, expr(ctx->expr()));
      return result;
    }
    if (!hasSign(ctx, "(")) return make(ast::ExprKind::Name, loc(ctx), name);
    ast::ExprPtr result = make(ast::ExprKind::Call, loc(ctx), name);
    result->args = args(ctx->arg());
    return result;
  }
  std::vector<ast::Arg> args(const std::vector<PlanParser::ArgContext*>& list) {
    std::vector<ast::Arg> result;
    for (auto* c : list) result.push_back({ident(c->ident()), expr(c->expr())});
    return result;
  }

  // ---- Statements

  std::vector<ast::Ident> dimNames(PlanParser::DimListContext* ctx) {
    return ctx == nullptr ? std::vector<ast::Ident>() : idents(ctx->ident());
  }

  void block(PlanParser::BlockContext* ctx, std::vector<ast::Stmt>& out) {
    for (auto* c : ctx->statement()) statement(c, out);
  }

  void statement(PlanParser::StatementContext* ctx, std::vector<ast::Stmt>& out) {
    Loc at = loc(ctx);
    if (auto* c = ctx->dimStatement()) {
      for (auto* d : c->dimItem())
        out.push_back({loc(d), ast::DimDecl{ident(d->ident()), wholeExpr(d->expr())}});
    } else if (auto* c = ctx->inputStatement()) {
      auto names = idents(c->ident());
      ast::InputDecl input{
          names.front(), {names.begin() + 1, names.end() - 1}, names.back(), nullptr};
      if (c->expr()) input.separator = wholeExpr(c->expr());
      out.push_back({at, std::move(input)});
    } else if (auto* c = ctx->weightStatement()) {
      out.push_back({at, weight(c)});
    } else if (auto* c = ctx->repeatStatement()) {
      ast::Repeat repeat{ident(c->ident()), wholeExpr(c->expr()), {}};
      block(c->block(), repeat.body);
      out.push_back({at, std::move(repeat)});
    } else if (auto* c = ctx->ifStatement()) {
      ifStatement(c, 0, out);
    } else if (auto* c = ctx->lossStatement()) {
      out.push_back({at, ast::Loss{wholeExpr(c->expr())}});
    } else if (auto* c = ctx->returnStatement()) {
      out.push_back({at, assign(c->assignName(), c->dims(), c->expr(), true)});
    } else if (auto* c = ctx->assignStatement()) {
      out.push_back({at, assign(c->assignName(), c->dims(), c->expr(), false)});
    }
  }

  ast::Assign assign(Node* name, PlanParser::DimsContext* dims, PlanParser::ExprContext* value,
                     bool isReturn) {
    return {ident(name), dims != nullptr,
            dims == nullptr ? std::vector<ast::Ident>() : dimNames(dims->dimList()),
            wholeExpr(value), isReturn};
  }

  ast::WeightDecl weight(PlanParser::WeightStatementContext* ctx) {
    ast::WeightDecl result;
    result.names = idents(ctx->ident());
    result.dims = dimNames(ctx->dimList());
    if (auto* c = ctx->initClause()) result.init = {ident(c->ident()), wholeExpr(c->expr())};
    if (auto* c = ctx->decayClause()) result.decay = !hasSign(c, "no");
    if (auto* c = ctx->balancedClause()) result.balanced = wholeExpr(c->expr());
    return result;
  }

  // The i-th condition of an `if ... else if ...` ladder, and what follows it.
  void ifStatement(PlanParser::IfStatementContext* ctx, size_t i, std::vector<ast::Stmt>& out) {
    auto conditions = ctx->condition();
    auto blocks = ctx->block();
    if (i >= kMaxDepth) {
      diags_.report(loc(conditions[i]), Diag::TooDeep, kMaxDepth);
      return;
    }
    ast::If result{condition(conditions[i]), {}, {}};
    block(blocks[i], result.then);
    if (i + 1 < conditions.size()) ifStatement(ctx, i + 1, result.otherwise);
    else if (i + 1 < blocks.size()) block(blocks[i + 1], result.otherwise);
    out.push_back({i == 0 ? loc(ctx) : loc(conditions[i]), std::move(result)});
  }

  // ---- Declarations

  ast::Ident string(antlr4::tree::TerminalNode* node) {
    Token* token = node->getSymbol();
    llvm::StringRef text = diags_.source(file_);
    return {text.slice(token->getStartIndex() + 1, token->getStopIndex()).str(), loc(token)};
  }

  ast::Import importItem(PlanParser::ImportItemContext* ctx) {
    ast::Ident path = string(ctx->STRING());
    return {path.loc, path.text};
  }

  ast::Device device(PlanParser::DeviceContext* ctx) {
    ast::Device result{ident(ctx->ident()), {}};
    for (auto* c : ctx->deviceEntry()) {
      ast::Ident key = ident(c->ident());
      if (c->quantity() != nullptr) result.entries.push_back({key, {}, quantity(c->quantity())});
      for (auto* rate : c->elementRate())
        result.entries.push_back({key, ident(rate->ident()), quantity(rate->quantity())});
    }
    return result;
  }

  ast::Cluster cluster(PlanParser::ClusterContext* ctx) {
    ast::Cluster result{ident(ctx->ident()), {}};
    for (auto* c : ctx->level()) {
      ast::Cluster::Level level{
          ident(c->ident(0)), quantity(c->quantity()), ident(c->ident(1)), {}};
      for (auto* e : c->levelEntry())
        level.entries.push_back({ident(e->ident()), quantity(e->quantity())});
      result.levels.push_back(std::move(level));
    }
    return result;
  }

  ast::Module module(PlanParser::ModuleContext* ctx) {
    ast::Module result;
    result.name = ident(ctx->ident());
    result.isModel = ctx->getStart()->getText() == "model";
    for (auto* c : ctx->param()) {
      ast::Param param;
      auto names = idents(c->ident());
      param.name = names.front();
      if (c->getStart()->getText() == "dim") {
        param.kind = ast::Param::DimName;
        if (names.size() > 1)
          param.fallback = make(ast::ExprKind::Name, names[1].loc, names[1].text);
      } else if (hasSign(c, "[")) {
        param.kind = ast::Param::Tensor;
        param.dims.assign(names.begin() + 1, names.end());
      } else {
        param.fallback = wholeExpr(c->expr());
      }
      result.params.push_back(std::move(param));
    }
    block(ctx->block(), result.body);
    return result;
  }

  ast::Plan plan(PlanParser::PlanContext* ctx) {
    ast::Plan result;
    result.name = ident(ctx->ident(0));
    result.model = ident(ctx->ident(1));
    operators_ = 0;
    result.args = args(ctx->arg());
    result.cluster = ident(ctx->ident().size() > 2 ? ctx->ident(2) : nullptr);
    for (auto* c : ctx->planStatement()) planStatement(c, result.body);
    return result;
  }

  void planStatement(PlanParser::PlanStatementContext* ctx, std::vector<ast::PlanStmt>& out) {
    Loc at = loc(ctx);
    if (auto* c = ctx->grid()) {
      ast::Grid grid{c->axis().empty(), {}};
      for (auto* a : c->axis()) grid.axes.push_back({ident(a->ident()), quantity(a->quantity())});
      out.push_back({at, std::move(grid)});
    } else if (auto* c = ctx->split()) {
      ast::Split split{idents(c->ident()), {}};
      for (auto* t : c->target()) split.targets.push_back(target(t, split.targets));
      out.push_back({at, std::move(split)});
    } else if (auto* c = ctx->shard()) {
      size_t what = identsBefore(c, "over");
      out.push_back({at, ast::Shard{idents(c->ident(), 0, what), idents(c->ident(), what)}});
    } else if (auto* c = ctx->place()) {
      size_t axes = c->ident().size() - 1;
      out.push_back({at, ast::Place{idents(c->ident(), 0, axes), ident(c->ident(axes))}});
    } else if (auto* c = ctx->microbatches()) {
      bool automatic = c->quantity() == nullptr;
      out.push_back({at, ast::Microbatches{automatic,
                                           automatic ? ast::Quantity() : quantity(c->quantity())}});
    } else if (auto* c = ctx->precision()) {
      ast::Precision precision{ident(c->ident()), {}};
      for (auto* e : c->precisionEntry())
        precision.entries.push_back({ident(e->ident(0)), ident(e->ident(1))});
      out.push_back({at, std::move(precision)});
    } else if (auto* c = ctx->recompute()) {
      out.push_back({at, ast::Recompute{idents(c->ident())}});
    } else if (auto* c = ctx->optimizer()) {
      ast::Optimizer optimizer{ident(c->ident()), {}};
      for (auto* e : c->optimizerEntry())
        optimizer.entries.push_back({ident(e->ident()), quantities(e->quantity())});
      out.push_back({at, std::move(optimizer)});
    } else if (auto* c = ctx->seed()) {
      out.push_back({at, ast::Seed{quantity(c->quantity())}});
    }
  }

  // `heads across` after `context by ring within node` is a further method of axis `context`.
  ast::Target target(PlanParser::TargetContext* ctx, const std::vector<ast::Target>& before) {
    ast::Target result;
    if (ctx->ident() != nullptr) result.axis = ident(ctx->ident());
    else if (!before.empty()) result.axis = before.back().axis;
    if (auto* c = ctx->method()) {
      result.method = ident(c->ident());
      operators_ = 0;
      for (auto* e : c->expr()) result.args.push_back(expr(e));
      if (c->STRING() != nullptr) result.path = string(c->STRING());
    }
    if (auto* c = ctx->scope())
      result.scope = c->ident() != nullptr ? ident(c->ident()) : ast::Ident{"across", loc(c)};
    result.stages = quantities(ctx->quantity());
    return result;
  }

  uint32_t file_;
  Diagnostics& diags_;
  unsigned operators_ = 0;  // in the expression being built
};

}  // namespace

std::unique_ptr<ast::File> parseText(uint32_t file, Diagnostics& diags) {
  llvm::StringRef text = diags.source(file);
  if (text.size() > kMaxFileBytes) {
    diags.report({file, 0, 0, 1}, Diag::FileTooLarge, kMaxFileBytes >> 20);
    return nullptr;
  }
  if (!checkBytes(file, text, diags)) return nullptr;

  unsigned errorsBefore = diags.errors();
  antlr4::ANTLRInputStream input(maskNonAscii(text));
  PlanLexer lexer(&input);
  lexer.removeErrorListeners();
  TokenList tokens;
  if (!readTokens(lexer, file, text, tokens, diags)) return nullptr;
  antlr4::ListTokenSource source(std::move(tokens));
  antlr4::CommonTokenStream stream(&source);
  PlanParser parser(&stream);
  parser.removeErrorListeners();
  auto recovery = std::make_shared<Recovery>(file, diags);
  parser.setErrorHandler(recovery);

  // The loop of rule `file`, so that an error outside of declarations can go on at the next one.
  auto result = std::make_unique<ast::File>();
  result->file = file;
  AstBuilder builder(file, diags);
  while (stream.LA(1) != Token::EOF) {
    PlanParser::ItemContext* item = parser.item();
    if (diags.errors() == errorsBefore) result->items.push_back(builder.item(item));
    else if (recovery->inErrorRecoveryMode(&parser)) recovery->skipToItem(&parser);
  }
  return diags.errors() == errorsBefore ? std::move(result) : nullptr;
}

}  // namespace planc
