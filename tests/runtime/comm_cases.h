// What every communicator must do, written once: each rank of a world runs `checkCollectives`, and
// what it returns is wrong. Expected values come from plain loops over what each rank sent, in rank
// order, and are compared to the bit.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "llvm/ADT/STLExtras.h"
#include "runtime/bf16.h"
#include "runtime/comm.h"

namespace planc {

template <class T>
constexpr Elem kElem = Elem::F32;
template <>
inline constexpr Elem kElem<Bf16> = Elem::BF16;
template <>
inline constexpr Elem kElem<double> = Elem::F64;
template <>
inline constexpr Elem kElem<int32_t> = Elem::I32;

// The element `i` that the world's rank `rank` sends: in (-1, 1) with all bits of a double, so that
// sums depend on their order; a few per thousand are large.
template <class T>
T element(int rank, int64_t i, int salt) {
  uint64_t x = (uint64_t(rank) * 1000003 + uint64_t(i)) * 31 + uint64_t(salt);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  x ^= x >> 31;
  double value = double(int64_t(x)) / 9.3e18;
  if (x % 512 == 0) value *= 1e6;
  if constexpr (std::is_same_v<T, Bf16>) return toBf16(float(value));
  else if constexpr (std::is_same_v<T, int32_t>) return int32_t(int64_t(x) >> 40);
  else return T(value);
}

template <class T>
std::vector<T> elements(int rank, int64_t count, int salt) {
  std::vector<T> all(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) all[size_t(i)] = element<T>(rank, i, salt);
  return all;
}

// What the group's ranks make of their element `i`.
template <class T>
T reduced(llvm::ArrayRef<int> members, int64_t i, int salt, Reduction reduction) {
  auto combine = [&](auto a, auto b) -> decltype(a) {
    return reduction == Reduction::Max ? std::max(a, b) : a + b;
  };
  if constexpr (std::is_same_v<T, Bf16>) {
    float sum = toFloat(element<T>(members[0], i, salt));
    for (int rank : members.drop_front()) sum = combine(sum, toFloat(element<T>(rank, i, salt)));
    return toBf16(sum);
  } else {
    T sum = element<T>(members[0], i, salt);
    for (int rank : members.drop_front()) sum = combine(sum, element<T>(rank, i, salt));
    return sum;
  }
}

class CollectiveChecks {
 public:
  CollectiveChecks(Communicator& comm, int64_t large) : comm_(comm), large_(large) {}

  std::vector<std::string> run() {
    for (Group* group : subGrids()) {
      ofElem<float>(*group);
      ofElem<Bf16>(*group);
      ofElem<double>(*group);
      ofElem<int32_t>(*group);
      if (failures_.size() > 5) break;
      interleaved(*group);
      transfers(*group);
    }
    manyGroups();
    return failures_;
  }

 private:
  // Buffers end in a guard.
  static constexpr size_t kGuard = 64;

  // The groups of the own rank for each set of axes of some grids of the world: several groups of a
  // shape run at once.
  std::vector<Group*> subGrids() {
    std::vector<Group*> groups = {&comm_.world()};
    std::vector<std::vector<int>> grids = {{comm_.size()}};
    if (comm_.size() % 4 == 0) grids.push_back({comm_.size() / 4, 2, 2});
    if (comm_.size() % 3 == 0) grids.push_back({3, comm_.size() / 3});
    for (const std::vector<int>& grid : grids) {
      for (unsigned axes = 0; axes < 1U << grid.size(); ++axes) {
        std::vector<int> members;
        for (int r = 0; r < comm_.size(); ++r) {
          bool same = true;
          for (int stride = 1, axis = int(grid.size()) - 1; axis >= 0;
               stride *= grid[size_t(axis--)]) {
            int size = grid[size_t(axis)];
            bool varies = (axes >> axis & 1) != 0;
            same = same && (varies || r / stride % size == comm_.rank() / stride % size);
          }
          if (same) members.push_back(r);
        }
        bool known = llvm::any_of(
            groups, [&](Group* g) { return g->members() == llvm::ArrayRef<int>(members); });
        if (!known) groups.push_back(&comm_.group(members));
      }
    }
    return groups;
  }

  void fail(const std::string& what, const Group& group) {
    std::string members;
    for (int rank : group.members()) members += " " + std::to_string(rank);
    failures_.push_back("rank " + std::to_string(comm_.rank()) + ", group" + members + ": " + what);
  }

