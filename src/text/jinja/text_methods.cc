// Methods of strings, as Python's str has them.
#include <algorithm>

#include "base/try.h"
#include "text/jinja/format.h"
#include "text/jinja/methods.h"
#include "text/jinja/print.h"
#include "text/jinja/text_tools.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

template <std::string (*function)(std::string_view)>
Result<Value> mapped(Runtime& runtime, const Value& self, const Bound&) {
  REPRISE_CHECK(runtime.scan(self.text()));
  return runtime.text(function(self.text()), self.is_markup());
}

template <Side side>
Result<Value> strip_side(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::string_view text, stripped(runtime, self.text(), arguments[0], side));
  if (text.size() == self.text().size()) return self;
  return runtime.text(std::string(text), self.is_markup());
}

// The count limit of split; negative for none.
Result<int64_t> split_limit(const Bound& arguments) { return arguments.integer(1, -1); }

Result<std::vector<std::string_view>> split_space(Runtime& runtime, std::string_view text,
                                                  int64_t limit, bool from_right) {
  REPRISE_CHECK(runtime.scan(text));
  std::vector<std::string_view> parts;
  const Side side = from_right ? Side::kRight : Side::kLeft;
  for (text = strip(text, nullptr, side); !text.empty(); text = strip(text, nullptr, side)) {
    REPRISE_CHECK(runtime.budget().spend(1));
    if (limit == 0) {
      parts.push_back(text);
      break;
    }
    size_t start = 0, end = 0;
    if (from_right) {
      for (start = end = text.size(); start > 0;) {
        size_t at = previous_character(text, start);
        const size_t previous = at;
        if (is_space(next_character(text, at))) break;
        start = previous;
      }
    } else {
      for (size_t at = 0; at < text.size() && !is_space(next_character(text, at));) end = at;
    }
    parts.push_back(text.substr(start, end - start));
    text = from_right ? text.substr(0, start) : text.substr(end);
    limit -= limit > 0 ? 1 : 0;
  }
  return parts;
}

Result<std::vector<std::string_view>> split_parts(Runtime& runtime, const Value& self,
                                                  const Bound& arguments, bool from_right) {
  REPRISE_TRY(int64_t limit, split_limit(arguments));
  std::string_view text = self.text();
  if (arguments[0] == nullptr || arguments[0]->is(Kind::kNone)) {
    REPRISE_TRY(auto parts, split_space(runtime, text, limit, from_right));
    if (from_right) std::reverse(parts.begin(), parts.end());
    return parts;
  }
  REPRISE_TRY(const std::string_view separator, arguments.text(0, ""));
  if (separator.empty()) return fail(ErrorCode::kTemplateRuntime, "empty separator");
  REPRISE_CHECK(runtime.search(text, separator));
  std::vector<std::string_view> parts;
  for (size_t found; limit != 0 && (found = from_right ? text.rfind(separator)
                                                       : text.find(separator)) != text.npos;
       limit -= limit > 0 ? 1 : 0) {
    REPRISE_CHECK(runtime.budget().spend(1));
    const std::string_view before = text.substr(0, found);
    const std::string_view after = text.substr(found + separator.size());
    parts.push_back(from_right ? after : before);
    text = from_right ? before : after;
  }
  parts.push_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

template <bool from_right>
Result<Value> split(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const auto parts, split_parts(runtime, self, arguments, from_right));
  return text_list(runtime, parts);
}

Result<Value> splitlines(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const auto lines, split_lines(runtime, self.text(), arguments.flag(0)));
  return text_list(runtime, lines);
}

template <bool from_right>
Result<Value> partition(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::string_view separator, arguments.text(0, ""));
  if (separator.empty()) return fail(ErrorCode::kTemplateRuntime, "empty separator");
  const std::string_view text = self.text();
  REPRISE_CHECK(runtime.search(text, separator));
  const size_t found = from_right ? text.rfind(separator) : text.find(separator);
  std::vector<std::string_view> parts = {text, "", ""};
  if (found != text.npos) {
    parts = {text.substr(0, found), separator, text.substr(found + separator.size())};
  } else if (from_right) {
    parts = {"", "", text};
  }
  REPRISE_TRY(const Value list, text_list(runtime, parts));
  return runtime.sequence(Flavour::kTuple, list.sequence().items);
}

