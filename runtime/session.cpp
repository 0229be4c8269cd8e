// Weights, checkpoints and steps. What a checkpoint holds follows from the variables' kinds: weights
// and moments by name, the step in the metadata; gradients, slots and copies are made anew. Tested
// by tests/tools/checkpoint.test and tests/runtime/golden_test.cpp.
#include "runtime/session.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"
#include "runtime/random.h"

namespace planc {
namespace {

constexpr llvm::StringLiteral kCheckpoint = "checkpoint.safetensors";

// To nearest even, as the kernels round.
uint16_t toBf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void store(Elem elem, std::byte* at, int64_t i, double value) {
  if (elem == Elem::F64) {
    memcpy(at + i * 8, &value, 8);
  } else if (elem == Elem::F32) {
    float narrow = float(value);
    memcpy(at + i * 4, &narrow, 4);
  } else {
    uint16_t narrow = toBf16(float(value));
    memcpy(at + i * 2, &narrow, 2);
  }
}

double fetch(Elem elem, const std::byte* at, int64_t i) {
  if (elem == Elem::F64) {
    double value;
    memcpy(&value, at + i * 8, 8);
    return value;
  }
  if (elem == Elem::I32) {
    int32_t value;
    memcpy(&value, at + i * 4, 4);
    return value;
  }
  float value;
  if (elem == Elem::BF16) {
    uint16_t half;
    memcpy(&half, at + i * 2, 2);
    uint32_t bits = uint32_t(half) << 16;
    memcpy(&value, &bits, 4);
  } else {
    memcpy(&value, at + i * 4, 4);
  }
  return value;
}

// Splits [0, count) over a few threads; for start-up work only.
template <class F>
void inParallel(int64_t count, F&& body) {
  constexpr int64_t kChunk = 1 << 16;
  unsigned threads =
      unsigned(std::min<int64_t>(std::thread::hardware_concurrency(), count / kChunk));
  if (threads < 2) return body(int64_t{0}, count);
  std::vector<std::thread> workers;
  for (unsigned t = 0; t < threads; ++t)
    workers.emplace_back([&, t] { body(count * t / threads, count * (t + 1) / threads); });
  for (std::thread& worker : workers) worker.join();
}

bool isFinite(const Variable& var, const std::byte* data) {
  // Bit by bit: the exponent of an infinity or a NaN is all ones.
  bool isFinite = true;
  int64_t count = var.type.elements();
  if (var.type.elem == Elem::F64) {
    for (int64_t i = 0; i < count; ++i) isFinite &= std::isfinite(fetch(Elem::F64, data, i));
    return isFinite;
  }
  const auto* words = reinterpret_cast<const uint32_t*>(data);
  for (int64_t i = 0; i < count; ++i) isFinite &= (words[i] & 0x7f800000) != 0x7f800000;
  return isFinite;
}

bool isState(const Variable& var) {
  return var.kind == VarKind::Weight || var.kind == VarKind::Moment;
}

}  // namespace

void initialiseWeight(const Variable& weight, uint64_t seed, std::byte* into) {
  uint64_t key = randomKey(seed, weight.name);
  const Init& init = weight.init;
  inParallel(weight.type.elements(), [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      double value = init.value;
      if (init.kind == "normal") value *= normalAt(key, uint64_t(i));
      else if (init.kind == "uniform") value *= uniformAt(key, uint64_t(i));
      store(weight.type.elem, into, i, value);
    }
  });
}

llvm::Expected<std::unique_ptr<Session>> Session::create(const Module& program, Device& device) {
  std::unique_ptr<Session> session(new Session(program));
  auto interpreter = Interpreter::create(program, device);
  if (!interpreter) return interpreter.takeError();
  session->interpreter_ = std::move(*interpreter);
  session->seed_ = uint64_t(program.settings.integer("seed"));
  return session;
}

void Session::initialise() {
  for (const auto& var : program_.vars) {
    std::byte* data = interpreter_->data(*var);
    if (var->kind == VarKind::Weight) initialiseWeight(*var, seed_, data);
    if (var->kind == VarKind::Moment) memset(data, 0, size_t(var->type.bytes()));
  }
  step_ = 0;
  renewCopies();
}

void Session::renewCopies() {
  for (const auto& var : program_.vars) {
    if (var->kind != VarKind::Copy) continue;
    const Variable& weight = *program_.findVar(var->of);
    const std::byte* from = interpreter_->data(weight);
    std::byte* to = interpreter_->data(*var);
    inParallel(var->type.elements(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        store(var->type.elem, to, i, fetch(weight.type.elem, from, i));
    });
  }
}

