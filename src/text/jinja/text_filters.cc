// Filters that make text from text.
#include <algorithm>

#include "base/try.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/print.h"
#include "text/jinja/text_tools.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

template <std::string (*function)(std::string_view)>
Result<Value> mapped(Runtime& runtime, const Value& self, const Bound&) {
  REPRISE_TRY(const Value text, str_value(runtime, self));
  REPRISE_CHECK(runtime.scan(text.text()));
  return runtime.text(function(text.text()), text.is_markup());
}

// Jinja's words: what stands between white space, hyphens and opening brackets.
std::string title_words(std::string_view text) {
  std::string out;
  bool starts = true;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const char32_t c = next_character(text, at);
    const std::string_view piece = text.substr(start, at - start);
    out += starts ? to_upper(piece) : to_lower(piece);
    starts = is_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
  }
  return out;
}

Result<Value> trim(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const Value text, str_value(runtime, self));
  REPRISE_TRY(const std::string_view kept,
              stripped(runtime, text.text(), arguments[0], Side::kBoth));
  if (kept.size() == text.text().size()) return text;
  return runtime.text(std::string(kept), text.is_markup());
}

Result<Value> replace(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::string text, str(runtime, self));
  REPRISE_TRY(const std::string from, str(runtime, *arguments[0]));
  REPRISE_TRY(const std::string to, str(runtime, *arguments[1]));
  const bool all = arguments[2] == nullptr || arguments[2]->is(Kind::kNone);
  REPRISE_TRY(const int64_t count, all ? Result<int64_t>(-1) : arguments.integer(2, -1));
  return replaced(runtime, text, from, to, count);
}

Result<Value> string(Runtime& runtime, const Value& self, const Bound&) {
  return str_value(runtime, self);
}

Result<Value> safe(Runtime& runtime, const Value& self, const Bound&) {
  REPRISE_TRY(const Value text, str_value(runtime, self));
  return Value::object(Kind::kString, text.shared(), true);
}

Result<Value> force_escape(Runtime& runtime, const Value& self, const Bound&) {
  REPRISE_TRY(const Value text, str_value(runtime, self));
  REPRISE_CHECK(runtime.scan(text.text()));
  TextBuilder out(runtime);
  append_escaped(out, text.text());
  return out.finish(true);
}

Result<Value> escape(Runtime& runtime, const Value& self, const Bound& arguments) {
  return self.is_markup() ? self : force_escape(runtime, self, arguments);
}

Result<Value> indent(Runtime& runtime, const Value& self, const Bound& arguments) {
  std::string indention;
  if (arguments[0] != nullptr && arguments[0]->is(Kind::kString)) {
    indention = arguments[0]->text();
  } else {
    REPRISE_TRY(const int64_t width, arguments.integer(0, 4));
    REPRISE_TRY(indention, padded(runtime, "", '<', width, " "));
  }
  if (!self.is(Kind::kString)) return type_error("indent", self);
  const std::string text = std::string(self.text()) + "\n";
  REPRISE_TRY(const auto lines, split_lines(runtime, text, false));
  const bool first = arguments.flag(1), blank = arguments.flag(2);
  TextBuilder out(runtime);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n");
    if (i == 0 ? first : blank || !lines[i].empty()) out.append(indention);
    out.append(lines[i]);
  }
  return out.finish(self.is_markup());
}

Result<Value> format(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const Value text, str_value(runtime, self));
  const Arguments& given = arguments.rest;
  if (given.named.empty()) {
    REPRISE_TRY(const Value values, runtime.sequence(Flavour::kTuple, given.positional));
    return format_percent(runtime, text, values);
  }
  if (!given.positional.empty()) {
    return fail(ErrorCode::kTemplateRuntime,
                "can't handle positional and keyword arguments at the same time");
  }
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [name, value] : given.named) entries.emplace_back(Value::borrowed(name), value);
  REPRISE_TRY(const Value values, runtime.dict(std::move(entries)));
  return format_percent(runtime, text, values);
}

Result<Value> center(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const Value text, str_value(runtime, self));
  REPRISE_TRY(const int64_t width, arguments.integer(0, 80));
  REPRISE_TRY(std::string out, padded(runtime, text.text(), 'c', width, " "));
  return runtime.text(std::move(out));
}

