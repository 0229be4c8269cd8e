// Every kernel of a device against the reference, on random operands: a row of the table is an op
// with its shapes; each runs in f32, bf16 and f64, in shuffled orders of dims, on three variants of
// the device (equal to the bit), in slices of variables, on a dying operand where that is
// allowed, and accumulating with and without `first`. Guards behind each tensor catch what is
// written outside.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "ir/sharding.h"
#include "llvm/ADT/StringExtras.h"
#include "runtime/random.h"
#include "tests/runtime/device_under_test.h"

namespace planc {
namespace {

using test::DeviceTensor;
using test::makeTestDevice;
using test::rounded;

// "f[batch 4, slot 9~expert]": f is the case's element type, g always f32 (or f64 if that is f64).
Type parseType(llvm::StringRef text, Elem elem) {
  Type type;
  type.elem = text[0] == 'i' ? Elem::I32 : text[0] == 'f' || elem == Elem::F64 ? elem : Elem::F32;
  llvm::SmallVector<llvm::StringRef, 6> parts;
  text.slice(text.find('[') + 1, text.find(']')).split(parts, ',', -1, false);
  for (llvm::StringRef part : parts) {
    auto [name, size] = part.trim().split(' ');
    auto [count, over] = size.split('~');
    type.dims.push_back({name.str(), std::stoll(count.str()), over.str()});
  }
  return type;
}

// One op with its shapes. `fill` says what i32 operands hold: "ids N" (from -1 to N - 1), "below N", "rows N"
// (a permutation of rows below N with some dropped), "offsets N" (groups of N rows at most,
// packed), "documents N" and "mixed N" (by position, of N elements or scattered).
struct Case {
  const char* name;
  OpKind kind;
  std::vector<const char*> operands, results;
  Attrs attrs = {};
  std::vector<const char*> fill = {};
  enum Option : unsigned { Plain = 0, Accumulates = 1, KeepOrder = 2, Positive = 4 };
  unsigned options = Plain;
  double tolerance = 1;  // times the usual
};

using Option = Case::Option;

void PrintTo(const Case& test, std::ostream* out) { *out << test.name; }

const std::vector<Case>& cases() {
  using K = OpKind;
  static const std::vector<Case> table = {
      // Elementwise and sums.
      {"add", K::Add, {"f[b 5, s 7, m 33]", "f[b 5, s 7, m 33]"}, {"f[b 5, s 7, m 33]"}},
      {"add_bias", K::Add, {"f[b 5, s 70, m 48]", "f[m 48]"}, {"f[b 5, s 70, m 48]"}},
      {"add_row", K::Mul, {"f[b 4, s 9, m 64]", "g[b 4, s 9]"}, {"f[b 4, s 9, m 64]"}},
      {"add_middle", K::Add, {"f[b 3, s 5, h 4, w 16]", "f[h 4]"}, {"f[b 3, s 5, h 4, w 16]"}},
      {"outer", K::Mul, {"f[a 17]", "f[c 19]"}, {"f[a 17, c 19]"}},
      {"scalar", K::Mul, {"f[a 3000]", "g[]"}, {"f[a 3000]"}},
      {"scalars", K::Sub, {"g[]", "g[]"}, {"g[]"}},
      {"div", K::Div, {"f[a 600]", "f[a 600]"}, {"f[a 600]"}, {}, {}, Option::Positive},
      {"max", K::Max, {"f[a 600]", "f[a 600]"}, {"f[a 600]"}},
      {"min", K::Min, {"f[a 600]", "f[a 600]"}, {"f[a 600]"}},
      {"ge", K::Ge, {"f[a 600]", "f[a 600]"}, {"f[a 600]"}},
      {"neg", K::Neg, {"f[a 70, c 2]"}, {"f[a 70, c 2]"}},
      {"exp", K::Exp, {"f[a 700]"}, {"f[a 700]"}},
      {"log", K::Log, {"f[a 700]"}, {"f[a 700]"}, {}, {}, Option::Positive},
      {"sqrt", K::Sqrt, {"f[a 700]"}, {"f[a 700]"}, {}, {}, Option::Positive},
      {"rsqrt", K::Rsqrt, {"f[a 700]"}, {"f[a 700]"}, {}, {}, Option::Positive},
      {"square", K::Square, {"f[a 700]"}, {"f[a 700]"}},
      {"tanh", K::Tanh, {"f[a 700]"}, {"f[a 700]"}},
      {"sigmoid", K::Sigmoid, {"f[a 700]"}, {"f[a 700]"}},
      {"relu", K::Relu, {"f[a 700]"}, {"f[a 700]"}},
      {"silu", K::Silu, {"f[a 700]"}, {"f[a 700]"}},
      {"gelu", K::Gelu, {"f[a 700]"}, {"f[a 700]"}},
      {"gelu_tanh", K::GeluTanh, {"f[a 700]"}, {"f[a 700]"}},
      {"relu_grad", K::ReluGrad, {"f[a 700]", "f[a 700]"}, {"f[a 700]"}},
      {"silu_grad", K::SiluGrad, {"f[a 700]", "f[a 700]"}, {"f[a 700]"}},
      {"gelu_grad", K::GeluGrad, {"f[a 700]", "f[a 700]"}, {"f[a 700]"}},
      {"gelu_tanh_grad", K::GeluTanhGrad, {"f[a 700]", "f[a 700]"}, {"f[a 700]"}},
      {"cast_down", K::Cast, {"g[a 70, c 3]"}, {"f[a 70, c 3]"}},
      {"cast_up", K::Cast, {"f[a 70, c 3]"}, {"g[a 70, c 3]"}},
      {"const", K::Const, {}, {"f[a 70, c 30]"}, {{"value", 2.5}}},
      {"sum_all", K::Sum, {"f[a 300, c 170]"}, {"g[]"}, {}, {}, Option::Accumulates},
      {"sum_rows", K::Sum, {"f[b 4, s 30, m 130]"}, {"f[b 4, s 30]"}, {}, {}, Option::Accumulates},
      {"sum_batch", K::Sum, {"f[b 40, s 30, m 48]"}, {"f[m 48]"}, {}, {}, Option::Accumulates},
      {"sum_long", K::Sum, {"f[b 3, s 20, m 1500]"}, {"f[s 20, m 1500]"}, {}, {},
       Option::Accumulates},
      {"sum_middle", K::Sum, {"f[b 6, s 5, h 4, w 8]"}, {"f[b 6, h 4]"}, {}, {},
       Option::Accumulates},
      {"sum_few", K::Sum, {"f[b 900, s 50, c 3]"}, {"f[c 3]"}, {}, {}, Option::Accumulates},
      {"sum_deep", K::Sum, {"f[a 3, b 2, c 4, d 3, e 5, g 2]"}, {"f[b 2, d 3, g 2]"}, {}, {},
       Option::Accumulates},
      {"permute", K::Sum, {"f[a 6, b 50, c 70]"}, {"f[c 70, b 50, a 6]"}},
      {"permute_planes", K::Sum, {"f[a 40, b 3, d 2, c 70]"}, {"f[c 70, b 3, d 2, a 40]"}},
      {"accum", K::Accum, {"f[a 60, c 7]"}, {"g[a 60, c 7]"}, {}, {}, Option::Accumulates},

      // Products.
      {"project", K::Einsum, {"f[b 3, s 20, m 48]", "f[m 48, h 4, w 8]"},
       {"f[b 3, s 20, h 4, w 8]"}},
      {"unproject", K::Einsum, {"f[b 3, s 20, h 4, w 8]", "f[h 4, w 8, m 48]"},
       {"f[b 3, s 20, m 48]"}},
      {"weight_grad", K::Einsum, {"f[b 3, s 20, m 48]", "f[b 3, s 20, f 40]"}, {"f[m 48, f 40]"},
       {}, {}, Option::Accumulates},
      {"head", K::Einsum, {"f[b 3, s 20, m 48]", "f[v 65, m 48]"}, {"f[b 3, s 20, v 65]"}},
      {"big", K::Einsum, {"f[s 270, m 400]", "f[m 400, f 90]"}, {"f[s 270, f 90]"}},
      {"batched", K::Einsum, {"f[b 6, s 16, m 24]", "f[b 6, m 24, f 20]"}, {"f[b 6, s 16, f 20]"}},
      {"scores", K::Einsum, {"f[b 2, s 20, h 4, w 8]", "f[b 2, t 24, h 4, w 8]"},
       {"f[b 2, h 4, s 20, t 24]"}},
      {"dot", K::Einsum, {"f[a 700]", "f[a 700]"}, {"g[]"}, {}, {}, Option::Accumulates},
      {"rows_dot", K::Einsum, {"f[b 40, m 100]", "f[b 40, m 100]"}, {"f[b 40]"}},
      {"vector", K::Einsum, {"f[b 40, m 100]", "f[m 100]"}, {"f[b 40]"}, {}, {},
       Option::Accumulates},
      {"outer_product", K::Einsum, {"f[b 40]", "f[m 100]"}, {"f[b 40, m 100]"}},
      {"one_side", K::Einsum, {"f[b 20, m 32, x 5]", "f[m 32, f 24]"}, {"f[b 20, f 24]"}},
      {"tiny", K::Einsum, {"f[b 2, m 3]", "f[m 3, f 2]"}, {"f[b 2, f 2]"}, {}, {},
       Option::Accumulates},
      {"mixed", K::Einsum, {"f[b 40, m 50]", "g[m 50, f 30]"}, {"g[b 40, f 30]"}, {}, {},
       Option::Accumulates},
      {"ragged_product", K::Einsum, {"f[e 4, r 50~e, m 24]", "f[e 4, m 24, f 20]", "i[bound 5]"},
       {"f[e 4, r 50~e, f 20]"}, {}, {"", "", "offsets 50"}},
      {"ragged_weight_grad", K::Einsum, {"f[e 4, r 50~e, m 24]", "f[e 4, r 50~e, f 20]",
       "i[bound 5]"}, {"f[e 4, m 24, f 20]"}, {}, {"", "", "offsets 50"}, Option::Accumulates},
      {"ragged_heads", K::Einsum, {"f[e 4, r 50~e, h 3, w 8]", "f[e 4, h 3, w 8, f 20]",
       "i[bound 5]"}, {"f[e 4, r 50~e, f 20]"}, {}, {"", "", "offsets 50"}},
      // Sizes that tensor cores take, beyond one tile.
      {"ragged_rows", K::Einsum, {"f[e 4, r 300~e, m 136]", "f[e 4, m 136, f 136]", "i[bound 5]"},
       {"f[e 4, r 300~e, f 136]"}, {}, {"", "", "offsets 300"}},
      {"ragged_rows_back", K::Einsum, {"f[e 4, m 24, f 136]", "f[e 4, r 300~e, f 136]", "i[bound 5]"},
       {"f[e 4, r 300~e, m 24]"}, {}, {"", "", "offsets 300"}},
      {"ragged_rows_grad", K::Einsum, {"f[e 4, r 300~e, m 136]", "f[e 4, r 300~e, f 72]",
       "i[bound 5]"}, {"f[e 4, m 136, f 72]"}, {}, {"", "", "offsets 300"}, Option::Accumulates},
      {"ragged_rows_sum", K::Einsum, {"f[e 4, r 50~e, m 24]", "f[e 4, r 50~e, f 16]", "i[bound 5]"},
       {"g[m 24, f 16]"}, {}, {"", "", "offsets 50"}, Option::Accumulates},
      {"ragged_bias", K::Sum, {"f[e 4, r 50~e, f 20]", "i[bound 5]"}, {"f[e 4, f 20]"}, {}, {"",
       "offsets 50"}, Option::Accumulates},
      {"ragged_total", K::Sum, {"f[e 4, r 50~e, f 20, x 3]", "i[bound 5]"}, {"f[e 4, x 3]"}, {},
       {"", "offsets 50"}, Option::Accumulates},
      {"ragged_bias_long", K::Sum, {"f[e 4, r 3000~e, f 20]", "i[bound 5]"}, {"f[e 4, f 20]"}, {},
       {"", "offsets 3000"}, Option::Accumulates},
      {"spread", K::Spread, {"f[e 4, f 20]", "i[bound 5]"}, {"f[e 4, r 50~e, f 20]"}, {}, {"",
       "offsets 50"}},

      // Normalisation, tables, loss.
      {"softmax", K::Softmax, {"f[b 7, m 65]"}, {"f[b 7, m 65]"}, {{"over", "m"}}},
      {"softmax_long", K::Softmax, {"f[b 3, m 9000]"}, {"f[b 3, m 9000]"}, {{"over", "m"}}},
      {"softmax_longest", K::Softmax, {"f[b 2, m 17000]"}, {"f[b 2, m 17000]"}, {{"over", "m"}}},
      {"softmax_narrow", K::Softmax, {"f[b 300, m 20]"}, {"f[b 300, m 20]"}, {{"over", "m"}}},
      {"softmax_grad", K::SoftmaxGrad, {"f[b 7, m 65]", "f[b 7, m 65]"}, {"f[b 7, m 65]"}, {{"over",
       "m"}}},
      {"rms_norm", K::Norm, {"f[b 3, s 9, m 48]"}, {"f[b 3, s 9, m 48]", "g[b 3, s 9]"}, {{"over",
       "m"}, {"eps", 1e-5}}},
      {"layer_norm", K::Norm, {"f[b 3, s 9, m 48]"}, {"f[b 3, s 9, m 48]", "g[b 3, s 9]"}, {{"over",
       "m"}, {"eps", 1e-5}, {"center", int64_t{1}}}},
      {"layer_norm_long", K::Norm, {"f[b 3, m 1100]"}, {"f[b 3, m 1100]", "g[b 3]"}, {{"over", "m"},
       {"eps", 1e-5}, {"center", int64_t{1}}}},
      {"layer_norm_grad_long", K::NormGrad, {"f[b 2, m 4200]", "f[b 2, m 4200]", "g[b 2]"},
       {"f[b 2, m 4200]"}, {{"over", "m"}, {"center", int64_t{1}}}},
      {"layer_norm_grad_longest", K::NormGrad, {"f[b 2, m 8300]", "f[b 2, m 8300]", "g[b 2]"},
       {"f[b 2, m 8300]"}, {{"over", "m"}, {"center", int64_t{1}}}},
      {"rms_norm_grad", K::NormGrad, {"f[b 3, s 9, m 48]", "f[b 3, s 9, m 48]", "g[b 3, s 9]"},
       {"f[b 3, s 9, m 48]"}, {{"over", "m"}}},
      {"layer_norm_grad", K::NormGrad, {"f[b 3, s 9, m 48]", "f[b 3, s 9, m 48]", "g[b 3, s 9]"},
       {"f[b 3, s 9, m 48]"}, {{"over", "m"}, {"center", int64_t{1}}}},
      {"lookup", K::Lookup, {"f[v 11, m 40]", "i[b 3, s 50]"}, {"f[b 3, s 50, m 40]"}, {{"over",
       "v"}}, {"", "ids 11"}},
      {"lookup_grad", K::LookupGrad, {"i[b 3, s 50]", "f[b 3, s 50, m 40]"}, {"f[v 11, m 40]"},
       {{"over", "v"}}, {"ids 11"}, Option::Accumulates},
      {"lookup_grad_heads", K::LookupGrad, {"i[b 3, s 50]", "f[b 3, s 50, h 4, w 5]"},
       {"g[v 300, h 4, w 5]"}, {{"over", "v"}}, {"ids 300"}, Option::Accumulates},
      {"lookup_grad_many", K::LookupGrad, {"i[b 3, s 900]", "f[b 3, s 900, m 16]"},
       {"f[v 3000, m 16]"}, {{"over", "v"}}, {"ids 3000"}, Option::Accumulates},
      {"lookup_grad_few", K::LookupGrad, {"i[b 3, s 300]", "f[b 3, s 300, m 12]"},
       {"g[v 2, m 12]"}, {{"over", "v"}}, {"ids 2"}, Option::Accumulates},
      {"count_valid", K::CountValid, {"i[b 3, s 50]"}, {"i[]"}, {}, {"ids 11"}},
      {"cross_entropy", K::CrossEntropy, {"f[b 3, s 50, v 11]", "i[b 3, s 50]", "i[]"}, {"g[]",
       "g[b 3, s 50]"}, {{"over", "v"}, {"scale", 0.5}}, {"", "ids 11", "count 140"}},
      {"cross_entropy_part", K::CrossEntropyPart, {"f[b 3, s 50, v 11]", "i[b 3, s 50]"},
       {"g[b 3, s 50, p 1]", "g[b 3, s 50]"}, {{"over", "v"}, {"part", "p"}}, {"", "ids 11"}},
      {"cross_entropy_part_wide", K::CrossEntropyPart, {"f[b 3, v 700]", "i[b 3]"},
       {"g[b 3, p 1]", "g[b 3]"}, {{"over", "v"}, {"part", "p"}}, {"", "ids 700"}},
      {"log_sum_exp", K::LogSumExp, {"g[b 3, s 50, p 11]"}, {"g[b 3, s 50]"}, {{"over", "p"}}},
      {"cross_entropy_total", K::CrossEntropyTotal, {"i[b 30, s 500]", "g[b 30, s 500]",
       "g[b 30, s 500]", "i[]"}, {"g[]"}, {{"scale", 0.5}}, {"ids 11", "", "", "count 140"}},
      {"cross_entropy_grad", K::CrossEntropyGrad, {"f[b 3, s 50, v 11]", "i[b 3, s 50]", "i[]",
       "g[b 3, s 50]", "g[]"}, {"f[b 3, s 50, v 11]"}, {{"over", "v"}, {"scale", 0.5}}, {"",
       "ids 11", "count 140"}},
      {"no_tokens", K::CrossEntropy, {"f[b 3, v 11]", "i[b 3]", "i[]"}, {"g[]", "g[b 3]"}, {{"over",
       "v"}}, {"", "ids 11", "count 0"}},
      {"cross_entropy_wide", K::CrossEntropy, {"f[b 3, v 5003]", "i[b 3]", "i[]"}, {"g[]",
       "g[b 3]"}, {{"over", "v"}}, {"", "ids 5003", "count 3"}},
      {"cross_entropy_grad_wide", K::CrossEntropyGrad, {"f[b 3, v 5003]", "i[b 3]", "i[]",
       "g[b 3]", "g[]"}, {"f[b 3, v 5003]"}, {{"over", "v"}}, {"", "ids 5003", "count 3"}},

      // Positions and attention.
      {"rope_half", K::Rope, {"f[b 2, s 9, h 3, w 16]"}, {"f[b 2, s 9, h 3, w 16]"}, {{"seq", "s"},
       {"by", "w"}, {"style", "half"}, {"theta", 10000.0}}},
      {"rope_pairs", K::Rope, {"f[b 2, s 9, h 3, w 16]"}, {"f[b 2, s 9, h 3, w 16]"}, {{"seq", "s"},
       {"by", "w"}, {"style", "pairs"}, {"theta", 500.0}, {"inverse", int64_t{1}}}},
      {"rope_narrow", K::Rope, {"f[b 2, s 9, h 3, w 6]"}, {"f[b 2, s 9, h 3, w 6]"}, {{"seq", "s"},
       {"by", "w"}, {"style", "half"}, {"theta", 10000.0}}},
      {"attend", K::Attend, {"f[b 2, s 70, h 4, w 16]", "f[b 2, s 70, h 4, w 16]",
       "f[b 2, s 70, h 4, w 16]"}, {"f[b 2, s 70, h 4, w 16]", "g[b 2, s 70, h 4]"}, {{"seq", "s"},
       {"by", "w"}, {"head", "h"}, {"kv", "h"}, {"scale", 0.25}}},
      {"attend_causal", K::Attend, {"f[b 2, s 140, h 2, w 16]", "f[b 2, s 140, h 2, w 16]",
       "f[b 2, s 140, h 2, w 16]"}, {"f[b 2, s 140, h 2, w 16]", "g[b 2, s 140, h 2]"}, {{"seq",
       "s"}, {"by", "w"}, {"head", "h"}, {"kv", "h"}, {"scale", 2.0}, {"causal", int64_t{1}}}},
      {"attend_grouped", K::Attend, {"f[b 2, s 70, h 6, w 8]", "f[b 2, s 70, k 2, w 8]",
       "f[b 2, s 70, k 2, u 12]"}, {"f[b 2, s 70, h 6, u 12]", "g[b 2, s 70, h 6]"}, {{"seq", "s"},
       {"by", "w"}, {"head", "h"}, {"kv", "k"}, {"scale", 0.5}, {"causal", int64_t{1}}, {"window",
       int64_t{20}}}},
      {"attend_long", K::Attend, {"f[s 560, w 4]", "f[s 560, w 4]", "f[s 560, w 4]"},
       {"f[s 560, w 4]", "g[s 560]"}, {{"seq", "s"}, {"by", "w"}, {"scale", 4.0}, {"causal",
       int64_t{1}}}},
      {"attend_one_key_head", K::Attend, {"f[b 2, s 30, h 3, w 8]", "f[b 2, s 30, w 8]",
       "f[b 2, s 30, w 8]"}, {"f[b 2, s 30, h 3, w 8]", "g[b 2, s 30, h 3]"}, {{"seq", "s"}, {"by",
       "w"}, {"head", "h"}, {"scale", 0.5}, {"window", int64_t{9}}}},
      {"attend_grad", K::AttendGrad, {"f[b 2, s 140, h 2, w 16]", "f[b 2, s 140, h 2, w 16]",
       "f[b 2, s 140, h 2, w 16]", "f[b 2, s 140, h 2, w 16]", "g[b 2, s 140, h 2]",
       "f[b 2, s 140, h 2, w 16]"}, {"f[b 2, s 140, h 2, w 16]", "f[b 2, s 140, h 2, w 16]",
       "f[b 2, s 140, h 2, w 16]"}, {{"seq", "s"}, {"by", "w"}, {"head", "h"}, {"kv", "h"},
       {"scale", 0.5}, {"causal", int64_t{1}}}, {}, Option::Plain, 2},
      {"attend_grad_grouped", K::AttendGrad, {"f[b 2, s 70, h 6, w 8]", "f[b 2, s 70, k 2, w 8]",
       "f[b 2, s 70, k 2, u 12]", "f[b 2, s 70, h 6, u 12]", "g[b 2, s 70, h 6]",
       "f[b 2, s 70, h 6, u 12]"}, {"f[b 2, s 70, h 6, w 8]", "f[b 2, s 70, k 2, w 8]",
       "f[b 2, s 70, k 2, u 12]"}, {{"seq", "s"}, {"by", "w"}, {"head", "h"}, {"kv", "k"}, {"scale",
       0.5}, {"causal", int64_t{1}}, {"window", int64_t{20}}}, {}, Option::Plain, 2},
      {"attend_grad_one_key_head", K::AttendGrad, {"f[b 2, s 30, h 3, w 8]", "f[b 2, s 30, w 8]",
       "f[b 2, s 30, w 8]", "f[b 2, s 30, h 3, w 8]", "g[b 2, s 30, h 3]",
       "f[b 2, s 30, h 3, w 8]"}, {"f[b 2, s 30, h 3, w 8]", "f[b 2, s 30, w 8]",
       "f[b 2, s 30, w 8]"}, {{"seq", "s"}, {"by", "w"}, {"head", "h"}, {"scale", 0.5}}, {},
       Option::Plain, 2},
      {"attend_grad_long", K::AttendGrad, {"f[s 560, w 4]", "f[s 560, w 4]", "f[s 560, w 4]",
       "f[s 560, w 4]", "g[s 560]", "f[s 560, w 4]"}, {"f[s 560, w 4]", "f[s 560, w 4]",
       "f[s 560, w 4]"}, {{"seq", "s"}, {"by", "w"}, {"scale", 0.5}, {"causal", int64_t{1}}}, {},
       Option::Plain, 2},
      {"attend_wide", K::Attend, {"f[s 70, h 2, w 80]", "f[s 70, h 2, w 80]", "f[s 70, h 2, w 80]"},
       {"f[s 70, h 2, w 80]", "g[s 70, h 2]"}, {{"seq", "s"}, {"by", "w"}, {"head", "h"},
       {"kv", "h"}, {"scale", 0.25}, {"window", int64_t{33}}}},
      {"attend_grad_wide", K::AttendGrad, {"f[s 70, h 2, w 80]", "f[s 70, h 2, w 80]",
       "f[s 70, h 2, w 80]", "f[s 70, h 2, w 80]", "g[s 70, h 2]", "f[s 70, h 2, w 80]"},
       {"f[s 70, h 2, w 80]", "f[s 70, h 2, w 80]", "f[s 70, h 2, w 80]"}, {{"seq", "s"},
       {"by", "w"}, {"head", "h"}, {"kv", "h"}, {"scale", 0.25}, {"window", int64_t{33}}}, {},
       Option::Plain, 2},
      {"attend_documents", K::Attend, {"f[b 2, s 300, h 2, w 8]", "f[b 2, s 300, h 2, w 8]",
       "f[b 2, s 300, h 2, w 8]", "i[b 2, s 300]", "i[b 2, s 300]"}, {"f[b 2, s 300, h 2, w 8]",
       "g[b 2, s 300, h 2]"}, {{"seq", "s"}, {"by", "w"}, {"head", "h"}, {"kv", "h"}, {"scale", 0.5},
       {"causal", int64_t{1}}}, {"", "", "", "documents 70", "documents 70"}},
      {"attend_mixed_documents", K::Attend, {"f[b 2, s 70, h 6, w 8]", "f[b 2, s 70, k 2, w 8]",
       "f[b 2, s 70, k 2, u 12]", "i[s 70]", "i[s 70]"}, {"f[b 2, s 70, h 6, u 12]",
       "g[b 2, s 70, h 6]"}, {{"seq", "s"}, {"by", "w"}, {"head", "h"}, {"kv", "k"}, {"scale", 0.5},
       {"window", int64_t{20}}}, {"", "", "", "mixed 3", "mixed 3"}},
      {"attend_grad_documents", K::AttendGrad, {"f[b 2, s 300, h 2, w 8]",
       "f[b 2, s 300, h 2, w 8]", "f[b 2, s 300, h 2, w 8]", "f[b 2, s 300, h 2, w 8]",
       "g[b 2, s 300, h 2]", "f[b 2, s 300, h 2, w 8]", "i[b 2, s 300]", "i[b 2, s 300]"},
       {"f[b 2, s 300, h 2, w 8]", "f[b 2, s 300, h 2, w 8]", "f[b 2, s 300, h 2, w 8]"}, {{"seq",
       "s"}, {"by", "w"}, {"head", "h"}, {"kv", "h"}, {"scale", 0.5}, {"causal", int64_t{1}}},
       {"", "", "", "", "", "", "documents 70", "documents 70"}, Option::Plain, 2},
      {"attend_grad_mixed_documents", K::AttendGrad, {"f[b 2, s 70, h 6, w 8]",
       "f[b 2, s 70, k 2, w 8]", "f[b 2, s 70, k 2, u 12]", "f[b 2, s 70, h 6, u 12]",
       "g[b 2, s 70, h 6]", "f[b 2, s 70, h 6, u 12]", "i[s 70]", "i[s 70]"},
       {"f[b 2, s 70, h 6, w 8]", "f[b 2, s 70, k 2, w 8]", "f[b 2, s 70, k 2, u 12]"}, {{"seq",
       "s"}, {"by", "w"}, {"head", "h"}, {"kv", "k"}, {"scale", 0.5}},
       {"", "", "", "", "", "", "mixed 3", "mixed 3"}, Option::Plain, 2},
      {"attend_block", K::AttendBlock, {"f[b 2, s 140, h 6, w 8]", "f[b 2, s 140, k 2, w 8]",
       "f[b 2, s 140, k 2, u 12]", "g[b 2, s 140, h 6, u 12]", "g[b 2, s 140, h 6]"},
       {"g[b 2, s 140, h 6, u 12]", "g[b 2, s 140, h 6]"}, {{"seq", "s"}, {"by", "w"}, {"head",
       "h"}, {"kv", "k"}, {"scale", 0.5}, {"causal", int64_t{1}}}},
      {"attend_block_documents", K::AttendBlock, {"f[b 2, s 70, w 8]", "f[b 2, s 70, w 8]",
       "f[b 2, s 70, u 12]", "g[b 2, s 70, u 12]", "g[b 2, s 70]", "i[b 2, s 70]", "i[b 2, s 70]"},
       {"g[b 2, s 70, u 12]", "g[b 2, s 70]"}, {{"seq", "s"}, {"by", "w"}, {"scale", 0.5}},
       {"", "", "", "", "", "ids 9", "ids 40"}},
      // Rows that tensor cores take: of 32 and 16, of 160.
      {"attend_rows", K::AttendBlock, {"f[b 1, s 200, h 4, w 16]", "f[b 1, s 200, k 2, w 16]",
       "f[b 1, s 200, k 2, u 32]", "g[b 1, s 200, h 4, u 32]", "g[b 1, s 200, h 4]", "i[b 1, s 200]",
       "i[b 1, s 200]"}, {"g[b 1, s 200, h 4, u 32]", "g[b 1, s 200, h 4]"}, {{"seq", "s"},
       {"by", "w"}, {"head", "h"}, {"kv", "k"}, {"scale", 0.5}, {"window", int64_t{70}}},
       {"", "", "", "", "", "mixed 3", "mixed 3"}, Option::KeepOrder},
      {"attend_grad_rows", K::AttendGrad, {"f[b 1, s 200, h 4, w 16]", "f[b 1, s 200, k 2, w 16]",
       "f[b 1, s 200, k 2, u 32]", "f[b 1, s 200, h 4, u 32]", "g[b 1, s 200, h 4]",
       "f[b 1, s 200, h 4, u 32]", "i[b 1, s 200]", "i[b 1, s 200]"}, {"f[b 1, s 200, h 4, w 16]",
       "f[b 1, s 200, k 2, w 16]", "f[b 1, s 200, k 2, u 32]"}, {{"seq", "s"}, {"by", "w"}, {"head",
       "h"}, {"kv", "k"}, {"scale", 0.5}, {"causal", int64_t{1}}},
       {"", "", "", "", "", "", "documents 70", "documents 70"}, Option::KeepOrder, 2},
      {"attend_wide_rows", K::Attend, {"f[s 70, w 160]", "f[s 70, w 160]", "f[s 70, u 208]"},
       {"f[s 70, u 208]", "g[s 70]"}, {{"seq", "s"}, {"by", "w"}, {"scale", 0.125}, {"causal",
       int64_t{1}}}},
      {"attend_grad_wide_rows", K::AttendGrad, {"f[s 70, w 160]", "f[s 70, w 160]",
       "f[s 70, u 208]", "f[s 70, u 208]", "g[s 70]", "f[s 70, u 208]"}, {"f[s 70, w 160]",
       "f[s 70, w 160]", "f[s 70, u 208]"}, {{"seq", "s"}, {"by", "w"}, {"scale", 0.125}, {"causal",
       int64_t{1}}}, {}, Option::Plain, 2},
      {"dropout", K::Dropout, {"f[a 31, c 70]"}, {"f[a 31, c 70]"}, {{"rate", 0.3}, {"site",
       "layer.drop"}}},

      // Joining, cutting, experts.
      {"concat", K::Concat, {"f[b 5, x 3]", "f[b 5, c 7, y 4]"}, {"f[b 5, c 7, z 7]"}, {{"over",
       "z"}, {"parts", Words{"x", "y"}}}},
      {"permuted_ids", K::Sum, {"i[b 5, z 9, c 3]"}, {"i[z 9, b 5, c 3]"}, {}, {"ids 2000000000"},
       Option::KeepOrder},
      {"slice", K::Slice, {"f[b 5, z 9, c 3]"}, {"f[b 5, x 4, c 3]"}, {{"over", "z"}, {"part", "x"},
       {"offset", int64_t{2}}}},
      {"shard_slice", K::ShardSlice, {"f[b 5, z 9, c 3]"}, {"f[b 5, z 9, c 3]"}, {{"dim", "z"},
       {"axes", Words{"t"}}}, {}, Option::KeepOrder},
      {"one_copy", K::OneCopy, {"f[b 5, z 9]"}, {"f[b 5, z 9]"}, {{"axes", Words{"t"}}}, {},
       Option::KeepOrder},
      {"route", K::Route, {"f[b 3, s 40, e 8]"}, {"i[b 3, s 40, k 2]", "g[b 3, s 40, k 2]",
       "g[e 8]", "g[e 8]"}, {{"over", "e"}, {"top", int64_t{2}}, {"score", "softmax"},
       {"normalise", int64_t{1}}}},
      {"route_sequences", K::Route, {"g[b 3, s 40, e 8]"}, {"i[b 3, s 40, k 2]",
       "g[b 3, s 40, k 2]", "g[b 3, e 8]", "g[b 3, e 8]"}, {{"over", "e"}, {"seq", "s"},
       {"top", int64_t{2}}, {"score", "sigmoid"}, {"scale", 2.5}, {"per", "sequence"}}},
      {"route_biased", K::Route, {"f[b 3, s 40, e 24]", "g[e 24]"}, {"i[b 3, s 40, k 5]",
       "g[b 3, s 40, k 5]", "g[e 24]", "g[e 24]"}, {{"over", "e"}, {"top", int64_t{5}},
       {"score", "sigmoid"}, {"normalise", int64_t{1}}}},
      {"route_groups", K::Route, {"f[b 3, s 40, e 24]", "g[e 24]"}, {"i[b 3, s 40, k 4]",
       "g[b 3, s 40, k 4]", "g[e 24]", "g[e 24]"}, {{"over", "e"}, {"top", int64_t{4}},
       {"score", "sigmoid"}, {"groups", int64_t{8}}, {"kept", int64_t{3}}, {"group_score", "best2"}}},
      {"route_best_groups", K::Route, {"g[b 3, s 40, e 8]"}, {"i[b 3, s 40, k 2]",
       "g[b 3, s 40, k 2]", "g[e 8]", "g[e 8]"}, {{"over", "e"}, {"top", int64_t{2}},
       {"score", "softmax"}, {"groups", int64_t{4}}, {"kept", int64_t{2}}, {"group_score", "best"}}},
      {"route_many_experts", K::Route, {"g[b 3, s 2, e 5000]", "g[e 5000]"}, {"i[b 3, s 2, k 40]",
       "g[b 3, s 2, k 40]", "g[e 5000]", "g[e 5000]"}, {{"over", "e"}, {"top", int64_t{40}},
       {"score", "sigmoid"}, {"normalise", int64_t{1}}}},
      {"route_grad", K::RouteGrad, {"f[b 3, s 40, e 8]", "i[b 3, s 40, k 2]", "g[b 3, s 40, k 2]",
       "g[e 8]"}, {"f[b 3, s 40, e 8]"}, {{"over", "e"}, {"top", int64_t{2}},
       {"score", "softmax"}, {"normalise", int64_t{1}}}},
      {"route_grad_sequences", K::RouteGrad, {"f[b 3, s 40, e 8]", "i[b 3, s 40, k 2]",
       "g[b 3, s 40, k 2]", "g[b 3, e 8]"}, {"f[b 3, s 40, e 8]"}, {{"over", "e"}, {"seq", "s"},
       {"top", int64_t{2}}, {"score", "sigmoid"}, {"scale", 2.5}, {"per", "sequence"}, {"normalise",
       int64_t{1}}}},
      {"route_grad_many_experts", K::RouteGrad, {"g[b 3, s 2, e 7000]", "i[b 3, s 2, k 40]",
       "g[b 3, s 2, k 40]", "g[e 7000]"}, {"g[b 3, s 2, e 7000]"}, {{"over", "e"},
       {"top", int64_t{40}}, {"score", "softmax"}, {"normalise", int64_t{1}}}},
      {"admit", K::Admit, {"i[b 3, s 40, k 2]"}, {"g[b 3, s 40, k 2]"}, {{"capacity", 0.9},
       {"experts", int64_t{8}}, {"seq", "s"}, {"choice", "k"}}, {"below 8"}},
      {"admit_many", K::Admit, {"i[b 2, s 300, k 3]"}, {"g[b 2, s 300, k 3]"}, {{"capacity", 0.9},
       {"experts", int64_t{40}}, {"seq", "s"}, {"choice", "k"}}, {"below 40"}},
      {"pack", K::Pack, {"i[b 3, s 40, k 2]"}, {"i[b 3, s 40, k 2]", "i[bound 9]"}, {{"experts",
       int64_t{8}}, {"choice", "k"}}, {"below 8"}},
      {"pack_admitted", K::Pack, {"i[b 3, s 40, k 2]", "g[b 3, s 40, k 2]"}, {"i[b 3, s 40, k 2]",
       "i[bound 9]"}, {{"experts", int64_t{8}}, {"choice", "k"}}, {"below 8"}},
      {"pack_many", K::Pack, {"i[b 2, s 150, k 2]", "g[b 2, s 150, k 2]"}, {"i[b 2, s 150, k 2]",
       "i[bound 1101]"}, {{"experts", int64_t{1100}}, {"choice", "k"}}, {"below 1100"}},
      {"pack_very_many", K::Pack, {"i[b 2, s 3, k 5]"}, {"i[b 2, s 3, k 5]", "i[bound 9001]"},
       {{"experts", int64_t{9000}}, {"choice", "k"}}, {"below 9000"}},
      {"pack_long", K::Pack, {"i[b 2, s 150, k 2]"}, {"i[b 2, s 150, k 2]", "i[bound 4201]"},
       {{"experts", int64_t{4200}}, {"choice", "k"}}, {"below 4200"}},
      {"dispatch", K::Dispatch, {"f[b 3, s 20, m 24]", "i[b 3, s 20, k 2]", "i[bound 9]"},
       {"f[e 8, r 130~e, m 24]"}, {{"over", "e"}}, {"", "rows 130", "all 110"}},
      {"dispatch_grad", K::DispatchGrad, {"f[e 8, r 130~e, m 24]", "i[b 3, s 20, k 2]",
       "i[bound 9]"}, {"f[b 3, s 20, m 24]"}, {{"over", "e"}}, {"", "rows 130", "all 110"}},
      {"combine", K::Combine, {"f[e 8, r 130~e, m 24]", "g[b 3, s 20, k 2]", "i[b 3, s 20, k 2]",
       "i[bound 9]"}, {"f[b 3, s 20, m 24]"}, {{"over", "e"}}, {"", "", "rows 130", "all 110"}},
      {"combine_grad", K::CombineGrad, {"f[b 3, s 20, m 24]", "f[e 8, r 130~e, m 24]",
       "g[b 3, s 20, k 2]", "i[b 3, s 20, k 2]", "i[bound 9]"}, {"f[e 8, r 130~e, m 24]",
       "g[b 3, s 20, k 2]"}, {{"over", "e"}}, {"", "", "", "rows 130", "all 110"}},
      {"dispatch_many", K::Dispatch, {"f[b 2, s 5, m 6, w 5]", "i[b 2, s 5, k 40]", "i[bound 9]"},
       {"f[e 8, r 400~e, m 6, w 5]"}, {{"over", "e"}}, {"", "rows 400", "all 360"}},
      {"combine_many", K::Combine, {"f[e 8, r 400~e, m 6, w 5]", "g[b 2, s 5, k 40]",
       "i[b 2, s 5, k 40]", "i[bound 9]"}, {"f[b 2, s 5, m 6, w 5]"}, {{"over", "e"}}, {"", "",
       "rows 400", "all 360"}},
      {"combine_grad_many", K::CombineGrad, {"f[b 2, s 5, m 300]", "f[e 8, r 400~e, m 300]",
       "g[b 2, s 5, k 40]", "i[b 2, s 5, k 40]", "i[bound 9]"}, {"f[e 8, r 400~e, m 300]",
       "g[b 2, s 5, k 40]"}, {{"over", "e"}}, {"", "", "", "rows 400", "all 360"}},

      // The step.
      {"warmup", K::LearningRate, {"i[]"}, {"g[]"}, {{"lr", 0.1}, {"floor", 0.1}, {"warmup", 10.0},
       {"cosine", 100.0}}, {"count 7"}},
      {"cosine", K::LearningRate, {"i[]"}, {"g[]"}, {{"lr", 0.1}, {"floor", 0.1}, {"warmup", 10.0},
       {"cosine", 100.0}}, {"count 70"}},
      {"sum_squares", K::SumSquares, {"f[a 300, c 170]"}, {"g[]"}},
      {"adamw", K::AdamW, {"g[a 90, c 17]", "f[a 90, c 17]", "g[a 90, c 17]", "g[a 90, c 17]",
       "g[]", "g[]", "i[]"}, {"g[a 90, c 17]", "g[a 90, c 17]", "g[a 90, c 17]"}, {{"beta1", 0.9},
       {"beta2", 0.95}, {"eps", 1e-8}, {"decay", 0.1}}, {"", "", "", "", "", "", "count 3"},
       Option::KeepOrder | Option::Positive},
      {"sgd", K::Sgd, {"g[a 90, c 17]", "f[a 90, c 17]", "g[a 90, c 17]", "g[]", "g[]"},
       {"g[a 90, c 17]", "g[a 90, c 17]"}, {{"momentum", 0.9}, {"decay", 0.1}}, {},
       Option::KeepOrder},
  };
  return table;
}

// An op in a module of its own, its operands arguments.
struct Bench {
  Module module;
  Block* block = module.addFunction("f")->body.get();
  Op* op = nullptr;
};

uint64_t seedOf(const Case& test, unsigned order) {
  return randomKey(order, test.name);
}

// Random order, but dims that group rows and rows stay in front.
void shuffle(Type& type, uint64_t seed) {
  size_t fixed = type.grouping().empty() ? 0 : 2;
  for (size_t i = type.dims.size(); i > fixed + 1; --i) {
    size_t j = fixed + size_t(philox(seed, i, type.dims.size()).word[0]) % (i - fixed);
    std::swap(type.dims[i - 1], type.dims[j]);
  }
}

void build(const Case& test, Elem elem, unsigned order, bool accumulates, Bench& bench) {
  auto typeOf = [&](const char* text, uint64_t salt) {
    Type type = parseType(text, elem);
    if (order > 0 && !(test.options & Option::KeepOrder)) shuffle(type, seedOf(test, order) + salt);
    return type;
  };
  llvm::SmallVector<Value*, 6> operands;
  for (const char* text : test.operands) {
    operands.push_back(bench.block->addArg(typeOf(text, operands.size()), "x"));
  }
  llvm::SmallVector<Type, 5> results;
  for (const char* text : test.results) results.push_back(typeOf(text, 100 + results.size()));
  Attrs attrs = test.attrs;
  Variable* var = nullptr;
  if (accumulates) {
    Variable variable;
    variable.name = "target";
    variable.type = results[0];
    variable.kind = VarKind::Gradient;
    var = bench.module.addVar(variable);
    attrs.set("first", int64_t{1});
    results.clear();
  }
  bench.op = Builder(bench.block).create(test.kind, operands, results, attrs, var);
}

Array randomValues(const Case& test, const Type& type, llvm::StringRef fill, uint64_t seed) {
  int64_t n = type.elements();
  auto draw = [&](int64_t i) { return uniformAt(seed, uint64_t(i)); };
  Array values;
  auto [what, numberText] = fill.split(' ');
  int64_t number = numberText.empty() ? 0 : std::stoll(numberText.str());
  if (what == "ids") {
    for (int64_t i = 0; i < n; ++i) {
      values.push_back(std::floor((draw(i) + 1) / 2 * double(number + 1)) - 1);
    }
  } else if (what == "below") {
    for (int64_t i = 0; i < n; ++i)
      values.push_back(std::floor((draw(i) + 1) / 2 * double(number)));
  } else if (what == "count") {
    values.assign(size_t(n), double(number));
  } else if (what == "offsets") {
    // The second group is empty, some rows at the end belong to none.
    for (int64_t i = 0; i < n; ++i) values.push_back(double(i <= 1 ? i : i - 1) / double(n));
    for (double& v : values) v = std::floor(v * double(number));
    if (n > 2) values[2] = values[1];
  } else if (what == "documents" || what == "mixed") {
    for (int64_t i = 0; i < n; ++i) {
      int64_t rest = i, s = 0, b = 0;
      for (const Dim& dim : llvm::reverse(type.dims)) {
        (dim.name == "s" ? s : b) = rest % dim.size;
        rest /= dim.size;
      }
      values.push_back(double(what == "mixed" ? (s * s + b) % number : (s + 11 * b) / number));
    }
  } else if (what == "all") {
    for (int64_t i = 0; i < n; ++i) values.push_back(i == 0 ? 0.0 : double(number));
  } else if (what == "rows") {
    // Every eleventh is dropped; the others are 0, 1, ... in a scrambled order.
    std::vector<int64_t> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return draw(a) < draw(b); });
    values.assign(size_t(n), -1);
    double next = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (i % 11 != 5) values[size_t(order[size_t(i)])] = next++;
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      double x = draw(i);
      values.push_back(test.options & Option::Positive ? 0.2 + std::abs(x) : 2 * x);
    }
  }
  return values;
}

