// Attention whose tokens are cut by ring (Liu et al., Ring Attention, 2023): each rank keeps its
// queries; blocks of keys and values travel along the axes, and each that comes is folded into a
// running result and log-sum-exp, in f32. The next block is on its way while one is scored.
//
//   a, lse = attend(q, k, v) {ring}
//   ->  repeat(k, v, 0, -inf) {dim = ring, count = n}:
//         kn, vn = rotate(k, v) {unless_last};  a, lse = attend_block(q, k, v, a, lse)
//
// Backward, the gradients of a block travel with it, a place behind: a rank adds its own part and
// passes them on while it works on the next block. The owner's part stays at home, so both blocks and
// gradients make n - 1 hops. With a causal window over tokens in order, only the n ranks before a
// rank's own tokens hold keys that it sees; gradients then go home at once.
// Tested by tests/passes/ring, tests/unit/ring_test.cpp and, in numbers, tests/verify.
#include "llvm/ADT/STLExtras.h"
#include "passes/dead_ops.h"
#include "passes/passes.h"

namespace planc {
namespace {

class Ring {
 public:
  explicit Ring(Op& op) : op_(op), builder_(op.parent(), op.parent()->indexOf(&op)) {
    builder_.loc = op.loc;
    const Type& keys = op.operand(1)->type;
    const Dim& seq = keys.dims[size_t(keys.find(op.attrs.word("seq")))];
    seq_ = seq.name;
    ranks_ = ranksOver(seq.axes);
    for (const Axis& axis : seq.axes) axes_.push_back(axis.name);
    blocks_ = ranks_;
    int64_t window = op.attrs.integer("window");
    if (op.isFlag("causal") && window > 0 && seq.zigzag == 0)
      blocks_ = std::min(ranks_, 1 + (window - 2 + seq.size) / seq.size);
    attrs_ = op.attrs;
    attrs_.erase("ring");
    unsigned documents = unsigned(op.info().minOperands);
    travelling_ = {op.operand(1), op.operand(2)};
    if (op.operands().size() > documents) {
      documents_ = op.operand(documents);
      travelling_.push_back(op.operand(documents + 1));
    }
  }

  void run() {
    if (ranks_ > 1) {
      if (op_.kind == OpKind::Attend) forward();
      else backward();
      op_.erase();
    } else {
      op_.attrs.erase("ring");
    }
  }

 private:
  using Values = llvm::SmallVector<Value*, 3>;

  void forward();
  void backward();
  Type moved(Type type, int64_t places, llvm::StringRef repeat = "") const;
  Values rotate(Builder& builder, const Values& values, int64_t by = 1, bool unlessLast = false);
  Op* gradient(Builder& builder, const Values& block);
  Value* add(Builder& builder, Value* a, Value* b) {
    return builder.elementwise(OpKind::Add, {a, b}, a->name);
  }
  std::string repeatName() const;
  void replace(unsigned result, Value* value);
  // Running sums of 16 bits would round at every block.
  static Elem running(Elem elem) { return elem == Elem::BF16 ? Elem::F32 : elem; }

