#include "text/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>

namespace reprise::jinja {
namespace {

bool is_continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xc0) == 0x80; }

utf8proc_category_t category(char32_t character) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

char32_t upper(char32_t character) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(character)));
}

// The upper case stands in for ß, whose title case utf8proc leaves as it is.
char32_t title(char32_t character) {
  if (character == U'ß') return upper(character);
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(character)));
}

char32_t lower(char32_t character) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character)));
}

// Maps each character with map(character, whether the one before is a letter). Where it changes
// the letter ß, sharp_s stands for it: the one common letter whose other case is two letters.
template <class Map>
std::string mapped(std::string_view text, std::string_view sharp_s, Map map) {
  std::string out;
  out.reserve(text.size());
  bool after_letter = false;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const char32_t character = next_character(text, at);
    const char32_t image = map(character, after_letter);
    after_letter = is_alphabetic(character);
    if (image == character) {
      out += text.substr(start, at - start);
    } else if (character == U'ß') {
      out += sharp_s;
    } else {
      append_character(out, image);
    }
  }
  return out;
}

}  // namespace

size_t character_size(std::string_view text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  const size_t size = lead < 0x80 ? 1 : lead < 0xc2 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (size == 1 || lead > 0xf4 || at + size > text.size()) return 1;
  for (size_t i = 1; i < size; ++i) {
    if (!is_continuation(text[at + i])) return 1;
  }
  return size;
}

char32_t next_character(std::string_view text, size_t& at) {
  const size_t size = character_size(text, at);
  const auto lead = static_cast<uint8_t>(text[at]);
  char32_t character = lead;
  if (size == 1) {
    if (lead >= 0x80) character = 0xfffd;
  } else {
    character = lead & (0x7fu >> size);
    for (size_t i = 1; i < size; ++i) {
      character = character << 6 | (static_cast<uint8_t>(text[at + i]) & 0x3fu);
    }
  }
  at += size;
  return character;
}

size_t previous_character(std::string_view text, size_t end) {
  // The longest first: every byte alone counts as a character of one byte.
  for (size_t size = std::min<size_t>(4, end); size > 1; --size) {
    if (character_size(text, end - size) == size) return end - size;
  }
  return end - 1;
}

size_t character_count(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += character_size(text, at)) ++count;
  return count;
}

size_t character_offset(std::string_view text, size_t index) {
  size_t at = 0;
  for (; at < text.size() && index > 0; --index) at += character_size(text, at);
  return at;
}

void append_character(std::string& text, char32_t character) {
  if (character < 0x80) {
    text += static_cast<char>(character);
    return;
  }
  const int extra = character < 0x800 ? 1 : character < 0x10000 ? 2 : 3;
  static constexpr uint8_t kLead[] = {0, 0xc0, 0xe0, 0xf0};
  text += static_cast<char>(kLead[extra] | (character >> (6 * extra)));
  for (int i = extra - 1; i >= 0; --i) {
    text += static_cast<char>(0x80 | ((character >> (6 * i)) & 0x3f));
  }
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

bool is_alphabetic(char32_t character) {
  const utf8proc_category_t kind = category(character);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t character) { return category(character) == UTF8PROC_CATEGORY_ND; }

bool is_identifier(char32_t character) {
  const utf8proc_category_t kind = category(character);
  return is_alphabetic(character) || character == U'_' ||
         (kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO);
}

std::string to_upper(std::string_view text) {
  return mapped(text, "SS", [](char32_t c, bool) { return upper(c); });
}

std::string to_lower(std::string_view text) {
  return mapped(text, "ß", [](char32_t c, bool) { return lower(c); });
}

std::string capitalized(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = character_size(text, 0);
  return title_case(text.substr(0, first)) + to_lower(text.substr(first));
}

std::string swapped_case(std::string_view text) {
  return mapped(text, "SS", [](char32_t c, bool) { return lower(c) == c ? upper(c) : lower(c); });
}

std::string title_case(std::string_view text) {
  return mapped(text, "Ss",
                [](char32_t c, bool after_letter) { return after_letter ? lower(c) : title(c); });
}

std::string_view strip(std::string_view text, const std::string_view* set, Side side) {
  const auto dropped = [&](size_t at, size_t end) {
    if (set != nullptr) return set->find(text.substr(at, end - at)) != std::string_view::npos;
    return is_space(next_character(text, at));
  };
  if (side != Side::kRight) {
    while (!text.empty() && dropped(0, character_size(text, 0))) {
      text.remove_prefix(character_size(text, 0));
    }
  }
  if (side != Side::kLeft) {
    while (!text.empty() && dropped(previous_character(text, text.size()), text.size())) {
      text.remove_suffix(text.size() - previous_character(text, text.size()));
    }
  }
  return text;
}

}  // namespace reprise::jinja