// "all" offsets depend on the rows that "rows" hands out.
int64_t usedRows(const Array& rows) {
  return int64_t(std::count_if(rows.begin(), rows.end(), [](double r) { return r >= 0; }));
}

double toleranceOf(Elem elem, const Type& result) {
  if (elem == Elem::F64 && result.elem != Elem::F32) return 1e-11;
  return elem == Elem::BF16 ? 1.2e-2 : 2e-5;
}

std::vector<Type> typesOf(const Op& op) {
  if (op.var != nullptr) return {op.var->type};
  return resultTypes(op);
}

struct Outcome {
  std::vector<Array> values;
  std::vector<std::vector<std::byte>> bits;
};

void expectDone(llvm::Error error) {
  if (error) ADD_FAILURE() << llvm::toString(std::move(error));
}

// Runs the op once; `inPlace`: result 0 lies on operand 0; `slice`: all tensors are that slice of
// a variable. Checks all guards.
Outcome runOnce(const Case& test, Device& device, const Op& op, const std::vector<Array>& in,
                const Array& before, const RunContext& context, bool inPlace, int64_t slice = 0) {
  auto kernel = device.prepare(op);
  if (!kernel) {
    ADD_FAILURE() << test.name << ": " << llvm::toString(kernel.takeError());
    return {};
  }
  expectDone(device.finishPreparing());
  device.beginStep(context.step);
  std::vector<std::unique_ptr<DeviceTensor>> operands, results;
  std::vector<const void*> from;
  for (size_t i = 0; i < in.size(); ++i) {
    operands.push_back(
        std::make_unique<DeviceTensor>(device, op.operand(unsigned(i))->type, slice));
    operands.back()->set(in[i]);
    from.push_back(operands.back()->data());
  }
  std::vector<void*> to;
  for (const Type& type : typesOf(op)) {
    results.push_back(std::make_unique<DeviceTensor>(device, type, slice));
    if (op.var != nullptr) results.back()->set(before);
    if (inPlace && to.empty()) {
      results.back()->set(in[0]);
      from[0] = results.back()->data();
    }
    to.push_back(results.back()->data());
  }
  device.at(op, test.name);
  // Twice, as in a second step: kernels must leave nothing behind.
  if (!inPlace && op.var == nullptr) (*kernel)->run(context, from.data(), to.data());
  (*kernel)->run(context, from.data(), to.data());
  expectDone(device.finish());
  for (auto& tensor : operands) EXPECT_TRUE(tensor->isIntact()) << test.name << " operand";
  Outcome outcome;
  for (auto& tensor : results) {
    EXPECT_TRUE(tensor->isIntact()) << test.name << " result";
    outcome.values.push_back(tensor->get());
    outcome.bits.push_back(tensor->bits());
  }
  return outcome;
}