  Op& op_;
  Builder builder_;
  std::string seq_;
  Words axes_;
  int64_t ranks_ = 1, blocks_ = 1;
  Attrs attrs_;
  Values travelling_;  // keys, values and their documents
  Value* documents_ = nullptr;
};

std::string Ring::repeatName() const {
  std::string name = "ring";
  while (llvm::is_contained(op_.parent()->enclosing(), name)) name += "_";
  return name;
}

Type Ring::moved(Type type, int64_t places, llvm::StringRef repeat) const {
  Dim& dim = type.dims[size_t(type.find(seq_))];
  dim.moved = (dim.moved + places) % ranks_;
  if (!repeat.empty()) dim.moves = repeat.str();
  return type;
}

Ring::Values Ring::rotate(Builder& builder, const Values& values, int64_t by, bool unlessLast) {
  llvm::SmallVector<Type, 3> types;
  for (const Value* value : values) types.push_back(moved(value->type, by));
  Attrs attrs{{"axes", axes_}, {"by", by}};
  if (unlessLast) attrs.set("unless_last", int64_t{1});
  Op* op = builder.create(OpKind::Rotate, values, types, attrs);
  for (size_t i = 0; i < values.size(); ++i) op->result(unsigned(i))->name = values[i]->name;
  return Values(op->results().begin(), op->results().end());
}

void Ring::replace(unsigned result, Value* value) {
  Value* old = op_.result(result);
  if (value->type.elem != old->type.elem) value = builder_.value(OpKind::Cast, {value}, old->type);
  value->name = old->name;
  old->replaceAllUsesWith(value);
}

void Ring::forward() {
  const Type& result = op_.result(0)->type;
  Values carried = travelling_;
  carried.push_back(builder_.constant(0, result.withElem(running(result.elem))));
  carried.push_back(builder_.constant(kNoKeys, op_.result(1)->type));
  for (unsigned i = 0; i < 2; ++i) carried[travelling_.size() + i]->name = op_.result(i)->name;
  std::string name = repeatName();
  Op* repeat = builder_.repeat(name, blocks_, false, carried);
  Builder body(repeat->body.get());
  body.loc = op_.loc;
  Values block, next;
  size_t keys = travelling_.size();
  for (size_t i = 0; i < keys; ++i) {
    Value* arg = repeat->body->args()[i];
    arg->type = moved(arg->type, 0, name);
    repeat->result(unsigned(i))->type = moved(repeat->result(unsigned(i))->type, blocks_);
    block.push_back(arg);
  }
  next = rotate(body, block, 1, true);
  Value *a = repeat->body->args()[keys], *lse = repeat->body->args()[keys + 1];
  Values operands{op_.operand(0), block[0], block[1], a, lse};
  if (documents_) operands.append({documents_, block[2]});
  Attrs attrs = attrs_;
  attrs.set("block", int64_t{1});
  Op* attend = body.create(OpKind::AttendBlock, operands, {a->type, lse->type}, attrs);
  for (unsigned i = 0; i < 2; ++i) attend->result(i)->name = op_.result(i)->name;
  next.append({attend->result(0), attend->result(1)});
  body.create(OpKind::Yield, next, {});
  replace(0, repeat->result(unsigned(keys)));
  replace(1, repeat->result(unsigned(keys) + 1));
}

// What a block gives: gradients of the queries, of its keys and of its values.
Op* Ring::gradient(Builder& builder, const Values& block) {
  Values operands(op_.operands().begin(), op_.operands().begin() + op_.info().minOperands);
  operands[1] = block[0];
  operands[2] = block[1];
  if (documents_) operands.append({documents_, block[2]});
  const Type& queries = op_.result(0)->type;
  llvm::SmallVector<Type, 3> types{queries.withElem(running(queries.elem))};
  for (unsigned i = 0; i < 2; ++i)
    types.push_back(block[i]->type.withElem(running(block[i]->type.elem)));
  for (unsigned i = 1; i < 3; ++i) types[i].partial = op_.result(i)->type.partial;
  types[0].partial = queries.partial;
  Attrs attrs = attrs_;
  attrs.set("block", int64_t{1});
  Op* op = builder.create(OpKind::AttendGrad, operands, types, attrs);
  for (unsigned i = 0; i < 3; ++i) op->result(i)->name = op_.result(i)->name;
  return op;
}

void Ring::backward() {
  Values first;
  if (blocks_ > 1) first = rotate(builder_, travelling_);
  Op* own = gradient(builder_, travelling_);
  Value *dq = own->result(0), *dk = own->result(1), *dv = own->result(2);
  if (blocks_ > 1) {
    Values second;
    if (blocks_ > 2) second = rotate(builder_, first);
    Op* next = gradient(builder_, first);
    dq = add(builder_, dq, next->result(0));
    Value *awayK = next->result(1), *awayV = next->result(2);
    if (blocks_ > 2) {
      std::string name = repeatName();
      Values carried = second;
      carried.append({dq, awayK, awayV});
      int64_t count = blocks_ - 2;
      Op* repeat = builder_.repeat(name, count, false, carried);
      Builder body(repeat->body.get());
      body.loc = op_.loc;
      size_t keys = second.size();
      auto args = repeat->body->args();
      for (size_t i = 0; i < args.size(); ++i) {
        if (i == keys) continue;  // the queries' gradient stays
        args[i]->type = moved(args[i]->type, 0, name);
        Value* result = repeat->result(unsigned(i));
        result->type = moved(result->type, count);
      }
      Values block(args.begin(), args.begin() + long(keys));
      Values yields = rotate(body, block, 1, true);
      Values came = rotate(body, {args[keys + 1], args[keys + 2]});
      Op* here = gradient(body, block);
      yields.push_back(add(body, args[keys], here->result(0)));
      yields.push_back(add(body, came[0], here->result(1)));
      yields.push_back(add(body, came[1], here->result(2)));
      body.create(OpKind::Yield, yields, {});
      dq = repeat->result(unsigned(keys));
      awayK = repeat->result(unsigned(keys) + 1);
      awayV = repeat->result(unsigned(keys) + 2);
    }
    Values home = rotate(builder_, {awayK, awayV}, ranks_ - (blocks_ - 1));
    dk = add(builder_, dk, home[0]);
    dv = add(builder_, dv, home[1]);
  }
  replace(0, dq);
  replace(1, dk);
  replace(2, dv);
}

}  // namespace

void ring(Module& module, Diagnostics& diags) {
  if (module.level != Level::Sharded) {
    diags.report({}, Diag::PassOrder, "ring", "a module typed by 'shard'");
    return;
  }
  std::vector<Op*> attention;
  for (const auto& function : module.functions)
    walk(*function->body, [&](Op* op) {
      bool isWhole = op->kind == OpKind::Attend || op->kind == OpKind::AttendGrad;
      if (isWhole && op->isFlag("ring")) attention.push_back(op);
    });
  for (Op* op : attention) Ring(*op).run();
  eraseDeadOps(module);
}

}  // namespace planc
