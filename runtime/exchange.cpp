// The dim that is gathered or scattered lies outermost, so the ranks' chunks are the tensor, one
// behind the other, and nothing is copied. Two cases are staged: pieces of a padded dim, whose
// chunks are longer together than the whole; and all-to-all, whose chunks are boxes: what a rank
// sends to another is where its piece before meets the other's piece after. Tested by
// tests/runtime/exchange_test.cpp.
#include "runtime/exchange.h"

#include <cassert>

namespace planc {
namespace {

llvm::Error cannot(const Op& op, const llvm::Twine& what) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                 "cannot run '" + op.info().text + "': " + what);
}

// Where two ranks' pieces of one tensor meet, in elements of the whole: for each dim the first and
// how many.
struct Box {
  llvm::SmallVector<std::pair<int64_t, int64_t>, 4> dims;

  Box(const Type& a, const Coordinates& atA, const Type& b, const Coordinates& atB) {
    for (const Dim& dim : a.dims) {
      if (dim.name == a.grouping()) continue;  // no dim of memory
      const Dim& other = b.dims[size_t(b.find(dim.name))];
      int64_t begin = std::max(atA.offset(dim), atB.offset(other));
      int64_t end =
          std::min(atA.offset(dim) + atA.valid(dim), atB.offset(other) + atB.valid(other));
      dims.push_back({begin, std::max<int64_t>(end - begin, 0)});
    }
  }

  // The box inside a rank's piece (a) and packed (b), from element `at` of a buffer on.
  Runs runs(const Type& piece, const Coordinates& rank, int64_t at) const {
    llvm::SmallVector<Runs::Dim, 4> list;
    Run first{0, at};
    int64_t strideA = 1, strideB = 1;
    llvm::SmallVector<const Dim*, 4> pieces;
    for (const Dim& dim : piece.dims)
      if (dim.name != piece.grouping()) pieces.push_back(&dim);
    for (size_t i = dims.size(); i-- > 0;) {
      auto [begin, count] = dims[i];
      list.insert(list.begin(), {count, strideA, strideB});
      first.a += (begin - rank.offset(*pieces[i])) * strideA;
      strideA *= pieces[i]->size;
      strideB *= count;
    }
    return Runs(list, first);
  }
};

// From the tensor (a) to the buffer (b), or back.
void add(const Runs& runs, Elem elem, bool packs, std::vector<CopyRun>& to) {
  int64_t width = bytesPerElement(elem);
  runs.forEach(0, runs.elements(), [&](int64_t a, int64_t b, int64_t count) {
    a *= width, b *= width;
    to.push_back(packs ? CopyRun{b, a, count * width} : CopyRun{a, b, count * width});
  });
}

}  // namespace

llvm::Expected<std::unique_ptr<Exchange>> Exchange::create(const Op& op, const Grid& grid,
                                                           Communicator& comm, Group& group,
                                                           Device& device, Site site) {
  std::unique_ptr<Exchange> made(new Exchange(comm, group, device, std::move(site)));
  if (llvm::Error error = made->prepare(op, grid)) return error;
  return made;
}

llvm::Error Exchange::prepare(const Op& op, const Grid& grid) {
  if (op.kind == OpKind::Send || op.kind == OpKind::Receive) return prepareTransfer(op, grid);
  if (op.kind == OpKind::ExchangeRows) {
    rows_ = std::make_unique<RowExchange>(op, group_.size(), device_);
    return llvm::Error::success();
  }
  std::string reduce = op.attrs.word("reduce");
  if (!reduce.empty() && reduce != "sum" && reduce != "max")
    return cannot(op, "there is no reduction '" + reduce + "'");
  parts_.resize(op.operands().size());
  for (unsigned i = 0; i < op.operands().size(); ++i) {
    const Type &from = op.operand(i)->type, &to = op.result(i)->type;
    Part& part = parts_[i];
    Message& message = part.message;
    message.elem = from.elem;
    message.reduction = reduce == "max" ? Reduction::Max : Reduction::Sum;
    // The side of n chunks, where there is one.
    const Type* chunks = nullptr;
    switch (op.kind) {
      case OpKind::AllReduce:
        message.kind = Collective::AllReduce;
        message.count = from.elements();
        break;
      case OpKind::ReduceScatter:
        message.kind = Collective::ReduceScatter;
        message.count = to.elements();
        chunks = &from;
        break;
      case OpKind::AllGather:
        message.kind = Collective::AllGather;
        message.count = from.elements();
        chunks = &to;
        break;
      case OpKind::AllToAll:
        message.kind = Collective::AllToAll;
        if (llvm::Error error = stageBoxes(part, from, to, grid)) return error;
        break;
      case OpKind::Rotate: {
        int ranks = group_.size(), by = int(op.attrs.integer("by", 1) % ranks);
        message.kind = Collective::SendReceive;
        message.count = from.elements();
        message.to = (group_.position() + by + ranks) % ranks;
        message.from = (group_.position() - by + ranks) % ranks;
        break;
      }
      default:
        return cannot(op, "it is no op between ranks");
    }
    if (chunks == nullptr || chunks->elements() == message.count * group_.size()) continue;
    // Of a dim that stays split, another rank would hold some of the elements.
    if (chunks->elements() > message.count * group_.size() ||
        llvm::any_of(chunks->dims, [](const Dim& dim) { return dim.isPadded(); }))
      return cannot(op, chunks->str() + " has no " + llvm::Twine(group_.size()) + " equal pieces");
    if (llvm::Error error = stageWhole(part, *chunks, chunks == &from)) return error;
  }
  return llvm::Error::success();
}

