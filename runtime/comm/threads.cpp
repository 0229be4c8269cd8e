// Ranks as threads of one process. A message is a *meeting*: each member publishes its buffers; once
// all have, the work between them is cut in tasks, which the members that wait take one by one, from
// and to each other's memory. So a message needs nothing but that all have started it: one that waits
// alone does all the work. Who has nothing to do sleeps on its rank's condition variable.
//
// One mutex guards everything but the work itself; it is held for moments only. A meeting that all
// members have joined always completes, even when the run has failed, so that no rank leaves buffers
// behind that others still use; one that lacks a member then never will. Tested by
// tests/runtime/comm_test.cpp, which a thread sanitizer is to pass.
#include <atomic>
#include <cassert>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>

#include "llvm/ADT/STLExtras.h"
#include "runtime/comm_text.h"
#include "runtime/comm/work.h"

namespace planc {
namespace {

using comm::describe;
using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

struct Meeting {
  enum Phase {
    Gathering,  // members are missing
    Preparing,  // the last one to come cuts the work
    Working,    // tasks can be taken
    Done
  };
  struct Member {
    int rank;
    bool present = false;
    Message message = {};
    Site site = {};
  };

  explicit Meeting(llvm::ArrayRef<int> ranks) {
    for (int rank : ranks) members.push_back({rank});
  }

  bool hasTasks() const { return phase == Working && next.load() < work->tasks(); }
  llvm::SmallVector<int, 8> missing() const {
    llvm::SmallVector<int, 8> ranks;
    for (const Member& member : members) {
      if (!member.present) ranks.push_back(member.rank);
    }
    return ranks;
  }

  std::vector<Member> members;
  size_t present = 0;
  Phase phase = Gathering;
  std::optional<comm::Work> work;
  std::atomic<size_t> next{0}, finished{0};  // tasks taken and done
};
using MeetingRef = std::shared_ptr<Meeting>;

// Messages of the same ranks in order: a group's collectives, or transfers from one rank to another.
class Channel {
 public:
  explicit Channel(llvm::ArrayRef<int> ranks)
      : ranks_(ranks.begin(), ranks.end()), joined_(ranks.size(), 0) {}

  // The next meeting of the member at `position`.
  MeetingRef join(size_t position) {
    size_t at = size_t(joined_[position]++ - completed_);
    if (at == open_.size()) open_.push_back(std::make_shared<Meeting>(ranks_));
    return open_[at];
  }
  // All members have joined the oldest meeting.
  void dropOldest() {
    open_.pop_front();
    ++completed_;
  }

 private:
  llvm::SmallVector<int, 8> ranks_;
  std::vector<int64_t> joined_;  // meetings, by each member
  int64_t completed_ = 0;
  std::deque<MeetingRef> open_;
};

// What the members of a group share.
struct Channels {
  explicit Channels(llvm::ArrayRef<int> ranks) : collectives(ranks) {}
  Channel collectives;
  std::map<std::pair<int, int>, Channel> transfers;  // by positions: from, to
};

struct ThreadGroup : Group {
  ThreadGroup(llvm::ArrayRef<int> members, int rank, Channels& channels)
      : Group(members, rank), channels(channels) {}
  Channels& channels;
};

// A started message of one rank. A transfer is up to two meetings: as sender and as receiver.
struct Slot {
  bool used = false;
  llvm::SmallVector<MeetingRef, 2> meetings;
  Site site;
};

struct Rank {
  std::condition_variable wake;
  const Slot* waiting = nullptr;           // asleep, for this
  const Meeting* meeting = nullptr;        // and this of its meetings
  Site last;                               // of the message started last
  std::deque<Slot> slots;                  // where a ticket points to; they stay where they are
  std::map<std::vector<int>, int> groups;  // how often each was made
  bool ended = false;
};

class Team {
 public:
  Team(int ranks, std::chrono::milliseconds timeout) : timeout_(timeout), ranks_(size_t(ranks)) {}

  int size() const { return int(ranks_.size()); }

  Channels& channels(int rank, llvm::ArrayRef<int> members) {
    Lock lock(mutex_);
    std::vector<int> key(members.begin(), members.end());
    int count = ranks_[size_t(rank)].groups[key]++;
    return channels_.try_emplace({key, count}, members).first->second;
  }

