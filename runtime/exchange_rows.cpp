// On the tokens' side rows lie by expert, so those for one rank are one piece, sent from where they lie.
// On the experts' side they lie by own expert, then by the rank that sent them: what comes from the ranks
// is sorted so behind the message, and what goes home is sorted by rank before it. Tested by
// tests/runtime/exchange_test.cpp.
#include "runtime/exchange_rows.h"

#include "llvm/Support/FormatVariadic.h"

#include <algorithm>
#include <numeric>

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/Twine.h"

namespace planc {

RowExchange::RowExchange(const Op& op, int ranks, Device& device)
    : device_(device), isHome_(op.isFlag("home")), ranks_(ranks) {
  const Type &from = op.operand(0)->type, &to = op.result()->type;
  elem_ = from.elem;
  held_ = from.dims[1].size;
  room_ = to.dims[1].size;
  width_ = 1;
  for (const Dim& dim : llvm::ArrayRef<Dim>(from.dims).drop_front(2)) width_ *= dim.size;
  bytes_ = width_ * bytesPerElement(elem_);
  experts_ = (isHome_ ? from : to).dims[0].size;
  all_.resize(size_t(ranks_ * experts_));
  own_.resize(size_t(ranks_ * experts_));
  sendCounts_.resize(size_t(ranks_));
  recvCounts_.resize(size_t(ranks_));
  next_.resize(size_t(ranks_));
}

llvm::Error RowExchange::start(llvm::ArrayRef<void*> operands, llvm::ArrayRef<void*> results,
                               Message& message) {
  std::vector<int32_t>&sent = isHome_ ? own_ : all_, &coming = isHome_ ? all_ : own_;
  for (auto [counts, operand] : {std::pair(&sent, operands[1]), std::pair(&coming, operands[2])})
    if (llvm::Error error =
            device_.read(counts->data(), operand, int64_t(counts->size() * sizeof(int32_t))))
      return error;
  // Both tables are rank by rank: of the tokens' side, the ranks' experts.
  int64_t leaving = 0;
  arriving_ = 0;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    auto rows = [&](const std::vector<int32_t>& counts) {
      auto begin = counts.begin() + rank * experts_;
      return std::accumulate(begin, begin + experts_, int64_t{0});
    };
    leaving += rows(sent);
    arriving_ += rows(coming);
    sendCounts_[size_t(rank)] = rows(sent) * width_;
    recvCounts_[size_t(rank)] = rows(coming) * width_;
  }
  void* spare = results[1];
  message.kind = Collective::AllToAll;
  message.elem = elem_;
  message.isOnDevice = !device_.isHost();
  message.send = isHome_ ? spare : operands[0];
  message.recv = isHome_ ? results[0] : spare;
  message.sendCounts = sendCounts_;
  message.recvCounts = recvCounts_;
  // Counts are amounts of memory, whatever wrote them.
  bool isNegative = llvm::any_of(all_, [](int32_t n) { return n < 0; }) ||
                    llvm::any_of(own_, [](int32_t n) { return n < 0; });
  if (isNegative || leaving > held_)
    return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                   "the counts say that " + llvm::Twine(leaving) +
                                       " rows leave, of " + llvm::Twine(held_) +
                                       " that there can be");
  if (arriving_ > room_)
    return llvm::createStringError(
        llvm::inconvertibleErrorCode(),
        llvm::Twine(arriving_) + " rows come to this rank's experts, which have room for " +
            llvm::Twine(room_) +
            ": the plan's 'by dispatch(N)' bounds it, to N times a rank's even share of the rows; "
            "an N " +
            llvm::formatv("{0:f2}", double(arriving_) / double(std::max<int64_t>(room_, 1))).str() +
            " times as large would do, and without N there is room for all");
  if (isHome_)
    sort(operands[0], spare, /*toExperts=*/false);
  return llvm::Error::success();
}

void RowExchange::finish(llvm::ArrayRef<void*> results) {
  std::byte* rows = static_cast<std::byte*>(results[0]);
  if (!isHome_) sort(results[1], rows, /*toExperts=*/true);
  device_.zero(rows + arriving_ * bytes_, (room_ - arriving_) * bytes_);
}

// The experts' side, from rank by rank (and expert) to expert by expert (and rank), or back.
void RowExchange::sort(void* from, void* to, bool toExperts) {
  int64_t begin = 0;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    next_[size_t(rank)] = begin;
    for (int64_t e = 0; e < experts_; ++e) begin += own_[size_t(rank * experts_ + e)];
  }
  int64_t at = 0;
  moves_.clear();
  for (int64_t e = 0; e < experts_; ++e)
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      int64_t rows = own_[size_t(rank * experts_ + e)], &byRank = next_[size_t(rank)];
      CopyRun move{at * bytes_, byRank * bytes_, rows * bytes_};
      if (!toExperts) std::swap(move.to, move.from);
      if (rows > 0) moves_.push_back(move);
      at += rows;
      byRank += rows;
    }
  device_.copy(to, from, moves_);
}

}  // namespace planc
