// Tensors in the safetensors format, in both directions. A file is checked in full before any of it
// is used; what we write carries a checksum over all of it (metadata `planc.crc32`), which is
// verified when present, so files of other programs can be read too.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/grid.h"
#include "runtime/comm.h"
#include "runtime/io/file.h"
#include "runtime/runs.h"

namespace planc {

enum class TensorElem : uint8_t { F64, F32, F16, BF16, I64, I32, I16, I8, U8 };

// What the header says of a tensor; begin and end are bytes from the end of the header.
struct TensorEntry {
  TensorElem elem = TensorElem::F32;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;
  int64_t elements() const;
};

struct SafetensorsHeader {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// Reads header text, for a file with `dataBytes` bytes of tensors: names, element types, shapes;
// the tensors must fill the data without overlap or hole. The error does not name the file.
llvm::Expected<SafetensorsHeader> parseSafetensorsHeader(llvm::StringRef text, int64_t dataBytes);

// An open file. Tensors are read piece by piece, so memory holds the header only.
class SafetensorsFile {
 public:
  // Opens and checks everything, the checksum included.
  static llvm::Expected<SafetensorsFile> open(llvm::StringRef path);
  // The same by all ranks at once: each sums a share of the file, and an error is one of all.
  static llvm::Expected<SafetensorsFile> open(llvm::StringRef path, Communicator& comm);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, TensorEntry>& tensors() const { return header_.tensors; }
  // A value of the metadata; empty when absent.
  std::string metadata(llvm::StringRef key) const;

  // Reads a rank's piece of a tensor into memory, its padding as zeros. The tensor must have the
  // whole type's sizes, dim by dim; element types convert where no integer is lost (integers among
  // themselves, floats among themselves).
  llvm::Error read(llvm::StringRef name, const Type& type, void* into,
                   const Coordinates& rank = {}) const;
  // The same for a variable, which may be a piece of the tensor.
  llvm::Error read(const Variable& var, void* into, const Coordinates& rank) const;

 private:
  SafetensorsFile(File file) : file_(std::move(file)) {}
  // All but the checksum.
  static llvm::Expected<SafetensorsFile> openHeader(llvm::StringRef path);
  llvm::Error read(llvm::StringRef name, const Type& whole, const Type& type, const Runs& runs,
                   void* into) const;
  llvm::Error checkSum(llvm::Expected<uint32_t> sum) const;

  File file_;
  SafetensorsHeader header_;
  int64_t dataStart_ = 0, dataBytes_ = 0;
  std::string summed_;  // the header as the checksum counts it; empty: the file has no checksum
};

// A tensor to write: its elements lie in memory in the order of its type.
struct TensorSource {
  std::string name;
  Type type;
  const void* data = nullptr;
};

// Writes the tensors in the order given, whole or not at all: see ReplacingFile. Our own metadata
// (format version, checksum) is added.
llvm::Error writeSafetensors(llvm::StringRef path, llvm::ArrayRef<TensorSource> tensors,
                             std::map<std::string, std::string> metadata = {});

// What a rank has of one of the tensors: elements [from, to) of the runs of its piece.
struct TensorPiece {
  size_t tensor;
  Runs runs;
  int64_t from, to;
  const void* data;  // the piece
};

// The same by all ranks at once, into one file: all bring the same tensors, their data left out, and
// each its pieces. An error on one rank is an error of all.
llvm::Error writeSafetensorsTogether(llvm::StringRef path, llvm::ArrayRef<TensorSource> tensors,
                                     llvm::ArrayRef<TensorPiece> pieces,
                                     std::map<std::string, std::string> metadata,
                                     Communicator& comm);

}  // namespace planc
