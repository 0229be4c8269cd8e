// Reading safetensors: 8 bytes of header length, a JSON header, then the tensors' bytes without gaps. A
// header comes from anywhere, so every number in it is checked before it is used, and nesting
// before the recursive JSON parser sees it. The checksum is a CRC-32 of header and data in which
// its own eight digits count as zeros. Tested by tests/unit/safetensors_test.cpp and tests/fuzz.
#include "runtime/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/CRC.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "runtime/elements.h"
#include "runtime/io/checksum.h"
#include "runtime/io/safetensors_format.h"
#include "runtime/runs.h"
#include "runtime/talk.h"

namespace planc {

using namespace safetensors;

static_assert(std::endian::native == std::endian::little, "files are little-endian");

namespace safetensors {
namespace {

constexpr ElemInfo kElems[] = {
    {TensorElem::F64, "F64", 8, true},  {TensorElem::F32, "F32", 4, true},
    {TensorElem::F16, "F16", 2, true},  {TensorElem::BF16, "BF16", 2, true},
    {TensorElem::I64, "I64", 8, false}, {TensorElem::I32, "I32", 4, false},
    {TensorElem::I16, "I16", 2, false}, {TensorElem::I8, "I8", 1, false},
    {TensorElem::U8, "U8", 1, false},
};
constexpr size_t kPiece = size_t{1} << 20;

}  // namespace

const ElemInfo& infoOf(TensorElem elem) { return kElems[size_t(elem)]; }

const ElemInfo* infoByName(llvm::StringRef name) {
  const ElemInfo* found = llvm::find_if(kElems, [&](const ElemInfo& i) { return i.name == name; });
  return found == std::end(kElems) ? nullptr : found;
}

TensorElem elemOf(Elem elem) {
  switch (elem) {
    case Elem::F32:
      return TensorElem::F32;
    case Elem::BF16:
      return TensorElem::BF16;
    case Elem::F64:
      return TensorElem::F64;
    case Elem::I32:
      return TensorElem::I32;
  }
  return TensorElem::F32;
}

std::vector<int64_t> sizesOf(const Type& type) {
  std::vector<int64_t> sizes;
  for (const Dim& dim : type.dims) {
    if (type.grouping() != dim.name) sizes.push_back(dim.all());
  }
  return sizes;
}

std::string checksumText(uint32_t crc) { return llvm::formatv("{0:x-8}", crc).str(); }

llvm::Expected<uint32_t> checksum(const File& file, int64_t begin, int64_t end) {
  std::vector<uint8_t> piece(std::min(kPiece, size_t(end - begin)));
  uint32_t crc = 0;
  for (int64_t at = begin; at < end; at += int64_t(kPiece)) {
    llvm::MutableArrayRef<uint8_t> part(piece.data(), std::min(kPiece, size_t(end - at)));
    if (llvm::Error error = file.read(at, part)) return error;
    crc = llvm::crc32(crc, part);
  }
  return crc;
}

llvm::Expected<uint32_t> checksumTogether(const File& file, llvm::StringRef header,
                                          int64_t dataBytes, Communicator& comm) {
  int64_t start = 8 + int64_t(header.size());
  auto share = [&](int rank) { return dataBytes / comm.size() * rank; };
  auto end = [&](int rank) { return rank + 1 == comm.size() ? dataBytes : share(rank + 1); };
  auto mine = agree(comm, checksum(file, start + share(comm.rank()), start + end(comm.rank())));
  if (!mine) return mine.takeError();
  auto all = gather(comm, int64_t(*mine));
  if (!all) return all.takeError();
  uint32_t crc = llvm::crc32(Bytes(header.bytes_begin(), header.size()));
  for (int rank = 0; rank < comm.size(); ++rank)
    crc = joinChecksums(crc, uint32_t((*all)[size_t(rank)]), end(rank) - share(rank));
  return crc;
}

}  // namespace safetensors

namespace {

constexpr int64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr unsigned kMaxJsonDepth = 8;
template <class... Args>
llvm::Error bad(const char* format, Args&&... args) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                 llvm::formatv(format, std::forward<Args>(args)...).str().c_str());
}

