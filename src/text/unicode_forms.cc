#include "text/unicode_forms.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "text/utf8.h"

namespace reprise {
namespace {

constexpr int kMaxMarks = 128;

struct FreeText {
  void operator()(utf8proc_uint8_t* text) const { std::free(text); }
};

utf8proc_option_t options_of(UnicodeForm form) {
  int options = UTF8PROC_STABLE;
  const bool composed = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  options |= composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

void append_form(std::string_view text, utf8proc_option_t options, std::string& out) {
  utf8proc_uint8_t* mapped = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &mapped, options);
  const std::unique_ptr<utf8proc_uint8_t, FreeText> owner(mapped);
  if (length < 0) {
    out += text;
  } else {
    out.append(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
  }
}

// End of the part that starts at begin and can be normalised on its own: ASCII characters compose
// only with what follows them.
size_t part_end(std::string_view text, size_t begin) {
  int marks = 0;
  size_t at = begin;
  while (at < text.size()) {
    const Utf8Unit unit = utf8_unit(text.substr(at));
    if (at > begin && unit.code_point < 0x80) break;
    const bool mark =
        utf8proc_get_property(static_cast<utf8proc_int32_t>(unit.code_point))->combining_class != 0;
    marks = mark ? marks + 1 : 0;
    at += unit.bytes;
    if (marks == kMaxMarks) break;
  }
  return at;
}

bool is_ascii(char c) { return static_cast<unsigned char>(c) < 0x80; }

// Characters mapped one by one; map returns the replacement or kDropped.
constexpr uint32_t kDropped = UINT32_MAX;

template <class Map>
std::string map_characters(std::string_view text, Map map) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Unit unit = utf8_unit(text);
    const uint32_t mapped = map(unit.code_point);
    if (mapped != kDropped) append_utf8(mapped, out);
    if (unit.code_point == 0x130 && mapped == 'i') append_utf8(0x307, out);  // its full lower case
    text.remove_prefix(unit.bytes);
  }
  return out;
}

}  // namespace

std::string to_unicode_form(std::string_view text, UnicodeForm form) {
  const utf8proc_option_t options = options_of(form);
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  while (at < text.size()) {
    size_t ascii = at;
    while (ascii < text.size() && is_ascii(text[ascii])) ++ascii;
    // The last ASCII character may compose with what follows.
    const size_t plain = ascii == text.size() || ascii == at ? ascii : ascii - 1;
    out += text.substr(at, plain - at);
    if (plain == text.size()) break;
    at = part_end(text, plain);
    append_form(text.substr(plain, at - plain), options, out);
  }
  return out;
}

std::string to_lowercase(std::string_view text) {
  return map_characters(text, [](uint32_t c) {
    if (c == 0x130) return uint32_t{'i'};
    return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
  });
}

std::string strip_accents(std::string_view text) {
  return map_characters(text, [](uint32_t c) {
    const utf8proc_category_t kind = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    const bool mark = kind >= UTF8PROC_CATEGORY_MN && kind <= UTF8PROC_CATEGORY_ME;
    return mark ? kDropped : c;
  });
}

std::string strip_white_space(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const Utf8Unit unit = utf8_unit(text);
    if (!is_white_space(unit.code_point)) break;
    text.remove_prefix(unit.bytes);
  }
  while (right && !text.empty()) {
    const size_t bytes = last_character_bytes(text);
    if (!is_white_space(utf8_unit(text.substr(text.size() - bytes)).code_point)) break;
    text.remove_suffix(bytes);
  }
  return std::string(text);
}

}  // namespace reprise
