// A folder for one test, removed with all that is in it.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"

namespace planc {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "planc-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    ::chmod(path_.c_str(), 0700);  // a test may have closed it
    std::filesystem::remove_all(path_, ignored);
  }

  std::string file(llvm::StringRef name) const { return path_ + "/" + name.str(); }
  const std::string& path() const { return path_; }

  std::string write(llvm::StringRef name, llvm::StringRef bytes) const {
    std::ofstream(file(name), std::ios::binary).write(bytes.data(), long(bytes.size()));
    return file(name);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      all.push_back(entry.path().filename().string());
    }
    return all;
  }

 private:
  std::string path_;
};

inline std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// The text of an error that must be there.
inline std::string text(llvm::Error error) {
  EXPECT_TRUE(bool(error)) << "no error";
  return llvm::toString(std::move(error));
}
template <class T>
std::string text(llvm::Expected<T> value) {
  return text(value.takeError());
}
#define EXPECT_HAS(whole, part) EXPECT_NE((whole).find(part), std::string::npos) << (whole)
#define ASSERT_OK(value) ASSERT_TRUE(bool(value)) << llvm::toString((value).takeError())
#define ASSERT_DONE(error) \
  if (llvm::Error problem = (error)) FAIL() << llvm::toString(std::move(problem))

}  // namespace planc
