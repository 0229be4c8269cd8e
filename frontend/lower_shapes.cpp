// Lowering, builtins with a rule of their own for dims: `rope`, `attend`, `concat`, `slice`, and
// the loss over targets. Tested by tests/unit/lower_test.cpp and
// tests/frontend/errors/lower_builtins.plan.
#include <algorithm>
#include <cmath>

#include "frontend/lower_builtins.h"
#include "llvm/ADT/StringExtras.h"

namespace planc::lowering {

Item Lowering::lowerRope(BoundArgs& args) {
  const Item& x = args[0].item;
  const Dim &by = args[2].dim, &over = args[3].dim;
  for (const Dim* dim : {&by, &over})
    if (!hasDim(args[0], *dim)) {
      error(args.call.loc, Diag::LacksDim, "rope", dim->name, dimList(dimsOf(x)))
          .suggest("it rotates pairs of 'by' by their position in 'over'");
      return poison();
    }
  if (by.size % 2) {
    error(args.call.loc, Diag::RopeOdd, by.name, by.size).suggest("give it an even size");
    return poison();
  }
  return Item::tensor(emit(
      OpKind::Rope, {x.value}, x.value->type,
      {{"seq", over.name}, {"by", by.name}, {"theta", args[1].number}, {"style", args[4].word}},
      args.call.loc));
}

// q[batch, seq, head, width], k[batch, seq, kv, width], v[batch, seq, kv, width or its own dim].
Item Lowering::lowerAttend(BoundArgs& args) {
  const Dim &seq = args[6].dim, &by = args[7].dim;
  Loc loc = args.call.loc;
  noteUse(seq.name, kAttended);
  if (args[3].number == 0) noteUse(seq.name, kAllSeen);
  for (size_t i = 0; i < 3; ++i)
    for (const Dim* dim : {&seq, &by})
      if (!hasDim(args[i], *dim) && !(i == 2 && dim == &by)) {
        error(args[i].loc, Diag::LacksDim, "attend", dim->name, dimList(dimsOf(args[i].item)));
        return poison();
      }
  const Type &q = args.tensor(0)->type, &k = args.tensor(1)->type, &v = args.tensor(2)->type;
  if (!sizesAgree(q, k, loc) || !sizesAgree(k, v, loc) || !sizesAgree(q, v, loc)) return poison();

  std::vector<Dim> heads, kvs, own;
  for (const Dim& dim : q.dims)
    if (!k.has(dim.name)) heads.push_back(dim);
  for (const Dim& dim : k.dims)
    if (!q.has(dim.name)) kvs.push_back(dim);
  bool shaped = heads.size() <= 1 && heads.size() == kvs.size();
  for (const Dim& dim : k.dims) shaped &= v.has(dim.name) || dim.name == by.name;
  for (const Dim& dim : v.dims)
    if (!k.has(dim.name)) own.push_back(dim);
  shaped &= own.size() == (v.has(by.name) ? 0u : 1u);
  for (const Dim& dim : own) shaped &= !q.has(dim.name);
  if (!shaped) {
    error(loc, Diag::AttendShapes, dimList(q.dims), dimList(k.dims), dimList(v.dims))
        .suggest(
            "as in q[batch, seq, head, width], k[batch, seq, kv, width], "
            "v[batch, seq, kv, width]; one head for all queries is a kv of size 1");
    return poison();
  }
  if (!heads.empty() && heads[0].size % kvs[0].size) {
    Diagnostic& message =
        error(loc, Diag::HeadsPerKv, heads[0].name, heads[0].size, kvs[0].name, kvs[0].size);
    if (const DimEntry* entry = findDim(kvs[0].name))
      message.note(entry->loc, Diag::DeclaredHere, kvs[0].name);
    std::string legal;
    for (int64_t n = 1; n <= heads[0].size && n <= 1024; ++n)
      if (heads[0].size % n == 0) legal += (legal.empty() ? "" : ", ") + std::to_string(n);
    message.suggest("each kv head serves the same number of heads: '" + kvs[0].name + "' may be " +
                    legal);
    return poison();
  }
  Type result{compute_, {}};
  for (const Dim& dim : q.dims) {
    if (dim.name != by.name) result.dims.push_back(dim);
    else result.dims.push_back(own.empty() ? by : own[0]);
  }
  result.dims = ordered(result.dims, args.wanted);
  Attrs attrs{{"seq", seq.name}, {"by", by.name}};
  // Keys may have the queries' own heads: the last of the dims that all three share, behind the batch.
  if (heads.empty()) {
    std::vector<Dim> shared;
    for (const Dim& dim : q.dims)
      if (dim.name != seq.name && dim.name != by.name && v.has(dim.name)) shared.push_back(dim);
    bool isBatch = shared.size() == 1 && (allDims_.count(shared[0].name) == 0 ||
                                          (allDims_.at(shared[0].name).uses & kSamples) != 0);
    if (!shared.empty() && !isBatch) heads = kvs = {shared.back()};
  }
  if (auto info = allDims_.find(seq.name); info != allDims_.end())
    info->second.heads.insert(heads.empty() ? "" : heads[0].name);
  if (!heads.empty()) {
    noteUse(heads[0].name, kHeads);
    if (kvs[0].name != heads[0].name) noteUse(kvs[0].name, kKvHeads);
    attrs.set("head", heads[0].name);
    attrs.set("kv", kvs[0].name);
  }
  if (args[3].number != 0) attrs.set("causal", int64_t{1});
  if (args[4].number > 0) attrs.set("window", int64_t(args[4].number));
  attrs.set("scale", args[5].number > 0 ? args[5].number : 1 / std::sqrt(double(by.size)));
  llvm::SmallVector<Value*, 5> operands{args.tensor(0), args.tensor(1), args.tensor(2)};
  if (Variable* documents = args[8].item.var) {
    // Of the queries and of the keys.
    Value* ids = readVar(documents, args[8].loc);
    for (const Dim& dim : ids->type.dims)
      if (!q.has(dim.name)) {
        error(args[8].loc, Diag::LacksDim, "attend", dim.name, dimList(q.dims));
        return poison();
      }
    if (!ids->type.has(seq.name)) {
      error(args[8].loc, Diag::LacksDim, "attend", seq.name, dimList(ids->type.dims));
      return poison();
    }
    operands.append({ids, ids});
  }
  Op* op = at(loc).create(OpKind::Attend, operands, {result, q.without(by.name).withElem(scalar_)},
                          attrs);
  return Item::tensor(op->result(0));
}

// The declared result has one dim that no operand has; each operand has one that the result lacks.
Item Lowering::lowerConcat(const ast::Expr& call, const Wanted& wanted) {
  std::vector<Item> items;
  bool good = true;
  for (const ast::Arg& arg : call.args) {
    if (!arg.key.text.empty()) {
      error(arg.key.loc, Diag::UnknownArgument, "concat", arg.key.text);
      good = false;
    }
    items.push_back(toTensor(eval(*arg.value, {}), arg.value->loc));
    good &= items.back().kind != Item::Poison;
  }
  if (items.empty()) {
    error(call.loc, Diag::MissingArgument, "concat", "a");
    return poison();
  }
  if (!good || wanted.broken) return poison();
  if (!wanted.known) {
    error(call.loc, Diag::DimsUnclear, "concat")
        .suggest("give it its own statement with declared dims");
    return poison();
  }
  std::vector<Dim> joined;
  for (const Dim& dim : wanted.dims)
    if (std::none_of(items.begin(), items.end(),
                     [&](const Item& item) { return item.value->type.has(dim.name); }))
      joined.push_back(dim);
  if (joined.size() != 1) {
    error(call.loc, Diag::ConcatResult, dimList(wanted.dims), joined.size())
        .suggest("declare one dim for the joined parts: dim whole = part_a + part_b");
    return poison();
  }
  Words parts;
  int64_t total = 0;
  std::vector<Value*> operands;
  for (size_t i = 0; i < items.size(); ++i) {
    std::vector<Dim> own;
    for (const Dim& dim : items[i].value->type.dims)
      if (!wanted.find(dim.name)) own.push_back(dim);
    if (own.size() != 1 || items[i].offsets) {
      error(call.args[i].value->loc, Diag::ConcatPart, dimList(dimsOf(items[i])), own.size(),
            dimList(wanted.dims));
      return poison();
    }
    if (!sizesAgree(items[i].value->type, Type{compute_, wanted.dims}, call.args[i].value->loc))
      return poison();
    parts.push_back(own[0].name);
    total += own[0].size;
    operands.push_back(items[i].value);
  }
  if (total != joined[0].size) {
    error(call.loc, Diag::ConcatSize, joined[0].name, joined[0].size, total)
        .suggest("declare it as the sum of its parts: dim " + joined[0].name + " = " +
                 llvm::join(parts, " + "));
    return poison();
  }
  return Item::tensor(emit(OpKind::Concat, operands, Type{compute_, wanted.dims},
                           {{"over", joined[0].name}, {"parts", parts}}, call.loc));
}

// The declared result has one dim that the operand lacks: it names the part.
Item Lowering::lowerSlice(BoundArgs& args) {
  const Item& x = args[0].item;
  const Dim& over = args[1].dim;
  Loc loc = args.call.loc;
  if (!hasDim(args[0], over)) {
    error(loc, Diag::LacksDim, "slice", over.name, dimList(dimsOf(x)));
    return poison();
  }
  if (args.wanted.broken) return poison();
  if (!args.wanted.known) {
    error(loc, Diag::DimsUnclear, "slice").suggest("give it its own statement with declared dims");
    return poison();
  }
  std::vector<Dim> parts;
  for (const Dim& dim : args.wanted.dims)
    if (!x.value->type.has(dim.name)) parts.push_back(dim);
  if (parts.size() != 1) {
    error(loc, Diag::SliceResult, dimList(args.wanted.dims), parts.size(), dimList(dimsOf(x)));
    return poison();
  }
  int64_t from = int64_t(args[2].number);
  if (from + parts[0].size > over.size) {
    error(loc, Diag::SliceRange, parts[0].name, from, from + parts[0].size - 1, over.name,
          over.size);
    return poison();
  }
  Type type = x.value->type;
  type.dims[size_t(type.find(over.name))] = parts[0];
  return Item::tensor(emit(OpKind::Slice, {x.value}, type,
                           {{"over", over.name}, {"part", parts[0].name}, {"offset", from}}, loc),
                      x.offsets);
}

Variable* Lowering::countOf(Variable* targets) {
  Variable*& count = counts_[targets];
  if (count) return count;
  Variable var;
  var.name = "count";
  var.kind = VarKind::Metric;
  var.type = {Elem::I32, {}};
  return count = module_.addVar(std::move(var));
}

Value* Lowering::lowerCrossEntropy(const ast::Expr& call) {
  auto matched = matchArgs(call, {{"logits", true}, {"targets", true}, {"over"}, {"scale"}}, Loc());
  if (!matched) return nullptr;
  auto& args = *matched;
  Item logits = eval(*args[0]->value, {});
  if (logits.kind != Item::Poison) logits = toTensor(logits, args[0]->value->loc);
  Item targets = eval(*args[1]->value, {});
  double scale = 1;
  if (args[3]) {
    auto number = evalNumber(*args[3]->value);
    if (!number) return nullptr;
    scale = *number;
  }
  if (logits.kind == Item::Poison || targets.kind == Item::Poison) return nullptr;
  if (targets.kind != Item::Input || !targets.var->documents.empty()) {
    error(args[1]->value->loc, Diag::TargetsInput)
        .suggest("declare them: input targets[batch, seq] : token(vocab)");
    return nullptr;
  }
  const Type& type = logits.value->type;
  Value* ids = readVar(targets.var, args[1]->value->loc);
  std::vector<Dim> own;
  bool shaped = true;
  for (const Dim& dim : type.dims)
    if (!ids->type.has(dim.name)) own.push_back(dim);
  for (const Dim& dim : ids->type.dims) shaped &= type.has(dim.name);
  if (!shaped || own.size() != 1) {
    error(call.loc, Diag::CrossEntropyShapes, dimList(type.dims), dimList(ids->type.dims))
        .suggest("logits have the dims of the targets and the one of the classes");
    return nullptr;
  }
  const std::string& vocab = vocab_[targets.var];
  std::string over = own[0].name;
  if (args[2] && args[2]->value->kind == ast::ExprKind::Name)
    if (auto dim = dimNamed({args[2]->value->text, args[2]->value->loc})) over = dim->name;
  if (own[0].name != vocab || over != vocab) {
    error(call.loc, Diag::CrossEntropyVocab, over != vocab ? over : own[0].name, targets.var->name,
          vocab)
        .note(targets.var->loc, Diag::DeclaredHere, targets.var->name);
    return nullptr;
  }
  if (targets.var->follows.empty()) {
    for (const auto& var : module_.vars)
      if (var->kind == VarKind::Input && var.get() != targets.var && var->documents.empty() &&
          var->type == targets.var->type) {
        targets.var->follows = var->name;
        break;
      }
    if (targets.var->follows.empty()) {
      error(args[1]->value->loc, Diag::TargetsFollow, targets.var->name)
          .suggest("declare the tokens that the model reads as an input of their own");
      return nullptr;
    }
  }
  for (const auto& var : module_.vars)
    if (var->documents == targets.var->name) {
      error(args[1]->value->loc, Diag::DocumentsOfTargets, var->name, targets.var->name)
          .note(var->loc, Diag::DeclaredHere, var->name)
          .suggest("number those of '" + targets.var->follows + "'");
      return nullptr;
    }
  Value* count = readVar(countOf(targets.var), call.loc);
  Op* op = at(call.loc).create(OpKind::CrossEntropy, {logits.value, ids, count},
                               {Type{scalar_, {}}, type.without(vocab).withElem(scalar_)},
                               {{"over", vocab}, {"scale", scale}});
  op->result(0)->name = "loss";
  return op->result(0);
}

}  // namespace planc::lowering
