// The messenger on NCCL. Communicators are non-blocking: a call that is not done at once is waited for
// here, with a time-out, so that a rank that never comes is an error and no hang.
#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "llvm/ADT/Twine.h"
#include "llvm/Support/raw_ostream.h"
#include "runtime/cuda/gpu.h"
#include "runtime/cuda/library.h"

#define CALLS(CALL)            \
  CALL(ncclAllGather)          \
  CALL(ncclAllReduce)          \
  CALL(ncclBroadcast)          \
  CALL(ncclCommAbort)          \
  CALL(ncclCommDestroy)        \
  CALL(ncclCommFinalize)       \
  CALL(ncclCommGetAsyncError)  \
  CALL(ncclCommInitRankConfig) \
  CALL(ncclCommRegister)       \
  CALL(ncclCommSplit)          \
  CALL(ncclGetErrorString)     \
  CALL(ncclGetLastError)       \
  CALL(ncclGetUniqueId)        \
  CALL(ncclGroupEnd)           \
  CALL(ncclGroupStart)         \
  CALL(ncclRecv)               \
  CALL(ncclReduceScatter)      \
  CALL(ncclSend)

namespace planc::cuda {
namespace {

struct Api {
  CALLS(PLANC_MEMBER)
};
Api api;  // of all messengers

llvm::Error load() {
  static std::once_flag once;
  static std::string failure;
  std::call_once(once, [] {
    // Messages would else connect further ranks in their midst.
    setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
    failure = llvm::toString(loadLibrary("libnccl.so.2", {CALLS(PLANC_ENTRY)}));
  });
  if (failure.empty()) return llvm::Error::success();
  return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", failure.c_str());
}

using Clock = std::chrono::steady_clock;

// To connect thousands of ranks takes a while.
constexpr std::chrono::minutes kToConnect{10};
// What an abort may take, which NCCL does not bound.
constexpr std::chrono::seconds kToAbort{10};

ncclComm_t raw(Clique clique) { return reinterpret_cast<ncclComm_t>(clique); }
cudaStream_t raw(Stream stream) { return reinterpret_cast<cudaStream_t>(stream); }

ncclDataType_t typeOf(Elem elem) {
  switch (elem) {
    case Elem::F32:
      return ncclFloat32;
    case Elem::BF16:
      return ncclBfloat16;
    case Elem::F64:
      return ncclFloat64;
    case Elem::I32:
      break;
  }
  return ncclInt32;
}
ncclRedOp_t opOf(Reduce reduce) { return reduce == Reduce::Max ? ncclMax : ncclSum; }

llvm::Error failed(const llvm::Twine& what, ncclResult_t code, ncclComm_t comm) {
  if (code == ncclInProgress)
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "NCCL: " + what + ": other ranks do not answer");
  std::string text = ("NCCL: " + what + ": " + api.ncclGetErrorString(code)).str();
  if (const char* last = api.ncclGetLastError(comm); last != nullptr && *last != 0)
    text += std::string(" (") + last + ")";
  return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", text.c_str());
}

class NcclMessenger : public Messenger {
 public:
  explicit NcclMessenger(Patience patience) : patience_(std::move(patience)) {}

  llvm::Expected<Id> makeId() override {
    static_assert(sizeof(Id) == sizeof(ncclUniqueId));
    ncclUniqueId id;
    if (ncclResult_t code = api.ncclGetUniqueId(&id); code != ncclSuccess)
      return failed("no id", code, nullptr);
    Id made;
    std::copy_n(id.internal, sizeof made.bytes, made.bytes);
    return made;
  }

  llvm::Expected<Clique> join(const Id& id, int ranks, int rank) override {
    ncclUniqueId shared;
    std::copy_n(id.bytes, sizeof id.bytes, shared.internal);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t& made = all_.emplace_back(nullptr);
    ncclResult_t code = api.ncclCommInitRankConfig(&made, ranks, shared, rank, &config);
    return connected("connecting " + std::to_string(ranks) + " ranks", code, made, made);
  }

  llvm::Expected<Clique> split(Clique of, int colour, int key) override {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t& made = all_.emplace_back(nullptr);
    ncclResult_t code = api.ncclCommSplit(raw(of), colour == kNone ? NCCL_SPLIT_NOCOLOR : colour,
                                          key, &made, &config);
    return connected("making a group", code, raw(of), made);
  }

