#include "formats/printable.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <iterator>

namespace reprise {
namespace {

constexpr size_t kMaxBytes = 80;

// Cuts at a character boundary so that a valid text stays valid.
std::string_view shorten(std::string_view text) {
  size_t end = kMaxBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) --end;
  return text.substr(0, end);
}

}  // namespace

bool is_utf8(std::string_view text) { return simdjson::validate_utf8(text.data(), text.size()); }

std::string printable(std::string_view text) {
  const bool cut = text.size() > kMaxBytes;
  if (cut) text = shorten(text);
  const bool ascii_only = !is_utf8(text);
  std::string out = "'";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || (ascii_only && byte >= 0x80)) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (cut ? "...'" : "'");
}

}  // namespace reprise