// The forward results that a gradient op reads must fit its other operands.
void makeConsistent(const Case& test, Bench& bench, std::vector<Array>& in) {
  const Op& op = *bench.op;
  auto forward = [&](OpKind kind, unsigned operands, llvm::ArrayRef<Type> results) {
    const Op* made =
        Builder(bench.block).create(kind, op.operands().take_front(operands), results, op.attrs);
    return referenceOp(*made, {in.begin(), in.begin() + operands}, {});
  };
  if (test.kind == OpKind::AttendGrad) {
    llvm::SmallVector<Value*, 5> operands = llvm::to_vector<5>(op.operands().take_front(3));
    std::vector<Array> values(in.begin(), in.begin() + 3);
    for (size_t i = 6; i < in.size(); ++i) {
      operands.push_back(op.operand(unsigned(i)));
      values.push_back(in[i]);
    }
    const Op* attend = Builder(bench.block)
                           .create(OpKind::Attend, operands,
                                   {op.operand(3)->type, op.operand(4)->type}, op.attrs);
    auto made = referenceOp(*attend, values, {});
    in[3] = made[0], in[4] = made[1];
  }
  if (test.kind == OpKind::RouteGrad) {
    Type sums = op.operand(3)->type;
    in[1] = forward(OpKind::Route, 1, {op.operand(1)->type, op.operand(2)->type, sums, sums})[0];
  }
  if (test.kind == OpKind::Pack && in.size() > 1)
    for (double& fit : in[1]) fit = fit > -0.5 ? 1 : 0;
  auto clampAll = [&](size_t i, double low, double high) {
    for (double& x : in[i]) x = std::clamp(x, low, high);
  };
  if (test.kind == OpKind::CrossEntropyGrad) clampAll(3, 2, 4);
  if (test.kind == OpKind::AdamW || test.kind == OpKind::Sgd) {
    size_t rate = test.kind == OpKind::AdamW ? 4 : 3;
    in[rate][0] = 0.01;
  }
  if (int at = offsetsOperand(op); at > 0 && op.has(Packs))
    for (size_t i = 1; i < in[size_t(at)].size(); ++i)
      in[size_t(at)][i] = double(usedRows(in[size_t(at) - 1]));
}