  void begin() override {
    check("a group of messages", api.ncclGroupStart(), nullptr);
    isGrouped_ = true;
  }
  void end() override {
    isGrouped_ = false;
    ncclComm_t comm = used_;
    used_ = nullptr;
    check("a group of messages", api.ncclGroupEnd(), comm);
  }
  void allReduce(Clique clique, const void* send, void* recv, int64_t count, Elem elem,
                 Reduce reduce, Stream stream) override {
    check("all-reduce",
          api.ncclAllReduce(send, recv, size_t(count), typeOf(elem), opOf(reduce), raw(clique),
                            raw(stream)),
          raw(clique));
  }
  void reduceScatter(Clique clique, const void* send, void* recv, int64_t recvCount, Elem elem,
                     Reduce reduce, Stream stream) override {
    check("reduce-scatter",
          api.ncclReduceScatter(send, recv, size_t(recvCount), typeOf(elem), opOf(reduce),
                                raw(clique), raw(stream)),
          raw(clique));
  }
  void allGather(Clique clique, const void* send, void* recv, int64_t sendCount, Elem elem,
                 Stream stream) override {
    check("all-gather",
          api.ncclAllGather(send, recv, size_t(sendCount), typeOf(elem), raw(clique), raw(stream)),
          raw(clique));
  }
  void broadcast(Clique clique, void* buffer, int64_t count, Elem elem, int root,
                 Stream stream) override {
    check("broadcast",
          api.ncclBroadcast(buffer, buffer, size_t(count), typeOf(elem), root, raw(clique),
                            raw(stream)),
          raw(clique));
  }
  void send(Clique clique, const void* buffer, int64_t count, Elem elem, int to,
            Stream stream) override {
    check("send", api.ncclSend(buffer, size_t(count), typeOf(elem), to, raw(clique), raw(stream)),
          raw(clique));
  }
  void receive(Clique clique, void* buffer, int64_t count, Elem elem, int from,
               Stream stream) override {
    check("receive",
          api.ncclRecv(buffer, size_t(count), typeOf(elem), from, raw(clique), raw(stream)),
          raw(clique));
  }

  // Where it can't be, messages are copied on the way: slower, and right.
  void enroll(Clique clique, void* memory, int64_t bytes) override {
    void* handle = nullptr;
    api.ncclCommRegister(raw(clique), memory, size_t(bytes), &handle);
  }

  llvm::Error error(Clique clique) override {
    if (!failure_.empty())
      return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", failure_.c_str());
    ncclResult_t state = ncclSuccess;
    ncclResult_t code = api.ncclCommGetAsyncError(raw(clique), &state);
    if (code == ncclSuccess) code = state;
    if (code == ncclSuccess || code == ncclInProgress) return llvm::Error::success();
    return failed("another rank is lost, or its connection", code, raw(clique));
  }

  void finish() override {
    for (ncclComm_t comm : all_)
      if (comm != nullptr) settle(comm, api.ncclCommFinalize(comm), patience_.timeout);
    for (ncclComm_t comm : all_)
      if (comm != nullptr) api.ncclCommDestroy(comm);
    all_.clear();
  }

  // All at once, for one may wait for another's messages to end; and by a thread that can be left behind.
  void abort() override {
    auto comms = std::make_shared<std::deque<ncclComm_t>>(std::move(all_));
    all_.clear();
    auto isDone = std::make_shared<std::promise<void>>();
    std::future<void> done = isDone->get_future();
    std::thread([comms, isDone] {
      api.ncclGroupStart();
      for (ncclComm_t comm : *comms)
        if (comm != nullptr) api.ncclCommAbort(comm);
      api.ncclGroupEnd();
      isDone->set_value();
    }).detach();
    if (done.wait_for(kToAbort) == std::future_status::ready) return;
    // Its kernels will not end, and freeing memory would wait for them. The cause has been told to all.
    llvm::errs() << "NCCL does not end its messages: this process ends\n";
    std::_Exit(1);
  }

 private:
  // Until a call is done that was not at once.
  ncclResult_t settle(ncclComm_t comm, ncclResult_t code, std::chrono::milliseconds timeout) {
    auto end = Clock::now() + timeout;
    while (code == ncclInProgress && comm != nullptr) {
      ncclResult_t state = ncclSuccess;
      code = api.ncclCommGetAsyncError(comm, &state);
      if (code == ncclSuccess) code = state;
      if (code != ncclInProgress) break;
      if (Clock::now() > end || patience_.isOver()) return ncclInProgress;
      std::this_thread::yield();
    }
    return code;
  }

  // `made` stays where it is: NCCL may still write to it.
  llvm::Expected<Clique> connected(const std::string& what, ncclResult_t code, ncclComm_t waits,
                                   ncclComm_t& made) {
    code = settle(waits, code, kToConnect);
    if (code == ncclSuccess && made != nullptr && made != waits)
      code = settle(made, ncclInProgress, kToConnect);
    if (code != ncclSuccess) return failed(what, code, waits);
    return reinterpret_cast<Clique>(made);
  }

  void check(const char* what, ncclResult_t code, ncclComm_t comm) {
    if (isGrouped_) used_ = comm;
    else code = settle(comm, code, patience_.timeout);
    if (code == ncclSuccess || (isGrouped_ && code == ncclInProgress) || !failure_.empty()) return;
    failure_ = llvm::toString(failed(what, code, comm));
  }

  const Patience patience_;
  std::deque<ncclComm_t> all_;
  ncclComm_t used_ = nullptr;
  bool isGrouped_ = false;
  std::string failure_;
};

}  // namespace

llvm::Expected<std::unique_ptr<Messenger>> makeMessenger(Driver&, Patience patience) {
  if (llvm::Error error = load()) return error;
  return std::make_unique<NcclMessenger>(std::move(patience));
}

}  // namespace planc::cuda
