#include "text/jinja/format.h"

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "text/jinja/print.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

tl::unexpected<Error> bad_format(std::string_view problem) {
  return fail(ErrorCode::kTemplateRuntime, "format: {}", problem);
}

// A run of digits at position at, which moves behind it; -1 when there is none.
int64_t read_number(std::string_view text, size_t& at) {
  if (at >= text.size() || !is_digit(text[at])) return -1;
  int64_t value = 0;
  for (; at < text.size() && is_digit(text[at]); ++at) {
    value = std::min<int64_t>(value * 10 + (text[at] - '0'), INT32_MAX);
  }
  return value;
}

// Walks the values of a % operation.
class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, std::string_view text, const Value& values)
      : runtime_(runtime), text_(text), values_(values), out_(runtime) {
    is_tuple_ = values.is(Flavour::kTuple) || values.is(Flavour::kGroup);
  }
  Result<Value> run();

 private:
  Status append_directive();
  Result<Value> next_value();
  Result<Value> named_value();

  Runtime& runtime_;
  std::string_view text_;
  const Value& values_;
  TextBuilder out_;
  size_t at_ = 0;
  size_t used_ = 0;
  bool is_tuple_ = false;
  bool named_ = false;
};

Result<Value> PercentFormatter::next_value() {
  const size_t count = is_tuple_ ? values_.sequence().items.size() : 1;
  if (used_ >= count) return bad_format("not enough arguments for format string");
  ++used_;
  return is_tuple_ ? values_.sequence().items[used_ - 1] : values_;
}

Result<Value> PercentFormatter::named_value() {
  const size_t end = text_.find(')', at_);
  if (end == text_.npos) return bad_format("incomplete format key");
  if (!values_.is(Kind::kDict)) return bad_format("format requires a mapping");
  const std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
  at_ = end + 1;
  named_ = true;
  REPRISE_TRY(const Value* found, runtime_.find(values_.dict(), Value::borrowed(name)));
  if (found == nullptr) return bad_format(fmt::format("no value for '{}'", name));
  return *found;
}

Status PercentFormatter::append_directive() {
  REPRISE_CHECK(runtime_.budget().spend(1));
  FormatSpec spec;
  spec.align = '>';
  Value value;
  const bool named = at_ < text_.size() && text_[at_] == '(';
  if (named) {
    REPRISE_TRY(value, named_value());
  }
  bool zero = false;
  for (; at_ < text_.size(); ++at_) {
    const char flag = text_[at_];
    if (flag == '-') spec.align = '<';
    if (flag == '+' || (flag == ' ' && spec.sign == '-')) spec.sign = flag;
    if (flag == '#') spec.alternate = true;
    if (flag == '0') zero = true;
    if (std::string_view("-+ #0").find(flag) == std::string_view::npos) break;
  }
  spec.width = std::max<int64_t>(read_number(text_, at_), 0);
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    spec.precision = std::max<int64_t>(read_number(text_, at_), 0);
  }
  if (at_ >= text_.size()) return bad_format("incomplete format");
  const char type = text_[at_++];
  if (type == '%') {
    out_.append("%");
    return {};
  }
  if (!named) {
    REPRISE_TRY(value, next_value());
  }
  if (type == 's' || type == 'r' || type == 'a') {
    REPRISE_TRY(std::string shown, type == 's' ? str(runtime_, value) : repr(runtime_, value));
    REPRISE_TRY(value, runtime_.text(std::move(shown)));
    spec.type = 's';
  } else if (std::string_view("diuxXoeEfFgGc").find(type) == std::string_view::npos) {
    return bad_format(fmt::format("unsupported format character {:?}", std::string_view(&type, 1)));
  } else if (type != 'c' || value.is_integral()) {
    if (!value.is_number()) return bad_format(fmt::format("%{} needs a number", type));
    spec.type = type == 'i' || type == 'u' ? 'd' : type;
    if (spec.type == 'd' && value.is(Kind::kFloat)) {
      if (!(std::fabs(value.as_double()) < 0x1p63)) {
        return bad_format(fmt::format("%{} of a number that takes more than 64 bits", type));
      }
      value = Value::integer(static_cast<int64_t>(value.as_double()));
    }
    if (zero && spec.align != '<') {
      spec.align = '=';
      spec.fill = "0";
    }
  }
  REPRISE_TRY(const std::string shown, format_value(runtime_, value, spec));
  out_.append(shown);
  return {};
}

Result<Value> PercentFormatter::run() {
  while (at_ < text_.size() && !out_.overflow()) {
    const size_t mark = std::min(text_.find('%', at_), text_.size());
    out_.append(text_.substr(at_, mark - at_));
    at_ = mark + 1;
    if (mark == text_.size()) break;
    REPRISE_CHECK(append_directive());
  }
  const bool all_used =
      is_tuple_ ? used_ == values_.sequence().items.size()
                : used_ == 1 || named_ || values_.is(Kind::kDict) || values_.is(Flavour::kList);
  if (!all_used) return bad_format("not all arguments converted during string formatting");
  return out_.finish();
}

