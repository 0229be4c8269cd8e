// Trace events, buffered: a bar costs a string append between two ops. A write error waits for
// close. Tested by tests/unit/io_test.cpp.
#include "runtime/io/trace.h"

#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

namespace planc {
namespace {

constexpr size_t kBuffer = size_t{1} << 18;

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

llvm::Expected<Trace> Trace::open(llvm::StringRef path) {
  llvm::Expected<File> file = File::openWrite(path);
  if (!file) return file.takeError();
  return Trace(std::move(*file));
}

void Trace::add(llvm::StringRef name, llvm::StringRef category, llvm::StringRef detail, Time start,
                Time end, int row) {
  std::string times = llvm::formatv("\"ts\":{0:f3},\"dur\":{1:f3}", microseconds(start - begin_),
                                    microseconds(end - start));
  event("{\"name\":" + quoted(name) + ",\"cat\":" + quoted(category) + ",\"ph\":\"X\"," + times +
        ",\"pid\":0,\"tid\":" + std::to_string(row) + ",\"args\":{\"detail\":" + quoted(detail) +
        "}}");
}

void Trace::nameRow(int row, llvm::StringRef title) {
  event("{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":0,\"tid\":" + std::to_string(row) +
        ",\"args\":{\"name\":" + quoted(title) + "}}");
}

void Trace::event(llvm::StringRef text) {
  buffer_ += first_ ? "{\"traceEvents\":[\n" : ",\n";
  buffer_ += text.str();
  first_ = false;
  if (buffer_.size() < kBuffer) return;
  if (llvm::Error error = file_.write(llvm::StringRef(buffer_))) {
    std::string what = llvm::toString(std::move(error));
    if (failure_.empty()) failure_ = what;
  }
  buffer_.clear();
}

llvm::Error Trace::close() {
  buffer_ += first_ ? "{\"traceEvents\":[" : "";
  buffer_ += "\n],\"displayTimeUnit\":\"ms\"}\n";
  if (!failure_.empty()) {
    return llvm::createStringError(llvm::inconvertibleErrorCode(), failure_.c_str());
  }
  if (llvm::Error error = file_.write(llvm::StringRef(buffer_))) return error;
  return file_.close();
}

}  // namespace planc
