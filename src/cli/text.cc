#include "cli/text.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/utf8.h"

namespace reprise::cli {

std::string grouped(uint64_t number) {
  std::string text = std::to_string(number);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

std::string escaped(std::string_view text) {
  const bool valid = valid_utf8_prefix(text) == text.size();
  const auto byte_at = [&](size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
  };
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const unsigned byte = byte_at(at);
    // U+0080 to U+009F are control characters, too.
    const bool begins_control = byte == 0xc2 && byte_at(at + 1) < 0xa0;
    if (byte == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f || (byte >= 0x80 && !valid)) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (begins_control) {
      out += fmt::format("\\x{:02x}\\x{:02x}", byte, byte_at(++at));
    } else {
      out += text[at];
    }
  }
  return out;
}

std::string Table::text(size_t right) const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) line += "  ";
      line += i >= right ? fmt::format("{:>{}}", row[i], widths[i])
                         : fmt::format("{:<{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace reprise::cli