Result<Value> join(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::vector<Value> items, runtime.iterate(*arguments[0]));
  TextBuilder out(runtime);
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is(Kind::kString)) {
      return fail(ErrorCode::kTemplateRuntime, "sequence item {}: expected str instance, {} found",
                  i, items[i].type_name());
    }
    if (i > 0) out.append(self.text());
    out.append(items[i].text());
  }
  return out.finish();
}

Result<Value> replace(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::string_view from, arguments.text(0, ""));
  REPRISE_TRY(const std::string_view to, arguments.text(1, ""));
  REPRISE_TRY(const int64_t count, arguments.integer(2, -1));
  return replaced(runtime, self.text(), from, to, count);
}

template <bool prefix>
Result<Value> remove_affix(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::string_view affix, arguments.text(0, ""));
  REPRISE_CHECK(runtime.scan(affix));
  const std::string_view text = self.text();
  if (prefix ? !text.starts_with(affix) : !text.ends_with(affix)) return self;
  return runtime.text(
      std::string(prefix ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size())));
}

template <char align>
Result<Value> justify(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const int64_t width, arguments.integer(0, 0));
  REPRISE_TRY(const std::string_view fill, arguments.text(1, " "));
  if (character_count(fill) != 1) {
    return fail(ErrorCode::kTemplateRuntime, "the fill character must be one character");
  }
  REPRISE_TRY(std::string text, padded(runtime, self.text(), align, width, fill));
  return runtime.text(std::move(text));
}

Result<Value> zfill(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const int64_t width, arguments.integer(0, 0));
  const std::string_view text = self.text();
  const size_t sign = text.starts_with('+') || text.starts_with('-') ? 1 : 0;
  REPRISE_TRY(const std::string digits,
              padded(runtime, text.substr(sign), '>',
                     std::max<int64_t>(width, 0) - static_cast<int64_t>(sign), "0"));
  return runtime.text(std::string(text.substr(0, sign)) + digits);
}

Result<Value> expand_tabs(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const int64_t size, arguments.integer(0, 8));
  REPRISE_CHECK(runtime.scan(self.text()));
  TextBuilder out(runtime);
  int64_t column = 0;
  for (size_t at = 0; at < self.text().size() && !out.overflow();) {
    const size_t start = at;
    const char32_t c = next_character(self.text(), at);
    if (c != U'\t') {
      out.append(self.text().substr(start, at - start));
      column = c == U'\n' || c == U'\r' ? 0 : column + 1;
    } else if (size > 0) {
      const int64_t spaces = size - column % size;
      out.append(static_cast<size_t>(spaces), " ");
      column += spaces;
    }
  }
  return out.finish(self.is_markup());
}

Result<Value> format(Runtime& runtime, const Value& self, const Bound& arguments) {
  return format_braces(runtime, self, arguments.rest);
}

constexpr Native kMethods[] = {
    {"capitalize", "", mapped<capitalized>},
    {"casefold", "", mapped<to_lower>},
    {"center", "width,?fillchar", justify<'c'>},
    {"expandtabs", "?tabsize", expand_tabs},
    {"format", "*", format},
    {"join", "iterable", join},
    {"ljust", "width,?fillchar", justify<'<'>},
    {"lower", "", mapped<to_lower>},
    {"lstrip", "?chars", strip_side<Side::kLeft>},
    {"partition", "sep", partition<false>},
    {"removeprefix", "prefix", remove_affix<true>},
    {"removesuffix", "suffix", remove_affix<false>},
    {"replace", "old,new,?count", replace},
    {"rjust", "width,?fillchar", justify<'>'>},
    {"rpartition", "sep", partition<true>},
    {"rsplit", "?sep,?maxsplit", split<true>},
    {"rstrip", "?chars", strip_side<Side::kRight>},
    {"split", "?sep,?maxsplit", split<false>},
    {"splitlines", "?keepends", splitlines},
    {"strip", "?chars", strip_side<Side::kBoth>},
    {"swapcase", "", mapped<swapped_case>},
    {"title", "", mapped<title_case>},
    {"upper", "", mapped<to_upper>},
    {"zfill", "width", zfill},
};

}  // namespace

std::span<const Native> text_methods() { return kMethods; }

}  // namespace reprise::jinja
