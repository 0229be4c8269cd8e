// Trace events, kept in memory: a bar costs a string append between two ops. Rows of several
// processes meet on the system's clock. Tested by tests/unit/io_test.cpp.
#include "runtime/io/trace.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

namespace planc {
namespace {

std::string quoted(llvm::StringRef text) {
  std::string out;
  llvm::raw_string_ostream stream(out);
  stream << llvm::json::Value(llvm::json::fixUTF8(text));
  return stream.str();
}

double microseconds(Trace::Time::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

}  // namespace

int64_t Trace::sharedNow() {
  auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

Trace::Trace(int row, int64_t zero)
    : row_(row), begin_(now() - std::chrono::microseconds(sharedNow() - zero)) {}

void Trace::add(llvm::StringRef name, llvm::StringRef category, llvm::StringRef detail, Time start,
                Time end) {
  std::string times = llvm::formatv("\"ts\":{0:f3},\"dur\":{1:f3}", microseconds(start - begin_),
                                    microseconds(end - start));
  event("{\"name\":" + quoted(name) + ",\"cat\":" + quoted(category) + ",\"ph\":\"X\"," + times +
        ",\"pid\":0,\"tid\":" + std::to_string(row_) + ",\"args\":{\"detail\":" + quoted(detail) +
        "}}");
}

void Trace::nameRow(llvm::StringRef title) {
  event("{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":" + std::to_string(row_) +
        ",\"args\":{\"name\":" + quoted(title) + "}}");
}

void Trace::event(llvm::StringRef text) {
  events_ += events_.empty() ? "" : ",\n";
  events_ += text;
}

llvm::Expected<TraceFile> TraceFile::open(llvm::StringRef path) {
  llvm::Expected<File> file = File::openWrite(path);
  if (!file) return file.takeError();
  return TraceFile(std::move(*file));
}

llvm::Error TraceFile::write(llvm::ArrayRef<std::string> rows) {
  llvm::StringRef between = "{\"traceEvents\":[\n";
  for (const std::string& row : rows) {
    if (row.empty()) continue;
    if (llvm::Error error = file_.write(between)) return error;
    if (llvm::Error error = file_.write(llvm::StringRef(row))) return error;
    between = ",\n";
  }
  // Without any event the list is still to be opened.
  if (between != ",\n")
    if (llvm::Error error = file_.write(between)) return error;
  if (llvm::Error error = file_.write(llvm::StringRef("\n],\"displayTimeUnit\":\"ms\"}\n")))
    return error;
  return file_.close();
}

}  // namespace planc
