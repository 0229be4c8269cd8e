// Widths are shares of the chart, so that a page of any width shows them; nothing here is measured.
// Tested by tests/unit/html_test.cpp.
#include "tools/explain/html_parts.h"

#include <algorithm>
#include <charconv>

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/JSON.h"
#include "tools/explain/units.h"
#include "tools/stages.h"

namespace planc::html {
namespace {

// As short as reads back the same.
std::string exact(double value) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, std::end(digits), value).ptr);
}

std::string width(double share) {
  std::string text;
  llvm::raw_string_ostream(text) << llvm::format("%.5f%%", 100 * std::clamp(share, 0., 1.));
  return text;
}

std::string classesOf(int colour, bool isHatched) {
  return "s" + std::to_string(colour) + (isHatched ? " hatched" : "");
}

// Bytes of a cell that are seen.
size_t lengthOf(llvm::StringRef markup) {
  size_t length = 0;
  bool isTag = false;
  for (char c : markup) {
    isTag |= c == '<';
    length += !isTag;
    isTag &= c != '>';
  }
  return length;
}

// Sentences go on below; names and places stay whole.
llvm::StringRef classOf(const Column& column, llvm::StringRef cell) {
  constexpr size_t sentence = 48;
  if (!column.isText) return "";
  return lengthOf(cell) > sentence ? " class=\"t long\"" : " class=\"t\"";
}

}  // namespace

std::string escaped(llvm::StringRef text) {
  constexpr llvm::StringRef unknown = "\xEF\xBF\xBD";  // U+FFFD
  std::string valid = llvm::json::isUTF8(text) ? text.str() : llvm::json::fixUTF8(text), clean;
  for (size_t i = 0; i < valid.size(); ++i) {
    llvm::StringRef rest = llvm::StringRef(valid).drop_front(i);
    bool isNoCharacter = rest.startswith("\xEF\xBF\xBE") || rest.startswith("\xEF\xBF\xBF");
    if (isNoCharacter) i += 2;
    bool isControl = uint8_t(valid[i]) < 0x20 && valid[i] != '\n' && valid[i] != '\t';
    if (isNoCharacter || isControl) clean += unknown;
    else clean += valid[i];
  }
  std::string result;
  llvm::raw_string_ostream out(result);
  llvm::printHTMLEscaped(clean, out);
  return out.str();
}

std::string figure(int64_t value, llvm::StringRef text) {
  std::string number = std::to_string(value);
  return "<data value=\"" + number + "\" title=\"" + groupedText(value) + "\">" + escaped(text) +
         "</data>";
}

std::string figure(double value, llvm::StringRef text) {
  return "<data value=\"" + exact(value) + "\">" + escaped(text) + "</data>";
}

std::string bytes(double bytes) { return figure(bytes, bytesText(bytes)); }
std::string bytes(int64_t bytes) { return figure(bytes, bytesText(double(bytes))); }
std::string seconds(double seconds) { return figure(seconds, secondsText(seconds)); }
std::string flops(double flops) { return figure(flops, flopsText(flops)); }
std::string count(int64_t count) { return figure(count, groupedText(count)); }
std::string share(double share) { return figure(share, percent(share)); }

void print(Out& out, const Table& table) {
  if (table.rows.empty()) return;
  // Wide tables scroll for themselves, by keys too; what they show stands still above.
  std::string caption = escaped(table.caption);
  out << "<p class=\"caption\">" << caption
      << "</p>\n<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"" << caption
      << "\">\n<table aria-label=\"" << caption << "\">\n<thead><tr>";
  for (const Column& column : table.columns)
    out << "<th scope=\"col\"" << (column.isText ? " class=\"t\"" : "") << ">"
        << escaped(column.head) << "</th>";
  out << "</tr></thead>\n<tbody>\n";
  for (size_t i = 0; i < table.rows.size(); ++i) {
    out << (int(i) == table.marked ? "<tr class=\"marked\">" : "<tr>");
    for (size_t j = 0; j < table.rows[i].size(); ++j) {
      llvm::StringRef tag = j == 0 ? "th" : "td";
      out << "<" << tag << (j == 0 ? " scope=\"row\"" : "")
          << classOf(table.columns[j], table.rows[i][j]) << ">" << table.rows[i][j] << "</" << tag
          << ">";
    }
    out << "</tr>\n";
  }
  out << "</tbody>\n</table>\n</div>\n";
}

void print(Out& out, const Chart& chart) {
  double scale = chart.scale > 0 ? chart.scale : 1;
  out << "<div class=\"chart\" role=\"img\" aria-label=\"" << escaped(chart.name) << "\"";
  if (chart.line) out << " data-limit=\"" << exact(*chart.line) << "\"";
  out << ">\n";
  if (chart.line) {
    // On the side of the line that has room for its words.
    bool isRight = *chart.line / scale > .5;
    out << "<div class=\"bar above\"><span class=\"label\"></span><span class=\"track\"><span "
           "class=\"limit-text\" style=\""
        << (isRight ? "right:" : "left:")
        << width(isRight ? 1 - *chart.line / scale : *chart.line / scale) << "\">"
        << escaped(chart.lineText) << "</span></span><span class=\"end\"></span></div>\n";
  }
  for (const Bar& bar : chart.bars) {
    out << "<div class=\"bar\"><span class=\"label\">" << bar.label
        << "</span><span class=\"track\">";
    for (const Piece& piece : bar.pieces) {
      if (!(piece.size > 0)) continue;
      out << "<span class=\"piece " << classesOf(piece.colour, piece.isHatched)
          << "\" style=\"width:" << width(piece.size / scale) << "\" data-size=\""
          << exact(piece.size) << "\" title=\"" << escaped(piece.label + ": " + piece.text)
          << "\"><span>" << escaped(piece.label) << "</span></span>";
    }
    if (chart.line)
      out << "<span class=\"limit\" style=\"left:" << width(*chart.line / scale) << "\"></span>";
    out << "</span><span class=\"end\">" << bar.end << "</span></div>\n";
  }
  out << "</div>\n";
}

void print(Out& out, llvm::ArrayRef<LegendEntry> legend) {
  out << "<ul class=\"legend\">";
  for (const LegendEntry& entry : legend)
    out << "<li><span class=\"key " << classesOf(entry.colour, entry.isHatched) << "\"></span>"
        << escaped(entry.text) << "</li>";
  out << "</ul>\n";
}

void open(Out& out, llvm::StringRef id, llvm::StringRef heading) {
  out << "<section id=\"" << id << "\" aria-labelledby=\"" << id << "-h\">\n<h2 id=\"" << id
      << "-h\">" << escaped(heading) << "</h2>\n";
}

void close(Out& out) { out << "</section>\n"; }

void paragraph(Out& out, llvm::StringRef markup) { out << "<p>" << markup << "</p>\n"; }
void note(Out& out, llvm::StringRef markup) { out << "<p class=\"note\">" << markup << "</p>\n"; }

}  // namespace planc::html
