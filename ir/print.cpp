// IR to text. Deterministic: value names are made unique in program order, attributes are sorted,
// numbers are the shortest that read back. Tested by tests/unit/ir_test.cpp (round trips).
#include <charconv>
#include <cmath>

#include "ir/text.h"
#include "ir/traffic.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/Format.h"

namespace planc {

std::string numberText(double value) {
  if (std::isnan(value)) return "#nan";
  if (std::isinf(value)) return value > 0 ? "#inf" : "#-inf";
  char buffer[40];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

namespace {

bool isWord(llvm::StringRef text) {
  if (text.empty() || !(isalpha((unsigned char)text[0]) || text[0] == '_')) return false;
  for (unsigned char c : text)
    if (!isalnum(c) && c != '_' && c != '.') return false;
  return true;
}

void printString(llvm::raw_ostream& out, llvm::StringRef text) {
  if (isWord(text)) {
    out << text;
    return;
  }
  out << '"';
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') out << '\\' << c;
    else if (c < 32 || c >= 127) out << '\\' << llvm::format("%02x", c);
    else out << c;
  }
  out << '"';
}

class Printer {
 public:
  Printer(llvm::raw_ostream& out, const PrintOptions& options) : out_(out), options_(options) {}

  void module(const Module& module);
  void op(const Op& op, unsigned indent);
  void functionBody(const Block& block) {
    names_.clear();
    taken_.clear();
    counters_.clear();
    this->block(block, 4);
  }

 private:
  void attr(const Attr& value);
  void attrs(const Attrs& attrs);
  void place(const std::optional<Place>& place);
  void loc(Loc loc);
  void cluster(const Cluster& cluster);
  void grid(const Module& module);
  void variable(const Variable& var);
  void block(const Block& block, unsigned indent) {
    for (const Op* o : block.ops) op(*o, indent);
  }
  llvm::StringRef valueName(const Value* value);

  llvm::raw_ostream& out_;
  PrintOptions options_;
  llvm::DenseMap<const Value*, std::string> names_;
  llvm::StringSet<> taken_;
  llvm::StringMap<unsigned> counters_;
  const Grid* grid_ = nullptr;
};

llvm::StringRef Printer::valueName(const Value* value) {
  auto [at, isNew] = names_.try_emplace(value);
  if (!isNew) return at->second;
  std::string base = value->name;
  for (char& c : base)
    if (!isalnum((unsigned char)c) && c != '.') c = '_';
  if (base.empty()) base = value->def() ? value->def()->info().text.str() : "arg";
  std::string name = base;
  if (taken_.contains(name)) {
    unsigned& counter = counters_[base];
    do name = base + "." + std::to_string(++counter);
    while (taken_.contains(name));
  }
  taken_.insert(name);
  return at->second = name;
}

void Printer::attr(const Attr& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) out_ << *integer;
  else if (const auto* number = std::get_if<double>(&value)) out_ << numberText(*number);
  else if (const auto* word = std::get_if<std::string>(&value)) printString(out_, *word);
  else {
    out_ << '[';
    llvm::StringRef comma = "";
    for (const std::string& word : std::get<Words>(value)) {
      out_ << comma;
      printString(out_, word);
      comma = ", ";
    }
    out_ << ']';
  }
}

void Printer::attrs(const Attrs& attrs) {
  if (attrs.size() == 0) return;
  out_ << " {";
  llvm::StringRef comma = "";
  for (const auto& [key, value] : attrs) {
    out_ << comma << key << " = ";
    attr(value);
    comma = ", ";
  }
  out_ << '}';
}

void Printer::place(const std::optional<Place>& place) {
  if (!place) return;
  // A slice ahead in a repeat that goes down may begin before the arena.
  uint64_t size = uint64_t(place->offset);
  out_ << (place->offset < 0 ? " @-0x" : " @0x")
       << llvm::format("%llx", (unsigned long long)(place->offset < 0 ? -size : size));
  for (const Stride& stride : place->strides) {
    out_ << '+' << stride.dim;
    if (stride.ring > 0) out_ << ':' << stride.ring;
    out_ << "*0x" << llvm::format("%llx", (unsigned long long)stride.bytes);
  }
}

void Printer::loc(Loc loc) {
  if (loc.known() && options_.locations)
    out_ << " loc(" << loc.file << ':' << loc.line << ':' << loc.column << ')';
}

void Printer::op(const Op& op, unsigned indent) {
  out_.indent(indent);
  llvm::StringRef comma = "";
  for (const Value* result : op.results()) {
    out_ << comma << '%' << valueName(result);
    comma = ", ";
  }
  if (!op.results().empty()) out_ << " = ";
  out_ << op.info().text;
  if (op.var) out_ << " @" << op.var->name;
  if (!op.operands().empty()) {
    out_ << '(';
    comma = "";
    for (const Value* operand : op.operands()) {
      out_ << comma << '%' << valueName(operand);
      comma = ", ";
    }
    out_ << ')';
  }
  attrs(op.attrs);
  comma = " : ";
  for (const Value* result : op.results()) {
    out_ << comma << result->type.str();
    place(result->place);
    comma = ", ";
  }
  loc(op.loc);
  if (op.has(Comm) && grid_ && options_.rank >= 0) {
    constexpr size_t kShown = 8;
    std::vector<int64_t> group = membersOf(op, Coordinates(*grid_, options_.rank));
    comma = "  // ranks ";
    for (size_t i = 0; i < group.size() && i < kShown; ++i) {
      out_ << comma << group[i];
      comma = ", ";
    }
    if (group.size() > kShown) out_ << ", ... (" << group.size() << " in all)";
  }
  if (op.body) {
    out_ << " body(";
    comma = "";
    for (const Value* arg : op.body->args()) {
      out_ << comma << '%' << valueName(arg) << " : " << arg->type.str();
      place(arg->place);
      comma = ", ";
    }
    out_ << ") {\n";
    block(*op.body, indent + 2);
    out_.indent(indent) << '}';
  }
  out_ << '\n';
}

void Printer::variable(const Variable& var) {
  out_ << "  var @" << var.name << " : " << var.type.str() << ' ' << name(var.kind);
  if (!var.of.empty()) out_ << " of @" << var.of;
  if (!var.stack.empty()) {
    out_ << " stack ";
    attr(var.stack);
  }
  if (var.kind == VarKind::Weight) {
    out_ << " init " << var.init.kind << '(' << numberText(var.init.value) << ')';
    if (var.decay) out_ << " decay";
    if (var.balance > 0) out_ << " balanced(" << numberText(var.balance) << ')';
  }
  if (var.kind == VarKind::Input) out_ << " vocab " << var.vocab;
  if (!var.follows.empty()) out_ << " follows @" << var.follows;
  if (!var.documents.empty())
    out_ << " documents @" << var.documents << " separator " << var.separator;
  if (var.output) out_ << " output";
  if (var.flights > 1) out_ << " flights " << var.flights;
  if (var.piece)
    out_ << " piece @" << var.piece->of << " from " << var.piece->first << " of " << var.piece->all;
  if (var.tied) out_ << " tied";
  place(var.place);
  loc(var.loc);
  out_ << '\n';
}

void Printer::grid(const Module& module) {
  llvm::StringRef comma = "  grid ";
  for (const GridAxis& axis : module.grid.axes) {
    out_ << comma << axis.name << ' ' << axis.size;
    if (!axis.of.empty()) out_ << " of " << axis.of;
    comma = ", ";
  }
  if (!module.grid.axes.empty()) out_ << '\n';
  auto over = [&](llvm::StringRef what, llvm::StringRef name, const Words& axes) {
    out_ << "  " << what << ' ' << name << " over ";
    for (size_t i = 0; i < axes.size(); ++i) out_ << (i ? ", " : "") << axes[i];
  };
  for (const Split& split : module.splits) {
    over("split", split.dim, split.axes);
    if (!split.how.empty()) out_ << " by " << split.how;
    if (!split.order.empty()) out_ << " order " << split.order;
    if (split.room > 0) out_ << " room " << numberText(split.room);
    loc(split.loc);
    out_ << '\n';
  }
  for (const Shard& shard : module.shards) {
    over("shard", shard.what, shard.axes);
    loc(shard.loc);
    out_ << '\n';
  }
  for (const Within& place : module.places) {
    out_ << (place.isScope ? "  scope " : "  place ");
    attr(place.axes);
    out_ << " within " << place.level;
    loc(place.loc);
    out_ << '\n';
  }
  const Pipeline& pipeline = module.pipeline;
  if (pipeline.axis.empty()) return;
  out_ << "  pipeline ";
  attr(pipeline.dims);
  out_ << " over " << pipeline.axis << " by ";
  printString(out_, pipeline.schedule);
  out_ << " chunks " << pipeline.chunks;
  for (size_t i = 0; i < pipeline.counts.size(); ++i)
    out_ << (i == 0 ? " counts " : ", ") << pipeline.counts[i];
  if (!pipeline.order.empty()) {
    out_ << " order ";
    printString(out_, pipeline.order);
  }
  loc(pipeline.loc);
  out_ << '\n';
}

void Printer::cluster(const Cluster& cluster) {
  if (!cluster.known()) return;
  out_ << "  cluster " << cluster.name << " of " << cluster.device;
  attrs(cluster.figures);
  out_ << '\n';
  for (const ClusterLevel& level : cluster.levels) {
    out_ << "  level " << level.name << ' ' << level.count;
    attrs(level.figures);
    out_ << '\n';
  }
}

void Printer::module(const Module& module) {
  grid_ = &module.grid;
  if (options_.rank >= 0) {
    Coordinates here(module.grid, options_.rank);
    out_ << "// rank " << options_.rank << " of " << module.grid.ranks();
    llvm::StringRef comma = ": ";
    for (const GridAxis& axis : module.grid.axes) {
      out_ << comma << axis.name << ' ' << here.on(axis.name);
      comma = ", ";
    }
    out_ << '\n';
  }
  out_ << "module ";
  printString(out_, module.name);
  out_ << ' ' << name(module.level);
  for (const auto& [axis, at] : module.where) out_ << " at " << axis << ' ' << at;
  out_ << " {\n";
  if (module.level == Level::Rank || module.arenaBytes > 0)
    out_ << "  arena 0x" << llvm::format("%llx", (unsigned long long)module.arenaBytes) << '\n';
  for (size_t i = 0; i < module.files.size(); ++i) {
    out_ << "  file ";
    printString(out_, module.files[i]);
    out_ << '\n';
  }
  for (const auto& [key, value] : module.settings) {
    out_ << "  set " << key << " = ";
    attr(value);
    out_ << '\n';
  }
  cluster(module.cluster);
  grid(module);
  for (const Call& call : module.schedule) {
    out_ << "  " << name(call.phase) << " @" << call.function;
    if (call.microbatch >= 0) out_ << '(' << call.microbatch << ')';
    out_ << '\n';
  }
  for (const auto& var : module.vars) variable(*var);
  for (const auto& function : module.functions) {
    out_ << "  func @" << function->name << " {\n";
    functionBody(*function->body);
    out_ << "  }\n";
  }
  out_ << "}\n";
}

}  // namespace

void printModule(const Module& module, llvm::raw_ostream& out, const PrintOptions& options) {
  Printer(out, options).module(module);
}

std::string printOp(const Op& op) {
  std::string text;
  llvm::raw_string_ostream out(text);
  PrintOptions options;
  options.locations = false;
  Printer(out, options).op(op, 0);
  out.flush();
  llvm::StringRef line = llvm::StringRef(text).split('\n').first;
  return line.rtrim("{ ").str();
}

std::string placeInPlan(const Op& op) {
  const std::vector<std::string>& files = op.parent()->module().files;
  if (!op.loc.known() || op.loc.file >= files.size()) return "";
  return files[op.loc.file] + ":" + std::to_string(op.loc.line) + ":" +
         std::to_string(op.loc.column);
}

std::string describe(const Op& op) {
  std::string at = placeInPlan(op);
  return "\n    " + printOp(op) + (at.empty() ? "" : "\n    at " + at);
}

}  // namespace planc