void compare(const Case& test, Elem elem, llvm::ArrayRef<Type> types, const Outcome& outcome,
             llvm::ArrayRef<Array> wanted) {
  for (size_t r = 0; r < wanted.size(); ++r) {
    const Array& got = outcome.values[r];
    double most = 0;
    for (double x : wanted[r]) most = std::max(most, std::abs(x));
    double bound = types[r].elem == Elem::I32
                       ? 0
                       : toleranceOf(elem, types[r]) * test.tolerance * std::max(most, 0.5);
    ASSERT_EQ(got.size(), wanted[r].size());
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::abs(got[i] - wanted[r][i]) <= bound) continue;
      FAIL() << "result " << r << " element " << i << ": " << got[i] << ", not " << wanted[r][i];
    }
  }
}

void check(const Case& test, Elem elem, unsigned order, bool accumulates, int64_t microbatch) {
  Bench bench;
  build(test, elem, order, accumulates, bench);
  const Op& op = *bench.op;
  SCOPED_TRACE(testing::Message() << test.name << " " << name(elem).str() << " order " << order
                                  << (accumulates ? " accumulates" : ""));
  std::vector<Array> in;
  for (unsigned i = 0; i < op.operands().size(); ++i) {
    const Type& type = op.operand(i)->type;
    llvm::StringRef fill = i < test.fill.size() ? test.fill[i] : "";
    in.push_back(rounded(type, randomValues(test, type, fill, seedOf(test, order) + i)));
  }
  makeConsistent(test, bench, in);
  for (unsigned i = 0; i < in.size(); ++i) in[i] = rounded(op.operand(i)->type, in[i]);
  int64_t iteration[2] = {3, 1};
  RunContext context;
  context.seed = 7;
  context.step = 5;
  context.microbatch = microbatch;
  context.iteration = iteration;
  // The reference leaves adding to variables to its caller.
  std::vector<Array> wanted =
      test.kind == OpKind::Accum ? in : referenceOp(op, in, context);
  std::vector<Type> types = typesOf(op);
  Array before;
  if (accumulates) {
    before = rounded(types[0], randomValues(test, types[0], "", 99));
    for (size_t i = 0; microbatch > 0 && i < before.size(); ++i) wanted[0][i] += before[i];
  }

  auto one = makeTestDevice(1), two = makeTestDevice(2), three = makeTestDevice(3);
  Outcome base = runOnce(test, *one, op, in, before, context, false);
  if (base.values.empty()) return;
  compare(test, elem, types, base, wanted);
  for (Device* device : {two.get(), three.get()}) {
    Outcome other = runOnce(test, *device, op, in, before, context, false);
    EXPECT_TRUE(other.bits == base.bits) << "variants";
  }
  Outcome slices = runOnce(test, *two, op, in, before, context, false, 1);
  compare(test, elem, types, slices, wanted);
  bool fits = op.has(InPlace) && op.var == nullptr && op.operands().size() > 0 &&
              op.operand(0)->type == types[0];
  if (fits) {
    Outcome other = runOnce(test, *two, op, in, before, context, true);
    EXPECT_TRUE(other.bits[0] == base.bits[0]) << "in place";
  }
}

