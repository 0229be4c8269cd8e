// A schedule as text. Tested by tests/unit/schedule_test.cpp.
#include <map>
#include <set>

#include "ir/broken.h"
#include "ir/schedule.h"
#include "ir/schedule_checks.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"

namespace planc {
namespace {

struct Line {
  int number;  // from 1
  llvm::SmallVector<llvm::StringRef, 0> words;
};

std::vector<Line> linesOf(llvm::StringRef text) {
  std::vector<Line> lines;
  for (int number = 1; !text.empty(); ++number) {
    llvm::StringRef line;
    std::tie(line, text) = text.split('\n');
    llvm::SmallVector<llvm::StringRef, 0> words;
    llvm::SplitString(line.split('#').first, words, " \t\r");
    if (!words.empty()) lines.push_back({number, std::move(words)});
  }
  return lines;
}

// chunk -1: the word has none.
std::optional<Task> readTask(llvm::StringRef word) {
  for (Work work : {Work::Forward, Work::Backward, Work::InputGradient, Work::WeightGradient})
    if (word.front() == letter(work)) {
      Task task{work, -1, 0};
      auto [microbatch, chunk] = word.drop_front().split('.');
      bool hasChunk = word.contains('.');
      uint32_t number = 0, place = 0;
      if (microbatch.getAsInteger(10, number) || (hasChunk && chunk.getAsInteger(10, place)))
        return std::nullopt;
      if (number >= kMaxTasks || place >= kMaxTasks) return std::nullopt;
      task.microbatch = number;
      if (hasChunk) task.chunk = int(place);
      return task;
    }
  return std::nullopt;
}

}  // namespace

llvm::Expected<PipeSchedule> parseSchedule(llvm::StringRef text, int stages, int chunks,
                                           int64_t microbatches) {
  std::vector<Line> lines = linesOf(text);
  auto lineName = [&](int stage) { return "line " + std::to_string(lines[stage].number); };
  if (lines.size() != size_t(stages))
    return broken("it has " + llvm::Twine(lines.size()) + (lines.size() == 1 ? " line" : " lines") +
                  " of tasks, and there are " + llvm::Twine(stages) + " stages");
  PipeSchedule schedule{stages, microbatches, {}, {}};
  schedule.tasks.resize(stages);
  std::map<int, int> stageOf;  // of each chunk that has a task
  for (int stage = 0; stage < stages; ++stage)
    for (llvm::StringRef word : lines[stage].words) {
      auto wrong = [&](const llvm::Twine& what) {
        return broken(lineName(stage) + ": '" + word + "': " + what);
      };
      std::optional<Task> task = readTask(word);
      if (!task)
        return wrong(
            "a task is F, B, I or W, the microbatch and, where a stage holds several "
            "chunks, '.' and the chunk: F0 or F0.3");
      if (task->chunk < 0 && chunks > 1)
        return wrong("it lacks its chunk; each stage holds " + llvm::Twine(chunks));
      if (task->chunk < 0) task->chunk = stage;
      if (int owner = stageOf.emplace(task->chunk, stage).first->second; owner != stage)
        return wrong("chunk " + llvm::Twine(task->chunk) + " is on " + lineName(owner) +
                     ", and a chunk is on one stage");
      schedule.tasks[stage].push_back(*task);
    }
  std::vector<int> held(stages);
  for (const auto& [chunk, stage] : stageOf) {
    if (chunk != schedule.chunks())
      return broken("no line has tasks of chunk " + llvm::Twine(schedule.chunks()) + ", and " +
                    lineName(stage) + " has some of chunk " + llvm::Twine(chunk));
    schedule.stageOf.push_back(stage);
    ++held[stage];
  }
  int each = chunks > 0 ? chunks : held[0];
  for (int stage = 0; stage < stages; ++stage)
    if (held[stage] != each)
      return broken(lineName(stage) + " has tasks of " + llvm::Twine(held[stage]) +
                    " chunks, and each stage holds " + llvm::Twine(each));
  if (llvm::Error error = checkSchedule(schedule, lineName)) return error;
  return schedule;
}

std::string printSchedule(const PipeSchedule& schedule) {
  std::string text;
  for (const std::vector<Task>& list : schedule.tasks) {
    llvm::StringRef blank = "";
    for (const Task& task : list) {
      text += blank.str() + schedule.text(task);
      blank = " ";
    }
    text += '\n';
  }
  return text;
}

}  // namespace planc