// The group is the two ranks; each sends or receives only.
llvm::Error Exchange::prepareTransfer(const Op& op, const Grid& grid) {
  bool sends = op.kind == OpKind::Send;
  std::string axis = op.attrs.words("axes").front();
  int64_t coordinate = op.attrs.integer(sends ? "to" : "from", -1);
  auto peer = llvm::find_if(
      group_.members(), [&](int rank) { return Coordinates(grid, rank).on(axis) == coordinate; });
  if (peer == group_.members().end() || *peer == comm_.rank())
    return cannot(op, "there is no other rank at '" + axis + "' " + llvm::Twine(coordinate));
  int position = int(peer - group_.members().begin());
  auto add = [&](const Type& type) {
    Message& message = parts_.emplace_back().message;
    message.kind = Collective::SendReceive;
    message.elem = type.elem;
    message.count = type.elements();
    (sends ? message.to : message.from) = position;
  };
  for (const Value* sent : op.operands()) add(sent->type);
  for (const Value* received : op.results()) add(received->type);
  return llvm::Error::success();
}

// Padded: the chunks are the whole tensor and zeros behind it.
llvm::Error Exchange::stageWhole(Part& part, const Type& whole, bool isSent) {
  auto buffer = device_.allocate(part.message.count * group_.size() * bytesPerElement(whole.elem));
  if (!buffer) return buffer.takeError();
  (isSent ? part.sent : part.received) = *buffer;
  (isSent ? part.pack : part.unpack) = device_.prepareCopies({{0, 0, whole.bytes()}});
  return llvm::Error::success();
}

llvm::Error Exchange::stageBoxes(Part& part, const Type& from, const Type& to, const Grid& grid) {
  Coordinates here(grid, comm_.rank());
  int64_t sent = 0, received = 0;
  std::vector<CopyRun> pack, unpack;
  for (int rank : group_.members()) {
    Coordinates there(grid, rank);
    Runs leaves = Box(from, here, to, there).runs(from, here, sent);
    Runs comes = Box(to, here, from, there).runs(to, here, received);
    add(leaves, from.elem, true, pack);
    add(comes, from.elem, false, unpack);
    part.sendCounts.push_back(leaves.elements());
    part.recvCounts.push_back(comes.elements());
    sent += leaves.elements();
    received += comes.elements();
  }
  int64_t width = bytesPerElement(from.elem);
  for (auto [buffer, elements] :
       {std::pair(&part.sent, sent), std::pair(&part.received, received)}) {
    auto memory = device_.allocate(elements * width);
    if (!memory) return memory.takeError();
    *buffer = *memory;
  }
  part.pack = device_.prepareCopies(pack);
  part.unpack = device_.prepareCopies(unpack);
  if (received != to.elements()) part.clear = to.bytes();
  return llvm::Error::success();
}

void Exchange::start(llvm::ArrayRef<void*> operands, llvm::ArrayRef<void*> results,
                     Flight& flight) {
  flight = {this, {}, llvm::SmallVector<void*, 2>(results.begin(), results.end())};
  if (rows_) {
    assert(!isUnderWay_ && "its counts are of one message at a time");
    isUnderWay_ = true;
    Message message;
    // What this rank alone can know ends the run on all, so its own wait says it too.
    if (llvm::Error error = rows_->start(operands, results, message))
      comm_.failIn(site_, llvm::toString(std::move(error)));
    flight.tickets.push_back(comm_.start(group_, message, site_));
    return;
  }
  flight.results.resize(parts_.size(), nullptr);  // what only sends has none
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    bool isStaged = part.pack || part.unpack;
    assert(!(isStaged && isUnderWay_) && "its buffers hold one message at a time");
    isUnderWay_ |= isStaged;
    void* operand = operands.empty() ? nullptr : operands[i];
    if (part.pack) part.pack->run(part.sent, operand);
    Message message = part.message;
    message.isOnDevice = !device_.isHost();
    message.send = part.pack ? part.sent : operand;
    message.recv = part.unpack ? part.received : flight.results[i];
    message.sendCounts = part.sendCounts;
    message.recvCounts = part.recvCounts;
    flight.tickets.push_back(comm_.start(group_, message, site_));
  }
}

llvm::Error Exchange::finish(Flight& flight) {
  if (rows_) {
    if (llvm::Error error = comm_.wait(flight.tickets.front())) return error;
    rows_->finish(flight.results);
    isUnderWay_ = false;
    return llvm::Error::success();
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (llvm::Error error = comm_.wait(flight.tickets[i])) return error;
    Part& part = parts_[i];
    if (part.clear > 0) device_.zero(flight.results[i], part.clear);
    if (part.unpack) part.unpack->run(flight.results[i], part.received);
  }
  isUnderWay_ = false;
  return llvm::Error::success();
}

}  // namespace planc
