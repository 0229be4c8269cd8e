// What the two tools share: exit codes, reading input, error lines.
#pragma once

#include <optional>
#include <string>

#include "llvm/Support/Error.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/raw_ostream.h"

namespace planc {

// Exit codes of every command: docs/language.md, "Errors".
enum Exit { kYes = 0, kNo = 1, kUsage = 2, kFault = 3 };

inline Exit fail(llvm::StringRef tool, const llvm::Twine& what, Exit code = kNo) {
  llvm::errs() << tool << ": " << what << '\n';
  return code;
}

// A file's bytes, or standard input's for `-`.
inline llvm::Expected<std::string> readInput(llvm::StringRef path) {
  auto buffer = llvm::MemoryBuffer::getFileOrSTDIN(path, /*IsText=*/false,
                                                   /*RequiresNullTerminator=*/false);
  if (!buffer)
    return llvm::createStringError(buffer.getError(),
                                   "'" + path + "': " + buffer.getError().message());
  return (*buffer)->getBuffer().str();
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
