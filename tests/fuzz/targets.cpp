// Plan text, IR text, .planx bytes, safetensors bytes and schedules. An accepted input is used further, as a
// tool would: a read module is printed and read again, which must work.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "frontend/ast.h"
#include "frontend/frontend.h"
#include "ir/planx.h"
#include "ir/schedule.h"
#include "ir/text.h"
#include "llvm/Support/CRC.h"
#include "runtime/io/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace planc {
namespace {

// The bytes as a file, for readers that take a path.
class MemoryFile {
 public:
  explicit MemoryFile(llvm::StringRef bytes) : descriptor_(::memfd_create("fuzz", 0)) {
    if (descriptor_ < 0 ||
        ::write(descriptor_, bytes.data(), bytes.size()) != ssize_t(bytes.size())) {
      std::perror("memfd");
      std::abort();
    }
  }
  ~MemoryFile() { ::close(descriptor_); }
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

void fault(llvm::StringRef what) {
  llvm::errs() << what << '\n';
  std::abort();
}

std::string printed(const Module& module) {
  std::string text;
  llvm::raw_string_ostream out(text);
  printModule(module, out);
  return text;
}

bool runPlan(llvm::StringRef bytes) {
  MemoryFile file(bytes);
  Diagnostics diags;
  auto files = readPlan(file.path(), diags);
  bool good = !diags.failed() && checkPlans(files, {}, diags);
  std::string messages;
  llvm::raw_string_ostream out(messages);
  diags.print(out);
  Diagnostics layoutDiags;
  auto layout = formatPlan("x.plan", bytes.str(), layoutDiags);
  if (layout) {
    Diagnostics again;
    auto twice = formatPlan("x.plan", *layout, again);
    if (!twice || *twice != *layout) fault("planc fmt is not idempotent");
  }
  return good;
}

bool runIr(llvm::StringRef bytes) {
  Diagnostics diags;
  std::unique_ptr<Module> module = parseModule(diags.addFile("x.ir", bytes.str()), diags);
  std::string messages;
  llvm::raw_string_ostream out(messages);
  diags.print(out);
  if (module == nullptr) return false;
  std::string text = printed(*module);
  Diagnostics again;
  std::unique_ptr<Module> second = parseModule(again.addFile("x.ir", text), again);
  if (second == nullptr || printed(*second) != text) fault("the printed module reads differently");
  return true;
}

bool runPlanx(llvm::StringRef bytes) {
  llvm::Expected<Planx> planx = readPlanx(bytes);
  if (!planx) {
    llvm::consumeError(planx.takeError());
    return false;
  }
  printed(*planx->model);
  for (const auto& role : planx->roles) printed(*role);
  return true;
}

// The header as ir/planx.h has it: 16 bytes, then 16 a section (tag, size, checksum), and its own
// checksum. The last section takes up what the mutation added or removed.
void repairPlanx(std::string& bytes) {
  auto put = [&](size_t at, auto value) { std::memcpy(&bytes[at], &value, sizeof(value)); };
  auto crc = [&](size_t from, size_t size) {
    return llvm::crc32({reinterpret_cast<const uint8_t*>(bytes.data()) + from, size});
  };
  uint32_t sections = 0;
  if (bytes.size() < 16) return;
  std::memcpy(&sections, &bytes[12], 4);
  size_t header = 16 + size_t(sections) * 16 + 4;
  if (sections == 0 || sections > 8 || bytes.size() < header) return;
  size_t at = header;
  for (uint32_t i = 0; i < sections; ++i) {
    uint64_t size = 0;
    std::memcpy(&size, &bytes[20 + i * 16], 8);
    if (i + 1 == sections || size > bytes.size() - at) size = bytes.size() - at;
    put(20 + i * 16, size);
    put(28 + i * 16, crc(at, size_t(size)));
    at += size_t(size);
  }
  put(header - 4, crc(0, header - 4));
}

bool runSafetensors(llvm::StringRef bytes) {
  MemoryFile memory(bytes);
  llvm::Expected<SafetensorsFile> file = SafetensorsFile::open(memory.path());
  if (!file) {
    llvm::consumeError(file.takeError());
    return false;
  }
  for (const auto& [name, entry] : file->tensors()) {
    bool isFloat = entry.elem <= TensorElem::BF16;
    Type type{isFloat ? Elem::F64 : Elem::I32, {}};
    for (int64_t size : entry.shape) type.dims.push_back({"d", size, ""});
    std::vector<double> into(size_t(type.elements()));
    llvm::consumeError(file->read(name, type, into.data()));
  }
  return true;
}

// As many stages as lines, any number of microbatches and chunks.
bool runSchedule(llvm::StringRef bytes) {
  int stages = 1;
  for (char c : bytes.rtrim()) stages += c == '\n';
  for (int64_t microbatches : {1, 2, 4}) {
    llvm::Expected<PipeSchedule> schedule = parseSchedule(bytes, stages, 0, microbatches);
    if (!schedule) {
      llvm::consumeError(schedule.takeError());
      continue;
    }
    llvm::Expected<PipeSchedule> again =
        parseSchedule(printSchedule(*schedule), stages, schedule->chunks() / stages, microbatches);
    if (!again) fault("the printed schedule is none: " + llvm::toString(again.takeError()));
    if (again->tasks != schedule->tasks) fault("the printed schedule reads differently");
    size_t done = 0, tasks = 0;
    for (const auto& starts : timelineOf(*schedule, WorkCosts()).starts) done += starts.size();
    for (const auto& list : schedule->tasks) tasks += list.size();
    if (done != tasks) fault("an accepted schedule stands still");
    return true;
  }
  return false;
}

constexpr llvm::StringRef kScheduleWords[] = {"F0 ", "B0 ", "I0 ", "W0 ", "F1.1 ", "B1.0 ",
                                              "\n",  "#",   "."};

constexpr llvm::StringRef kPlanWords[] = {
    "model ",
    "module ",
    "plan ",
    "dim ",
    "weight ",
    "input ",
    "repeat ",
    "loss ",
    "return ",
    "if ",
    "else ",
    "import \"std/transformer.plan\"\n",
    "grid ",
    "split ",
    "over ",
    " by ",
    " by schedule(\"x\") ",
    "stages 1 1 ",
    "shard ",
    "recompute ",
    "optimizer adamw ",
    "precision ",
    "microbatches ",
    "[batch, seq]",
    "attend(",
    "route(",
    "balanced(",
    "dispatch(",
    "softmax(",
    "concat(",
    "slice(",
    "rope(",
    "@",
    "=",
    "{",
    "}",
    "(",
    ")",
    "0",
    "1e309",
    "9223372036854775807",
    "-1",
    "GiB",
    "//",
    "/*",
    "\"",
    "\n",
};
constexpr llvm::StringRef kIrWords[] = {
    "repeat(", "fused(",     "einsum",  "read @",  "write @",   "yield(",
    "%x",      " = ",        " : f32[", "batch 2", "{count = ", "dim = ",
    "over = ", "loc(0:1:1)", "~expert", "bf16[]",  "i32[]",     "9223372036854775807",
    "1e309",   "nan",        "}",       "{",       "]",         "\n",
};
constexpr llvm::StringRef kPlanxWords[] = {"MODL", "RANK", "\xff\xff\xff\xff", {"\0\0\0\0", 4}};
constexpr llvm::StringRef kTensorWords[] = {
    "\"dtype\":\"F32\"",
    "\"shape\":[",
    "\"data_offsets\":[0,4]",
    "\"__metadata__\":{",
    "\"planc.crc32\":\"00000000\"",
    "18446744073709551615",
    "-1",
    "1e400",
    "{",
    "}",
    "[",
    "]",
};

}  // namespace

llvm::ArrayRef<FuzzTarget> fuzzTargets() {
  static const FuzzTarget targets[] = {
      {"plan", runPlan, kPlanWords},
      {"ir", runIr, kIrWords},
      {"planx", runPlanx, kPlanxWords, repairPlanx},
      {"safetensors", runSafetensors, kTensorWords},
      {"schedule", runSchedule, kScheduleWords},
  };
  return targets;
}

}  // namespace planc
