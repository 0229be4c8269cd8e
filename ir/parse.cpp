// Text to IR: a lexer and a recursive-descent reader of the grammar in docs/ir.md; nesting is
// limited, every error has a place, and what was read is verified before anyone sees it. Tested by
// tests/unit/ir_test.cpp and tests/fuzz.
#include <charconv>
#include <limits>

#include "ir/text.h"
#include "ir/verify.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"

namespace planc {
namespace {

enum class Tok { End, Word, String, Value, Symbol, Integer, Number, Punct, Bad };

struct Token {
  Tok kind = Tok::End;
  llvm::StringRef text;  // without the leading % or @
  std::string string;    // of a String, unescaped
  Loc loc;
};

class Reader {
 public:
  Reader(uint32_t file, Diagnostics& diags)
      : diags_(diags), text_(diags.source(file)), file_(file) {
    next();
  }
  std::unique_ptr<Module> module();
  Modules modules();

 private:
  void next();
  bool fail(const llvm::Twine& expected);
  bool failAt(Loc loc, const llvm::Twine& what);
  bool isPunct(char c) const { return token_.kind == Tok::Punct && token_.text[0] == c; }
  bool isWord(llvm::StringRef w) const { return token_.kind == Tok::Word && token_.text == w; }
  bool accept(char c) { return isPunct(c) ? (next(), true) : false; }
  bool acceptWord(llvm::StringRef w) { return isWord(w) ? (next(), true) : false; }
  bool expect(char c) { return accept(c) || fail(llvm::Twine("'") + llvm::Twine(c) + "'"); }
  bool word(std::string& out);
  bool string(std::string& out);  // a word or a quoted string
  bool symbol(std::string& out);
  bool integer(int64_t& out);
  bool number(double& out);
  bool attr(Attr& out);
  bool attrs(Attrs& out);  // in braces, or none
  bool type(Type& out);
  bool place(std::optional<Place>& out);
  bool loc(Loc& out);
  bool after(llvm::StringRef mark, int64_t& number);
  bool moved(Dim& dim);
  bool axes(Words& out);
  bool findAxes(llvm::StringRef list, Loc loc, Axes& out);
  bool grid(Module& module);
  bool split(Module& module);
  bool shard(Module& module);
  bool cluster(Module& module);
  bool level(Module& module);
  bool within(Module& module, bool isScope);
  bool pipeline(Module& module);
  bool header(Module& module);
  bool variable(Module& module);
  bool function(Module& module);
  bool block(Block& block, unsigned depth);
  bool op(Block& block, unsigned depth);
  bool define(llvm::StringRef name, Value* value, Loc loc);