Result<Value> truncate(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const Value value, str_value(runtime, self));
  REPRISE_TRY(const int64_t length, arguments.integer(0, 255));
  REPRISE_TRY(const std::string_view end, arguments.text(2, "..."));
  const bool leeway_given = arguments[3] != nullptr && !arguments[3]->is(Kind::kNone);
  REPRISE_TRY(const int64_t leeway, leeway_given ? arguments.integer(3, 5) : Result<int64_t>(5));
  REPRISE_TRY(const int64_t size, runtime.length(value));
  const auto end_size = static_cast<int64_t>(character_count(end));
  if (length < end_size || leeway < 0) {
    return fail(ErrorCode::kTemplateRuntime, "truncate: length {} is too small", length);
  }
  if (size <= length || size - length <= leeway) return value;
  std::string_view kept = value.text();
  kept = kept.substr(0, character_offset(kept, static_cast<size_t>(length - end_size)));
  if (!arguments.flag(1)) kept = kept.substr(0, kept.rfind(' '));
  return runtime.text(std::string(kept) + std::string(end));
}

// Percent-encodes bytes as Python's urllib does: in a query slashes too, and spaces become pluses.
Status append_quoted(Runtime& runtime, const Value& value, bool query, TextBuilder& out) {
  static constexpr std::string_view kPlain = "_.-~/";
  REPRISE_TRY(const std::string text, str(runtime, value));
  for (const char c : text) {
    const char small = static_cast<char>(c | 32);
    const bool plain = (small >= 'a' && small <= 'z') || (c >= '0' && c <= '9') ||
                       kPlain.substr(0, query ? 4 : 5).find(c) != std::string_view::npos;
    if (plain) {
      out.append({&c, 1});
    } else if (query && c == ' ') {
      out.append("+");
    } else {
      out.append(fmt::format("%{:02X}", static_cast<uint8_t>(c)));
    }
  }
  return {};
}

Result<Value> url_encode(Runtime& runtime, const Value& self, const Bound&) {
  TextBuilder out(runtime);
  std::vector<Value> pairs;
  if (self.is(Kind::kDict)) {
    for (const auto& [key, value] : self.dict().entries) {
      REPRISE_TRY(Value pair, runtime.sequence(Flavour::kTuple, {key, value}));
      pairs.push_back(std::move(pair));
    }
  } else if (self.is(Kind::kSequence) || self.is(Kind::kUndefined)) {
    REPRISE_TRY(pairs, runtime.iterate(self));
  } else {
    REPRISE_CHECK(append_quoted(runtime, self, false, out));
  }
  for (const Value& element : pairs) {
    REPRISE_TRY(const std::vector<Value> pair, runtime.iterate(element));
    if (pair.size() != 2) return type_error("place of a pair", element);
    if (&element != pairs.data()) out.append("&");
    REPRISE_CHECK(append_quoted(runtime, pair[0], true, out));
    out.append("=");
    REPRISE_CHECK(append_quoted(runtime, pair[1], true, out));
  }
  return out.finish();
}

Result<Value> word_count(Runtime& runtime, const Value& self, const Bound&) {
  REPRISE_TRY(const Value value, str_value(runtime, self));
  REPRISE_CHECK(runtime.scan(value.text()));
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < value.text().size();) {
    const bool letter = is_identifier(next_character(value.text(), at));
    words += letter && !inside ? 1 : 0;
    inside = letter;
  }
  return Value::integer(words);
}

constexpr Native kFilters[] = {
    {"capitalize", "", mapped<capitalized>},
    {"center", "?width", center},
    {"e", "", escape},
    {"escape", "", escape},
    {"forceescape", "", force_escape},
    {"format", "*", format},
    {"indent", "?width,?first,?blank", indent},
    {"lower", "", mapped<to_lower>},
    {"replace", "old,new,?count", replace},
    {"safe", "", safe},
    {"string", "", string},
    {"title", "", mapped<title_words>},
    {"trim", "?chars", trim},
    {"truncate", "?length,?killwords,?end,?leeway", truncate},
    {"upper", "", mapped<to_upper>},
    {"urlencode", "", url_encode},
    {"wordcount", "", word_count},
};

}  // namespace

std::span<const Native> text_filters() { return kFilters; }

}  // namespace reprise::jinja
