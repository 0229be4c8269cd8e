// One op of the reference: elementwise ops as a table of functions, sums by name, norms, tables,
// the loss and the optimizers. Each is the definition in ir/ops.def, written as loops.
// Tested by tests/unit/reference_test.cpp.
#include <algorithm>
#include <cmath>

#include "llvm/Support/ErrorHandling.h"
#include "runtime/random.h"
#include "runtime/reference_loops.h"

namespace planc {
namespace {

constexpr double kPi = 3.14159265358979323846;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double normalCdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double normalPdf(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * kPi); }
double geluTanhInner(double x) { return std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x); }

double geluTanhSlope(double x) {
  double t = std::tanh(geluTanhInner(x));
  double inner = std::sqrt(2 / kPi) * (1 + 3 * 0.044715 * x * x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner;
}

double unary(OpKind kind, double a) {
  switch (kind) {
    case OpKind::Neg:
      return -a;
    case OpKind::Exp:
      return std::exp(a);
    case OpKind::Log:
      return std::log(a);
    case OpKind::Sqrt:
      return std::sqrt(a);
    case OpKind::Rsqrt:
      return 1 / std::sqrt(a);
    case OpKind::Square:
      return a * a;
    case OpKind::Tanh:
      return std::tanh(a);
    case OpKind::Sigmoid:
      return sigmoid(a);
    case OpKind::Relu:
      return std::max(a, 0.0);
    case OpKind::Silu:
      return a * sigmoid(a);
    case OpKind::Gelu:
      return a * normalCdf(a);
    case OpKind::GeluTanh:
      return 0.5 * a * (1 + std::tanh(geluTanhInner(a)));
    default:
      llvm_unreachable("not unary");
  }
}

double binary(OpKind kind, double a, double b) {
  switch (kind) {
    case OpKind::Add:
      return a + b;
    case OpKind::Sub:
      return a - b;
    case OpKind::Mul:
      return a * b;
    case OpKind::Div:
      return a / b;
    case OpKind::Max:
      return std::max(a, b);
    case OpKind::Min:
      return std::min(a, b);
    case OpKind::Ge:
      return a >= b ? 1 : 0;
    case OpKind::ReluGrad:
      return a > 0 ? b : 0;
    case OpKind::SiluGrad:
      return b * sigmoid(a) * (1 + a * (1 - sigmoid(a)));
    case OpKind::GeluGrad:
      return b * (normalCdf(a) + a * normalPdf(a));
    case OpKind::GeluTanhGrad:
      return b * geluTanhSlope(a);
    default:
      llvm_unreachable("not binary");
  }
}

const Type& typeOf(const Op& op, unsigned operand) { return op.operand(operand)->type; }

Array zeros(const Type& type) { return Array(size_t(type.elements()), 0.0); }

Array elementwise(const Op& op, const Arrays& in, const Type& type) {
  Array out = zeros(type);
  Space space({&type});
  Steps to = space.steps(type), first = space.steps(typeOf(op, 0));
  Steps second = in.size() == 2 ? space.steps(typeOf(op, 1)) : Steps();
  space.each([&](Index i) {
    double a = in[0][size_t(first.at(i))];
    double& y = out[size_t(to.at(i))];
    if (op.kind == OpKind::Cast) {
      y = type.elem == Elem::I32 ? std::trunc(a) : a;
    } else {
      y = in.size() == 1 ? unary(op.kind, a) : binary(op.kind, a, in[1][size_t(second.at(i))]);
    }
  });
  return out;
}

// Einsum, sum and spread: the product of the tensors among the operands, summed into the result.
// The operand behind them, if there is one, holds the offsets.
Array sumOfProducts(const Op& op, const Arrays& in, const Type& type, unsigned tensors) {
  Array out = zeros(type);
  const Array* offsets = in.size() > tensors ? &in[tensors] : nullptr;
  const Type &a = typeOf(op, 0), &b = typeOf(op, tensors - 1);
  Space space({&a, &b, &type}, offsets);
  Steps inA = space.steps(a), inB = space.steps(b), to = space.steps(type);
  space.each([&](Index i) {
    double product = in[0][size_t(inA.at(i))];
    if (tensors == 2) product *= in[1][size_t(inB.at(i))];
    out[size_t(to.at(i))] += product;
  });
  return out;
}

// Visits each row along dim `over` of a type: visit(index in the other dims, first element, step).
template <class F>
void eachRow(const Type& type, llvm::StringRef over, Space& rows, F&& visit) {
  rows.drop(over);
  Steps start = rows.steps(type);
  int64_t step = stepAlong(type, over);
  rows.each([&](Index i) { visit(i, start.at(i), step); });
}

Array softmax(const Op& op, const Array& x, const Type& type) {
  Array out = zeros(type);
  std::string over = op.attrs.word("over");
  const Type& from = typeOf(op, 0);
  Space rows({&type});
  int64_t n = type.size(over), stepTo = stepAlong(type, over);
  eachRow(from, over, rows, [&](Index i, int64_t start, int64_t step) {
    int64_t to = rows.steps(type).at(i);
    double most = -INFINITY, total = 0;
    for (int64_t k = 0; k < n; ++k) most = std::max(most, x[size_t(start + k * step)]);
    for (int64_t k = 0; k < n; ++k) total += std::exp(x[size_t(start + k * step)] - most);
    for (int64_t k = 0; k < n; ++k) {
      out[size_t(to + k * stepTo)] = std::exp(x[size_t(start + k * step)] - most) / total;
    }
  });
  return out;
}

Array softmaxGrad(const Op& op, const Array& y, const Array& dy, const Type& type) {
  Array out = zeros(type);
  std::string over = op.attrs.word("over");
  Space rows({&type});
  int64_t n = type.size(over);
  int64_t stepDy = stepAlong(typeOf(op, 1), over), stepTo = stepAlong(type, over);
  eachRow(typeOf(op, 0), over, rows, [&](Index i, int64_t inY, int64_t stepY) {
    int64_t inDy = rows.steps(typeOf(op, 1)).at(i), to = rows.steps(type).at(i);
    double dot = 0;
    for (int64_t k = 0; k < n; ++k) {
      dot += y[size_t(inY + k * stepY)] * dy[size_t(inDy + k * stepDy)];
    }
    for (int64_t k = 0; k < n; ++k) {
      out[size_t(to + k * stepTo)] =
          y[size_t(inY + k * stepY)] * (dy[size_t(inDy + k * stepDy)] - dot);
    }
  });
  return out;
}

Arrays norm(const Op& op, const Array& x) {
  const Type &from = typeOf(op, 0), &type = op.result(0)->type, &rstdType = op.result(1)->type;
  Array y = zeros(type), rstd = zeros(rstdType);
  std::string over = op.attrs.word("over");
  double eps = op.attrs.number("eps", 1e-5);
  Space rows({&from});
  int64_t n = from.size(over), stepTo = stepAlong(type, over);
  eachRow(from, over, rows, [&](Index i, int64_t start, int64_t step) {
    int64_t to = rows.steps(type).at(i);
    double mean = 0, squares = 0;
    if (op.isFlag("center")) {
      for (int64_t k = 0; k < n; ++k) mean += x[size_t(start + k * step)] / double(n);
    }
    for (int64_t k = 0; k < n; ++k) {
      double d = x[size_t(start + k * step)] - mean;
      squares += d * d;
    }
    double r = 1 / std::sqrt(squares / double(n) + eps);
    rstd[size_t(rows.steps(rstdType).at(i))] = r;
    for (int64_t k = 0; k < n; ++k) {
      y[size_t(to + k * stepTo)] = (x[size_t(start + k * step)] - mean) * r;
    }
  });
  return {y, rstd};
}

Array normGrad(const Op& op, const Arrays& in, const Type& type) {
  const Array &dy = in[0], &y = in[1], &rstd = in[2];
  Array out = zeros(type);
  std::string over = op.attrs.word("over");
  Space rows({&type});
  int64_t n = type.size(over);
  int64_t stepY = stepAlong(typeOf(op, 1), over), stepTo = stepAlong(type, over);
  eachRow(typeOf(op, 0), over, rows, [&](Index i, int64_t inDy, int64_t stepDy) {
    int64_t inY = rows.steps(typeOf(op, 1)).at(i), to = rows.steps(type).at(i);
    double meanProduct = 0, meanDy = 0;
    for (int64_t k = 0; k < n; ++k) {
      double d = dy[size_t(inDy + k * stepDy)];
      meanProduct += d * y[size_t(inY + k * stepY)] / double(n);
      meanDy += d / double(n);
    }
    if (!op.isFlag("center")) meanDy = 0;
    double r = rstd[size_t(rows.steps(typeOf(op, 2)).at(i))];
    for (int64_t k = 0; k < n; ++k) {
      out[size_t(to + k * stepTo)] =
          r * (dy[size_t(inDy + k * stepDy)] - y[size_t(inY + k * stepY)] * meanProduct - meanDy);
    }
  });
  return out;
}

// Whether an id names one of `size` rows; others (the -1 of no token) read zero and add nothing.
bool isRow(double id, int64_t size) { return id >= 0 && id < double(size); }

Array lookup(const Op& op, const Array& table, const Array& ids, const Type& type) {
  Array out = zeros(type);
  std::string over = op.attrs.word("over");
  const Type& tableType = typeOf(op, 0);
  Space space({&type});
  Steps to = space.steps(type), inTable = space.steps(tableType),
        inIds = space.steps(typeOf(op, 1));
  space.each([&](Index i) {
    double id = ids[size_t(inIds.at(i))];
    if (!isRow(id, tableType.size(over))) return;
    out[size_t(to.at(i))] = table[size_t(inTable.at(i) + int64_t(id) * stepAlong(tableType, over))];
  });
  return out;
}

Array lookupGrad(const Op& op, const Array& ids, const Array& dy, const Type& type) {
  Array out = zeros(type);
  std::string over = op.attrs.word("over");
  Space space({&typeOf(op, 1)});
  Steps to = space.steps(type), inIds = space.steps(typeOf(op, 0)),
        inDy = space.steps(typeOf(op, 1));
  space.each([&](Index i) {
    double id = ids[size_t(inIds.at(i))];
    if (!isRow(id, type.size(over))) return;
    out[size_t(to.at(i) + int64_t(id) * stepAlong(type, over))] += dy[size_t(inDy.at(i))];
  });
  return out;
}

// A step without any valid token has loss and gradients of zero.
double perToken(const Op& op, double count) {
  return count > 0 ? op.attrs.number("scale", 1) / count : 0;
}

// log(sum(exp(x))) of n elements; -inf when all are that.
double logSumExp(const Array& x, int64_t start, int64_t step, int64_t n) {
  double most = -INFINITY, sum = 0;
  for (int64_t k = 0; k < n; ++k) most = std::max(most, x[size_t(start + k * step)]);
  if (most == -INFINITY) return most;
  for (int64_t k = 0; k < n; ++k) sum += std::exp(x[size_t(start + k * step)] - most);
  return most + std::log(sum);
}

Array logSumExp(const Op& op, const Array& x, const Type& type) {
  Array out = zeros(type);
  std::string over = op.attrs.word("over");
  const Type& from = typeOf(op, 0);
  Space rows({&from});
  eachRow(from, over, rows, [&](Index i, int64_t start, int64_t step) {
    out[size_t(rows.steps(type).at(i))] = logSumExp(x, start, step, from.size(over));
  });
  return out;
}

// The one part is the whole dim.
Arrays crossEntropyPart(const Op& op, const Arrays& in) {
  const Array &logits = in[0], &targets = in[1];
  const Type &type = typeOf(op, 0), &pickedType = op.result(1)->type;
  Array picked = zeros(pickedType);
  std::string over = op.attrs.word("over");
  Space rows({&type});
  eachRow(type, over, rows, [&](Index i, int64_t start, int64_t step) {
    double target = targets[size_t(rows.steps(typeOf(op, 1)).at(i))];
    if (target < 0) return;
    picked[size_t(rows.steps(pickedType).at(i))] = logits[size_t(start + int64_t(target) * step)];
  });
  return {logSumExp(op, logits, op.result(0)->type), picked};
}

double crossEntropyTotal(const Op& op, const Arrays& in) {
  double total = 0;
  Space tokens({&typeOf(op, 0)});
  Steps inTargets = tokens.steps(typeOf(op, 0)), inLse = tokens.steps(typeOf(op, 1));
  Steps inPicked = tokens.steps(typeOf(op, 2));
  tokens.each([&](Index i) {
    if (in[0][size_t(inTargets.at(i))] < 0) return;
    total += in[1][size_t(inLse.at(i))] - in[2][size_t(inPicked.at(i))];
  });
  return total * perToken(op, in[3][0]);
}

Arrays crossEntropy(const Op& op, const Arrays& in) {
  const Array &logits = in[0], &targets = in[1];
  const Type &type = typeOf(op, 0), &lseType = op.result(1)->type;
  Array lse = zeros(lseType);
  std::string over = op.attrs.word("over");
  double total = 0;
  Space rows({&type});
  eachRow(type, over, rows, [&](Index i, int64_t start, int64_t step) {
    double l = logSumExp(logits, start, step, type.size(over));
    lse[size_t(rows.steps(lseType).at(i))] = l;
    double target = targets[size_t(rows.steps(typeOf(op, 1)).at(i))];
    if (target >= 0) total += l - logits[size_t(start + int64_t(target) * step)];
  });
  return {{total * perToken(op, in[2][0])}, lse};
}

Array crossEntropyGrad(const Op& op, const Arrays& in, const Type& type) {
  const Array &logits = in[0], &targets = in[1], &lse = in[3];
  Array out = zeros(type);
  std::string over = op.attrs.word("over");
  double scale = perToken(op, in[2][0]) * in[4][0];
  const Type& from = typeOf(op, 0);
  Space space({&from});
  int dim = space.find(over);
  Steps inLogits = space.steps(from), inTargets = space.steps(typeOf(op, 1));
  Steps inLse = space.steps(typeOf(op, 3)), to = space.steps(type);
  space.each([&](Index i) {
    double target = targets[size_t(inTargets.at(i))];
    if (target < 0) return;
    double hot = double(i[size_t(dim)]) == target ? 1 : 0;
    double p = std::exp(logits[size_t(inLogits.at(i))] - lse[size_t(inLse.at(i))]);
    out[size_t(to.at(i))] = (p - hot) * scale;
  });
  return out;
}

Array dropout(const Op& op, const Array& x, const Type& type, const RunContext& context) {
  Array out = zeros(type);
  float rate = float(op.attrs.number("rate"));
  uint64_t key = randomKey(context.seed, op.attrs.word("site"));
  uint64_t counter = dropoutCounter(context.step, context.microbatch, context.iteration.data(),
                                    context.iteration.size());
  Space space({&type});
  Steps to = space.steps(type), from = space.steps(typeOf(op, 0));
  space.each([&](Index i) {
    uint64_t element = uint64_t(to.at(i));
    if (!dropoutKeeps(key, counter, element, rate)) return;
    out[element] = x[size_t(from.at(i))] / (1 - double(rate));
  });
  return out;
}

Array concat(const Op& op, const Arrays& in, const Type& type) {
  Array out = zeros(type);
  std::string over = op.attrs.word("over");
  Words parts = op.attrs.words("parts");
  int64_t start = 0, stepTo = stepAlong(type, over);
  for (unsigned n = 0; n < in.size(); ++n) {
    const Type& part = typeOf(op, n);
    Space others({&type});
    others.drop(over);
    Steps from = others.steps(part), to = others.steps(type);
    others.each([&](Index i) {
      for (int64_t k = 0; k < part.size(parts[n]); ++k) {
        out[size_t(to.at(i) + (start + k) * stepTo)] =
            in[n][size_t(from.at(i) + k * stepAlong(part, parts[n]))];
      }
    });
    start += part.size(parts[n]);
  }
  return out;
}

Array slice(const Op& op, const Array& x, const Type& type) {
  Array out = zeros(type);
  std::string over = op.attrs.word("over"), part = op.attrs.word("part");
  const Type& from = typeOf(op, 0);
  Space space({&type});
  int dim = space.find(part);
  // The part may keep the name of the dim it is cut from; its index is then already in the steps.
  Steps to = space.steps(type), in = space.steps(from);
  in.perDim[size_t(dim)] = stepAlong(from, over);
  int64_t start = op.attrs.integer("offset") * stepAlong(from, over);
  space.each([&](Index i) { out[size_t(to.at(i))] = x[size_t(in.at(i) + start)]; });
  return out;
}

// The share of the first rank, which is the only one here.
Array shardSlice(const Op& op, const Array& x, const Type& type) {
  Array out = zeros(type);
  Space space({&type});
  Steps to = space.steps(type), from = space.steps(typeOf(op, 0));
  space.each([&](Index i) { out[size_t(to.at(i))] = x[size_t(from.at(i))]; });
  return out;
}

double learningRate(const Op& op, double step) {
  double lr = op.attrs.number("lr"), floor = op.attrs.number("floor");
  double warmup = op.attrs.number("warmup"), cosine = op.attrs.number("cosine");
  if (step < warmup) return lr * step / warmup;
  if (cosine <= 0) return lr;
  if (step >= cosine) return lr * floor;
  double progress = (step - warmup) / (cosine - warmup);
  return lr * (floor + (1 - floor) * 0.5 * (1 + std::cos(kPi * progress)));
}

Arrays adamw(const Op& op, Arrays in) {
  Array &w = in[0], &g = in[1], &m = in[2], &v = in[3];
  double lr = in[4][0], gscale = in[5][0], step = in[6][0];
  double beta1 = op.attrs.number("beta1"), beta2 = op.attrs.number("beta2");
  double eps = op.attrs.number("eps"), decay = op.attrs.number("decay");
  for (size_t i = 0; i < w.size(); ++i) {
    double gradient = g[i] * gscale;
    m[i] = beta1 * m[i] + (1 - beta1) * gradient;
    v[i] = beta2 * v[i] + (1 - beta2) * gradient * gradient;
    double mean = m[i] / (1 - std::pow(beta1, step));
    double variance = v[i] / (1 - std::pow(beta2, step));
    w[i] -= lr * (mean / (std::sqrt(variance) + eps) + decay * w[i]);
  }
  return {w, m, v};
}

Arrays sgd(const Op& op, Arrays in) {
  Array &w = in[0], &g = in[1], &m = in[2];
  double lr = in[3][0], gscale = in[4][0];
  for (size_t i = 0; i < w.size(); ++i) {
    m[i] = op.attrs.number("momentum") * m[i] + g[i] * gscale + op.attrs.number("decay") * w[i];
    w[i] -= lr * m[i];
  }
  return {w, m};
}

// The body's arguments are the operands; what it yields are the results.
Arrays fused(const Op& op, const Arrays& in, const RunContext& context) {
  std::map<const Value*, Array> values;
  for (size_t i = 0; i < in.size(); ++i) values[op.body->args()[i]] = in[i];
  for (const Op* inner : op.body->ops) {
    Arrays operands;
    for (const Value* operand : inner->operands()) operands.push_back(values.at(operand));
    if (inner->kind == OpKind::Yield) return operands;
    values[inner->result()] = referenceOp(*inner, std::move(operands), context)[0];
  }
  llvm_unreachable("a body without a yield");
}

}  // namespace

