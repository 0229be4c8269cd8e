// Files by POSIX calls, every result checked: an error names the path and what the system said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

namespace planc {

using Bytes = llvm::ArrayRef<uint8_t>;

// An error whose text is `'path': what`.
llvm::Error fileError(llvm::StringRef path, const llvm::Twine& what);

// An open file, closed when it goes. Move-only.
class File {
 public:
  File() = default;
  File(File&& other) noexcept { *this = std::move(other); }
  File& operator=(File&& other) noexcept;
  ~File();

  // For reading; only regular files, so that offsets and sizes mean something.
  static llvm::Expected<File> openRead(llvm::StringRef path);
  // For writing: empty at first, or with `append` behind what is there.
  static llvm::Expected<File> openWrite(llvm::StringRef path, bool append = false);

  // For writing parts of a file that is there.
  static llvm::Expected<File> openPart(llvm::StringRef path);

  const std::string& path() const { return path_; }
  llvm::Expected<int64_t> size() const;
  // All bytes or an error; a file that ends before is an error too.
  llvm::Error read(int64_t offset, llvm::MutableArrayRef<uint8_t> into) const;
  llvm::Error write(Bytes bytes);
  llvm::Error write(llvm::StringRef text);
  llvm::Error writeAt(int64_t offset, Bytes bytes);
  // Cuts the file, or lengthens it by zeros.
  llvm::Error resize(int64_t bytes);
  // What was written is on the disk when this succeeds.
  llvm::Error sync();
  // Closes; a late write error (a full disk over a network) shows here.
  llvm::Error close();
  bool isOpen() const { return descriptor_ >= 0; }

 private:
  File(int descriptor, llvm::StringRef path) : descriptor_(descriptor), path_(path) {}
  llvm::Error systemError(llvm::StringRef doing) const;

  int descriptor_ = -1;
  std::string path_;
};

// A file that replaces another in one instant. It is written beside its place as `.tmp-NAME-PID`;
// `commit` flushes it to the disk and renames it. Until then, and after any failure or a kill, the
// old file is whole. Dropped without a commit, it removes what it wrote. A link is followed; a
// device or a pipe (`/dev/null`) is written to, since a rename would put a plain file in its place.
class ReplacingFile {
 public:
  static llvm::Expected<ReplacingFile> create(llvm::StringRef path);
  ReplacingFile(ReplacingFile&&) = default;
  ~ReplacingFile();

  llvm::Error write(Bytes bytes) { return file_.write(bytes); }
  llvm::Error write(llvm::StringRef text) { return file_.write(text); }
  llvm::Error writeAt(int64_t offset, Bytes bytes) { return file_.writeAt(offset, bytes); }
  llvm::Error resize(int64_t bytes) { return file_.resize(bytes); }
  // Where others may write to as well, until the commit.
  const std::string& writtenTo() const { return file_.path(); }
  llvm::Error commit();

 private:
  explicit ReplacingFile(File file, llvm::StringRef path) : file_(std::move(file)), path_(path) {}
  bool isBeside() const { return file_.path() != path_; }
  File file_;
  std::string path_;
};

}  // namespace planc