  // Runs a message and checks what it leaves in `recv` and behind it, and the bytes it counts.
  template <class T>
  void check(Group& group, Message message, const std::vector<T>& recv,
             const std::vector<T>& expected, int64_t bytes, const char* how = "") {
    Site site{.op = "check", .tensor = "x", .place = "checks.plan:1", .number = 1};
    int64_t before = comm_.bytesSent();
    bool ended = false;
    if (llvm::Error error = comm_.wait(comm_.start(group, message, site))) {
      fail(llvm::toString(std::move(error)), group);
      ended = true;
    }
    std::string what = name(message.kind).str() + how + " of " + name(message.elem).str() + ", " +
                       std::to_string(message.count) + " elements: ";
    if (ended) return;
    if (comm_.bytesSent() - before != bytes) {
      fail(what + std::to_string(comm_.bytesSent() - before) + " bytes counted, not " +
               std::to_string(bytes),
           group);
    }
    size_t bytesExpected = expected.size() * sizeof(T);
    if (bytesExpected > 0 && std::memcmp(recv.data(), expected.data(), bytesExpected) != 0) {
      size_t i = 0;
      while (std::memcmp(&recv[i], &expected[i], sizeof(T)) == 0) ++i;
      fail(what + "element " + std::to_string(i) + " is wrong", group);
    }
    for (size_t i = expected.size(); i < recv.size(); ++i) {
      if (std::memcmp(&recv[i], &kGuardElement<T>, sizeof(T)) != 0) {
        fail(what + "written behind the end", group);
        break;
      }
    }
  }

  template <class T>
  static constexpr T kGuardElement = {};

  template <class T>
  static std::vector<T> room(int64_t count) {
    return std::vector<T>(size_t(count) + kGuard, kGuardElement<T>);
  }

  template <class T>
  void ofElem(Group& group) {
    for (int64_t count : {int64_t(0), int64_t(1), int64_t(7), int64_t(1000), large_}) {
      allReduce<T>(group, count, Reduction::Sum);
      allReduce<T>(group, count, Reduction::Max);
    }
    for (int64_t count : {int64_t(0), int64_t(1), int64_t(7), int64_t(1000), large_ / 2}) {
      reduceScatter<T>(group, count, Reduction::Sum);
      reduceScatter<T>(group, count, Reduction::Max);
      allGather<T>(group, count);
      allToAll<T>(group, count);
      broadcast<T>(group, count);
    }
    allToAllWithCounts<T>(group, 11);
    allToAllWithCounts<T>(group, 4099);
  }

  template <class T>
  void allReduce(Group& group, int64_t count, Reduction reduction) {
    int salt = ++salt_;
    int64_t n = group.size(), bytes = 2 * (n - 1) * count * int64_t(sizeof(T)) / n;
    std::vector<T> expected(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      expected[size_t(i)] = reduced<T>(group.members(), i, salt, reduction);
    }
    std::vector<T> send = elements<T>(comm_.rank(), count, salt), recv = room<T>(count);
    Message message = {.kind = Collective::AllReduce, .elem = kElem<T>, .reduction = reduction};
    message.count = count;
    message.send = send.data();
    message.recv = recv.data();
    check(group, message, recv, expected, bytes);
    recv = room<T>(count);
    std::copy(send.begin(), send.end(), recv.begin());
    message.send = recv.data();
    message.recv = recv.data();
    check(group, message, recv, expected, bytes, " in place");
  }

  template <class T>
  void reduceScatter(Group& group, int64_t count, Reduction reduction) {
    int salt = ++salt_;
    int64_t n = group.size(), own = group.position() * count;
    int64_t bytes = (n - 1) * count * int64_t(sizeof(T));
    std::vector<T> expected(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      expected[size_t(i)] = reduced<T>(group.members(), own + i, salt, reduction);
    }
    std::vector<T> send = elements<T>(comm_.rank(), n * count, salt), recv = room<T>(count);
    Message message = {.kind = Collective::ReduceScatter, .elem = kElem<T>, .reduction = reduction};
    message.count = count;
    message.send = send.data();
    message.recv = recv.data();
    check(group, message, recv, expected, bytes);
    std::vector<T> whole = send;
    message.send = whole.data();
    message.recv = whole.data() + own;
    std::copy(expected.begin(), expected.end(), send.begin() + own);
    check(group, message, whole, send, bytes, " in place");
  }

