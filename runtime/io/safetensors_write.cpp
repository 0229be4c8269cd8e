// Writing safetensors, from one memory or from the pieces of many ranks. One rank alone knows the
// checksum before it writes, so that it can write to a pipe; many ranks write first, sum the file
// that they wrote, and put the checksum in last. Tested by tests/unit/safetensors_test.cpp and
// tests/runtime/checkpoint_test.cpp.
#include <optional>

#include "llvm/Support/CRC.h"
#include "llvm/Support/JSON.h"
#include "runtime/io/safetensors_format.h"
#include "runtime/runs.h"
#include "runtime/talk.h"

namespace planc {

using namespace safetensors;

namespace {

struct Header {
  std::string text;             // its checksum's digits are zeros
  size_t digits = 0;            // where those lie
  std::vector<int64_t> begins;  // of each tensor, in bytes from the end of the header
  int64_t dataBytes = 0;

  Bytes bytes() const { return Bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size()); }
};

Header makeHeader(llvm::ArrayRef<TensorSource> tensors,
                  std::map<std::string, std::string> metadata) {
  metadata[kVersionKey.str()] = kVersion.str();
  metadata[kChecksumKey.str()] = checksumText(0);
  llvm::json::Object object;
  llvm::json::Object metaObject;
  for (const auto& [key, value] : metadata) metaObject[key] = llvm::json::fixUTF8(value);
  object["__metadata__"] = std::move(metaObject);
  Header header;
  for (const TensorSource& tensor : tensors) {
    int64_t begin = header.dataBytes;
    header.begins.push_back(begin);
    header.dataBytes += tensor.type.whole().bytes();
    object[tensor.name] = llvm::json::Object{
        {"dtype", infoOf(elemOf(tensor.type.elem)).name},
        {"shape", llvm::json::Array(sizesOf(tensor.type))},
        {"data_offsets", llvm::json::Array{begin, header.dataBytes}},
    };
  }
  llvm::raw_string_ostream(header.text) << llvm::json::Value(std::move(object));
  header.text.resize((header.text.size() + 63) / 64 * 64, ' ');
  header.digits = header.text.find(kChecksumStart.str()) + kChecksumStart.size();
  return header;
}

llvm::Error writeHeader(ReplacingFile& file, const Header& header) {
  uint64_t length = header.text.size();
  if (auto error = file.write(Bytes(reinterpret_cast<const uint8_t*>(&length), 8))) return error;
  return file.write(header.bytes());
}

llvm::Error writePieces(llvm::StringRef path, llvm::ArrayRef<TensorSource> tensors,
                        llvm::ArrayRef<TensorPiece> pieces, const Header& header) {
  llvm::Expected<File> file = File::openPart(path);
  if (!file) return file.takeError();
  for (const TensorPiece& piece : pieces) {
    int64_t width = bytesPerElement(tensors[piece.tensor].type.elem);
    int64_t start = 8 + int64_t(header.text.size()) + header.begins[piece.tensor];
    const auto* data = static_cast<const uint8_t*>(piece.data);
    auto writeRun = [&](int64_t a, int64_t b, int64_t count) {
      return file->writeAt(start + b * width, Bytes(data + a * width, size_t(count * width)));
    };
    if (auto error = piece.runs.tryEach(piece.from, piece.to, writeRun)) return error;
  }
  if (auto error = file->sync()) return error;
  return file->close();
}

}  // namespace

llvm::Error writeSafetensors(llvm::StringRef path, llvm::ArrayRef<TensorSource> tensors,
                             std::map<std::string, std::string> metadata) {
  Header header = makeHeader(tensors, std::move(metadata));
  auto bytesOf = [](const TensorSource& tensor) {
    return Bytes(static_cast<const uint8_t*>(tensor.data), size_t(tensor.type.bytes()));
  };
  uint32_t crc = llvm::crc32(header.bytes());
  for (const TensorSource& tensor : tensors) crc = llvm::crc32(crc, bytesOf(tensor));
  header.text.replace(header.digits, 8, checksumText(crc));

  llvm::Expected<ReplacingFile> file = ReplacingFile::create(path);
  if (!file) return file.takeError();
  if (auto error = writeHeader(*file, header)) return error;
  for (const TensorSource& tensor : tensors) {
    if (auto error = file->write(bytesOf(tensor))) return error;
  }
  return file->commit();
}

llvm::Error writeSafetensorsTogether(llvm::StringRef path, llvm::ArrayRef<TensorSource> tensors,
                                     llvm::ArrayRef<TensorPiece> pieces,
                                     std::map<std::string, std::string> metadata,
                                     Communicator& comm) {
  Header header = makeHeader(tensors, std::move(metadata));
  std::optional<ReplacingFile> whole;  // the first rank's
  auto begin = [&]() -> llvm::Error {
    auto file = ReplacingFile::create(path);
    if (!file) return file.takeError();
    whole.emplace(std::move(*file));
    if (auto error = writeHeader(*whole, header)) return error;
    return whole->resize(8 + int64_t(header.text.size()) + header.dataBytes);
  };
  if (auto error = onFirst(comm, begin)) return error;
  auto beside = fromFirst(comm, whole ? whole->writtenTo() : "");
  if (!beside) return beside.takeError();
  if (auto error = comm.agree(writePieces(*beside, tensors, pieces, header)))
    return error;

  auto written = agree(comm, File::openRead(*beside));
  if (!written) return written.takeError();
  auto crc = checksumTogether(*written, header.text, header.dataBytes, comm);
  if (!crc) return crc.takeError();
  return onFirst(comm, [&]() -> llvm::Error {
    std::string digits = checksumText(*crc);
    Bytes bytes(reinterpret_cast<const uint8_t*>(digits.data()), digits.size());
    if (auto error = whole->writeAt(8 + int64_t(header.digits), bytes)) return error;
    return whole->commit();
  });
}

}  // namespace planc
