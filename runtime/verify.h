// Runs a program on all its ranks and its model on one, with the same weights and data, and compares
// what both have: every rank's piece of every tensor with the whole one. What differs is reported in
// program order: activations (on demand), metrics, gradients, then updated weights and optimizer
// state. Behind `planrun verify`.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/op.h"
#include "runtime/comm.h"
#include "runtime/device.h"
#include "runtime/roles.h"

namespace planc {

struct VerifyOptions {
  int64_t steps = 3;
  // Largest difference allowed, relative to the tensor's largest element. For gradients, weights and
  // moments that is at least a hundredth of the largest of their kind: what is zero by mathematics
  // (a key's bias) holds only rounding.
  double bound = 1e-10;
  bool activations = false;  // compare saved activations too: to find where a difference begins
  bool isShared = true;      // one Verification for all ranks; else each, a process, has its own
  std::chrono::milliseconds timeout{60000};
};

// A tensor at one moment of the run, and how the ranks' pieces compare there.
struct Comparison {
  std::string tensor;
  std::string kind;            // activation, metric, gradient, weight, moment
  // `layer 2`, counted in the whole model: of activations and gradients; of weights and moments that
  // differ, where they do most.
  std::string iteration = {};
  int64_t step = 0;
  int64_t microbatch = -1;     // activations
  Loc loc;                     // in the plan
  double difference = 0;       // the worst of all ranks, relative as VerifyOptions::bound says
  double scale = 0;            // what it is relative to
  double bound = 0;            // the largest difference allowed
  std::vector<int64_t> ranks;  // those that differ by more than the bound, in order
};

struct VerifyReport {
  std::vector<Comparison> comparisons;  // in program order
  // The first that differs, and the worst; null where there is none.
  const Comparison* first() const;
  const Comparison* worst() const;
};

// Made before the ranks start, and asked when they are done.
class Verification {
 public:
  virtual ~Verification() = default;
  // As one rank of the program, on its device; all ranks call it at once.
  virtual llvm::Error run(const Roles& roles, Communicator& comm, Device& device) = 0;
  // Of all ranks, on rank 0; on others nothing differs.
  virtual const VerifyReport& report() const = 0;
};

using MakeDevice = std::function<std::unique_ptr<Device>()>;

// `model`: the one-rank program of the plan's model, in the program's element types. `exact`: the same
// in f64, or null: where the model itself is further from it than the bound, by rounding, so may the
// ranks be (by four times the most that a tensor of that kind is in that step). `makeDevice`: one
// whose memory is the host's, for each of them.
llvm::Expected<std::unique_ptr<Verification>> makeVerification(const Module& model,
                                                               const Module* exact,
                                                               MakeDevice makeDevice,
                                                               const VerifyOptions& options);

}  // namespace planc