class Kernels : public testing::TestWithParam<Case> {};

TEST_P(Kernels, MatchReference) {
  for (Elem elem : {Elem::F32, Elem::BF16, Elem::F64}) {
    for (unsigned order = 0; order < 4; ++order) {
      if (order > 0 && (GetParam().options & Option::KeepOrder)) break;
      if (GetParam().kind != OpKind::Accum) check(GetParam(), elem, order, false, 0);
      if (!(GetParam().options & Option::Accumulates)) continue;
      if (GetParam().kind == OpKind::Accum && order > 0) break;
      check(GetParam(), elem, order, true, 0);
      check(GetParam(), elem, order, true, 1);
    }
  }
}

// A body of its own for `fused`: what the helpers below put into it.
struct FusedBench : Bench {
  std::vector<Type> operands;
  Op* make(std::vector<Type> types, std::vector<Type> results,
           const std::function<llvm::SmallVector<Value*>(Builder&, llvm::ArrayRef<Value*>)>& fill,
           Variable* var = nullptr) {
    operands = std::move(types);
    llvm::SmallVector<Value*, 6> values;
    for (const Type& type : operands) values.push_back(block->addArg(type, "x"));
    op = Builder(block).create(OpKind::Fused, values, results, {{"first", int64_t{1}}}, var);
    op->body = std::make_unique<Block>(module, op);
    llvm::SmallVector<Value*, 6> args;
    for (const Type& type : operands) args.push_back(op->body->addArg(type, "x"));
    Builder body(op->body.get());
    body.create(OpKind::Yield, fill(body, args), {});
    return op;
  }
};