// Names in messages: printable and short, whatever the file holds.
std::string shown(llvm::StringRef text) {
  std::string out;
  llvm::raw_string_ostream stream(out);
  llvm::printEscapedString(text.take_front(80), stream);
  return stream.str();
}

bool nestsTooDeep(llvm::StringRef text) {
  unsigned depth = 0;
  bool inString = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (inString) {
      if (c == '\\') ++i;
      if (c == '"') inString = false;
    } else if (c == '"') {
      inString = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxJsonDepth) return true;
    } else if ((c == '}' || c == ']') && depth > 0) {
      --depth;
    }
  }
  return false;
}

llvm::Expected<TensorEntry> parseEntry(llvm::StringRef rawName, const llvm::json::Value& value,
                                       int64_t dataBytes) {
  std::string name = shown(rawName);
  const llvm::json::Object* object = value.getAsObject();
  if (object == nullptr) return bad("tensor '{0}' is not described by an object", name);
  TensorEntry entry;

  auto dtype = object->getString("dtype");
  if (!dtype) return bad("tensor '{0}' has no dtype", name);
  const ElemInfo* elem = infoByName(*dtype);
  if (elem == nullptr) {
    return bad("tensor '{0}' has dtype '{1}', which planc does not read", name, shown(*dtype));
  }
  entry.elem = elem->elem;

  const llvm::json::Array* shape = object->getArray("shape");
  if (shape == nullptr) return bad("tensor '{0}' has no shape", name);
  int64_t bytes = elem->bytes;
  for (const llvm::json::Value& size : *shape) {
    auto n = size.getAsInteger();
    if (!n || *n < 0) return bad("tensor '{0}' has a size that is no whole number >= 0", name);
    if (__builtin_mul_overflow(bytes, *n, &bytes)) return bad("tensor '{0}' is too large", name);
    entry.shape.push_back(*n);
  }

  const llvm::json::Array* offsets = object->getArray("data_offsets");
  if (offsets == nullptr || offsets->size() != 2) {
    return bad("tensor '{0}' has no data_offsets [begin, end]", name);
  }
  auto begin = (*offsets)[0].getAsInteger(), end = (*offsets)[1].getAsInteger();
  if (!begin || !end || *begin < 0 || *end < *begin || *end > dataBytes) {
    return bad("tensor '{0}' has data_offsets outside the file's {1} data bytes", name, dataBytes);
  }
  entry.begin = *begin;
  entry.end = *end;
  if (*end - *begin != bytes) {
    return bad("tensor '{0}' holds {1} bytes, but its shape and dtype need {2}", name,
               *end - *begin, bytes);
  }
  return entry;
}

llvm::Error checkLayout(const SafetensorsHeader& header, int64_t dataBytes) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, entry] : header.tensors) ranges.emplace_back(entry.begin, entry.end);
  llvm::sort(ranges);
  int64_t next = 0;
  for (auto [begin, end] : ranges) {
    if (begin < next) return bad("two tensors overlap at data byte {0}", begin);
    if (begin > next) return bad("data bytes {0} to {1} belong to no tensor", next, begin);
    next = end;
  }
  if (next != dataBytes) return bad("data bytes {0} to {1} belong to no tensor", next, dataBytes);
  return llvm::Error::success();
}