  Ticket start(int rank, ThreadGroup& group, const Message& message, const Site& site);
  llvm::Error wait(int rank, Ticket ticket);
  void fail(int rank, llvm::StringRef why) {
    Lock lock(mutex_);
    failNow("rank " + std::to_string(rank) + " failed: " + why.str());
    leave(lock, ranks_[size_t(rank)]);
  }
  void fail(std::string why) {
    Lock lock(mutex_);
    failNow(std::move(why));
  }
  void end(int rank);

  std::string failure() const {
    Lock lock(mutex_);
    return failure_;
  }
  std::string table() const {
    Lock lock(mutex_);
    return failure_.empty() ? render() : table_;
  }
  bool waitForEnd();

 private:
  // All of these are called with the mutex held; those that take `lock` release it in between.
  void join(Lock& lock, Slot& slot, int rank, Channel& channel, size_t position,
            const Message& message);
  void finish(Lock& lock, Rank& self, Meeting& meeting);
  void takeTasks(Lock& lock, Meeting& meeting);
  void leave(Lock& lock, Rank& self);
  void setPhase(Meeting& meeting, Meeting::Phase phase);
  void failNow(std::string why);
  void failIfStuck();
  std::string render() const;
  llvm::Error error() const {
    return llvm::createStringError(llvm::inconvertibleErrorCode(), "%s", failure_.c_str());
  }

  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::map<std::pair<std::vector<int>, int>, Channels> channels_;  // by members, number of group
  size_t waiting_ = 0, ended_ = 0;                                 // ranks
  std::string failure_, table_;
  std::condition_variable end_;  // a rank has ended, or the run has failed
};

Ticket Team::start(int rank, ThreadGroup& group, const Message& message, const Site& site) {
  Lock lock(mutex_);
  Rank& self = ranks_[size_t(rank)];
  self.last = site;
  size_t index = 0;
  while (index < self.slots.size() && self.slots[index].used) ++index;
  if (index == self.slots.size()) self.slots.emplace_back();
  Slot& slot = self.slots[index];
  slot.used = true;
  slot.site = site;
  int own = group.position();
  if (message.kind != Collective::SendReceive) {
    join(lock, slot, rank, group.channels.collectives, size_t(own), message);
    return {int(index)};
  }
  auto transfer = [&](int from, int to, size_t position) {
    int ranks[] = {group.members()[size_t(from)], group.members()[size_t(to)]};
    auto place = group.channels.transfers.try_emplace({from, to}, ranks).first;
    join(lock, slot, rank, place->second, position, message);
  };
  if (message.to != Message::kNobody) transfer(own, message.to, 0);
  if (message.from != Message::kNobody) transfer(message.from, own, 1);
  return {int(index)};
}

void Team::join(Lock& lock, Slot& slot, int rank, Channel& channel, size_t position,
                const Message& message) {
  if (!failure_.empty()) return;
  MeetingRef meeting = channel.join(position);
  slot.meetings.push_back(meeting);
  Meeting::Member& self = meeting->members[position];
  for (size_t i = 0; i < meeting->members.size(); ++i) {
    const Meeting::Member& other = meeting->members[i];
    if (!other.present || comm::agree(message, int(position), other.message, int(i))) continue;
    auto words = [](int rank, const Site& site, const Message& message) {
      return "rank " + std::to_string(rank) + " asks for " + describe(message) + " in " +
             describe(site);
    };
    failNow("ranks of one group don't agree: " + words(other.rank, other.site, other.message) +
            "; " + words(rank, slot.site, message));
    return;
  }
  self.present = true;
  self.message = message;
  self.site = slot.site;
  if (++meeting->present < meeting->members.size()) return;

  channel.dropOldest();
  setPhase(*meeting, Meeting::Preparing);
  lock.unlock();
  llvm::SmallVector<const Message*, 8> messages;
  for (const Meeting::Member& member : meeting->members) messages.push_back(&member.message);
  meeting->work.emplace(messages);
  // What one can do at once is not worth waking others for.
  bool small = meeting->work->tasks() <= 1;
  if (small && meeting->work->tasks() == 1) meeting->work->run(0);
  lock.lock();
  setPhase(*meeting, small ? Meeting::Done : Meeting::Working);
}

// Wakes members that sleep for the meeting.
void Team::setPhase(Meeting& meeting, Meeting::Phase phase) {
  meeting.phase = phase;
  if (phase == Meeting::Preparing) return;
  for (const Meeting::Member& member : meeting.members) {
    Rank& rank = ranks_[size_t(member.rank)];
    if (rank.meeting == &meeting) rank.wake.notify_one();
  }
}

void Team::takeTasks(Lock& lock, Meeting& meeting) {
  lock.unlock();
  bool last = false;
  for (size_t tasks = meeting.work->tasks();;) {
    size_t task = meeting.next.fetch_add(1);
    if (task >= tasks) break;
    meeting.work->run(task);
    last = meeting.finished.fetch_add(1) + 1 == tasks;
  }
  lock.lock();
  if (last) setPhase(meeting, Meeting::Done);
}

// Completes a meeting that all members have joined.
void Team::finish(Lock& lock, Rank& self, Meeting& meeting) {
  while (meeting.phase != Meeting::Done) {
    if (meeting.hasTasks()) {
      takeTasks(lock, meeting);
    } else {
      self.meeting = &meeting;
      self.wake.wait(lock);
      self.meeting = nullptr;
    }
  }
}

llvm::Error Team::wait(int rank, Ticket ticket) {
  Lock lock(mutex_);
  Rank& self = ranks_[size_t(rank)];
  Slot& slot = self.slots[size_t(ticket.slot)];
  assert((slot.used || !failure_.empty()) && "a ticket is waited for once");
  for (MeetingRef& meeting : slot.meetings) {
    auto deadline = Clock::now() + timeout_;
    while (failure_.empty() && meeting->phase == Meeting::Gathering) {
      self.waiting = &slot;
      self.meeting = meeting.get();
      ++waiting_;
      failIfStuck();
      bool late =
          failure_.empty() && self.wake.wait_until(lock, deadline) == std::cv_status::timeout;
      if (late && failure_.empty() && meeting->phase == Meeting::Gathering) {
        failNow("no progress for " + comm::seconds(timeout_) + ": rank " + std::to_string(rank) +
                " waits for " + comm::rankList(meeting->missing()) + " in " + describe(slot.site));
      }
      self.waiting = nullptr;
      self.meeting = nullptr;
      --waiting_;
    }
    if (meeting->phase != Meeting::Gathering) finish(lock, self, *meeting);
  }
  if (!failure_.empty()) {
    leave(lock, self);
    return error();
  }
  slot.meetings.clear();
  slot.used = false;
  return llvm::Error::success();
}

// The run has failed: after this nobody uses the rank's buffers.
void Team::leave(Lock& lock, Rank& self) {
  for (Slot& slot : self.slots) {
    for (MeetingRef& meeting : slot.meetings) {
      if (meeting->phase != Meeting::Gathering) finish(lock, self, *meeting);
    }
    slot.meetings.clear();
    slot.used = false;
  }
}

void Team::end(int rank) {
  Lock lock(mutex_);
  Rank& self = ranks_[size_t(rank)];
  for (const Slot& slot : self.slots) {
    if (slot.used)
      failNow("rank " + std::to_string(rank) + " ended without waiting for " + describe(slot.site));
  }
  if (!failure_.empty()) leave(lock, self);
  self.ended = true;
  ++ended_;
  failIfStuck();
  end_.notify_all();
}

// The first failure counts.
void Team::failNow(std::string why) {
  if (!failure_.empty()) return;
  failure_ = std::move(why);
  table_ = render();
  for (Rank& rank : ranks_) rank.wake.notify_one();
  end_.notify_all();
}

// Fails when a rank waits for one that has ended, or all that have not ended wait for each other:
// time would not help.
void Team::failIfStuck() {
  auto isStuck = [](const Rank& rank) {
    return rank.waiting != nullptr && rank.meeting->phase == Meeting::Gathering;
  };
  auto words = [&](const Rank& rank, llvm::ArrayRef<int> missing) {
    return "rank " + std::to_string(&rank - ranks_.data()) + " waits for " +
           comm::rankList(missing) + " in " + describe(rank.waiting->site);
  };
  for (const Rank& rank : ranks_) {
    if (ended_ == 0) break;
    if (!isStuck(rank)) continue;
    llvm::SmallVector<int, 8> gone = rank.meeting->missing();
    llvm::erase_if(gone, [&](int r) { return !ranks_[size_t(r)].ended; });
    if (!gone.empty()) return failNow(comm::rankList(gone) + " ended: " + words(rank, gone));
  }
  if (waiting_ == 0 || waiting_ + ended_ < ranks_.size()) return;
  const Rank* someone = nullptr;
  for (const Rank& rank : ranks_) {
    if (rank.ended) continue;
    if (!isStuck(rank)) return;
    someone = &rank;
  }
  failNow("all ranks wait for each other: " + words(*someone, someone->meeting->missing()));
}

bool Team::waitForEnd() {
  Lock lock(mutex_);
  auto allEnded = [&] { return llvm::all_of(ranks_, [](const Rank& rank) { return rank.ended; }); };
  end_.wait(lock, [&] { return allEnded() || !failure_.empty(); });
  return end_.wait_for(lock, timeout_, allEnded);
}

std::string Team::render() const {
  std::vector<std::array<std::string, 5>> rows = {
      {"rank", "operation", "tensor", "plan line", "waits for"}};
  for (size_t r = 0; r < ranks_.size(); ++r) {
    const Rank& rank = ranks_[r];
    const Site& site = rank.waiting != nullptr ? rank.waiting->site : rank.last;
    std::string state = "nobody: it is running";
    if (rank.ended) {
      state = "nobody: it has ended";
    } else if (rank.waiting != nullptr && rank.meeting->phase == Meeting::Gathering) {
      state = comm::rankList(rank.meeting->missing());
    }
    std::string op = site.op;
    if (site.number > 0) op = std::to_string(site.number) + " " + op;
    std::string stage = site.stage.empty() ? "" : " (" + site.stage + ")";
    rows.push_back({std::to_string(r) + stage, op, site.tensor, site.place, state});
  }
  std::array<size_t, 5> widths = {};
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      text += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    text += row.back() + "\n";
  }
  return text;
}

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Team> team, int rank)
      : Communicator(rank, team->size()), team_(std::move(team)) {
    std::vector<int> all(size_t(size()), 0);
    for (int r = 0; r < size(); ++r) all[size_t(r)] = r;
    group(all);
  }
  ~ThreadCommunicator() override { team_->end(rank()); }

  Group& world() override { return *groups_[0]; }
  Group& group(llvm::ArrayRef<int> members) override {
    Channels& channels = team_->channels(rank(), members);
    groups_.push_back(std::make_unique<ThreadGroup>(members, rank(), channels));
    return *groups_.back();
  }
  llvm::Error wait(Ticket ticket) override { return team_->wait(rank(), ticket); }
  void fail(llvm::StringRef why) override { team_->fail(rank(), why); }
  std::string failure() override { return team_->failure(); }

 protected:
  Ticket begin(Group& group, const Message& message, const Site& site) override {
    return team_->start(rank(), static_cast<ThreadGroup&>(group), message, site);
  }

 private:
  std::shared_ptr<Team> team_;
  std::vector<std::unique_ptr<ThreadGroup>> groups_;
};

class Threads : public ThreadTeam {
 public:
  Threads(int ranks, std::chrono::milliseconds timeout)
      : team_(std::make_shared<Team>(ranks, timeout)) {}

  std::unique_ptr<Communicator> communicator(int rank) override {
    return std::make_unique<ThreadCommunicator>(team_, rank);
  }
  void fail(std::string why) override { team_->fail(std::move(why)); }
  std::string failure() const override { return team_->failure(); }
  std::string table() const override { return team_->table(); }
  bool waitForEnd() override { return team_->waitForEnd(); }

 private:
  std::shared_ptr<Team> team_;
};

}  // namespace

std::unique_ptr<ThreadTeam> makeThreadTeam(int ranks, std::chrono::milliseconds timeout) {
  return std::make_unique<Threads>(ranks, timeout);
}

}  // namespace planc
