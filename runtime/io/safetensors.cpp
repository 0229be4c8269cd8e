// safetensors: 8 bytes of header length, a JSON header, then the tensors' bytes without gaps. A
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

namespace planc {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

namespace {

constexpr int64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr unsigned kMaxJsonDepth = 8;
constexpr size_t kPiece = size_t{1} << 20;
constexpr llvm::StringLiteral kChecksumKey = "planc.crc32";
constexpr llvm::StringLiteral kChecksumStart = "\"planc.crc32\":\"";
constexpr llvm::StringLiteral kVersionKey = "planc.version";
constexpr llvm::StringLiteral kVersion = "1";

struct ElemInfo {
  TensorElem elem;
  llvm::StringRef name;
  int64_t bytes;
  bool isFloat;
};
constexpr ElemInfo kElems[] = {
    {TensorElem::F64, "F64", 8, true},  {TensorElem::F32, "F32", 4, true},
    {TensorElem::F16, "F16", 2, true},  {TensorElem::BF16, "BF16", 2, true},
    {TensorElem::I64, "I64", 8, false}, {TensorElem::I32, "I32", 4, false},
    {TensorElem::I16, "I16", 2, false}, {TensorElem::I8, "I8", 1, false},
    {TensorElem::U8, "U8", 1, false},
};
const ElemInfo& infoOf(TensorElem elem) { return kElems[size_t(elem)]; }

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
  const ElemInfo* elem =
      llvm::find_if(kElems, [&](const ElemInfo& info) { return info.name == *dtype; });
  if (elem == std::end(kElems)) {
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

// To the nearest, ties to even; NaN stays NaN.
uint16_t toBf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value != value) return uint16_t(bits >> 16 | 0x40u);
  return uint16_t((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

void storeFloat(Elem elem, double value, uint8_t* at) {
  float narrow = float(value);
  uint16_t half = toBf16(narrow);
  if (elem == Elem::F64) std::memcpy(at, &value, 8);
  if (elem == Elem::F32) std::memcpy(at, &narrow, 4);
  if (elem == Elem::BF16) std::memcpy(at, &half, 2);
}

std::string shapeText(llvm::ArrayRef<int64_t> shape) {
  std::string text = "[";
  for (int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::vector<int64_t> sizesOf(const Type& type) {
  std::vector<int64_t> sizes;
  for (const Dim& dim : type.dims) {
    if (type.grouping() != dim.name) sizes.push_back(dim.size);
  }
  return sizes;
}

std::string checksumText(uint32_t crc) { return llvm::formatv("{0:x-8}", crc).str(); }

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

llvm::Expected<SafetensorsFile> SafetensorsFile::open(llvm::StringRef path) {
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
  uint32_t crc = llvm::crc32(Bytes(textBytes, text.size()));
  std::vector<uint8_t> piece(std::min(kPiece, size_t(*size - start)));
  for (int64_t at = start; at < *size; at += int64_t(kPiece)) {
    llvm::MutableArrayRef<uint8_t> part(piece.data(), std::min(kPiece, size_t(*size - at)));
    if (llvm::Error error = opened.file_.read(at, part)) return error;
    crc = llvm::crc32(crc, part);
  }
  if (checksumText(crc) != checksum) {
    return fileError(
        path, "is damaged: its checksum is " + checksumText(crc) + ", not " + shown(checksum));
  }
  return opened;
}

std::string SafetensorsFile::metadata(llvm::StringRef key) const {
  auto found = header_.metadata.find(key.str());
  return found == header_.metadata.end() ? "" : found->second;
}

llvm::Error SafetensorsFile::read(llvm::StringRef name, const Type& type, void* into) const {
  auto found = header_.tensors.find(name.str());
  if (found == header_.tensors.end()) return fileError(path(), "has no tensor '" + name + "'");
  const TensorEntry& entry = found->second;
  std::vector<int64_t> sizes = sizesOf(type);
  if (entry.shape != sizes) {
    return fileError(path(), "tensor '" + name + "' has shape " + shapeText(entry.shape) +
                                 ", needed is " + shapeText(sizes));
  }
  const ElemInfo& from = infoOf(entry.elem);
  if (from.isFloat != isFloat(type.elem)) {
    return fileError(path(), "tensor '" + name + "' has dtype " + from.name + ", needed is " +
                                 infoOf(elemOf(type.elem)).name);
  }
  uint8_t* to = static_cast<uint8_t*>(into);
  int64_t start = dataStart_ + entry.begin, bytes = entry.end - entry.begin;
  if (entry.elem == elemOf(type.elem)) return file_.read(start, {to, size_t(bytes)});

  std::vector<uint8_t> piece(std::min(kPiece, size_t(bytes)));
  for (int64_t done = 0; done < bytes; done += int64_t(kPiece)) {
    llvm::MutableArrayRef<uint8_t> part(piece.data(), std::min(kPiece, size_t(bytes - done)));
    if (llvm::Error error = file_.read(start + done, part)) return error;
    for (size_t i = 0; i < part.size(); i += size_t(from.bytes), to += bytesPerElement(type.elem)) {
      if (from.isFloat) {
        storeFloat(type.elem, floatAt(entry.elem, &part[i]), to);
        continue;
      }
      int64_t value = integerAt(entry.elem, &part[i]);
      int32_t narrow = int32_t(value);
      if (narrow != value) {
        return fileError(path(), "tensor '" + name + "' holds " + llvm::Twine(value) +
                                     ", which i32 cannot hold");
      }
      std::memcpy(to, &narrow, 4);
    }
  }
  return llvm::Error::success();
}

llvm::Error writeSafetensors(llvm::StringRef path, llvm::ArrayRef<TensorSource> tensors,
                             std::map<std::string, std::string> metadata) {
  metadata[kVersionKey.str()] = kVersion.str();
  metadata[kChecksumKey.str()] = checksumText(0);
  llvm::json::Object header;
  llvm::json::Object metaObject;
  for (const auto& [key, value] : metadata) metaObject[key] = llvm::json::fixUTF8(value);
  header["__metadata__"] = std::move(metaObject);
  int64_t end = 0;
  for (const TensorSource& tensor : tensors) {
    int64_t begin = end;
    end += tensor.type.bytes();
    header[tensor.name] = llvm::json::Object{
        {"dtype", infoOf(elemOf(tensor.type.elem)).name},
        {"shape", llvm::json::Array(sizesOf(tensor.type))},
        {"data_offsets", llvm::json::Array{begin, end}},
    };
  }
  std::string text;
  llvm::raw_string_ostream(text) << llvm::json::Value(std::move(header));
  text.resize((text.size() + 63) / 64 * 64, ' ');

  auto bytesOf = [](const TensorSource& tensor) {
    return Bytes(static_cast<const uint8_t*>(tensor.data), size_t(tensor.type.bytes()));
  };
  uint32_t crc = llvm::crc32(Bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  for (const TensorSource& tensor : tensors) crc = llvm::crc32(crc, bytesOf(tensor));
  size_t digits = text.find(kChecksumStart.str()) + kChecksumStart.size();
  text.replace(digits, 8, checksumText(crc));

  llvm::Expected<ReplacingFile> file = ReplacingFile::create(path);
  if (!file) return file.takeError();
  uint64_t length = text.size();
  if (auto error = file->write(Bytes(reinterpret_cast<const uint8_t*>(&length), 8))) return error;
  if (auto error = file->write(llvm::StringRef(text))) return error;
  for (const TensorSource& tensor : tensors) {
    if (auto error = file->write(bytesOf(tensor))) return error;
  }
  return file->commit();
}

}  // namespace planc
