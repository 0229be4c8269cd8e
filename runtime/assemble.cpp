// One rank after the other sends its piece, so that rank 0 needs memory for one beside the whole.
// Partial sums are added in the order of the ranks, in f64 and rounded once. Tested by
// tests/runtime/session_test.cpp and tests/runtime/stages_test.cpp.
#include "runtime/assemble.h"

#include "runtime/elements.h"
#include "runtime/runs.h"

namespace planc {
namespace {

// Puts or adds ranks' pieces into the whole tensor.
class Whole {
 public:
  Whole(const Type& type, bool adds)
      : elem_(type.elem),
        bytes_(size_t(type.bytes())),
        sums_(adds ? size_t(type.elements()) : 0) {}

  void take(const RankPiece& piece, const void* data, const Grid& grid) {
    int64_t width = bytesPerElement(elem_);
    Runs runs = pieceRuns(piece.type, Coordinates(grid, piece.rank), piece.first);
    runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) {
      if (sums_.empty()) {
        std::memcpy(&bytes_[size_t(b * width)], static_cast<const std::byte*>(data) + a * width,
                    size_t(count * width));
        return;
      }
      for (int64_t i = 0; i < count; ++i) sums_[size_t(b + i)] += fetch(elem_, data, a + i);
    });
  }

  std::vector<std::byte> bytes() {
    for (size_t i = 0; i < sums_.size(); ++i) store(elem_, bytes_.data(), int64_t(i), sums_[i]);
    return std::move(bytes_);
  }

 private:
  Elem elem_;
  std::vector<std::byte> bytes_;
  std::vector<double> sums_;  // partial sums only
};

}  // namespace

llvm::Expected<std::vector<std::byte>> assemble(Communicator& comm, const Grid& grid,
                                                const Type& whole,
                                                llvm::ArrayRef<RankPiece> pieces) {
  Site site{.op = "assemble", .tensor = whole.str()};
  auto messageOf = [](const RankPiece& piece) {
    return Message{.kind = Collective::SendReceive,
                   .elem = piece.type.elem,
                   .count = piece.type.elements()};
  };
  if (comm.rank() != 0) {
    for (const RankPiece& piece : pieces) {
      if (piece.rank != comm.rank()) continue;
      Message message = messageOf(piece);
      message.send = piece.data;
      message.to = 0;
      if (llvm::Error error = comm.wait(comm.start(comm.world(), message, site))) return error;
    }
    return std::vector<std::byte>();
  }
  bool adds = !pieces.empty() && !pieces.front().type.partial.empty();
  Whole made(whole, adds);
  std::vector<std::byte> received;
  for (const RankPiece& piece : pieces) {
    const void* data = piece.data;
    if (piece.rank != 0) {
      received.resize(size_t(piece.type.bytes()));
      data = received.data();
      Message message = messageOf(piece);
      message.recv = received.data();
      message.from = piece.rank;
      if (llvm::Error error = comm.wait(comm.start(comm.world(), message, site))) return error;
    }
    made.take(piece, data, grid);
  }
  return made.bytes();
}

}  // namespace planc