llvm::Error Session::load(llvm::StringRef path, std::string& note) {
  llvm::SmallString<128> file(path);
  if (llvm::sys::fs::is_directory(path)) llvm::sys::path::append(file, kCheckpoint);
  auto checkpoint = SafetensorsFile::open(file);
  if (!checkpoint) return checkpoint.takeError();

  // Names first, so that a file of another model changes nothing.
  std::vector<std::string> missing, unknown;
  bool hasMoments = false;
  for (const auto& var : program_.vars) {
    bool isThere = checkpoint->tensors().count(var->name) != 0;
    if (var->kind == VarKind::Moment) hasMoments |= isThere;
    if (var->kind == VarKind::Weight && !isThere) missing.push_back(var->name);
  }
  for (const auto& var : program_.vars)
    if (var->kind == VarKind::Moment && hasMoments && !checkpoint->tensors().count(var->name))
      missing.push_back(var->name);
  for (const auto& [name, entry] : checkpoint->tensors()) {
    const Variable* var = program_.findVar(name);
    if (!var || !isState(*var)) unknown.push_back(name);
  }
  auto list = [](const std::vector<std::string>& names) {
    std::string text;
    for (size_t i = 0; i < names.size() && i < 4; ++i) text += (i ? ", " : "") + names[i];
    if (names.size() > 4) text += ", ... (" + std::to_string(names.size()) + " in all)";
    return text;
  };
  if (!missing.empty()) return fileError(file, "it lacks " + list(missing));
  if (!unknown.empty())
    return fileError(file, "it holds tensors that this model has not: " + list(unknown));

  int64_t step = 0;
  std::string stepText = checkpoint->metadata("planc.step");
  if (!stepText.empty() && (llvm::StringRef(stepText).getAsInteger(10, step) || step < 0))
    return fileError(file, "its step '" + stepText + "' is no number");
  if (step >= kMaxStep) return fileError(file, "its step " + stepText + " is the last one there is");
  for (const auto& var : program_.vars)
    if (isState(*var) && (var->kind == VarKind::Weight || hasMoments))
      if (llvm::Error error = checkpoint->read(var->name, var->type, interpreter_->data(*var)))
        return error;
  if (!hasMoments) {
    for (const auto& var : program_.vars)
      if (var->kind == VarKind::Moment)
        memset(interpreter_->data(*var), 0, size_t(var->type.bytes()));
    note = "'" + file.str().str() + "' has no optimizer state: it starts at zero";
  }
  step_ = step;
  renewCopies();
  return llvm::Error::success();
}

llvm::Error Session::prepareFolder(llvm::StringRef folder) {
  namespace fs = llvm::sys::fs;
  if (std::error_code error = fs::create_directories(folder, true, fs::perms::all_all))
    return fileError(folder, error.message());
  if (!fs::is_directory(folder)) return fileError(folder, "is no folder");
  if (std::error_code error = fs::access(folder, fs::AccessMode::Write))
    return fileError(folder, "cannot write there: " + error.message());
  return llvm::Error::success();
}

llvm::Error Session::save(llvm::StringRef folder) const {
  if (llvm::Error error = prepareFolder(folder)) return error;
  // A checkpoint that can't be trained on must not replace one that can.
  for (const auto& var : program_.vars)
    if (isState(*var) && !isFinite(*var, interpreter_->data(*var)))
      return fileError(folder, "'" + var->name + "' is not finite after step " +
                                   std::to_string(step_) + "; nothing was saved");
  llvm::SmallString<128> path(folder);
  llvm::sys::path::append(path, kCheckpoint);
  std::vector<TensorSource> tensors;
  for (const auto& var : program_.vars)
    if (isState(*var)) tensors.push_back({var->name, var->type, interpreter_->data(*var)});
  return writeSafetensors(path, tensors,
                          {{"planc.step", std::to_string(step_)},
                           {"planc.seed", std::to_string(seed_)},
                           {"planc.plan", program_.name}});
}

llvm::Error Session::fillInputs(const TokenFile& data) {
  for (const auto& var : program_.vars) {
    if (var->kind != VarKind::Input || !var->follows.empty()) continue;
    int64_t seq = var->type.dims.back().size;
    int64_t samples = var->type.elements() / seq;
    window_.resize(size_t(seq) + 1);
    for (int64_t s = 0; s < samples; ++s) {
      // Samples in order of step, microbatch and place in the batch: no grid changes it.
      uint64_t index = uint64_t(step_) * uint64_t(samples) + uint64_t(s);
      if (llvm::Error error = data.sample(seed_, index, window_)) return error;
      for (const auto& into : program_.vars) {
        bool isTarget = into->follows == var->name && into->kind == VarKind::Input;
        if (into.get() != var.get() && !isTarget) continue;
        memcpy(interpreter_->data(*into) + s * seq * 4, window_.data() + isTarget, size_t(seq) * 4);
      }
    }
  }
  return llvm::Error::success();
}

