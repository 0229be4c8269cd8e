// What the two tools share: exit codes, reading input, error lines.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include "llvm/Support/Error.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/raw_ostream.h"

namespace planc {

// Exit codes of every command: docs/language.md, "Errors".
enum Exit { kYes = 0, kNo = 1, kUsage = 2, kFault = 3 };

// Of several processes only the first says what all know.
inline bool isSilent = false;

inline Exit fail(llvm::StringRef tool, const llvm::Twine& what, Exit code = kNo) {
  if (!isSilent) llvm::errs() << tool << ": " << what << '\n';
  return code;
}

// Whether both name one file, which exists or will.
inline bool isSameFile(llvm::StringRef a, llvm::StringRef b) {
  if (a.empty() || b.empty() || a == "-" || b == "-") return false;
  bool isSame = false;
  return a == b || (!llvm::sys::fs::equivalent(a, b, isSame) && isSame);
}

// At exit, output that could not be written is an error of the program, not an abort of LLVM's.
inline void reportLostOutput() {
  llvm::outs();
  llvm::errs();
  std::atexit([] {
    llvm::errs().clear_error();
    llvm::outs().flush();
    if (!llvm::outs().has_error()) return;
    std::string why = llvm::outs().error().message();
    llvm::outs().clear_error();
    llvm::errs() << "standard output: " << why << '\n';
    llvm::errs().clear_error();
    std::_Exit(kNo);
  });
}

// A file's bytes, or standard input's for `-`: at most 1 GiB, so that an endless one ends in an error.
inline llvm::Expected<std::string> readInput(llvm::StringRef path) {
  namespace fs = llvm::sys::fs;
  constexpr size_t kMost = size_t{1} << 30, kPiece = size_t{1} << 16;
  auto broken = [&](const llvm::Twine& what) {
    return llvm::createStringError(llvm::inconvertibleErrorCode(), "'" + path + "': " + what);
  };
  fs::file_t file = fs::getStdinHandle();
  if (path != "-") {
    if (fs::is_directory(path)) return broken("is a folder, not a file");
    auto opened = fs::openNativeFileForRead(path);
    if (!opened) return broken(llvm::toString(opened.takeError()));
    file = *opened;
  }
  std::string bytes;
  std::string failure;
  while (failure.empty()) {
    size_t size = bytes.size();
    bytes.resize(size + kPiece);
    auto got = fs::readNativeFile(file, llvm::MutableArrayRef<char>(&bytes[size], kPiece));
    if (!got) failure = llvm::toString(got.takeError());
    bytes.resize(size + (got ? *got : 0));
    if (failure.empty() && bytes.size() == size) break;
    if (bytes.size() > kMost) failure = "is larger than 1 GiB";
  }
  if (path != "-") fs::closeFile(file);
  if (!failure.empty()) return broken(failure);
  return bytes;
}

// Writes a file beside its place and renames it; `-` is standard output. A device or a pipe is written
// to: a rename would put a plain file where, say, /dev/null was.
inline llvm::Error writeOutput(llvm::StringRef path, llvm::StringRef bytes) {
  auto broken = [&](const llvm::Twine& what) {
    return llvm::createStringError(llvm::inconvertibleErrorCode(), "'" + path + "': " + what);
  };
  if (path == "-") {
    llvm::outs() << bytes;
    llvm::outs().flush();
    if (!llvm::outs().has_error()) return llvm::Error::success();
    std::string why = llvm::outs().error().message();
    llvm::outs().clear_error();
    return broken(why);
  }
  bool isDirect = llvm::sys::fs::exists(path) && !llvm::sys::fs::is_regular_file(path);
  std::string beside = isDirect ? path.str() : (path + ".tmp").str();
  std::error_code error;
  {
    llvm::raw_fd_ostream out(beside, error);
    if (error) return broken(error.message());
    out << bytes;
    out.close();
    error = out.error();
    out.clear_error();
  }
  if (!error && !isDirect) error = llvm::sys::fs::rename(beside, path);
  if (!error) return llvm::Error::success();
  if (!isDirect) llvm::sys::fs::remove(beside);
  return broken(error.message());
}

}  // namespace planc