Arrays referenceOp(const Op& op, Arrays in, const RunContext& context) {
  std::vector<Type> types = resultTypes(op);
  const Type& type = types.front();
  if (op.has(Elementwise)) return {elementwise(op, in, type)};
  switch (op.kind) {
    case OpKind::Const:
      return {Array(size_t(type.elements()), op.attrs.number("value"))};
    case OpKind::Fused:
      return fused(op, in, context);
    case OpKind::Einsum:
      return {sumOfProducts(op, in, type, 2)};
    case OpKind::Sum:
    case OpKind::Spread:
      return {sumOfProducts(op, in, type, 1)};
    case OpKind::Softmax:
      return {softmax(op, in[0], type)};
    case OpKind::SoftmaxGrad:
      return {softmaxGrad(op, in[0], in[1], type)};
    case OpKind::Norm:
      return norm(op, in[0]);
    case OpKind::NormGrad:
      return {normGrad(op, in, type)};
    case OpKind::Lookup:
      return {lookup(op, in[0], in[1], type)};
    case OpKind::LookupGrad:
      return {lookupGrad(op, in[0], in[1], type)};
    case OpKind::CountValid:
      return {{double(llvm::count_if(in[0], [](double id) { return id >= 0; }))}};
    case OpKind::CrossEntropy:
      return crossEntropy(op, in);
    case OpKind::CrossEntropyPart:
      return crossEntropyPart(op, in);
    case OpKind::LogSumExp:
      return {logSumExp(op, in[0], type)};
    case OpKind::CrossEntropyTotal:
      return {{crossEntropyTotal(op, in)}};
    case OpKind::CrossEntropyGrad:
      return {crossEntropyGrad(op, in, type)};
    case OpKind::Rope:
      return {referenceRope(op, in[0])};
    case OpKind::Attend:
    case OpKind::AttendBlock:
      return referenceAttend(op, in);
    case OpKind::AttendGrad:
      return referenceAttendGrad(op, in);
    case OpKind::Dropout:
      return {dropout(op, in[0], type, context)};
    case OpKind::Concat:
      return {concat(op, in, type)};
    case OpKind::Slice:
      return {slice(op, in[0], type)};
    case OpKind::ShardSlice:
      return {shardSlice(op, in[0], type)};
    case OpKind::OneCopy:
      return {in[0]};
    case OpKind::Route:
      return referenceRoute(op, in);
    case OpKind::RouteGrad:
      return {referenceRouteGrad(op, in)};
    case OpKind::Admit:
      return {referenceAdmit(op, in[0])};
    case OpKind::Pack:
      return referencePack(op, in);
    case OpKind::Dispatch:
      return {referenceDispatch(op, in)};
    case OpKind::DispatchGrad:
      return {referenceDispatchGrad(op, in)};
    case OpKind::Combine:
      return {referenceCombine(op, in)};
    case OpKind::CombineGrad:
      return referenceCombineGrad(op, in);
    case OpKind::RowCounts:
      return {referenceRowCounts(in[0])};
    case OpKind::RowOffsets:
      return {referenceRowOffsets(op, in[0])};
    case OpKind::LearningRate:
      return {{learningRate(op, in[0][0])}};
    case OpKind::SumSquares: {
      double total = 0;
      for (double x : in[0]) total += x * x;
      return {{total}};
    }
    case OpKind::AdamW:
      return adamw(op, std::move(in));
    case OpKind::Sgd:
      return sgd(op, std::move(in));
    default:
      llvm_unreachable("touches variables or has a body: Reference runs it");
  }
}

}  // namespace planc