  template <class T>
  void allGather(Group& group, int64_t count) {
    int salt = ++salt_;
    int64_t n = group.size(), bytes = (n - 1) * count * int64_t(sizeof(T));
    std::vector<T> expected;
    for (int rank : group.members()) {
      std::vector<T> theirs = elements<T>(rank, count, salt);
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    std::vector<T> send = elements<T>(comm_.rank(), count, salt), recv = room<T>(n * count);
    Message message = {.kind = Collective::AllGather, .elem = kElem<T>};
    message.count = count;
    message.send = send.data();
    message.recv = recv.data();
    check(group, message, recv, expected, bytes);
    recv = room<T>(n * count);
    std::copy(send.begin(), send.end(), recv.begin() + group.position() * count);
    message.send = recv.data() + group.position() * count;
    message.recv = recv.data();
    check(group, message, recv, expected, bytes, " in place");
  }

  template <class T>
  void allToAll(Group& group, int64_t count) {
    int salt = ++salt_;
    int64_t n = group.size();
    std::vector<T> expected;
    for (int rank : group.members()) {
      for (int64_t i = 0; i < count; ++i) {
        expected.push_back(element<T>(rank, group.position() * count + i, salt));
      }
    }
    std::vector<T> send = elements<T>(comm_.rank(), n * count, salt), recv = room<T>(n * count);
    Message message = {.kind = Collective::AllToAll, .elem = kElem<T>};
    message.count = count;
    message.send = send.data();
    message.recv = recv.data();
    check(group, message, recv, expected, (n - 1) * count * int64_t(sizeof(T)));
  }

  template <class T>
  void allToAllWithCounts(Group& group, int64_t unit) {
    int salt = ++salt_;
    int n = group.size(), own = group.position();
    // Some chunks are empty, and the last rank gets nothing.
    auto count = [&](int from, int to) {
      return to == n - 1 && n > 1 ? 0 : (from * 3 + to * 5 + salt) % 4 * unit;
    };
    std::vector<int64_t> sent(static_cast<size_t>(n)), received(sent);
    int64_t bytes = 0, total = 0;
    std::vector<T> expected;
    for (int r = 0; r < n; ++r) {
      sent[size_t(r)] = count(own, r);
      received[size_t(r)] = count(r, own);
      total += count(own, r);
      if (r != own) bytes += count(own, r) * int64_t(sizeof(T));
      int64_t begin = 0;
      for (int to = 0; to < own; ++to) begin += count(r, to);
      for (int64_t i = 0; i < count(r, own); ++i) {
        expected.push_back(element<T>(group.members()[size_t(r)], begin + i, salt));
      }
    }
    std::vector<T> send = elements<T>(comm_.rank(), total, salt);
    std::vector<T> recv = room<T>(int64_t(expected.size()));
    Message message = {.kind = Collective::AllToAll, .elem = kElem<T>};
    message.send = send.data();
    message.recv = recv.data();
    message.sendCounts = sent;
    message.recvCounts = received;
    check(group, message, recv, expected, bytes, " with counts");
  }

  template <class T>
  void broadcast(Group& group, int64_t count) {
    int salt = ++salt_, root = salt % group.size();
    int64_t bytes = group.size() > 1 && root == group.position() ? count * int64_t(sizeof(T)) : 0;
    std::vector<T> expected = elements<T>(group.members()[size_t(root)], count, salt);
    std::vector<T> recv = room<T>(count);
    if (root == group.position()) std::copy(expected.begin(), expected.end(), recv.begin());
    Message message = {.kind = Collective::Broadcast, .elem = kElem<T>, .root = root};
    message.count = count;
    message.recv = recv.data();
    check(group, message, recv, expected, bytes);
  }

  void wait(Group& group, Ticket ticket) {
    if (llvm::Error error = comm_.wait(ticket)) fail(llvm::toString(std::move(error)), group);
  }

  // Many messages at once, small and large, on the group and on the world, waited for in another
  // order by each rank.
  void interleaved(Group& group) {
    struct Started {
      Group* group;
      std::vector<float> data;
      int salt;
      Ticket ticket = {};
    };
    std::vector<Started> started;
    Site site{.op = "interleaved"};
    for (int i = 0; i < 12; ++i) {
      int salt = ++salt_;
      Group& of = i % 3 == 2 ? comm_.world() : group;
      started.push_back(
          {&of, elements<float>(comm_.rank(), i % 4 == 1 ? large_ : 17 * i, salt), salt});
    }
    for (Started& s : started) {
      float* data = s.data.data();
      s.ticket = comm_.start(*s.group,
                             {.send = data, .recv = data, .count = int64_t(s.data.size())}, site);
    }
    for (size_t k = 0; k < started.size(); ++k) {
      Started& s = started[(k * 5 + size_t(comm_.rank()) * 7) % started.size()];
      wait(*s.group, s.ticket);
      for (size_t i = 0; i < s.data.size(); ++i) {
        float expected = reduced<float>(s.group->members(), int64_t(i), s.salt, Reduction::Sum);
        if (s.data[i] == expected) continue;
        fail("interleaved: element " + std::to_string(i) + " is wrong", *s.group);
        break;
      }
    }
  }

  // Rotations, one-sided transfers with others looking on, and both ways between two ranks at once.
  void transfers(Group& group) {
    int n = group.size(), own = group.position(), salt = ++salt_;
    auto rank = [&](int position) { return group.members()[size_t(position)]; };
    Message message = {.kind = Collective::SendReceive, .elem = Elem::F64};
    for (int64_t count : {int64_t(0), int64_t(3), large_}) {
      std::vector<double> send = elements<double>(rank(own), count, salt),
                          recv = room<double>(count);
      message.send = send.data();
      message.recv = recv.data();
      message.count = count;
      message.to = (own + 1) % n;
      message.from = (own + n - 1) % n;
      check(group, message, recv, elements<double>(rank(message.from), count, salt),
            n == 1 ? 0 : count * 8, ", rotating");
      if (n == 1) continue;

      message.to = own == 0 ? n - 1 : Message::kNobody;
      message.from = own == n - 1 ? 0 : Message::kNobody;
      recv = room<double>(count);
      message.recv = recv.data();
      std::vector<double> expected;
      if (own == n - 1) expected = elements<double>(rank(0), count, salt);
      if (own == n - 1 || own == 0) {
        if (own == 0) expected.assign(size_t(count), 0);
        check(group, message, recv, expected, own == 0 ? count * 8 : 0, ", one way");
      }
    }
    if (n == 1) return;
    // Several from the first rank to the second, under way together and waited for backwards.
    if (own > 1) return;
    std::vector<std::vector<double>> data;
    std::vector<Ticket> tickets;
    for (int i = 0; i < 5; ++i) {
      data.push_back(own == 0 ? elements<double>(rank(0), 100 * i, salt + i)
                              : room<double>(100 * i));
    }
    for (int i = 0; i < 5; ++i) {
      message.count = 100 * i;
      message.send = message.recv = data[size_t(i)].data();
      message.to = own == 0 ? 1 : Message::kNobody;
      message.from = own == 1 ? 0 : Message::kNobody;
      tickets.push_back(comm_.start(group, message, Site{.op = "send"}));
    }
    for (int i = 4; i >= 0; --i) {
      wait(group, tickets[size_t(i)]);
      for (int64_t k = 0; k < 100 * i; ++k) {
        if (data[size_t(i)][size_t(k)] == element<double>(rank(0), k, salt + i)) continue;
        fail("transfers in order: transfer " + std::to_string(i) + " is wrong", group);
        break;
      }
    }
  }

  // Groups of the same ranks are apart: their messages may be started in different orders.
  void manyGroups() {
    std::vector<int> all(comm_.world().members().begin(), comm_.world().members().end());
    Group* groups[] = {&comm_.group(all), &comm_.group(all)};
    std::vector<float> data[2];
    Ticket tickets[2];
    for (int k = 0; k < 2; ++k) {
      int i = (k + comm_.rank()) % 2;
      data[i] = elements<float>(comm_.rank(), 5000, i);
      tickets[i] =
          comm_.start(*groups[i], {.send = data[i].data(), .recv = data[i].data(), .count = 5000},
                      Site{.op = "many"});
    }
    for (int i = 0; i < 2; ++i) {
      wait(*groups[i], tickets[i]);
      for (int64_t k = 0; k < 5000; ++k) {
        if (data[i][size_t(k)] == reduced<float>(all, k, i, Reduction::Sum)) continue;
        fail("two groups of the same ranks: wrong sum", *groups[i]);
        break;
      }
    }
    if (llvm::Error error = comm_.barrier(comm_.world(), Site{.op = "barrier"})) {
      fail(llvm::toString(std::move(error)), comm_.world());
    }
  }

  Communicator& comm_;
  int64_t large_;
  int salt_ = 0;
  std::vector<std::string> failures_;
};

// What goes wrong, if anything, on this rank; all ranks of the world run it together. `large`: the
// most elements, so many that the communicator cuts messages.
inline std::vector<std::string> checkCollectives(Communicator& comm, int64_t large) {
  return CollectiveChecks(comm, large).run();
}

// `agree` with the errors of some ranks; what this rank gets.
inline std::string agreed(Communicator& comm, const std::function<std::string(int)>& errorOf) {
  std::string mine = errorOf(comm.rank());
  return llvm::toString(comm.agree(
      mine.empty() ? llvm::Error::success()
                   : llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", mine.c_str())));
}

}  // namespace planc
