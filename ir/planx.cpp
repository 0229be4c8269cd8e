// The binary form of modules. Integers are varints (zigzag where signed), strings are written once
// and then by number, values are numbered in order of definition. The reader never trusts a count:
// each element takes at least a byte, so a count beyond the bytes left is an error. Tested by
// tests/unit/planx_test.cpp and tests/fuzz.
#include "ir/planx.h"

#include <cstring>

#include "ir/broken.h"
#include "ir/verify.h"
#include "ir/verify_lowering.h"
#include "ir/verify_pieces.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/CRC.h"

namespace planc {
namespace {

constexpr char kMagic[8] = {'P', 'L', 'A', 'N', 'X', '\r', '\n', '\x1a'};
constexpr uint32_t kModel = 0x4C444F4D, kRole = 0x454C4F52;  // "MODL", "ROLE"
constexpr uint32_t kMaxRoles = 1 << 16;
constexpr size_t kMaxFile = size_t{1} << 30;
constexpr size_t kMaxDecoded = size_t{256} << 20;  // bytes of names in one module

uint32_t crc(llvm::StringRef bytes) {
  return llvm::crc32(
      llvm::ArrayRef<uint8_t>(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
}

class Encoder {
 public:
  std::string module(const Module& module);

 private:
  void number(uint64_t v) {
    for (; v >= 0x80; v >>= 7) out_ += char(v | 0x80);
    out_ += char(v);
  }
  void integer(int64_t v) { number((uint64_t(v) << 1) ^ uint64_t(v >> 63)); }
  void real(double v) {
    char bytes[8];
    memcpy(bytes, &v, 8);
    out_.append(bytes, 8);
  }
  void string(llvm::StringRef text) {
    auto [at, isNew] = strings_.try_emplace(text, strings_.size());
    number(at->second);
    if (!isNew) return;
    number(text.size());
    out_ += text;
  }
  void words(const Words& list) {
    number(list.size());
    for (const std::string& word : list) string(word);
  }
  void attrs(const Attrs& attrs);
  void axes(llvm::ArrayRef<Axis> list) {
    number(list.size());
    for (const Axis& axis : list) string(axis.name);
  }
  void type(const Type& type);
  void place(const std::optional<Place>& place);
  void loc(Loc loc) {
    number(loc.line);
    if (loc.known()) number(loc.file), number(loc.column);
  }
  void variable(const Variable& var);
  void value(const Value* value) {
    values_.try_emplace(value, values_.size());
    string(value->name);
    type(value->type);
    place(value->place);
  }
  void block(const Block& block);

  std::string out_;
  llvm::StringMap<uint64_t> strings_;
  llvm::DenseMap<const Value*, uint64_t> values_;
  llvm::DenseMap<const Variable*, uint64_t> vars_;
};

void Encoder::attrs(const Attrs& attrs) {
  number(attrs.size());
  for (const auto& [key, attr] : attrs) {
    string(key);
    number(attr.index());
    if (const auto* i = std::get_if<int64_t>(&attr)) integer(*i);
    else if (const auto* d = std::get_if<double>(&attr)) real(*d);
    else if (const auto* s = std::get_if<std::string>(&attr)) string(*s);
    else words(std::get<Words>(attr));
  }
}

void Encoder::type(const Type& type) {
  number(uint64_t(type.elem));
  number(type.dims.size());
  for (const Dim& dim : type.dims) {
    string(dim.name);
    integer(dim.all());
    string(dim.over);
    axes(dim.axes);
    integer(dim.zigzag);
    integer(dim.moved);
    string(dim.moves);
    integer(dim.room);
  }
  axes(type.partial);
}

void Encoder::place(const std::optional<Place>& place) {
  number(place ? place->strides.size() + 1 : 0);
  if (!place) return;
  integer(place->offset);
  for (const Stride& stride : place->strides) {
    string(stride.dim);
    integer(stride.bytes);
    integer(stride.ring);
  }
}

void Encoder::variable(const Variable& var) {
  vars_.try_emplace(&var, vars_.size());
  string(var.name);
  type(var.type);
  number(uint64_t(var.kind));
  string(var.of);
  words(var.stack);
  string(var.init.kind);
  real(var.init.value);
  number(var.decay);
  real(var.balance);
  integer(var.vocab);
  string(var.follows);
  string(var.documents);
  integer(var.separator);
  number(var.output);
  integer(var.flights);
  number(var.piece ? 1 : 0);
  if (var.piece) string(var.piece->of), integer(var.piece->first), integer(var.piece->all);
  number(var.tied);
  loc(var.loc);
  place(var.place);
}

void Encoder::block(const Block& block) {
  number(block.args().size());
  for (const Value* arg : block.args()) value(arg);
  number(block.ops.size());
  for (const Op* op : block.ops) {
    number(uint64_t(op->kind));
    number(op->var ? vars_.lookup(op->var) + 1 : 0);
    number(op->operands().size());
    for (const Value* operand : op->operands()) number(values_.lookup(operand));
    attrs(op->attrs);
    loc(op->loc);
    number(op->body ? 1 : 0);
    if (op->body) this->block(*op->body);
    number(op->results().size());
    for (const Value* result : op->results()) value(result);
  }
}

std::string Encoder::module(const Module& module) {
  string(module.name);
  number(uint64_t(module.level));
  number(module.where.size());
  for (const auto& [axis, at] : module.where) string(axis), integer(at);
  integer(module.arenaBytes);
  attrs(module.settings);
  words(module.files);
  number(module.grid.axes.size());
  for (const GridAxis& axis : module.grid.axes)
    string(axis.name), integer(axis.size), string(axis.of);
  number(module.splits.size());
  for (const Split& split : module.splits) {
    string(split.dim);
    words(split.axes);
    string(split.how);
    string(split.order);
    real(split.room);
    loc(split.loc);
  }
  number(module.shards.size());
  for (const Shard& shard : module.shards) string(shard.what), words(shard.axes), loc(shard.loc);
  const Cluster& cluster = module.cluster;
  string(cluster.name);
  string(cluster.device);
  attrs(cluster.figures);
  number(cluster.levels.size());
  for (const ClusterLevel& level : cluster.levels)
    string(level.name), integer(level.count), attrs(level.figures);
  number(module.places.size());
  for (const Within& place : module.places)
    words(place.axes), string(place.level), loc(place.loc), number(place.isScope);
  const Pipeline& pipeline = module.pipeline;
  string(pipeline.axis);
  words(pipeline.dims);
  string(pipeline.schedule);
  integer(pipeline.chunks);
  number(pipeline.counts.size());
  for (int64_t count : pipeline.counts) integer(count);
  string(pipeline.order);
  loc(pipeline.loc);
  number(module.vars.size());
  for (const auto& var : module.vars) variable(*var);
  number(module.functions.size());
  for (const auto& function : module.functions) {
    string(function->name);
    values_.clear();
    block(*function->body);
  }
  number(module.schedule.size());
  for (const Call& call : module.schedule) {
    string(call.function);
    integer(call.microbatch);
    number(uint64_t(call.phase));
  }
  return std::move(out_);
}

// Reads what Encoder writes. After the first fault every read gives zeros and `bad` stays set, so
// that callers check once.
class Decoder {
 public:
  explicit Decoder(llvm::StringRef bytes) : bytes_(bytes) {}
  std::unique_ptr<Module> module();

 private:
  uint64_t number() {
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ >= bytes_.size()) break;
      uint8_t byte = uint8_t(bytes_[at_++]);
      v |= uint64_t(byte & 0x7f) << shift;
      if (byte < 0x80) return v;
    }
    bad_ = true;
    return 0;
  }
  int64_t integer() {
    uint64_t v = number();
    return int64_t(v >> 1) ^ -int64_t(v & 1);
  }
  // A number that must be below a limit.
  uint64_t below(uint64_t limit) {
    uint64_t v = number();
    if (v >= limit) bad_ = true;
    return bad_ ? 0 : v;
  }
  // A count of things that each take a byte at least.
  size_t count() { return size_t(below(bytes_.size() - std::min(at_, bytes_.size()) + 1)); }
  double real() {
    double v = 0;
    if (bytes_.size() - at_ < 8) {
      bad_ = true;
      at_ = bytes_.size();
    } else {
      memcpy(&v, bytes_.data() + at_, 8);
      at_ += 8;
    }
    return v;
  }
  std::string string() {
    uint64_t index = below(strings_.size() + 1);
    if (bad_) return {};
    if (index == strings_.size()) {
      size_t size = count();
      strings_.push_back(bytes_.substr(at_, size));
      at_ += size;
    }
    // A string is written once but may be named often: what comes out has a bound too.
    decoded_ += strings_[index].size();
    if (decoded_ > kMaxDecoded) bad_ = true;
    return bad_ ? std::string() : strings_[index].str();
  }
  Words words() {
    Words list;
    for (size_t n = count(); n > 0 && !bad_; --n) list.push_back(string());
    return list;
  }
  Attrs attrs();
  Axes axes();
  Type type();
  std::optional<Place> place();
  Loc loc() {
    Loc loc;
    loc.line = uint32_t(below(uint64_t{1} << 31));
    if (loc.known()) {
      loc.file = uint32_t(below(uint64_t{1} << 31));
      loc.column = uint32_t(below(uint64_t{1} << 31));
    }
    return loc;
  }
  void variable(Module& module);
  void block(Block& block, unsigned depth);

  llvm::StringRef bytes_;
  size_t at_ = 0;
  bool bad_ = false;
  size_t decoded_ = 0;
  std::vector<llvm::StringRef> strings_;
  std::vector<Value*> values_;
  const Grid* grid_ = nullptr;  // of the module being read
};

Axes Decoder::axes() {
  Axes axes;
  for (size_t n = count(); n > 0 && !bad_; --n) {
    std::string name = string();
    auto axis = llvm::find_if(grid_->axes, [&](const GridAxis& a) { return a.name == name; });
    if (axis == grid_->axes.end()) bad_ = true;
    else axes.push_back({axis->name, axis->size});
  }
  return axes;
}

Attrs Decoder::attrs() {
  Attrs attrs;
  for (size_t n = count(); n > 0 && !bad_; --n) {
    std::string key = string();
    switch (below(4)) {
      case 0:
        attrs.set(key, integer());
        break;
      case 1:
        attrs.set(key, real());
        break;
      case 2:
        attrs.set(key, string());
        break;
      default:
        attrs.set(key, words());
        break;
    }
  }
  return attrs;
}

Type Decoder::type() {
  Type type;
  type.elem = Elem(below(4));
  for (size_t n = count(); n > 0 && !bad_; --n) {
    Dim dim;
    dim.name = string();
    dim.size = integer();
    dim.over = string();
    dim = splitDim(dim, axes());
    dim.zigzag = integer();
    dim.moved = integer();
    dim.moves = string();
    int64_t room = integer();
    bad_ |= room < 0 || (room > 0 && !dim.isRagged());
    if (room > 0 && !bad_) dim = limitRows(dim, room);
    bad_ |= dim.zigzag < 0 || dim.zigzag > dim.all();
    type.dims.push_back(std::move(dim));
  }
  type.partial = axes();
  return type;
}

std::optional<Place> Decoder::place() {
  size_t n = count();
  if (n == 0) return std::nullopt;
  Place place;
  place.offset = integer();
  for (; n > 1 && !bad_; --n) {
    Stride& stride = place.strides.emplace_back();
    stride.dim = string();
    stride.bytes = integer();
    stride.ring = integer();
  }
  return place;
}

void Decoder::variable(Module& module) {
  Variable var;
  var.name = string();
  var.type = type();
  var.kind = VarKind(below(uint64_t(VarKind::Step) + 1));
  var.of = string();
  var.stack = words();
  var.init.kind = string();
  var.init.value = real();
  var.decay = below(2) != 0;
  var.balance = real();
  var.vocab = integer();
  var.follows = string();
  var.documents = string();
  var.separator = integer();
  var.output = below(2) != 0;
  var.flights = integer();
  if (below(2)) {
    Piece& piece = var.piece.emplace();
    piece.of = string();
    piece.first = integer();
    piece.all = integer();
  }
  var.tied = below(2) != 0;
  var.loc = loc();
  var.place = place();
  if (module.findVar(var.name)) bad_ = true;
  module.addVar(std::move(var));
}

void Decoder::block(Block& block, unsigned depth) {
  if (depth > kMaxNesting) bad_ = true;
  auto value = [&](Value* v) {
    v->name = string();
    v->type = type();
    v->place = place();
    values_.push_back(v);
  };
  for (size_t n = count(); n > 0 && !bad_; --n) value(block.addArg({}, ""));
  for (size_t n = count(); n > 0 && !bad_; --n) {
    OpKind kind = OpKind(below(allOps().size()));
    uint64_t var = below(block.module().vars.size() + 1);
    llvm::SmallVector<Value*, 4> operands;
    for (size_t k = count(); k > 0 && !bad_; --k) {
      uint64_t index = below(values_.size());
      if (!bad_) operands.push_back(values_[index]);
    }
    Attrs opAttrs = attrs();
    Builder builder(&block);
    builder.loc = loc();
    if (bad_) return;
    Op* op = builder.create(kind, operands, {}, std::move(opAttrs),
                            var ? block.module().vars[var - 1].get() : nullptr);
    if (below(2) && !bad_) {
      op->body = std::make_unique<Block>(block.module(), op);
      this->block(*op->body, depth + 1);
    }
    for (size_t k = count(); k > 0 && !bad_; --k) value(op->addResult({}, ""));
  }
}

std::unique_ptr<Module> Decoder::module() {
  auto module = std::make_unique<Module>();
  module->name = string();
  module->level = Level(below(3));
  grid_ = &module->grid;
  for (size_t n = count(); n > 0 && !bad_; --n) {
    auto& [axis, at] = module->where.emplace_back();
    axis = string();
    at = integer();
  }
  module->arenaBytes = integer();
  module->settings = attrs();
  module->files = words();
  for (size_t n = count(); n > 0 && !bad_; --n) {
    GridAxis& axis = module->grid.axes.emplace_back();
    axis.name = string();
    axis.size = integer();
    axis.of = string();
    bad_ |= axis.size < 1;  // types divide by it
  }
  for (size_t n = count(); n > 0 && !bad_; --n) {
    Split& split = module->splits.emplace_back();
    split.dim = string();
    split.axes = words();
    split.how = string();
    split.order = string();
    split.room = real();
    split.loc = loc();
  }
  for (size_t n = count(); n > 0 && !bad_; --n) {
    Shard& shard = module->shards.emplace_back();
    shard.what = string();
    shard.axes = words();
    shard.loc = loc();
  }
  Cluster& cluster = module->cluster;
  cluster.name = string();
  cluster.device = string();
  cluster.figures = attrs();
  for (size_t n = count(); n > 0 && !bad_; --n) {
    ClusterLevel& level = cluster.levels.emplace_back();
    level.name = string();
    level.count = integer();
    level.figures = attrs();
    bad_ |= level.count < 1;
  }
  for (size_t n = count(); n > 0 && !bad_; --n) {
    Within& place = module->places.emplace_back();
    place.axes = words();
    place.level = string();
    place.loc = loc();
    place.isScope = number() != 0;
  }
  Pipeline& pipeline = module->pipeline;
  pipeline.axis = string();
  pipeline.dims = words();
  pipeline.schedule = string();
  pipeline.chunks = integer();
  for (size_t n = count(); n > 0 && !bad_; --n) pipeline.counts.push_back(integer());
  pipeline.order = string();
  pipeline.loc = loc();
  for (size_t n = count(); n > 0 && !bad_; --n) variable(*module);
  for (size_t n = count(); n > 0 && !bad_; --n) {
    std::string name = string();
    if (module->findFunction(name)) bad_ = true;
    values_.clear();
    block(*module->addFunction(name)->body, 0);
  }
  for (size_t n = count(); n > 0 && !bad_; --n) {
    Call& call = module->schedule.emplace_back();
    call.function = string();
    call.microbatch = integer();
    call.phase = Phase(below(3));
  }
  if (bad_ || at_ != bytes_.size()) return nullptr;
  return module;
}

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T take(llvm::StringRef bytes, size_t at) {
  T value;
  memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Bytes in front of the payloads, of this many sections.
size_t headerBytes(size_t sections) { return 16 + sections * 16 + 4; }

}  // namespace

size_t Planx::roleOf(int64_t rank) const {
  Coordinates at(grid(), rank);
  for (size_t i = 0; i < roles.size(); ++i)
    if (roles[i]->fits(at)) return i;
  return 0;
}

std::string writePlanx(const Planx& planx) {
  std::vector<std::string> payloads{Encoder().module(*planx.model)};
  for (const auto& role : planx.roles) payloads.push_back(Encoder().module(*role));
  std::string out(kMagic, sizeof kMagic);
  append(out, kPlanxVersion);
  append(out, uint32_t(payloads.size()));
  for (size_t i = 0; i < payloads.size(); ++i) {
    append(out, i == 0 ? kModel : kRole);
    append(out, uint64_t(payloads[i].size()));
    append(out, crc(payloads[i]));
  }
  append(out, crc(out));
  for (const std::string& payload : payloads) out += payload;
  return out;
}

// Whether every rank has a role. Ranks differ to roles only on the axes that these name.
static bool isCovered(const Planx& planx) {
  if (planx.roles.back()->where.empty()) return true;
  int64_t ranks = planx.grid().ranks();
  constexpr int64_t kMost = 1 << 20;
  if (ranks > kMost) return false;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    Coordinates at(planx.grid(), rank);
    if (llvm::none_of(planx.roles, [&](const auto& role) { return role->fits(at); })) return false;
  }
  return true;
}

// A program's inputs and weights are those of the model.
static llvm::Error checkVariables(const Module& model, const Module& program) {
  for (const auto& var : program.vars) {
    if (var->kind != VarKind::Input && var->kind != VarKind::Weight) continue;
    const Variable* of = model.findVar(var->wholeName());
    if (!of || of->kind != var->kind || of->type.dims != var->wholeType().dims ||
        of->vocab != var->vocab || of->follows != var->follows || of->documents != var->documents ||
        of->separator != var->separator)
      return broken("the program's '" + var->name + "' is not the model's");
  }
  return llvm::Error::success();
}

llvm::Error checkFits(const Planx& planx) {
  for (const auto& role : planx.roles)
    if (role->grid != planx.grid()) return broken("the programs have different grids");
  for (const auto& role : planx.roles)
    if (llvm::Error error = checkVariables(*planx.model, *role)) return error;
  if (!isCovered(planx)) return broken("a rank of the grid has no program");
  if (llvm::Error error = verifyPieces(planx)) return error;
  return verifyLowering(planx);
}

llvm::Expected<Planx> readPlanx(llvm::StringRef bytes) {
  if (bytes.size() < sizeof kMagic || memcmp(bytes.data(), kMagic, sizeof kMagic) != 0)
    return broken("this is no .planx file");
  if (bytes.size() < headerBytes(2)) return broken("the file is cut short in its header");
  if (bytes.size() > kMaxFile) return broken("the file is larger than 1 GiB");
  uint32_t version = take<uint32_t>(bytes, 8), sections = take<uint32_t>(bytes, 12);
  if (version != kPlanxVersion)
    return broken("the file has format version " + llvm::Twine(version) + "; this planrun reads " +
                  llvm::Twine(kPlanxVersion) + "; compile the plan again");
  if (sections < 2 || sections > kMaxRoles + 1)
    return broken("the header's checksum is wrong: the file was altered");
  size_t at = headerBytes(sections);
  if (bytes.size() < at) return broken("the file is cut short in its header");
  if (crc(bytes.take_front(at - 4)) != take<uint32_t>(bytes, at - 4))
    return broken("the header's checksum is wrong: the file was altered");
  Planx planx;
  for (size_t i = 0; i < sections; ++i) {
    size_t entry = 16 + i * 16;
    uint64_t size = take<uint64_t>(bytes, entry + 4);
    if (size > bytes.size() - at) return broken("the file is cut short");
    llvm::StringRef payload = bytes.substr(at, size);
    at += size;
    bool isModel = i == 0;
    llvm::StringRef what = isModel ? "model" : "program";
    if (take<uint32_t>(bytes, entry) != (isModel ? kModel : kRole))
      return broken("the file has unknown sections");
    if (crc(payload) != take<uint32_t>(bytes, entry + 12))
      return broken("the " + what + "'s checksum is wrong: the file was altered");
    std::unique_ptr<Module> module = Decoder(payload).module();
    if (!module) return broken("the " + what + " is malformed");
    if (module->level != (isModel ? Level::Model : Level::Rank))
      return broken("the " + what + " is of another level");
    if (llvm::Error error = verify(*module))
      return broken("the " + what + " breaks a rule: " + llvm::toString(std::move(error)));
    if (isModel) planx.model = std::move(module);
    else planx.roles.push_back(std::move(module));
  }
  if (at != bytes.size()) return broken("the file has bytes behind its end");
  if (llvm::Error error = checkFits(planx)) return error;
  return planx;
}

std::unique_ptr<Module> cloneModule(const Module& module) {
  return Decoder(Encoder().module(module)).module();
}

std::unique_ptr<Module> cloneForOneRank(const Module& model) {
  std::unique_ptr<Module> one = cloneModule(model);
  one->grid = {};
  one->splits.clear();
  one->shards.clear();
  one->pipeline = {};
  one->places.clear();
  return one;
}

}  // namespace planc