  Diagnostics& diags_;
  llvm::StringRef text_;
  uint32_t file_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  size_t lineStart_ = 0;
  Token token_;
  llvm::StringMap<Value*> values_;
  const Grid* grid_ = nullptr;  // of the module being read
};

bool isNameChar(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.'; }

void Reader::next() {
  while (at_ < text_.size()) {
    char c = text_[at_];
    if (c == '\n') {
      ++line_;
      lineStart_ = ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++at_;
    } else if (c == '/' && text_.substr(at_, 2) == "//") {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    } else {
      break;
    }
  }
  token_ = Token();
  token_.loc = {file_, line_, uint32_t(at_ - lineStart_ + 1), 1};
  if (at_ >= text_.size()) return;
  size_t start = at_;
  char c = text_[at_];
  auto name = [&] {
    while (at_ < text_.size() && isNameChar(text_[at_])) ++at_;
  };
  if (isalpha((unsigned char)c) || c == '_') {
    name();
    token_.kind = Tok::Word;
    token_.text = text_.slice(start, at_);
  } else if ((c == '%' || c == '@') && at_ + 1 < text_.size() &&
             (isNameChar(text_[at_ + 1]) || text_.substr(at_, 4) == "@-0x")) {
    at_ += text_[at_ + 1] == '-' ? 2 : 1;
    name();
    token_.kind = c == '%' ? Tok::Value : Tok::Symbol;
    token_.text = text_.slice(start + 1, at_);
  } else if (c == '"') {
    ++at_;
    bool closed = false;
    while (at_ < text_.size() && text_[at_] != '\n') {
      char ch = text_[at_++];
      if (ch == '"') {
        closed = true;
        break;
      }
      if (ch == '\\' && at_ < text_.size()) {
        char escape = text_[at_++];
        unsigned code;
        if (escape == '"' || escape == '\\') {
          token_.string += escape;
        } else if (!text_.substr(at_ - 1, 2).getAsInteger(16, code)) {
          token_.string += char(code);
          ++at_;
        } else {
          closed = false;
          break;
        }
      } else {
        token_.string += ch;
      }
    }
    token_.kind = closed ? Tok::String : Tok::Bad;
    token_.text = text_.slice(start, at_);
  } else if (isdigit((unsigned char)c) ||
             (c == '-' && at_ + 1 < text_.size() && isdigit((unsigned char)text_[at_ + 1]))) {
    ++at_;
    bool hex = text_.substr(start, 2) == "0x";
    if (hex) ++at_;
    bool isNumber = false;
    while (at_ < text_.size()) {
      char d = text_[at_];
      if (hex ? isxdigit((unsigned char)d) != 0 : isdigit((unsigned char)d) != 0) {
      } else if (!hex && (d == '.' || d == 'e')) {
        isNumber = true;
        if (d == 'e' && at_ + 1 < text_.size() && (text_[at_ + 1] == '-' || text_[at_ + 1] == '+'))
          ++at_;
      } else {
        break;
      }
      ++at_;
    }
    token_.kind = isNumber ? Tok::Number : Tok::Integer;
    token_.text = text_.slice(start, at_);
  } else if (c == '#') {
    ++at_;
    while (at_ < text_.size() && (isalpha((unsigned char)text_[at_]) || text_[at_] == '-')) ++at_;
    token_.kind = Tok::Number;
    token_.text = text_.slice(start, at_);
  } else {
    ++at_;
    token_.kind = Tok::Punct;
    token_.text = text_.slice(start, at_);
  }
  token_.loc.length = uint32_t(std::max<size_t>(1, at_ - start));
}

bool Reader::failAt(Loc loc, const llvm::Twine& what) {
  diags_.report(loc, Diag::IrInvalid, what.str());
  return false;
}

bool Reader::fail(const llvm::Twine& expected) {
  std::string found = token_.kind == Tok::End ? "the end of the file"
                                              : "'" + token_.text.take_front(40).str() + "'";
  diags_.report(token_.loc, Diag::IrExpected, expected.str(), found);
  return false;
}

bool Reader::word(std::string& out) {
  if (token_.kind != Tok::Word) return fail("a word");
  out = token_.text.str();
  next();
  return true;
}

bool Reader::string(std::string& out) {
  if (token_.kind == Tok::String) out = token_.string;
  else if (token_.kind == Tok::Word) out = token_.text.str();
  else return fail("a word or a string");
  next();
  return true;
}

bool Reader::symbol(std::string& out) {
  if (token_.kind != Tok::Symbol) return fail("a variable '@name'");
  out = token_.text.str();
  next();
  return true;
}

bool Reader::integer(int64_t& out) {
  llvm::StringRef digits = token_.text;
  if (token_.kind != Tok::Integer) return fail("an integer");
  if (digits.getAsInteger(0, out)) return failAt(token_.loc, "integer out of range");
  next();
  return true;
}

bool Reader::number(double& out) {
  if (token_.kind == Tok::Integer) {
    int64_t value;
    if (!integer(value)) return false;
    out = double(value);
    return true;
  }
  if (token_.kind != Tok::Number) return fail("a number");
  if (token_.text == "#nan") out = std::numeric_limits<double>::quiet_NaN();
  else if (token_.text == "#inf") out = std::numeric_limits<double>::infinity();
  else if (token_.text == "#-inf") out = -std::numeric_limits<double>::infinity();
  else {
    auto [end, error] = std::from_chars(token_.text.begin(), token_.text.end(), out);
    if (error != std::errc() || end != token_.text.end())
      return failAt(token_.loc, "number out of range");
  }
  next();
  return true;
}

bool Reader::attr(Attr& out) {
  if (token_.kind == Tok::Integer) {
    int64_t value;
    if (!integer(value)) return false;
    out = value;
  } else if (token_.kind == Tok::Number) {
    double value;
    if (!number(value)) return false;
    out = value;
  } else if (accept('[')) {
    Words words;
    while (!isPunct(']')) {
      if (!string(words.emplace_back())) return false;
      if (!accept(',')) break;
    }
    if (!expect(']')) return false;
    out = std::move(words);
  } else {
    std::string text;
    if (!string(text)) return fail("an attribute's value");
    out = std::move(text);
  }
  return true;
}

bool Reader::attrs(Attrs& out) {
  if (!accept('{')) return true;
  while (!isPunct('}')) {
    std::string key;
    Attr value;
    if (!word(key) || !expect('=') || !attr(value)) return false;
    out.set(key, std::move(value));
    if (!accept(',')) break;
  }
  return expect('}');
}

bool Reader::type(Type& out) {
  std::string text;
  Loc at = token_.loc;
  if (!word(text)) return false;
  std::optional<Elem> elem = elemByName(text);
  if (!elem) return failAt(at, "unknown element type '" + text + "'");
  out.elem = *elem;
  if (!expect('[')) return false;
  while (!isPunct(']')) {
    Dim dim;
    if (!word(dim.name) || !integer(dim.size)) return false;
    Axes axes;
    if (accept('/')) {
      Loc at = token_.loc;
      std::string list;
      if (!word(list) || !findAxes(list, at, axes)) return false;
    }
    if (!after(":zigzag", dim.zigzag) || !moved(dim) || (accept('~') && !word(dim.over)))
      return false;
    int64_t moved = dim.moved;
    std::string moves = std::move(dim.moves);
    dim = splitDim(dim, axes);
    dim.moved = moved;
    dim.moves = std::move(moves);
    int64_t room = 0;
    if (dim.isRagged() && !after(":room", room)) return false;
    if (room > 0) dim = limitRows(dim, room);
    out.dims.push_back(std::move(dim));
    if (!accept(',')) break;
  }
  if (!expect(']')) return false;
  if (!acceptWord("partial")) return true;
  if (!expect('(')) return false;
  do {
    Loc axisAt = token_.loc;
    std::string name;
    if (!word(name) || !findAxes(name, axisAt, out.partial)) return false;
  } while (accept(','));
  return expect(')');
}

// `:zigzag4`: a mark and a number from 1, or nothing.
bool Reader::after(llvm::StringRef mark, int64_t& number) {
  if (!accept(':')) return true;
  Loc at = token_.loc;
  std::string text;
  if (!word(text)) return false;
  llvm::StringRef rest = text;
  return (rest.consume_front(mark.drop_front()) && !rest.getAsInteger(10, number) && number > 0) ||
         failAt(at,
                "'" + text + "' where '" + mark.drop_front().str() + "' and a number may stand");
}

// `+2+ring`: places, the repeat that adds one an iteration, or both.
bool Reader::moved(Dim& dim) {
  while (accept('+')) {
    if (token_.kind != Tok::Integer) return word(dim.moves);
    if (!integer(dim.moved)) return false;
  }
  return true;
}

// `data.expert`: axes of the grid, by name.
bool Reader::findAxes(llvm::StringRef list, Loc at, Axes& out) {
  llvm::SmallVector<llvm::StringRef, 2> names;
  list.split(names, '.');
  for (llvm::StringRef name : names) {
    auto axis = llvm::find_if(grid_->axes, [&](const GridAxis& a) { return a.name == name; });
    if (axis == grid_->axes.end()) return failAt(at, "the grid has no axis '" + name + "'");
    out.push_back({axis->name, axis->size});
  }
  return true;
}

bool Reader::axes(Words& out) {
  do {
    if (!word(out.emplace_back())) return false;
  } while (accept(','));
  return true;
}

bool Reader::grid(Module& module) {
  do {
    GridAxis axis;
    Loc at = token_.loc;
    if (!word(axis.name) || !integer(axis.size)) return false;
    if (axis.size < 1)  // types divide by it
      return failAt(at, "axis '" + axis.name + "' has " + std::to_string(axis.size) + " ranks");
    if (acceptWord("of") && !word(axis.of)) return false;
    if (!module.grid.find(axis.name).empty())
      return failAt(at, "the grid has axis '" + axis.name + "' twice");
    module.grid.axes.push_back(std::move(axis));
  } while (accept(','));
  return true;
}

bool Reader::split(Module& module) {
  Split split;
  if (!word(split.dim)) return false;
  if (!acceptWord("over")) return fail("'over'");
  if (!axes(split.axes)) return false;
  if (acceptWord("by") && !word(split.how)) return false;
  if (acceptWord("order") && !word(split.order)) return false;
  if (acceptWord("room") && !number(split.room)) return false;
  if (!loc(split.loc)) return false;
  module.splits.push_back(std::move(split));
  return true;
}

bool Reader::shard(Module& module) {
  Shard shard;
  if (!word(shard.what)) return false;
  if (!acceptWord("over")) return fail("'over'");
  if (!axes(shard.axes) || !loc(shard.loc)) return false;
  module.shards.push_back(std::move(shard));
  return true;
}

bool Reader::cluster(Module& module) {
  Cluster& cluster = module.cluster;
  if (cluster.known()) return fail("one 'cluster', and");
  if (!word(cluster.name)) return false;
  if (!acceptWord("of")) return fail("'of'");
  return word(cluster.device) && attrs(cluster.figures);
}

bool Reader::level(Module& module) {
  ClusterLevel level;
  Loc at = token_.loc;
  if (!word(level.name) || !integer(level.count) || !attrs(level.figures)) return false;
  if (level.count < 1) return failAt(at, "level '" + level.name + "' has no units");
  module.cluster.levels.push_back(std::move(level));
  return true;
}

bool Reader::within(Module& module, bool isScope) {
  Within place;
  place.isScope = isScope;
  Loc at = token_.loc;
  Attr axes;
  if (!attr(axes)) return false;
  auto* list = std::get_if<Words>(&axes);
  if (!list) return failAt(at, "axes are a list");
  place.axes = *list;
  if (!acceptWord("within")) return fail("'within'");
  if (!word(place.level) || !loc(place.loc)) return false;
  module.places.push_back(std::move(place));
  return true;
}

bool Reader::pipeline(Module& module) {
  Pipeline& pipeline = module.pipeline;
  Loc at = token_.loc;
  Attr dims;
  if (!attr(dims)) return false;
  auto* list = std::get_if<Words>(&dims);
  if (!list) return failAt(at, "'pipeline' takes a list");
  pipeline.dims = *list;
  if (!acceptWord("over")) return fail("'over'");
  if (!word(pipeline.axis)) return false;
  if (!acceptWord("by")) return fail("'by'");
  if (!string(pipeline.schedule)) return false;
  if (!acceptWord("chunks")) return fail("'chunks'");
  if (!integer(pipeline.chunks)) return false;
  if (acceptWord("counts")) {
    do
      if (!integer(pipeline.counts.emplace_back())) return false;
    while (accept(','));
  }
  if (acceptWord("order") && !string(pipeline.order)) return false;
  return loc(pipeline.loc);
}

bool Reader::place(std::optional<Place>& out) {
  llvm::StringRef digits = token_.text;
  digits.consume_front("-");
  if (token_.kind != Tok::Symbol || digits.take_front(2) != "0x") return true;
  Place place;
  if (token_.text.getAsInteger(0, place.offset)) return failAt(token_.loc, "offset out of range");
  next();
  while (accept('+')) {
    Stride& stride = place.strides.emplace_back();
    if (!word(stride.dim)) return false;
    if (accept(':') && !integer(stride.ring)) return false;
    if (!expect('*') || !integer(stride.bytes)) return false;
  }
  out = std::move(place);
  return true;
}

bool Reader::loc(Loc& out) {
  if (!acceptWord("loc")) return true;
  int64_t file, line, column;
  if (!expect('(') || !integer(file) || !expect(':') || !integer(line) || !expect(':') ||
      !integer(column) || !expect(')'))
    return false;
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (file < 0 || line < 1 || column < 0 || file > kMax || line > kMax || column > kMax)
    return failAt(token_.loc, "place out of range");
  out = {uint32_t(file), uint32_t(line), uint32_t(column), 1};
  return true;
}

bool Reader::define(llvm::StringRef name, Value* value, Loc loc) {
  if (values_.try_emplace(name, value).second) return true;
  return failAt(loc, "'%" + name + "' is defined twice");
}

bool Reader::op(Block& block, unsigned depth) {
  struct Result {
    std::string name;
    Loc loc;
  };
  llvm::SmallVector<Result, 2> results;
  while (token_.kind == Tok::Value) {
    results.push_back({token_.text.str(), token_.loc});
    next();
    if (!accept(',')) break;
  }
  if (!results.empty() && !expect('=')) return false;

  Loc at = token_.loc;
  std::string text;
  if (!word(text)) return false;
  std::optional<OpKind> kind = opByName(text);
  if (!kind) return failAt(at, "unknown op '" + text + "'");
  Variable* var = nullptr;
  if (token_.kind == Tok::Symbol) {
    var = block.module().findVar(token_.text);
    if (!var) return failAt(token_.loc, "unknown variable '@" + token_.text + "'");
    next();
  }
  llvm::SmallVector<Value*, 4> operands;
  if (accept('(')) {
    while (token_.kind == Tok::Value) {
      Value* value = values_.lookup(token_.text);
      if (!value) return failAt(token_.loc, "'%" + token_.text + "' is not defined here");
      operands.push_back(value);
      next();
      if (!accept(',')) break;
    }
    if (!expect(')')) return false;
  }
  Attrs attrs;
  if (!this->attrs(attrs)) return false;
  llvm::SmallVector<Type, 2> types;
  llvm::SmallVector<std::optional<Place>, 2> places;
  if (!results.empty()) {
    if (!expect(':')) return false;
    do {
      if (!type(types.emplace_back()) || !place(places.emplace_back())) return false;
    } while (accept(','));
    if (types.size() != results.size())
      return failAt(
          at, llvm::Twine(results.size()) + " results but " + llvm::Twine(types.size()) + " types");
  }
  Builder builder(&block);
  if (!loc(builder.loc)) return false;
  Op* op = builder.create(*kind, operands, types, std::move(attrs), var);
  for (size_t i = 0; i < results.size(); ++i) {
    op->result(unsigned(i))->name = results[i].name;
    op->result(unsigned(i))->place = places[i];
  }
  if (acceptWord("body")) {
    if (depth >= kMaxNesting) return failAt(at, "bodies nest deeper than the limit");
    op->body = std::make_unique<Block>(block.module(), op);
    if (!expect('(')) return false;
    while (token_.kind == Tok::Value) {
      std::string name = token_.text.str();
      Loc nameAt = token_.loc;
      next();
      Type argType;
      std::optional<Place> argPlace;
      if (!expect(':') || !type(argType) || !place(argPlace)) return false;
      Value* arg = op->body->addArg(argType, name);
      arg->place = argPlace;
      if (!define(name, arg, nameAt)) return false;
      if (!accept(',')) break;
    }
    if (!expect(')') || !expect('{') || !this->block(*op->body, depth + 1)) return false;
  }
  for (size_t i = 0; i < results.size(); ++i)
    if (!define(results[i].name, op->result(unsigned(i)), results[i].loc)) return false;
  return true;
}

bool Reader::block(Block& block, unsigned depth) {
  while (!accept('}')) {
    if (token_.kind == Tok::End) return fail("'}'");
    if (!op(block, depth)) return false;
  }
  return true;
}

bool Reader::function(Module& module) {
  Loc at = token_.loc;
  std::string name;
  if (!symbol(name) || !expect('{')) return false;
  if (module.findFunction(name)) return failAt(at, "function '@" + name + "' is defined twice");
  values_.clear();
  return block(*module.addFunction(name)->body, 0);
}

bool Reader::variable(Module& module) {
  Loc at = token_.loc;
  Variable var;
  var.decay = false;
  std::string kind;
  if (!symbol(var.name) || !expect(':') || !type(var.type)) return false;
  Loc kindAt = token_.loc;
  if (!word(kind)) return false;
  std::optional<VarKind> varKind = varKindByName(kind);
  if (!varKind) return failAt(kindAt, "unknown kind of variable '" + kind + "'");
  var.kind = *varKind;
  while (token_.kind == Tok::Word && !isWord("loc")) {
    if (acceptWord("of")) {
      if (!symbol(var.of)) return false;
    } else if (acceptWord("stack")) {
      Attr words;
      if (!attr(words)) return false;
      if (auto* list = std::get_if<Words>(&words)) var.stack = *list;
      else return failAt(kindAt, "'stack' takes a list");
    } else if (acceptWord("init")) {
      if (!word(var.init.kind) || !expect('(') || !number(var.init.value) || !expect(')'))
        return false;
    } else if (acceptWord("decay")) {
      var.decay = true;
    } else if (acceptWord("balanced")) {
      if (!expect('(') || !number(var.balance) || !expect(')')) return false;
    } else if (acceptWord("vocab")) {
      if (!integer(var.vocab)) return false;
    } else if (acceptWord("follows")) {
      if (!symbol(var.follows)) return false;
    } else if (acceptWord("documents")) {
      if (!symbol(var.documents)) return false;
      if (!acceptWord("separator")) return fail("'separator'");
      if (!integer(var.separator)) return false;
    } else if (acceptWord("output")) {
      var.output = true;
    } else if (acceptWord("flights")) {
      if (!integer(var.flights)) return false;
    } else if (acceptWord("piece")) {
      Piece& piece = var.piece.emplace();
      if (!symbol(piece.of)) return false;
      if (!acceptWord("from")) return fail("'from'");
      if (!integer(piece.first)) return false;
      if (!acceptWord("of")) return fail("'of'");
      if (!integer(piece.all)) return false;
    } else if (acceptWord("tied")) {
      var.tied = true;
    } else {
      break;
    }
  }
  if (!place(var.place) || !loc(var.loc)) return false;
  if (module.findVar(var.name)) return failAt(at, "variable '@" + var.name + "' is defined twice");
  if (var.kind != VarKind::Weight) {
    var.init = Init();
    var.decay = Variable().decay;
    var.balance = 0;
  }
  module.addVar(std::move(var));
  return true;
}

bool Reader::header(Module& module) {
  if (!acceptWord("module")) return fail("'module'");
  if (!string(module.name)) return false;
  grid_ = &module.grid;
  for (Level level : {Level::Model, Level::Sharded, Level::Rank})
    if (isWord(name(level))) {
      module.level = level;
      next();
      while (acceptWord("at")) {
        auto& [axis, at] = module.where.emplace_back();
        if (!word(axis) || !integer(at)) return false;
      }
      return expect('{');
    }
  return fail("'model', 'sharded' or 'rank'");
}

std::unique_ptr<Module> Reader::module() {
  auto module = std::make_unique<Module>();
  if (!header(*module)) return nullptr;
  while (!accept('}')) {
    bool ok = false;
    if (acceptWord("arena")) {
      ok = integer(module->arenaBytes);
    } else if (acceptWord("file")) {
      ok = string(module->files.emplace_back());
    } else if (acceptWord("set")) {
      std::string key;
      Attr value;
      ok = word(key) && expect('=') && attr(value);
      if (ok) module->settings.set(key, std::move(value));
    } else if (acceptWord("grid")) {
      ok = grid(*module);
    } else if (acceptWord("split")) {
      ok = split(*module);
    } else if (acceptWord("shard")) {
      ok = shard(*module);
    } else if (acceptWord("cluster")) {
      ok = cluster(*module);
    } else if (acceptWord("level")) {
      ok = level(*module);
    } else if (acceptWord("place")) {
      ok = within(*module, false);
    } else if (acceptWord("scope")) {
      ok = within(*module, true);
    } else if (acceptWord("pipeline")) {
      ok = pipeline(*module);
    } else if (isWord("call") || isWord("start") || isWord("wait")) {
      Call call;
      for (Phase phase : {Phase::Run, Phase::Start, Phase::Wait})
        if (isWord(name(phase))) call.phase = phase;
      next();
      ok = symbol(call.function);
      if (ok && accept('(')) ok = integer(call.microbatch) && expect(')');
      if (ok) module->schedule.push_back(std::move(call));
    } else if (acceptWord("var")) {
      ok = variable(*module);
    } else if (acceptWord("func")) {
      ok = function(*module);
    } else {
      ok = fail(
          "'arena', 'file', 'set', 'cluster', 'level', 'grid', 'split', 'shard', 'place', 'scope', 'pipeline', "
          "'call', 'start', 'wait', 'var', 'func' or '}'");
    }
    if (!ok) return nullptr;
  }
  return module;
}

Modules Reader::modules() {
  Modules list;
  do {
    if (!list.empty() && !isWord("module")) {
      fail("another module or the end of the file");
      return {};
    }
    list.push_back(module());
    if (!list.back()) return {};
  } while (token_.kind != Tok::End);
  return list;
}

}  // namespace

Modules parseModules(uint32_t file, Diagnostics& diags) {
  Modules list = Reader(file, diags).modules();
  for (const auto& module : list)
    if (llvm::Error error = verify(*module)) {
      Loc loc;
      loc.file = file;
      diags.report(loc, Diag::IrInvalid, llvm::toString(std::move(error)));
      return {};
    }
  return list;
}

std::unique_ptr<Module> parseModule(uint32_t file, Diagnostics& diags) {
  Modules list = parseModules(file, diags);
  if (list.size() == 1) return std::move(list.front());
  if (list.size() > 1) {
    Loc loc;
    loc.file = file;
    diags.report(loc, Diag::IrInvalid, "there are several modules, not one");
  }
  return nullptr;
}

}  // namespace planc
