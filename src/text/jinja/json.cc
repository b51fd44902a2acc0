// tojson, as Python's json.dumps writes it.
#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "text/jinja/compare.h"
#include "text/jinja/print.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style)
      : runtime_(runtime), style_(style), out_(runtime) {}

  Result<Value> write(const Value& value) {
    REPRISE_CHECK(append(value, 0));
    return out_.finish();
  }

 private:
  Status append(const Value& value, int level);
  Status append_list(const std::vector<Value>& items, int level);
  Status append_dict(const Dict& dict, int level);
  Result<std::string> key_text(const Value& key);
  void append_text(std::string_view text);
  void append_unit(uint32_t unit) { out_.append(fmt::format("\\u{:04x}", unit)); }
  void new_line(int level) {
    if (style_.indent == nullptr) return;
    out_.append("\n");
    out_.append(static_cast<size_t>(level), *style_.indent);
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  TextBuilder out_;
};

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return float_repr(value);
}

void JsonWriter::append_text(std::string_view text) {
  out_.append("\"");
  for (size_t at = 0; at < text.size() && !out_.overflow();) {
    const size_t start = at;
    const auto c = static_cast<uint32_t>(next_character(text, at));
    static constexpr std::string_view kShort = "\"\\\n\r\t\b\f", kNames = "\"\\nrtbf";
    const size_t short_form = c < 0x80 ? kShort.find(static_cast<char>(c)) : kShort.npos;
    if (short_form != kShort.npos) {
      out_.append("\\");
      out_.append(kNames.substr(short_form, 1));
    } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7f && c < 0x10000 && c != 0x7f)) {
      append_unit(c);
    } else if (style_.ensure_ascii && c >= 0x10000) {
      append_unit(0xd800 + ((c - 0x10000) >> 10));
      append_unit(0xdc00 + ((c - 0x10000) & 0x3ff));
    } else {
      out_.append(text.substr(start, at - start));
    }
  }
  out_.append("\"");
}

Status JsonWriter::append_list(const std::vector<Value>& items, int level) {
  if (items.empty()) {
    out_.append("[]");
    return {};
  }
  out_.append("[");
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out_.append(style_.item_separator);
    new_line(level + 1);
    REPRISE_CHECK(append(items[i], level + 1));
  }
  new_line(level);
  out_.append("]");
  return {};
}

Result<std::string> JsonWriter::key_text(const Value& key) {
  switch (key.kind()) {
    case Kind::kString:
      return std::string(key.text());
    case Kind::kNone:
      return std::string("null");
    case Kind::kBool:
      return std::string(key.as_bool() ? "true" : "false");
    case Kind::kInt:
      return fmt::format("{}", key.as_int());
    case Kind::kFloat:
      return json_float(key.as_double());
    default:
      return fail(ErrorCode::kTemplateRuntime, "a JSON key cannot be of type {}", key.type_name());
  }
}

Status JsonWriter::append_dict(const Dict& dict, int level) {
  if (dict.entries.empty()) {
    out_.append("{}");
    return {};
  }
  std::vector<Value> keys;
  for (const auto& entry : dict.entries) keys.push_back(entry.first);
  std::vector<size_t> order(keys.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  if (style_.sort_keys) {
    REPRISE_TRY(order, sorted_order(runtime_, keys, false));
  }
  out_.append("{");
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0) out_.append(style_.item_separator);
    new_line(level + 1);
    REPRISE_TRY(const std::string key, key_text(keys[order[i]]));
    REPRISE_CHECK(runtime_.scan(key));
    append_text(key);
    out_.append(style_.key_separator);
    REPRISE_CHECK(append(dict.entries[order[i]].second, level + 1));
  }
  new_line(level);
  out_.append("}");
  return {};
}

Status JsonWriter::append(const Value& value, int level) {
  REPRISE_CHECK(runtime_.budget().spend(1));
  if (out_.overflow()) return fail(ErrorCode::kTemplateLimit, "the template builds too much text");
  switch (value.kind()) {
    case Kind::kNone:
      out_.append("null");
      return {};
    case Kind::kBool:
      out_.append(value.as_bool() ? "true" : "false");
      return {};
    case Kind::kInt:
      out_.append(fmt::format("{}", value.as_int()));
      return {};
    case Kind::kFloat:
      out_.append(json_float(value.as_double()));
      return {};
    case Kind::kString:
      REPRISE_CHECK(runtime_.scan(value.text()));
      append_text(value.text());
      return {};
    case Kind::kDict:
      return append_dict(value.dict(), level);
    case Kind::kSequence:
      if (value.sequence().flavour > Flavour::kGroup) break;
      return append_list(value.sequence().items, level);
    default:
      break;
  }
  if (value.is(Kind::kUndefined)) return fail(ErrorCode::kTemplateRuntime, "{}", value.hint());
  return fail(ErrorCode::kTemplateRuntime, "Object of type {} is not JSON serializable",
              value.type_name());
}

}  // namespace

Result<Value> to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  return JsonWriter(runtime, style).write(value);
}

}  // namespace reprise::jinja
