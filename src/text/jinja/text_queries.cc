// Methods of strings that look for something in them.
#include <algorithm>

#include "base/try.h"
#include "text/jinja/methods.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

// The part of self that arguments 1 and 2 (start, stop) select, and its offset in characters.
struct Part {
  std::string_view text;
  int64_t offset;
  bool exists;  // false when it would start behind the end
};

Result<Part> selected_part(Runtime& runtime, const Value& self, const Bound& arguments) {
  if (arguments[1] == nullptr && arguments[2] == nullptr) return Part{self.text(), 0, true};
  REPRISE_TRY(const int64_t size, runtime.length(self));
  const auto bound = [&](size_t i, int64_t otherwise) -> Result<int64_t> {
    if (arguments[i] != nullptr && arguments[i]->is(Kind::kNone)) return otherwise;
    REPRISE_TRY(const int64_t index, arguments.integer(i, otherwise));
    return std::max<int64_t>(index < 0 ? index + size : index, 0);
  };
  REPRISE_TRY(const int64_t start, bound(1, 0));
  REPRISE_TRY(const int64_t stop, bound(2, size));
  if (start > size || stop < start) return Part{{}, start, false};
  const size_t from = character_offset(self.text(), static_cast<size_t>(start));
  const std::string_view tail = self.text().substr(from);
  return Part{tail.substr(0, character_offset(tail, static_cast<size_t>(stop - start))), start,
              true};
}

template <bool at_start>
Result<Value> has_affix(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const Part part, selected_part(runtime, self, arguments));
  std::vector<Value> affixes = {*arguments[0]};
  if (arguments[0]->is(Flavour::kTuple)) affixes = arguments[0]->sequence().items;
  for (const Value& affix : affixes) {
    if (!affix.is(Kind::kString)) return type_error("startswith or endswith", affix);
    REPRISE_CHECK(runtime.scan(affix.text()));
    if (!part.exists) continue;
    if (at_start ? part.text.starts_with(affix.text()) : part.text.ends_with(affix.text())) {
      return Value::boolean(true);
    }
  }
  return Value::boolean(false);
}

template <bool from_right, bool required>
Result<Value> find(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::string_view needle, arguments.text(0, ""));
  REPRISE_TRY(const Part part, selected_part(runtime, self, arguments));
  REPRISE_CHECK(runtime.search(part.text, needle));
  const size_t found = from_right ? part.text.rfind(needle) : part.text.find(needle);
  if (!part.exists || found == std::string_view::npos) {
    if (required) return fail(ErrorCode::kTemplateRuntime, "substring not found");
    return Value::integer(-1);
  }
  return Value::integer(part.offset +
                        static_cast<int64_t>(character_count(part.text.substr(0, found))));
}

Result<Value> count(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::string_view needle, arguments.text(0, ""));
  REPRISE_TRY(const Part part, selected_part(runtime, self, arguments));
  if (!part.exists) return Value::integer(0);
  REPRISE_CHECK(runtime.search(part.text, needle));
  if (needle.empty()) {
    return Value::integer(static_cast<int64_t>(character_count(part.text)) + 1);
  }
  int64_t times = 0;
  for (size_t at = 0; (at = part.text.find(needle, at)) != std::string_view::npos;
       at += needle.size()) {
    ++times;
  }
  return Value::integer(times);
}

// True when the text has characters and all of them satisfy the predicate.
template <bool (*predicate)(char32_t)>
Result<Value> all(Runtime& runtime, const Value& self, const Bound&) {
  const std::string_view text = self.text();
  REPRISE_CHECK(runtime.scan(text));
  for (size_t at = 0; at < text.size();) {
    if (!predicate(next_character(text, at))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

Result<Value> is_ascii(Runtime& runtime, const Value& self, const Bound&) {
  REPRISE_CHECK(runtime.scan(self.text()));
  return Value::boolean(std::ranges::all_of(
      self.text(), [](char byte) { return static_cast<uint8_t>(byte) < 0x80; }));
}

bool is_alphanumeric(char32_t c) { return c != U'_' && is_identifier(c); }

// Whether some letters have a case and all that do have the one that map gives.
template <std::string (*map)(std::string_view), std::string (*other)(std::string_view)>
Result<Value> has_case(Runtime& runtime, const Value& self, const Bound&) {
  REPRISE_CHECK(runtime.scan(self.text()));
  return Value::boolean(map(self.text()) == self.text() && other(self.text()) != self.text());
}

constexpr Native kMethods[] = {
    {"count", "sub,?start,?end", count},
    {"endswith", "suffix,?start,?end", has_affix<false>},
    {"find", "sub,?start,?end", find<false, false>},
    {"index", "sub,?start,?end", find<false, true>},
    {"isalnum", "", all<is_alphanumeric>},
    {"isalpha", "", all<is_alphabetic>},
    {"isascii", "", is_ascii},
    {"isdecimal", "", all<is_decimal>},
    {"isdigit", "", all<is_decimal>},
    {"islower", "", has_case<to_lower, to_upper>},
    {"isnumeric", "", all<is_decimal>},
    {"isspace", "", all<is_space>},
    {"isupper", "", has_case<to_upper, to_lower>},
    {"rfind", "sub,?start,?end", find<true, false>},
    {"rindex", "sub,?start,?end", find<true, true>},
    {"startswith", "prefix,?start,?end", has_affix<true>},
};

}  // namespace

std::span<const Native> text_queries() { return kMethods; }

}  // namespace reprise::jinja
