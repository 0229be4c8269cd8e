// One rank after the other sends its piece, so that rank 0 needs memory for one beside the whole.
// Partial sums are added in the order of the ranks, in f64 and rounded once. Tested by
// tests/runtime/session_test.cpp.
#include "runtime/assemble.h"

#include "runtime/elements.h"
#include "runtime/runs.h"

namespace planc {
namespace {

// Puts or adds a rank's piece into the whole tensor.
class Whole {
 public:
  explicit Whole(const Type& type)
      : type_(type),
        bytes_(size_t(type.whole().bytes())),
        sums_(type.partial.empty() ? 0 : size_t(type.whole().elements())) {}

  void take(const void* piece, const Coordinates& rank) {
    int64_t width = bytesPerElement(type_.elem);
    Runs runs = pieceRuns(type_, rank);
    runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) {
      if (sums_.empty()) {
        std::memcpy(&bytes_[size_t(b * width)], static_cast<const std::byte*>(piece) + a * width,
                    size_t(count * width));
        return;
      }
      for (int64_t i = 0; i < count; ++i) sums_[size_t(b + i)] += fetch(type_.elem, piece, a + i);
    });
  }

  std::vector<std::byte> bytes() {
    for (size_t i = 0; i < sums_.size(); ++i)
      store(type_.elem, bytes_.data(), int64_t(i), sums_[i]);
    return std::move(bytes_);
  }

 private:
  const Type& type_;
  std::vector<std::byte> bytes_;
  std::vector<double> sums_;  // partial sums only
};

}  // namespace

llvm::Expected<std::vector<std::byte>> assemble(Communicator& comm, const Grid& grid,
                                                const Type& type, const void* piece) {
  Message message{.kind = Collective::SendReceive, .elem = type.elem, .count = type.elements()};
  Site site{.op = "assemble", .tensor = type.str()};
  if (comm.rank() != 0) {
    if (!Coordinates(grid, comm.rank()).isFirstCopy(type)) return std::vector<std::byte>();
    message.send = piece;
    message.to = 0;
    if (llvm::Error error = comm.wait(comm.start(comm.world(), message, site))) return error;
    return std::vector<std::byte>();
  }
  Whole whole(type);
  whole.take(piece, Coordinates(grid, 0));
  std::vector<std::byte> received;
  for (int rank = 1; rank < comm.size(); ++rank) {
    Coordinates there(grid, rank);
    if (!there.isFirstCopy(type)) continue;
    received.resize(size_t(type.bytes()));
    message.recv = received.data();
    message.from = rank;
    if (llvm::Error error = comm.wait(comm.start(comm.world(), message, site))) return error;
    whole.take(received.data(), there);
  }
  return whole.bytes();
}

}  // namespace planc
