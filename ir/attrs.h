// What all of the IR is annotated with: places in the plan, and named values.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "llvm/ADT/StringRef.h"

namespace planc {

// A place in a plan file. line 0: no place.
struct Loc {
  uint32_t file = 0;
  uint32_t line = 0;
  uint32_t column = 0;
  uint32_t length = 1;  // of the token, in bytes; for carets only, not part of IR text

  bool known() const { return line != 0; }
};

// An attribute's value: a flag or integer, a number, a word or string, or a list of words.
using Words = std::vector<std::string>;
using Attr = std::variant<int64_t, double, std::string, Words>;

// Attributes sorted by key, so that printing is deterministic.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, Attr>> list);
  void set(llvm::StringRef key, Attr value);
  void erase(llvm::StringRef key);
  const Attr* find(llvm::StringRef key) const;
  bool has(llvm::StringRef key) const { return find(key) != nullptr; }
  // The value, or the default when absent; a wrong kind of value also gives the default (the
  // verifier reports it). `number` takes integers too.
  int64_t integer(llvm::StringRef key, int64_t fallback = 0) const;
  double number(llvm::StringRef key, double fallback = 0) const;
  std::string word(llvm::StringRef key) const;
  Words words(llvm::StringRef key) const;
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }
  size_t size() const { return list_.size(); }
  bool operator==(const Attrs&) const = default;

 private:
  std::vector<std::pair<std::string, Attr>> list_;
};

}  // namespace planc
