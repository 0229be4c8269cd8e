// What the sections of `planc explain -o report.html` are made of: escaped text, figures with their
// units, tables, stacked bars. The page is HTML that an XML parser reads too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "llvm/ADT/ArrayRef.h"
#include "llvm/Support/raw_ostream.h"

namespace planc::html {

using Out = llvm::raw_ostream;

// Of text or of an attribute: markup escaped; what is no UTF-8 and control characters replaced.
std::string escaped(llvm::StringRef text);

// The text of a figure, with its exact value for machines and as a tooltip.
std::string figure(int64_t value, llvm::StringRef text);
std::string figure(double value, llvm::StringRef text);
// In their usual units (tools/explain/units.h).
std::string bytes(double bytes);
std::string bytes(int64_t bytes);
std::string seconds(double seconds);
std::string flops(double flops);
std::string count(int64_t count);
std::string share(double share);  // `27.3 %`

struct Column {
  std::string head;
  bool isText = false;  // to the left; else a figure
};
// Cells are markup. The first of a row is its head. `marked`: a row set off from the others; -1: none.
struct Table {
  std::string caption;
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;
  int marked = -1;
};
void print(Out& out, const Table& table);

// One of a bar's pieces. Colours: 0-7, of the page's style.
struct Piece {
  int colour = 0;
  std::string label;  // shown where it has room
  double size = 0;
  std::string text;  // with the label, its tooltip
  bool isHatched = false;
};
struct Bar {
  std::string label, end;  // before it and behind it: markup
  std::vector<Piece> pieces;
};
struct Chart {
  std::string name;  // what it shows, for those who don't see it
  std::vector<Bar> bars = {};
  double scale = 1;                 // the size that is as wide as the chart
  std::optional<double> line = {};  // a limit
  std::string lineText = {};
};
void print(Out& out, const Chart& chart);

struct LegendEntry {
  int colour;
  std::string text;
  bool isHatched = false;
};
void print(Out& out, llvm::ArrayRef<LegendEntry> legend);

// A section's beginning and end. `id` is its anchor.
void open(Out& out, llvm::StringRef id, llvm::StringRef heading);
void close(Out& out);
void paragraph(Out& out, llvm::StringRef markup);
void note(Out& out, llvm::StringRef markup);

}  // namespace planc::html
