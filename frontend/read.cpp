// Reading a plan and what it imports: bounded reads, the library built into the binary, cycles.
// Tested by tests/unit/frontend_test.cpp.
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "frontend/frontend.h"
#include "frontend/parse.h"
#include "frontend/read.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallString.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Path.h"

namespace planc {
namespace {

constexpr unsigned kMaxFiles = 1000;  // imported, all together

const std::pair<llvm::StringRef, llvm::StringRef> kLibrary[] = {
#include "std_files.inc"
    {"", ""},
};

// At most one byte more than the limit is read, whatever the file is.
bool readBytes(std::FILE* in, std::string& text, std::string& problem) {
  char buffer[1 << 16];
  size_t got;
  while (text.size() <= kMaxFileBytes && (got = std::fread(buffer, 1, sizeof buffer, in)) > 0)
    text.append(buffer, got);
  bool failed = std::ferror(in) != 0;
  if (failed) problem = std::strerror(errno);
  return !failed;
}

class Reader {
 public:
  explicit Reader(Diagnostics& diags) : diags_(diags) {}
  std::vector<std::unique_ptr<ast::File>> files;

  void readMain(llvm::StringRef path) {
    std::string text, problem;
    bool isRead = path == "-" ? readBytes(stdin, text, problem) : readFile(path, text, problem);
    if (!isRead) {
      uint32_t file = diags_.addFile(path, "");
      diags_.report({file, 0, 0, 1}, Diag::CannotRead, path, problem);
    } else if (path == "-") {
      readParsed(diags_.addFile("<stdin>", std::move(text)), "", "");
    } else {
      readText(path, std::move(text));
    }
  }
  // The library's clusters, ahead of the main file, for a cluster that is declared nowhere else.
  void addCluster(llvm::StringRef name) {
    for (const auto& file : files)
      for (const ast::Item& item : file->items)
        if (auto* cluster = std::get_if<ast::Cluster>(&item); cluster && cluster->name.text == name)
          return;
    if (files.empty()) return;
    std::unique_ptr<ast::File> main = std::move(files.back());
    files.pop_back();
    readImport({{}, "std/clusters.plan"}, "");
    files.push_back(std::move(main));
  }
  void readText(llvm::StringRef path, std::string text) {
    readParsed(diags_.addFile(path, std::move(text)), realPath(path), path);
  }

 private:
  static std::string realPath(llvm::StringRef path) {
    llvm::SmallString<256> real;
    return llvm::sys::fs::real_path(path, real) ? path.str() : real.str().str();
  }

  // Parses a registered file and what it imports. `key` is its real path or its library name, and
  // `shown` its path as the user sees it, to which imports are relative.
  void readParsed(uint32_t file, const std::string& key, llvm::StringRef shown) {
    open_.push_back(key);
    if (std::unique_ptr<ast::File> parsed = parseText(file, diags_)) {
      for (const ast::Item& item : parsed->items)
        if (auto* import = std::get_if<ast::Import>(&item)) readImport(*import, shown);
      files.push_back(std::move(parsed));
    }
    open_.pop_back();
    done_.push_back(key);
  }

  void readImport(const ast::Import& import, llvm::StringRef importer) {
    llvm::StringRef path = import.path;
    bool isLibrary = path.take_front(4) == "std/";
    std::string full = isLibrary ? path.str() : pathBeside(importer, path);
    std::string key = isLibrary ? path.str() : realPath(full);
    if (llvm::is_contained(done_, key)) return;
    if (auto at = llvm::find(open_, key); at != open_.end()) {
      std::string cycle;
      for (; at != open_.end(); ++at) cycle += llvm::sys::path::filename(*at).str() + " -> ";
      diags_.report(import.loc, Diag::ImportCycle, path,
                    cycle + llvm::sys::path::filename(key).str());
      return;
    }
    if (diags_.paths().size() >= kMaxFiles || open_.size() >= kMaxDepth) {
      diags_.report(import.loc, Diag::TooManyFiles,
                    std::to_string(open_.size() >= kMaxDepth ? kMaxDepth : kMaxFiles));
      return;
    }
    std::string text, problem;
    if (isLibrary) {
      auto entry = llvm::find_if(standardLibrary(), [&](auto& e) { return e.first == path; });
      if (entry == standardLibrary().end()) {
        reportNoLibraryFile(import);
        return;
      }
      text = entry->second.str();
    } else if (!readFile(full, text, problem)) {
      diags_.report(import.loc, Diag::CannotRead, path, problem);
      return;
    }
    readParsed(diags_.addFile(full, std::move(text)), key, full);
  }

  void reportNoLibraryFile(const ast::Import& import) {
    std::vector<std::string> names;
    for (auto& entry : standardLibrary()) names.push_back(entry.first.str());
    Diagnostic& message = diags_.report(import.loc, Diag::NoLibraryFile, import.path);
    std::string near = nearest(import.path, names);
    message.suggest(near.empty() ? "it has " + llvm::join(names, ", ")
                                 : "did you mean '" + near + "'?");
  }

  Diagnostics& diags_;
  std::vector<std::string> open_, done_;
};

}  // namespace

std::string pathBeside(llvm::StringRef file, llvm::StringRef path) {
  llvm::SmallString<256> full;
  if (!llvm::sys::path::is_absolute(path)) full = llvm::sys::path::parent_path(file);
  llvm::sys::path::append(full, path);
  return full.str().str();
}

bool readFile(llvm::StringRef path, std::string& text, std::string& problem) {
  std::FILE* in = std::fopen(path.str().c_str(), "rb");
  if (in == nullptr) {
    problem = std::strerror(errno);
    return false;
  }
  bool good = readBytes(in, text, problem);
  std::fclose(in);
  return good;
}

std::vector<std::unique_ptr<ast::File>> readPlan(llvm::StringRef path, Diagnostics& diags,
                                                 llvm::StringRef cluster) {
  Reader reader(diags);
  reader.readMain(path);
  if (!cluster.empty()) reader.addCluster(cluster);
  return std::move(reader.files);
}

std::vector<std::unique_ptr<ast::File>> readPlanText(llvm::StringRef path, std::string text,
                                                     Diagnostics& diags) {
  Reader reader(diags);
  reader.readText(path, std::move(text));
  return std::move(reader.files);
}

llvm::ArrayRef<std::pair<llvm::StringRef, llvm::StringRef>> standardLibrary() {
  using Entries = llvm::ArrayRef<std::pair<llvm::StringRef, llvm::StringRef>>;
  return Entries(kLibrary).drop_back();
}

}  // namespace planc