float halfToFloat(uint16_t half) {
  uint32_t sign = uint32_t(half & 0x8000u) << 16, exponent = (half >> 10) & 31u;
  uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0) {
    float value = float(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  uint32_t bits = exponent == 31 ? 0x7F800000u : (exponent + 112) << 23;
  return std::bit_cast<float>(sign | bits | mantissa << 13);
}

double floatAt(TensorElem elem, const uint8_t* at) {
  auto load = [&](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  switch (elem) {
    case TensorElem::F64:
      return load(double());
    case TensorElem::F32:
      return double(load(float()));
    case TensorElem::F16:
      return double(halfToFloat(load(uint16_t())));
    default:
      return double(std::bit_cast<float>(uint32_t(load(uint16_t())) << 16));
  }
}

int64_t integerAt(TensorElem elem, const uint8_t* at) {
  auto load = [&](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return int64_t(value);
  };
  switch (elem) {
    case TensorElem::I64:
      return load(int64_t());
    case TensorElem::I32:
      return load(int32_t());
    case TensorElem::I16:
      return load(int16_t());
    case TensorElem::I8:
      return load(int8_t());
    default:
      return load(uint8_t());
  }
}

std::string shapeText(llvm::ArrayRef<int64_t> shape) {
  std::string text = "[";
  for (int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace

int64_t TensorEntry::elements() const { return (end - begin) / infoOf(elem).bytes; }

llvm::Expected<SafetensorsHeader> parseSafetensorsHeader(llvm::StringRef text, int64_t dataBytes) {
  if (nestsTooDeep(text)) return bad("the header nests deeper than {0} levels", kMaxJsonDepth);
  llvm::Expected<llvm::json::Value> json = llvm::json::parse(text);
  if (!json) return bad("the header is not JSON: {0}", llvm::toString(json.takeError()));
  const llvm::json::Object* object = json->getAsObject();
  if (object == nullptr) return bad("the header is not a JSON object");
  SafetensorsHeader header;
  for (const auto& [key, value] : *object) {
    llvm::StringRef name = key;
    if (name == "__metadata__") {
      const llvm::json::Object* metadata = value.getAsObject();
      if (metadata == nullptr) return bad("the metadata is not a JSON object");
      for (const auto& [metaKey, metaValue] : *metadata) {
        auto string = metaValue.getAsString();
        if (!string) return bad("metadata '{0}' is not a string", shown(metaKey));
        header.metadata[llvm::StringRef(metaKey).str()] = string->str();
      }
      continue;
    }
    llvm::Expected<TensorEntry> entry = parseEntry(name, value, dataBytes);
    if (!entry) return entry.takeError();
    header.tensors[name.str()] = std::move(*entry);
  }
  if (llvm::Error error = checkLayout(header, dataBytes)) return error;
  return header;
}

llvm::Expected<SafetensorsFile> SafetensorsFile::openHeader(llvm::StringRef path) {
  llvm::Expected<File> file = File::openRead(path);
  if (!file) return file.takeError();
  llvm::Expected<int64_t> size = file->size();
  if (!size) return size.takeError();
  if (*size < 8) return fileError(path, "is too short for a safetensors file");
  uint64_t length = 0;
  uint8_t* lengthBytes = reinterpret_cast<uint8_t*>(&length);
  if (llvm::Error error = file->read(0, {lengthBytes, 8})) return error;
  if (length > uint64_t(std::min(kMaxHeader, *size - 8))) {
    return fileError(path, "its header would be " + llvm::Twine(length) +
                               " bytes long, the file has " + llvm::Twine(*size) +
                               " (not a safetensors file, or cut off)");
  }
  std::string text(size_t(length), '\0');
  uint8_t* textBytes = reinterpret_cast<uint8_t*>(text.data());
  if (llvm::Error error = file->read(8, {textBytes, text.size()})) return error;
  int64_t start = 8 + int64_t(length);
  llvm::Expected<SafetensorsHeader> header = parseSafetensorsHeader(text, *size - start);
  if (!header) return fileError(path, llvm::toString(header.takeError()));

  SafetensorsFile opened(std::move(*file));
  opened.header_ = std::move(*header);
  opened.dataStart_ = start;
  opened.dataBytes_ = *size - start;
  std::string checksum = opened.metadata(kChecksumKey);
  if (checksum.empty()) return opened;

  std::string version = opened.metadata(kVersionKey);
  if (version != kVersion) {
    return fileError(
        path, "has format version '" + shown(version) + "', this planc reads version " + kVersion);
  }
  size_t digits = text.find((kChecksumStart + checksum + "\"").str());
  if (digits == std::string::npos) return fileError(path, "is damaged: its checksum is misplaced");
  std::fill_n(text.begin() + long(digits + kChecksumStart.size()), checksum.size(), '0');
  opened.summed_ = std::move(text);
  return opened;
}

llvm::Error SafetensorsFile::checkSum(llvm::Expected<uint32_t> sum) const {
  if (!sum) return sum.takeError();
  std::string found = checksumText(*sum), expected = metadata(kChecksumKey);
  if (found == expected) return llvm::Error::success();
  return fileError(path(), "is damaged: its checksum is " + found + ", not " + shown(expected));
}

llvm::Expected<SafetensorsFile> SafetensorsFile::open(llvm::StringRef path) {
  auto file = openHeader(path);
  if (!file || file->summed_.empty()) return file;
  auto sum = checksum(file->file_, file->dataStart_, file->dataStart_ + file->dataBytes_);
  if (!sum) return sum.takeError();
  uint32_t crc = llvm::crc32(
      Bytes(reinterpret_cast<const uint8_t*>(file->summed_.data()), file->summed_.size()));
  if (auto error = file->checkSum(joinChecksums(crc, *sum, file->dataBytes_))) return error;
  return file;
}

llvm::Expected<SafetensorsFile> SafetensorsFile::open(llvm::StringRef path, Communicator& comm) {
  auto file = agree(comm, openHeader(path));
  if (!file || file->summed_.empty()) return file;
  auto sum = checksumTogether(file->file_, file->summed_, file->dataBytes_, comm);
  if (auto error = comm.agree(file->checkSum(std::move(sum)))) return error;
  return file;
}

std::string SafetensorsFile::metadata(llvm::StringRef key) const {
  auto found = header_.metadata.find(key.str());
  return found == header_.metadata.end() ? "" : found->second;
}

llvm::Error SafetensorsFile::read(llvm::StringRef name, const Type& type, void* into,
                                  const Coordinates& rank) const {
  return read(name, type.whole(), type, pieceRuns(type, rank), into);
}

llvm::Error SafetensorsFile::read(const Variable& var, void* into, const Coordinates& rank) const {
  return read(var.wholeName(), var.wholeType(), var.type, pieceRuns(var, rank), into);
}

llvm::Error SafetensorsFile::read(llvm::StringRef name, const Type& whole, const Type& type,
                                  const Runs& runs, void* into) const {
  auto found = header_.tensors.find(name.str());
  if (found == header_.tensors.end()) return fileError(path(), "has no tensor '" + name + "'");
  const TensorEntry& entry = found->second;
  std::vector<int64_t> sizes = sizesOf(whole);
  if (entry.shape != sizes) {
    return fileError(path(), "tensor '" + name + "' has shape " + shapeText(entry.shape) +
                                 ", needed is " + shapeText(sizes));
  }
  const ElemInfo& from = infoOf(entry.elem);
  if (from.isFloat != isFloat(type.elem)) {
    return fileError(path(), "tensor '" + name + "' has dtype " + from.name + ", needed is " +
                                 infoOf(elemOf(type.elem)).name);
  }
  // Padding is zero.
  if (runs.elements() != type.elements()) std::memset(into, 0, size_t(type.bytes()));
  uint8_t* to = static_cast<uint8_t*>(into);
  int64_t start = dataStart_ + entry.begin, width = bytesPerElement(type.elem);
  std::vector<uint8_t> piece;
  // Some elements of the file, by their number in the tensor, to the place of element `a`.
  auto readRun = [&](int64_t a, int64_t b, int64_t count) -> llvm::Error {
    if (entry.elem == elemOf(type.elem))
      return file_.read(start + b * width, {to + a * width, size_t(count * width)});
    for (int64_t done = 0; done < count;) {
      int64_t some = std::min(int64_t(kPiece) / from.bytes, count - done);
      piece.resize(size_t(some * from.bytes));
      if (llvm::Error error = file_.read(start + (b + done) * from.bytes, piece)) return error;
      for (int64_t i = 0; i < some; ++i) {
        const uint8_t* at = &piece[size_t(i * from.bytes)];
        if (from.isFloat) {
          store(type.elem, into, a + done + i, floatAt(entry.elem, at));
          continue;
        }
        int64_t value = integerAt(entry.elem, at);
        int32_t narrow = int32_t(value);
        if (narrow != value) {
          return fileError(path(), "tensor '" + name + "' holds " + llvm::Twine(value) +
                                       ", which i32 cannot hold");
        }
        std::memcpy(to + (a + done + i) * 4, &narrow, 4);
      }
      done += some;
    }
    return llvm::Error::success();
  };
  return runs.tryEach(0, runs.elements(), readRun);
}

}  // namespace planc
