// POSIX files. Calls that a signal interrupts are repeated, partial reads and writes continued.
// Replacing a file is the usual order: write beside, fsync, rename, fsync the folder.
// Tested by tests/unit/io_test.cpp.
#include "runtime/io/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

namespace planc {
namespace {

constexpr size_t kPiece = size_t{1} << 20;  // bytes per system call

std::string temporaryName(llvm::StringRef path) {
  llvm::SmallString<128> name(llvm::sys::path::parent_path(path));
  llvm::sys::path::append(
      name, ".tmp-" + llvm::sys::path::filename(path) + "-" + std::to_string(::getpid()));
  return std::string(name);
}

template <class Call>
auto repeated(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

llvm::Error fileError(llvm::StringRef path, const llvm::Twine& what) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(),
                                 ("'" + path + "': " + what).str().c_str());
}

llvm::Error File::systemError(llvm::StringRef doing) const {
  return fileError(path_, "cannot " + doing + ": " + std::strerror(errno));
}

File& File::operator=(File&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

llvm::Expected<File> File::openRead(llvm::StringRef path) {
  std::string name = path.str();
  // Without O_NONBLOCK a pipe without a writer would block here.
  int descriptor =
      repeated([&] { return ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  File file(descriptor, path);
  if (descriptor < 0) return file.systemError("open");
  struct stat status;
  if (::fstat(descriptor, &status) != 0) return file.systemError("read");
  if (S_ISDIR(status.st_mode)) return fileError(path, "is a folder, not a file");
  if (!S_ISREG(status.st_mode)) return fileError(path, "is not a regular file");
  return file;
}

llvm::Expected<File> File::openWrite(llvm::StringRef path, bool append) {
  std::string name = path.str();
  int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC);
  File file(repeated([&] { return ::open(name.c_str(), flags, 0666); }), path);
  if (!file.isOpen()) return file.systemError("write");
  return file;
}

llvm::Expected<File> File::openPart(llvm::StringRef path) {
  std::string name = path.str();
  File file(repeated([&] { return ::open(name.c_str(), O_WRONLY | O_CLOEXEC); }), path);
  if (!file.isOpen()) return file.systemError("write");
  return file;
}

llvm::Expected<int64_t> File::size() const {
  struct stat status;
  if (::fstat(descriptor_, &status) != 0) return systemError("read");
  return int64_t(status.st_size);
}

llvm::Error File::read(int64_t offset, llvm::MutableArrayRef<uint8_t> into) const {
  while (!into.empty()) {
    size_t count = std::min(into.size(), kPiece);
    ssize_t got = repeated([&] { return ::pread(descriptor_, into.data(), count, off_t(offset)); });
    if (got < 0) return systemError("read");
    if (got == 0) return fileError(path_, "ends too early, at byte " + llvm::Twine(offset));
    into = into.drop_front(size_t(got));
    offset += got;
  }
  return llvm::Error::success();
}

llvm::Error File::write(Bytes bytes) {
  while (!bytes.empty()) {
    size_t count = std::min(bytes.size(), kPiece);
    ssize_t put = repeated([&] { return ::write(descriptor_, bytes.data(), count); });
    if (put < 0) return systemError("write");
    bytes = bytes.drop_front(size_t(put));
  }
  return llvm::Error::success();
}

llvm::Error File::writeAt(int64_t offset, Bytes bytes) {
  while (!bytes.empty()) {
    size_t count = std::min(bytes.size(), kPiece);
    ssize_t put =
        repeated([&] { return ::pwrite(descriptor_, bytes.data(), count, off_t(offset)); });
    if (put < 0) return systemError("write");
    bytes = bytes.drop_front(size_t(put));
    offset += put;
  }
  return llvm::Error::success();
}

llvm::Error File::resize(int64_t bytes) {
  if (repeated([&] { return ::ftruncate(descriptor_, off_t(bytes)); }) != 0)
    return systemError("write");
  return llvm::Error::success();
}

llvm::Error File::write(llvm::StringRef text) {
  return write(Bytes(text.bytes_begin(), text.size()));
}

llvm::Error File::sync() {
  if (repeated([&] { return ::fsync(descriptor_); }) != 0) return systemError("write");
  return llvm::Error::success();
}

llvm::Error File::close() {
  int descriptor = std::exchange(descriptor_, -1);
  // Not repeated: after EINTR the descriptor is gone already.
  if (descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR) return systemError("write");
  return llvm::Error::success();
}

// Removes what writers left beside a file that were killed: temporary files whose process is gone.
static void removeLeftovers(llvm::StringRef target) {
  llvm::StringRef parent = llvm::sys::path::parent_path(target);
  std::string start = (".tmp-" + llvm::sys::path::filename(target) + "-").str();
  std::error_code error;
  llvm::sys::fs::directory_iterator at(parent.empty() ? "." : parent, error), end;
  for (; !error && at != end; at.increment(error)) {
    llvm::StringRef name = llvm::sys::path::filename(at->path());
    int pid = 0;
    bool isOurs = name.consume_front(start) && !name.getAsInteger(10, pid) && pid > 0;
    if (isOurs && ::kill(pid, 0) != 0 && errno == ESRCH) ::unlink(at->path().c_str());
  }
}

llvm::Expected<ReplacingFile> ReplacingFile::create(llvm::StringRef path) {
  llvm::SmallString<128> target(path);
  // Fails where nothing is yet, and leaves the path as it came.
  if (llvm::sys::fs::real_path(path, target)) target = path;
  struct stat status;
  bool isOther = ::stat(target.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
  if (!isOther) removeLeftovers(target);
  llvm::Expected<File> file =
      File::openWrite(isOther ? std::string(target) : temporaryName(target));
  if (!file) return file.takeError();
  return ReplacingFile(std::move(*file), target);
}

ReplacingFile::~ReplacingFile() {
  if (!file_.path().empty() && isBeside()) ::unlink(file_.path().c_str());
}

llvm::Error ReplacingFile::commit() {
  if (!isBeside()) return file_.close();
  if (llvm::Error error = file_.sync()) return error;
  if (llvm::Error error = file_.close()) return error;
  if (::rename(file_.path().c_str(), path_.c_str()) != 0) {
    return fileError(path_, llvm::Twine("cannot replace: ") + std::strerror(errno));
  }
  file_ = File();  // nothing is left to remove
  llvm::StringRef parent = llvm::sys::path::parent_path(path_);
  std::string folder = (parent.empty() ? llvm::StringRef(".") : parent).str();
  // The rename itself is on the disk only when its folder is.
  int descriptor =
      repeated([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor < 0) return fileError(folder, llvm::Twine("cannot open: ") + std::strerror(errno));
  int result = repeated([&] { return ::fsync(descriptor); });
  int reason = errno;
  ::close(descriptor);
  // Some file systems have no fsync of folders and say EINVAL: then there is nothing to do.
  if (result != 0 && reason != EINVAL) {
    return fileError(folder, llvm::Twine("cannot write: ") + std::strerror(reason));
  }
  return llvm::Error::success();
}

}  // namespace planc