// Runs a fused op on two variants against the body's value by the reference.
void checkFused(FusedBench& bench, Elem elem, const std::vector<Array>& wantedOfVar = {}) {
  std::vector<Array> in;
  Case test{"fused", OpKind::Fused, {}, {}};
  for (const Type& type : bench.operands) {
    in.push_back(rounded(type, randomValues(test, type, "", 31 + in.size())));
  }
  std::vector<Array> wanted = wantedOfVar.empty() ? referenceOp(*bench.op, in, {}) : wantedOfVar;
  auto one = makeTestDevice(1), three = makeTestDevice(3);
  Array before(size_t(typesOf(*bench.op)[0].elements()), 0.5);
  Outcome a = runOnce(test, *one, *bench.op, in, before, {}, false);
  Outcome b = runOnce(test, *three, *bench.op, in, before, {}, false);
  ASSERT_EQ(a.values.size(), wanted.size());
  EXPECT_TRUE(a.bits == b.bits) << "variants";
  for (size_t r = 0; r < wanted.size(); ++r) {
    const Array& got = a.values[r];
    double most = 0.5;
    for (double x : wanted[r]) most = std::max(most, std::abs(x));
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(got[i], wanted[r][i], 2 * toleranceOf(elem, typesOf(*bench.op)[r]) * most)
          << "result " << r << " element " << i;
    }
  }
}

