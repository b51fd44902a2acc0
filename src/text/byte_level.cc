#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace reprise {
namespace {

constexpr uint32_t kCharacters = 0x144;  // the largest is 0x143
constexpr int16_t kNone = -1;

bool is_printable(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Tables {
  std::array<uint16_t, 256> to{};
  std::array<int16_t, kCharacters> from{};

  Tables() {
    from.fill(kNone);
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t character = is_printable(byte) ? byte : next++;
      to[byte] = static_cast<uint16_t>(character);
      from[character] = static_cast<int16_t>(byte);
    }
  }
};

const Tables& tables() {
  static const Tables instance;
  return instance;
}

}  // namespace

uint32_t byte_level_character(uint8_t byte) { return tables().to[byte]; }

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) append_utf8(byte_level_character(static_cast<uint8_t>(byte)), text);
  return text;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  const auto& from = tables().from;
  std::string bytes;
  bytes.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = utf8_unit(text);
    if (!unit.valid || unit.code_point >= kCharacters || from[unit.code_point] == kNone) return {};
    bytes += static_cast<char>(from[unit.code_point]);
    text.remove_prefix(unit.bytes);
  }
  return bytes;
}

}  // namespace reprise
