#include "text/jinja/print.h"

#include <utf8proc.h>

#include <charconv>
#include <cmath>

#include "base/try.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

Status append_repr(Runtime& runtime, const Value& value, int depth, TextBuilder& out);

bool is_printable(char32_t character) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(character))) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return character == U' ';
    default:
      return true;
  }
}

void append_text_repr(std::string_view text, TextBuilder& out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out.append({&quote, 1});
  for (size_t at = 0; at < text.size() && !out.overflow();) {
    const size_t start = at;
    const char32_t c = next_character(text, at);
    if (c == U'\\' || c == static_cast<char32_t>(quote)) {
      out.append("\\");
      out.append(text.substr(start, 1));
    } else if (c == U'\n' || c == U'\r' || c == U'\t') {
      out.append(c == U'\n' ? "\\n" : c == U'\r' ? "\\r" : "\\t");
    } else if (is_printable(c)) {
      out.append(text.substr(start, at - start));
    } else {
      const auto code = static_cast<uint32_t>(c);
      out.append(code < 0x100     ? fmt::format("\\x{:02x}", code)
                 : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                                  : fmt::format("\\U{:08x}", code));
    }
  }
  out.append({&quote, 1});
}

Status append_items(Runtime& runtime, const std::vector<Value>& items, int depth,
                    TextBuilder& out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ");
    REPRISE_CHECK(append_repr(runtime, items[i], depth, out));
  }
  return {};
}

Status append_sequence(Runtime& runtime, const Sequence& sequence, int depth, TextBuilder& out) {
  static constexpr std::pair<std::string_view, std::string_view> kBrackets[] = {
      {"[", "]"},
      {"(", ")"},
      {"(", ")"},
      {"range", ""},
      {"<generator object>", ""},
      {"dict_keys([", "])"},
      {"dict_values([", "])"},
      {"dict_items([", "])"}};
  const auto [open, close] = kBrackets[static_cast<size_t>(sequence.flavour)];
  const std::vector<Value>& items = sequence.items;
  out.append(open);
  if (sequence.flavour == Flavour::kGenerator) return {};
  if (sequence.flavour == Flavour::kRange) {
    const int64_t start = items.empty() ? 0 : items[0].as_int();
    const int64_t step = items.size() < 2 ? 1 : items[1].as_int() - start;
    const int64_t stop = items.empty() ? 0 : items.back().as_int() + (step > 0 ? 1 : -1);
    out.append(step == 1 ? fmt::format("({}, {})", start, stop)
                         : fmt::format("({}, {}, {})", start, stop, step));
    return {};
  }
  REPRISE_CHECK(append_items(runtime, items, depth, out));
  if (open == "(" && items.size() == 1) out.append(",");
  out.append(close);
  return {};
}

Status append_dict(Runtime& runtime, const Dict& dict, int depth, TextBuilder& out) {
  out.append("{");
  bool first = true;
  for (const auto& [key, value] : dict.entries) {
    if (!first) out.append(", ");
    first = false;
    REPRISE_CHECK(append_repr(runtime, key, depth, out));
    out.append(": ");
    REPRISE_CHECK(append_repr(runtime, value, depth, out));
  }
  out.append("}");
  return {};
}

Status append_namespace(Runtime& runtime, const Namespace& space, int depth, TextBuilder& out) {
  out.append("<Namespace {");
  bool first = true;
  for (const auto& [name, value] : space.entries) {
    if (!first) out.append(", ");
    first = false;
    append_text_repr(name, out);
    out.append(": ");
    REPRISE_CHECK(append_repr(runtime, value, depth, out));
  }
  out.append("}>");
  return {};
}

Status append_repr(Runtime& runtime, const Value& value, int depth, TextBuilder& out) {
  REPRISE_CHECK(runtime.budget().spend(1));
  if (depth >= runtime.limits().max_depth || out.overflow()) {
    return fail(ErrorCode::kTemplateLimit, "a value is too large or too deep to print");
  }
  switch (value.kind()) {
    case Kind::kUndefined:
      out.append("Undefined");
      return {};
    case Kind::kNone:
      out.append("None");
      return {};
    case Kind::kBool:
      out.append(value.as_bool() ? "True" : "False");
      return {};
    case Kind::kInt:
      out.append(fmt::format("{}", value.as_int()));
      return {};
    case Kind::kFloat:
      out.append(float_repr(value.as_double()));
      return {};
    case Kind::kString:
      REPRISE_CHECK(runtime.scan(value.text()));
      if (value.is_markup()) out.append("Markup(");
      append_text_repr(value.text(), out);
      if (value.is_markup()) out.append(")");
      return {};
    case Kind::kSequence:
      return append_sequence(runtime, value.sequence(), depth + 1, out);
    case Kind::kDict:
      return append_dict(runtime, value.dict(), depth + 1, out);
    case Kind::kNamespace:
      return append_namespace(runtime, value.name_space(), depth + 1, out);
    default:
      out.append(fmt::format("<{}>", value.type_name()));
      return {};
  }
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::fabs(value);
  const bool scientific = size != 0 && (size >= 1e16 || size < 1e-4);
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value,
                    scientific ? std::chars_format::scientific : std::chars_format::fixed);
  std::string text(buffer, end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

Result<std::string> repr(Runtime& runtime, const Value& value) {
  TextBuilder out(runtime);
  REPRISE_CHECK(append_repr(runtime, value, 0, out));
  return out.take();
}

Result<std::string> str(Runtime& runtime, const Value& value) {
  if (value.is(Kind::kString)) {
    REPRISE_CHECK(runtime.scan(value.text()));
    return std::string(value.text());
  }
  if (value.is(Kind::kUndefined)) return std::string();
  return repr(runtime, value);
}

Result<Value> str_value(Runtime& runtime, const Value& value) {
  if (value.is(Kind::kString)) return value;
  REPRISE_TRY(std::string text, str(runtime, value));
  return runtime.text(std::move(text));
}

void append_escaped(TextBuilder& out, std::string_view text) {
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find_first_of("&<>'\"", start), text.size());
    out.append(text.substr(start, end - start));
    if (end == text.size()) return;
    switch (text[end]) {
      case '&':
        out.append("&amp;");
        break;
      case '<':
        out.append("&lt;");
        break;
      case '>':
        out.append("&gt;");
        break;
      case '\'':
        out.append("&#39;");
        break;
      default:
        out.append("&#34;");
        break;
    }
    start = end + 1;
  }
}

}  // namespace reprise::jinja