class Fused : public testing::TestWithParam<Elem> {};

TEST_P(Fused, Chain) {
  Elem elem = GetParam();
  Type x = parseType("f[b 4, s 30, m 72]", elem), bias = parseType("f[m 72]", elem);
  Type scale = parseType("g[b 4, s 30]", elem), scalar = parseType("g[]", elem);
  FusedBench bench;
  bench.make({x, bias, scale, scalar}, {x, x}, [](Builder& body, llvm::ArrayRef<Value*> in) {
    Value* half = body.constant(0.5, {in[3]->type.elem, {}});
    Value* biased = body.elementwise(OpKind::Add, {in[0], in[1]});
    Value* active = body.elementwise(OpKind::Gelu, {biased});
    Value* scaled = body.elementwise(OpKind::Mul, {active, in[2]});
    Value* moved = body.elementwise(OpKind::Sub, {scaled, in[3]});
    return llvm::SmallVector<Value*>{body.elementwise(OpKind::Mul, {moved, half}), biased};
  });
  checkFused(bench, elem);
}

TEST_P(Fused, EndsInSum) {
  Elem elem = GetParam();
  Type x = parseType("f[b 40, s 30, m 72]", elem), y = parseType("g[m 72]", elem);
  for (const char* kept : {"g[m 72]", "g[b 40, s 30]", "g[]", "g[s 30, m 72]"}) {
    FusedBench bench;
    Type sum = parseType(kept, elem);
    bench.make({x, x, y}, {x, sum}, [&](Builder& body, llvm::ArrayRef<Value*> in) {
      Value* product = body.elementwise(OpKind::Mul, {in[0], in[1]});
      Value* scaled = body.elementwise(OpKind::Mul, {product, in[2]});
      return llvm::SmallVector<Value*>{scaled, body.value(OpKind::Sum, {product}, sum)};
    });
    checkFused(bench, elem);
  }
}

