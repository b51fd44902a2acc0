#include "text/jinja/text_tools.h"

#include "base/try.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {

Result<Value> replaced(Runtime& runtime, std::string_view text, std::string_view from,
                       std::string_view to, int64_t count) {
  TextBuilder out(runtime);
  REPRISE_CHECK(runtime.search(text, from));
  size_t at = 0;
  if (from.empty()) {
    for (; count != 0 && !out.overflow(); count -= count > 0 ? 1 : 0) {
      out.append(to);
      if (at == text.size()) return out.finish();
      const size_t size = character_size(text, at);
      out.append(text.substr(at, size));
      at += size;
    }
  }
  for (size_t found; count != 0 && !from.empty() &&
                     (found = text.find(from, at)) != std::string_view::npos && !out.overflow();
       count -= count > 0 ? 1 : 0) {
    out.append(text.substr(at, found - at));
    out.append(to);
    at = found + from.size();
  }
  out.append(text.substr(at));
  return out.finish();
}

Result<std::vector<std::string_view>> split_lines(Runtime& runtime, std::string_view text,
                                                  bool keep) {
  REPRISE_CHECK(runtime.scan(text));
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = next_character(text, at);
    const bool ends = (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    if (!ends) continue;
    if (c == U'\r' && at < text.size() && text[at] == '\n') ++at;
    REPRISE_CHECK(runtime.budget().spend(1));
    lines.push_back(text.substr(start, (keep ? at : end) - start));
    start = at;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

Result<std::string_view> stripped(Runtime& runtime, std::string_view text, const Value* set,
                                  Side side) {
  const bool all_space = set == nullptr || set->is(Kind::kNone);
  if (!all_space && !set->is(Kind::kString)) return type_error("place of a string", *set);
  const std::string_view characters = all_space ? std::string_view() : set->text();
  REPRISE_CHECK(runtime.scan(text, characters.size()));
  return strip(text, all_space ? nullptr : &characters, side);
}

Result<Value> text_list(Runtime& runtime, const std::vector<std::string_view>& texts) {
  std::vector<Value> items;
  items.reserve(texts.size());
  REPRISE_CHECK(runtime.budget().spend(texts.size()));
  for (const std::string_view text : texts) {
    REPRISE_TRY(Value item, runtime.text(std::string(text)));
    items.push_back(std::move(item));
  }
  return runtime.sequence(Flavour::kList, std::move(items));
}

}  // namespace reprise::jinja