// The part of a replacement field behind the colon.
Result<FormatSpec> parse_spec(std::string_view text) {
  static constexpr std::string_view kAligns = "<>^=";
  FormatSpec spec;
  size_t at = 0;
  const size_t first = text.empty() ? 0 : character_size(text, 0);
  if (first < text.size() && kAligns.find(text[first]) != kAligns.npos) {
    spec.fill = std::string(text.substr(0, first));
    at = first;
  }
  const auto is_at = [&](std::string_view set) {
    return at < text.size() && set.find(text[at]) != set.npos;
  };
  if (is_at(kAligns)) spec.align = text[at++];
  if (is_at("+- ")) spec.sign = text[at++];
  if (is_at("#")) spec.alternate = text[at++] == '#';
  if (is_at("0")) {
    ++at;
    if (spec.align == '\0') {
      spec.align = '=';
      spec.fill = "0";
    }
  }
  spec.width = std::max<int64_t>(read_number(text, at), 0);
  if (is_at(",_")) spec.grouping = text[at++];
  if (is_at(".")) {
    ++at;
    spec.precision = read_number(text, at);
    if (spec.precision < 0) return bad_format("Format specifier missing precision");
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) return bad_format("Invalid format specifier");
  return spec;
}

// The value that a field such as "0", "name", "name.attribute" or "name[key]" denotes.
Result<Value> field_value(Runtime& runtime, std::string_view field, const Arguments& arguments,
                          size_t& automatic) {
  REPRISE_CHECK(runtime.scan(field));
  const size_t end = std::min(field.find_first_of(".["), field.size());
  const std::string_view name = field.substr(0, end);
  Value value;
  if (name.empty() || is_digit(name[0])) {
    size_t digits = 0;
    const size_t index =
        name.empty() ? automatic++ : static_cast<size_t>(read_number(name, digits));
    if (index >= arguments.positional.size()) {
      return bad_format("Replacement index out of range for positional args tuple");
    }
    value = arguments.positional[index];
  } else {
    const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    if (found == arguments.named.end()) return bad_format(fmt::format("no value for '{}'", name));
    value = found->second;
  }
  for (size_t at = end; at < field.size();) {
    REPRISE_CHECK(runtime.budget().spend(1));
    const bool subscript = field[at] == '[';
    const size_t stop =
        subscript ? field.find(']', at) : std::min(field.find_first_of(".[", at + 1), field.size());
    if (stop == field.npos) return bad_format("Missing ']' in format string");
    const std::string_view key = field.substr(at + 1, stop - at - 1);
    size_t digits = 0;
    const int64_t index = read_number(key, digits);
    const bool number = subscript && index >= 0 && digits == key.size();
    REPRISE_TRY(value, subscript ? runtime.item(
                                       value, number ? Value::integer(index) : Value::borrowed(key))
                                 : runtime.attribute(value, key));
    at = stop + (subscript ? 1 : 0);
  }
  return value;
}

}  // namespace

Result<Value> format_percent(Runtime& runtime, const Value& text, const Value& values) {
  return PercentFormatter(runtime, text.text(), values).run();
}

Result<Value> format_braces(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const std::string_view text = self.text();
  TextBuilder out(runtime);
  size_t automatic = 0;
  for (size_t at = 0; at < text.size() && !out.overflow();) {
    const size_t brace = std::min(text.find_first_of("{}", at), text.size());
    out.append(text.substr(at, brace - at));
    if (brace == text.size()) break;
    if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
      out.append(text.substr(brace, 1));
      at = brace + 2;
      continue;
    }
    const size_t end = text.find('}', brace);
    if (text[brace] == '}' || end == text.npos) return bad_format("Single brace in format string");
    std::string_view field = text.substr(brace + 1, end - brace - 1);
    at = end + 1;
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string_view spec_text = field.substr(std::min(colon + 1, field.size()));
    field = field.substr(0, colon);
    const size_t mark = field.find('!');
    REPRISE_TRY(Value value, field_value(runtime, field.substr(0, mark), arguments, automatic));
    if (mark != field.npos) {
      REPRISE_TRY(std::string shown,
                  field.substr(mark) == "!r" ? repr(runtime, value) : str(runtime, value));
      REPRISE_TRY(value, runtime.text(std::move(shown)));
    }
    REPRISE_TRY(const FormatSpec spec, parse_spec(spec_text));
    REPRISE_TRY(const std::string shown, format_value(runtime, value, spec));
    out.append(shown);
  }
  return out.finish();
}

}  // namespace reprise::jinja