TEST_P(Fused, SumsIntoVariable) {
  Elem elem = GetParam();
  for (bool yields : {false, true}) {
    FusedBench bench;
    Type x = parseType("f[b 40, s 30, m 72]", elem);
    Variable variable;
    variable.name = "grad";
    variable.type = parseType("g[m 72]", elem);
    bench.make({x, x}, {}, [&](Builder& body, llvm::ArrayRef<Value*> in) {
      Value* product = body.elementwise(OpKind::Mul, {in[0], in[1]});
      Value* sum = body.value(OpKind::Sum, {product}, variable.type);
      return yields ? llvm::SmallVector<Value*>{sum} : llvm::SmallVector<Value*>{};
    }, bench.module.addVar(variable));
    FusedBench plain;
    plain.make({x, x}, {variable.type}, [&](Builder& body, llvm::ArrayRef<Value*> in) {
      Value* product = body.elementwise(OpKind::Mul, {in[0], in[1]});
      return llvm::SmallVector<Value*>{body.value(OpKind::Sum, {product}, variable.type)};
    });
    std::vector<Array> in;
    for (uint64_t salt : {31, 32}) {
      in.push_back(rounded(x, randomValues({"fused", OpKind::Fused, {}, {}}, x, "", salt)));
    }
    checkFused(bench, elem, referenceOp(*plain.op, in, {}));
  }
}

// More values at a time than registers hold.
TEST_P(Fused, ManyInputs) {
  Elem elem = GetParam();
  Type x = parseType("f[b 9, s 10, m 72]", elem);
  for (unsigned inputs : {5, 10, 18}) {
    for (const char* kept : {"g[m 72]", "g[b 9, s 10]"}) {
      FusedBench bench;
      Type sum = parseType(kept, elem);
      std::vector<Type> types(inputs, x);
      types[1] = parseType("f[s 10]", elem);
      bench.make(types, {x, sum}, [&](Builder& body, llvm::ArrayRef<Value*> in) {
        Value* total = body.elementwise(OpKind::Mul, {in[0], in[1]});
        for (Value* value : in.drop_front(2))
          total = body.elementwise(OpKind::Add, {value, total});
        Value* last = total;
        for (Value* value : in) last = body.elementwise(OpKind::Max, {last, value});
        return llvm::SmallVector<Value*>{last, body.value(OpKind::Sum, {total}, sum)};
      });
      checkFused(bench, elem);
    }
  }
}

// A result with fewer dims than the op's others, and a chain over few elements.
TEST_P(Fused, SmallerResult) {
  Elem elem = GetParam();
  Type x = parseType("f[b 40, s 3, m 5]", elem), row = parseType("g[s 3]", elem);
  FusedBench bench;
  bench.make({row, x}, {row, x}, [](Builder& body, llvm::ArrayRef<Value*> in) {
    Value* squared = body.elementwise(OpKind::Square, {in[0]});
    Value* product = body.elementwise(OpKind::Mul, {in[1], squared});
    return llvm::SmallVector<Value*>{squared, product};
  });
  checkFused(bench, elem);
}

INSTANTIATE_TEST_SUITE_P(Elems, Fused, testing::Values(Elem::F32, Elem::BF16, Elem::F64),
                         [](const auto& info) { return name(info.param).str(); });

INSTANTIATE_TEST_SUITE_P(Ops, Kernels, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace planc
