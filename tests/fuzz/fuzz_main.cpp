// A fuzzer that needs no instrumentation: mutates the corpus at random and calls a reader.
//
//   fuzz TARGET CORPUS [--seconds N] [--seed N] [--save DIR]     fuzz, for a time
//   fuzz TARGET FILE...                                          run these inputs once
//
// Each input runs in a child that is started anew after a batch; a child that dies or takes longer
// than 10 s leaves its input as DIR/crash-SEED-N (default: .) and the exit status is 1. Accepted
// mutants join the corpus in memory. The same seed gives the same inputs.
#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace planc {
namespace {

constexpr size_t kMaxInput = size_t{1} << 18;
constexpr unsigned kHangSeconds = 10;
constexpr rlim_t kMaxMemory = rlim_t{4} << 30;

using Random = std::mt19937_64;

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::vector<std::string> readCorpus(const std::string& folder) {
  std::vector<std::string> names, corpus;
  if (DIR* dir = ::opendir(folder.c_str())) {
    while (dirent* entry = ::readdir(dir)) {
      if (entry->d_name[0] != '.') names.push_back(folder + "/" + entry->d_name);
    }
    ::closedir(dir);
  }
  std::sort(names.begin(), names.end());  // so that a seed means the same everywhere
  for (const std::string& name : names) corpus.push_back(contents(name));
  return corpus;
}

size_t below(Random& random, size_t n) {
  return n == 0 ? 0 : size_t(random() % n);
}

// One change: bits, bytes, copied or removed pieces, a word of the format, a piece of another
// input.
void mutate(std::string& s, const FuzzTarget& target, const std::vector<std::string>& corpus,
            Random& random) {
  size_t at = below(random, s.size() + 1), length = below(random, 1 + below(random, 64));
  switch (below(random, 8)) {
    case 0:
      if (at < s.size()) s[at] = char(s[at] ^ (1 << below(random, 8)));
      break;
    case 1:
      if (at < s.size()) s[at] = char(random());
      break;
    case 2:
      s.erase(at, length);
      break;
    case 3:
      s.insert(at, s.substr(below(random, s.size() + 1), length));
      break;
    case 4: {
      llvm::StringRef word = target.words[below(random, target.words.size())];
      for (size_t n = below(random, 20) == 0 ? below(random, 500) : 1; n > 0; --n) {
        s.insert(at, word.str());
      }
      break;
    }
    case 5: {
      const std::string& other = corpus[below(random, corpus.size())];
      size_t from = below(random, other.size() + 1);
      s.replace(at, below(random, 2) * length, other.substr(from, length * 4));
      break;
    }
    case 6:
      s.resize(at);
      break;
    default:
      if (size_t digit = s.find_first_of("0123456789", at); digit != std::string::npos) {
        const char* numbers[] = {"0", "1", "-1", "4294967296", "9223372036854775807", "1e30", "3"};
        s.replace(digit, 1, numbers[below(random, 7)]);
      }
  }
  if (s.size() > kMaxInput) s.resize(kMaxInput);
}

// Memory that the children share with us: the input at hand, how far they came.
struct Shared {
  uint64_t done, accepted, size;
  char input[kMaxInput];
};

// Runs inputs number `first` ... until the time is over; in the child.
[[noreturn]] void work(const FuzzTarget& target, std::vector<std::string> corpus, uint64_t seed,
                       Shared& shared, double seconds) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they map terabytes
  rlimit memory = {kMaxMemory, kMaxMemory};
  ::setrlimit(RLIMIT_AS, &memory);
#endif
  size_t original = corpus.size();
  auto start = std::chrono::steady_clock::now();
  for (;; ++shared.done) {
    std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (spent.count() > seconds) ::_exit(0);
    // Input n is a function of the seed and n, as long as nothing joined the corpus.
    Random random(seed * 1000003 + shared.done);
    std::string input = corpus[below(random, corpus.size())];
    for (size_t n = 1 + below(random, 8); n > 0; --n) mutate(input, target, corpus, random);
    if (target.repair != nullptr && below(random, 8) != 0) target.repair(input);
    shared.size = input.size();
    std::memcpy(shared.input, input.data(), input.size());
    ::alarm(kHangSeconds);
    if (!target.run(input)) continue;
    ++shared.accepted;
    if (corpus.size() < original + 1000) corpus.push_back(std::move(input));
  }
}

int fuzz(const FuzzTarget& target, const std::string& folder, double seconds, uint64_t seed,
         const std::string& save) {
  std::vector<std::string> corpus = readCorpus(folder);
  if (corpus.empty()) {
    std::fprintf(stderr, "fuzz: no files in '%s'\n", folder.c_str());
    return 2;
  }
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("mmap");
    return 2;
  }
  Shared& shared = *static_cast<Shared*>(memory);
  auto start = std::chrono::steady_clock::now();
  int crashes = 0;
  for (double left = seconds; left > 0 && crashes < 20;) {
    pid_t child = ::fork();
    if (child < 0) {
      std::perror("fork");
      return 2;
    }
    if (child == 0) work(target, corpus, seed, shared, left);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    left = seconds - spent.count();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    const char* how = WIFSIGNALED(status) ? ::strsignal(WTERMSIG(status)) : "exit";
    std::string path = save + "/crash-" + std::to_string(seed) + "-" + std::to_string(shared.done);
    std::ofstream(path, std::ios::binary).write(shared.input, long(shared.size));
    std::fprintf(stderr, "fuzz: %s: %s; the input is %s\n", target.name.str().c_str(), how,
                 path.c_str());
    ++crashes;
    ++shared.done;  // go on behind it
  }
  std::printf("%s: %llu inputs, %llu accepted, seed %llu, %d crashes\n", target.name.str().c_str(),
              (unsigned long long)shared.done, (unsigned long long)shared.accepted,
              (unsigned long long)seed, crashes);
  return crashes == 0 ? 0 : 1;
}

int usage() {
  std::fprintf(stderr,
               "usage: fuzz TARGET CORPUS [--seconds N] [--seed N] [--save DIR]\n"
               "       fuzz TARGET FILE...\ntargets:");
  for (const FuzzTarget& target : fuzzTargets()) {
    std::fprintf(stderr, " %s", target.name.str().c_str());
  }
  std::fprintf(stderr, "\n");
  return 2;
}

int run(int argc, char** argv) {
  if (argc < 3) return usage();
  const FuzzTarget* target = nullptr;
  for (const FuzzTarget& each : fuzzTargets()) {
    if (each.name == argv[1]) target = &each;
  }
  if (target == nullptr) return usage();
  double seconds = 10;
  uint64_t seed = 1;
  std::string save = ".";
  std::vector<std::string> paths;
  for (int i = 2; i < argc; ++i) {
    std::string argument = argv[i];
    bool hasValue = i + 1 < argc;
    if (argument == "--seconds" && hasValue) {
      seconds = std::atof(argv[++i]);
    } else if (argument == "--seed" && hasValue) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (argument == "--save" && hasValue) {
      save = argv[++i];
    } else {
      paths.push_back(argument);
    }
  }
  struct stat status;
  if (paths.size() == 1 && ::stat(paths[0].c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return fuzz(*target, paths[0], seconds, seed, save);
  }
  for (const std::string& path : paths) {
    bool accepted = target->run(contents(path));
    std::printf("%s: %s\n", path.c_str(), accepted ? "accepted" : "refused");
  }
  return 0;
}

}  // namespace
}  // namespace planc

int main(int argc, char** argv) {
  return planc::run(argc, argv);
}
