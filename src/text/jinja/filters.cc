#include "text/jinja/filters.h"

#include <algorithm>

#include "base/try.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {

const Native* find_filter(std::string_view name) {
  for (const auto table :
       {text_filters(), value_filters(), sequence_filters(), order_filters(), select_filters()}) {
    const auto found = std::find_if(table.begin(), table.end(),
                                    [&](const Native& filter) { return filter.name == name; });
    if (found != table.end()) return &*found;
  }
  return nullptr;
}

Result<AttributeGetter> AttributeGetter::make(const Value* path) {
  AttributeGetter getter;
  if (path == nullptr || path->is(Kind::kNone)) return getter;
  if (path->is_integral()) {
    getter.parts_.push_back(*path);
    return getter;
  }
  if (!path->is(Kind::kString)) return type_error("place of an attribute", *path);
  const std::string_view text = path->text();
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('.', at), text.size());
    const std::string_view part = text.substr(at, end - at);
    const bool index =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    getter.parts_.push_back(index ? Value::integer(std::stoll(std::string(part)))
                                  : Value::borrowed(part));
    at = end + 1;
  }
  return getter;
}

Result<Value> AttributeGetter::get(Runtime& runtime, const Value& value,
                                   const Value* otherwise) const {
  REPRISE_CHECK(runtime.budget().spend(1));
  Value current = value;
  for (const Value& part : parts_) {
    REPRISE_TRY(current, runtime.item(current, part));
    if (current.is(Kind::kUndefined) && otherwise != nullptr) return *otherwise;
  }
  return current;
}

Result<Value> sort_key(Runtime& runtime, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is(Kind::kString)) return value;
  REPRISE_CHECK(runtime.scan(value.text()));
  return runtime.text(to_lower(value.text()));
}

}  // namespace reprise::jinja
