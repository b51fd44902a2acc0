#include "eval/report/markdown.h"

#include <fmt/format.h>

#include <algorithm>

namespace reprise::eval {
namespace {

// Escapes what would be Markdown or HTML in data; "[0.1, 0.2]" and "< 1" are neither.
std::string escaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : ' ';
    const bool opens_tag = c == '<' && next != ' ' && !(next >= '0' && next <= '9');
    const bool ends_link = c == ']' && (next == '(' || next == '[' || next == ':');
    if (opens_tag) {
      out += "&lt;";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';
    } else {
      if (c == '\\' || c == '`' || c == '*' || c == '|' || ends_link) out += '\\';
      out += c;
    }
  }
  return out;
}

size_t width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // not inside a UTF-8 character
  }));
}

std::string padded(const std::string& text, size_t to, bool right) {
  const std::string space(to - std::min(to, width(text)), ' ');
  return right ? space + text : text + space;
}

struct Writer {
  std::string_view figure_folder;
  std::string out;

  void operator()(const Heading& heading) {
    const auto level = static_cast<size_t>(heading.level);
    out += fmt::format("{} {}\n\n", std::string(level, '#'), escaped(heading.text));
  }
  void operator()(const Paragraph& paragraph) { out += escaped(paragraph.text) + "\n\n"; }
  void operator()(const Bullets& bullets) {
    for (const std::string& item : bullets.items) out += fmt::format("- {}\n", escaped(item));
    out += "\n";
  }
  void operator()(const Table& table) { out += to_markdown(table) + "\n"; }
  void operator()(const Figure& figure) {
    if (figure_folder.empty()) return;
    out += fmt::format("![{}]({}/{}.svg)\n\n", escaped(figure.caption), figure_folder, figure.name);
  }
};

}  // namespace

std::string to_markdown(const Table& table) {
  std::vector<std::vector<std::string>> lines{table.head};
  lines.insert(lines.end(), table.rows.begin(), table.rows.end());
  std::vector<size_t> widths(table.head.size(), 3);
  for (auto& cells : lines) {
    cells.resize(widths.size());
    for (size_t i = 0; i < cells.size(); ++i) {
      cells[i] = escaped(cells[i]);
      widths[i] = std::max(widths[i], width(cells[i]));
    }
  }
  std::string out, rule = "|";
  for (size_t i = 0; i < widths.size(); ++i)
    rule += std::string(widths[i] + 1, '-') + (i < table.text_columns ? "-|" : ":|");
  for (size_t row = 0; row < lines.size(); ++row) {
    out += "|";
    for (size_t i = 0; i < widths.size(); ++i)
      out += fmt::format(" {} |", padded(lines[row][i], widths[i], i >= table.text_columns));
    out += "\n";
    if (row == 0) out += rule + "\n";
  }
  return out;
}

std::string to_markdown(const Page& page, std::string_view figure_folder) {
  Writer writer{figure_folder, fmt::format("# {}\n\n", escaped(page.title))};
  for (const auto& block : page.blocks) std::visit(writer, block);
  writer.out.pop_back();  // every block ends in an empty line; the last one needs none
  return writer.out;
}

}  // namespace reprise::eval
