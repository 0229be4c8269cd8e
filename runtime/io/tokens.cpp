// Token files are read by position, never mapped: mapped pages would count as the process's memory,
// and a file that shrinks would kill it. Windows start at philox(seed, sample) mod their number.
// Tested by tests/unit/io_test.cpp.
#include "runtime/io/tokens.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Path.h"
#include "runtime/random.h"

namespace planc {
namespace {

constexpr size_t kPiece = size_t{1} << 20;
constexpr int64_t kLlmcHeader = 1024;
constexpr int32_t kLlmcMagic = 20240520, kLlmcVersion = 1;
constexpr size_t kMaxNpyHeader = 65535;

struct NpyType {
  llvm::StringRef name;
  unsigned bytes;
  bool isSigned;
};
constexpr NpyType kNpyTypes[] = {
    {"|u1", 1, false}, {"<u1", 1, false}, {"<u2", 2, false}, {"<i4", 4, true}, {"<i8", 8, true},
};

// What stands behind `'key':` in a .npy header (a Python dict), up to the comma or bracket.
llvm::StringRef npyField(llvm::StringRef header, llvm::StringRef key, char open, char close) {
  size_t at = header.find(("'" + key + "'").str());
  if (at == llvm::StringRef::npos) return "";
  llvm::StringRef rest = header.drop_front(at + key.size() + 2).ltrim();
  if (!rest.consume_front(":")) return "";
  rest = rest.ltrim();
  if (open == 0) return rest.take_until([](char c) { return c == ',' || c == '}'; }).trim();
  if (rest.empty() || rest.front() != open) return "";
  return rest.drop_front().take_until([&](char c) { return c == close; });
}

int64_t tokenAt(const uint8_t* at, unsigned bytes, bool isSigned) {
  uint64_t value = 0;
  std::memcpy(&value, at, bytes);
  return bytes == 4 && isSigned ? int64_t(int32_t(uint32_t(value))) : int64_t(value);
}

}  // namespace

llvm::Expected<TokenFile> TokenFile::open(llvm::StringRef path) {
  llvm::Expected<File> file = File::openRead(path);
  if (!file) return file.takeError();
  llvm::Expected<int64_t> bytes = file->size();
  if (!bytes) return bytes.takeError();
  TokenFile tokens(std::move(*file));
  int64_t expected = -1;  // tokens that a header promises

  if (llvm::sys::path::extension(path) == ".bin") {
    tokens.bytes_ = 2;
    int32_t header[3] = {0, 0, 0};
    if (*bytes >= kLlmcHeader) {
      auto* raw = reinterpret_cast<uint8_t*>(header);
      if (llvm::Error error = tokens.file_.read(0, {raw, sizeof(header)})) return error;
    }
    if (header[0] == kLlmcMagic) {
      if (header[1] != kLlmcVersion) {
        return fileError(path, "is an llm.c token file of version " + llvm::Twine(header[1]) +
                                   ", planc reads version " + llvm::Twine(kLlmcVersion));
      }
      tokens.start_ = kLlmcHeader;
      expected = header[2];
    }
  } else if (llvm::sys::path::extension(path) == ".npy") {
    uint8_t start[12] = {};
    size_t first = size_t(std::min<int64_t>(*bytes, sizeof(start)));
    if (llvm::Error error = tokens.file_.read(0, {start, first})) return error;
    if (first < sizeof(start) || std::memcmp(start, "\x93NUMPY", 6) != 0) {
      return fileError(path, "is not a .npy file");
    }
    uint32_t length = 0;
    int64_t at = start[6] == 1 ? 10 : 12;  // version 1 has a 16-bit length
    std::memcpy(&length, start + 8, size_t(at) - 8);
    if (length > kMaxNpyHeader || at + int64_t(length) > *bytes) {
      return fileError(path,
                       "has a .npy header of " + llvm::Twine(length) + " bytes, more than fits");
    }
    std::string text(length, '\0');
    auto* raw = reinterpret_cast<uint8_t*>(text.data());
    if (llvm::Error error = tokens.file_.read(at, {raw, text.size()})) return error;
    llvm::StringRef type = npyField(text, "descr", '\'', '\'');
    llvm::StringRef shape = npyField(text, "shape", '(', ')').trim();
    auto* found = llvm::find_if(kNpyTypes, [&](const NpyType& t) { return t.name == type; });
    if (found == std::end(kNpyTypes)) {
      return fileError(path, "has element type '" + type.take_front(20) +
                                 "'; tokens must be uint8, uint16, int32 or int64");
    }
    shape.consume_back(",");
    if (shape.trim().getAsInteger(10, expected) || expected < 0) {
      return fileError(path,
                       "has shape (" + shape.take_front(40) + "); tokens must have one dimension");
    }
    tokens.start_ = at + int64_t(length);
    tokens.bytes_ = found->bytes;
    tokens.signed_ = found->isSigned;
  }

  int64_t data = *bytes - tokens.start_;
  if (data % tokens.bytes_ != 0) {
    return fileError(path, "has " + llvm::Twine(data) + " bytes of tokens, not a multiple of " +
                               llvm::Twine(tokens.bytes_));
  }
  tokens.size_ = data / tokens.bytes_;
  if (expected >= 0 && expected != tokens.size_) {
    return fileError(path, "has " + llvm::Twine(tokens.size_) + " tokens, its header says " +
                               llvm::Twine(expected));
  }
  return tokens;
}

llvm::Error TokenFile::read(int64_t start, llvm::MutableArrayRef<int32_t> into) const {
  std::vector<uint8_t> raw(into.size() * bytes_);
  if (llvm::Error error = file_.read(start_ + start * int64_t(bytes_), raw)) return error;
  for (size_t i = 0; i < into.size(); ++i) {
    into[i] = int32_t(tokenAt(&raw[i * bytes_], bytes_, signed_));
  }
  return llvm::Error::success();
}

int64_t TokenFile::widest() const {
  if (signed_) return std::numeric_limits<int64_t>::max();
  return (int64_t{1} << (8 * bytes_)) - 1;
}

llvm::Error TokenFile::check(int64_t seq, int64_t vocab, int part, int parts) const {
  if (size_ < seq + 1) {
    return fileError(path(), "has " + llvm::Twine(size_) + " tokens; a sequence of " +
                                 llvm::Twine(seq) + " and its targets need at least " +
                                 llvm::Twine(seq + 1));
  }
  if (widest() < vocab) return llvm::Error::success();
  std::vector<uint8_t> piece(kPiece);
  int64_t end = part + 1 == parts ? size_ : size_ / parts * (part + 1);
  for (int64_t first = size_ / parts * part; first < end; first += int64_t(kPiece / bytes_)) {
    size_t count = size_t(std::min(end - first, int64_t(kPiece / bytes_)));
    llvm::MutableArrayRef<uint8_t> raw(piece.data(), count * bytes_);
    if (llvm::Error error = file_.read(start_ + first * int64_t(bytes_), raw)) return error;
    for (size_t i = 0; i < count; ++i) {
      int64_t token = tokenAt(&raw[i * bytes_], bytes_, signed_);
      if (token >= 0 && token < vocab) continue;
      return fileError(path(), "token " + llvm::Twine(token) + " at position " +
                                   llvm::Twine(first + int64_t(i)) +
                                   " is outside the vocabulary of " + llvm::Twine(vocab));
    }
  }
  return llvm::Error::success();
}

llvm::Error TokenFile::sample(uint64_t seed, uint64_t index,
                              llvm::MutableArrayRef<int32_t> window) const {
  return read(windowOffset(seed, index, size_, int64_t(window.size()) - 1), window);
}

void numberDocuments(llvm::MutableArrayRef<int32_t> tokens, int64_t separator) {
  int32_t document = 0;
  for (int32_t& token : tokens) {
    bool isLast = token == separator;
    token = document;
    document += isLast;
  }
}

int64_t windowOffset(uint64_t seed, uint64_t index, int64_t tokens, int64_t seq) {
  Philox p = philox(randomKey(seed, "data"), 0, index);
  uint64_t random = uint64_t(p.word[1]) << 32 | p.word[0];
  return int64_t(random % uint64_t(tokens - seq));
}

}  // namespace planc