void Session::runSchedule(bool update) {
  for (const auto& var : program_.vars)
    if (var->kind == VarKind::Step) {
      int32_t number = int32_t(step_ + 1);
      memcpy(interpreter_->data(*var), &number, 4);
    }
  for (const Call& call : program_.schedule) {
    if (!update && call.function == "update") continue;
    interpreter_->run(call, seed_, step_ + 1);
    if (!outputs_ || call.function != "forward") continue;
    for (const auto& var : program_.vars) {
      if (!var->output) continue;
      auto& bytes = (*outputs_)[var->name];
      const std::byte* data = interpreter_->data(*var);
      bytes.insert(bytes.end(), data, data + var->type.bytes());
    }
  }
}

double Session::metric(llvm::StringRef name) const {
  const Variable* var = program_.findVar(name);
  return var && var->kind == VarKind::Metric ? fetch(var->type.elem, interpreter_->data(*var), 0)
                                             : 0;
}

llvm::Expected<StepRecord> Session::step(const TokenFile& data) {
  auto start = std::chrono::steady_clock::now();
  if (llvm::Error error = fillInputs(data)) return error;
  runSchedule(true);
  ++step_;
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  StepRecord record;
  record.step = step_;
  record.loss = metric("loss");
  record.gradientNorm = metric("grad_norm");
  record.learningRate = metric("lr");
  record.tokensPerSecond = double(tokensPerStep()) / seconds;
  record.seconds = seconds;
  return record;
}

llvm::Error Session::evaluate(llvm::StringRef tensors, llvm::StringRef out) {
  auto in = SafetensorsFile::open(tensors);
  if (!in) return in.takeError();
  for (const auto& [name, entry] : in->tensors()) {
    const Variable* var = program_.findVar(name);
    if (var && var->kind == VarKind::Moment) continue;  // a checkpoint's optimizer state
    if (!var || (var->kind != VarKind::Weight && var->kind != VarKind::Input))
      return fileError(tensors, "'" + name + "' is no weight or input of this plan");
  }
  for (const auto& var : program_.vars) {
    if (var->kind != VarKind::Weight && var->kind != VarKind::Input) continue;
    std::byte* data = interpreter_->data(*var);
    if (!in->tensors().count(var->name))
      return fileError(tensors, "it lacks '" + var->name + "' " + var->type.str());
    if (llvm::Error error = in->read(var->name, var->type, data)) return error;
    if (var->kind != VarKind::Input) continue;
    const auto* tokens = reinterpret_cast<const int32_t*>(data);
    int64_t least = var->follows.empty() ? 0 : -1;  // a target of -1 is left out of the loss
    for (int64_t i = 0; i < var->type.elements(); ++i)
      if (tokens[i] < least || tokens[i] >= var->vocab)
        return fileError(tensors, "'" + var->name + "' has " + std::to_string(tokens[i]) +
                                      " at element " + std::to_string(i) +
                                      ", and tokens are below " + std::to_string(var->vocab));
  }
  renewCopies();
  step_ = 0;
  std::map<std::string, std::vector<std::byte>> outputs;
  outputs_ = &outputs;
  runSchedule(false);
  outputs_ = nullptr;

  std::vector<TensorSource> results;
  int64_t microbatches = program_.settings.integer("microbatches", 1);
  for (const auto& var : program_.vars) {
    if (var->kind == VarKind::Gradient || var->name == "loss" || var->name == "penalty")
      results.push_back({var->name, var->type, interpreter_->data(*var)});
    auto output = outputs.find(var->name);
    if (output == outputs.end()) continue;
    Type type = var->type;
    if (microbatches > 1) type.dims.insert(type.dims.begin(), Dim{"microbatch", microbatches, ""});
    results.push_back({var->name, type, output->second.data()});
  }
  return writeSafetensors(out, results, {{"planc.plan", program_.name}});
}

int64_t Session::tokensPerStep() const {
  for (const auto& var : program_.vars)
    if (var->kind == VarKind::Input && var->follows.empty()) return var->type.elements();
  return 0;
}

int64_t Session::positions() const {
  int64_t most = 0;
  for (const auto& var : program_.vars)
    if (var->kind == VarKind::Input) most = std::max(most, var->type.dims.back().size);
  return most;
}

int64_t Session::vocab() const {
  int64_t least = INT64_MAX;
  for (const auto& var : program_.vars)
    if (var->kind == VarKind::Input) least = std::min(least, var->vocab);
  return least;
}

}  // namespace planc
