#include "text/jinja/native.h"

#include <algorithm>

#include "base/try.h"

namespace reprise::jinja {
namespace {

// Takes the next name off a list divided by commas.
std::string_view take_name(std::string_view& list) {
  const size_t end = std::min(list.find(','), list.size());
  const std::string_view name = list.substr(0, end);
  list.remove_prefix(std::min(end + 1, list.size()));
  return name;
}

Result<Bound> bind(const Native& native, const Arguments& arguments) {
  Bound bound;
  std::vector<bool> named_used(arguments.named.size());
  bool optional = false, open = false;
  size_t positional = 0;
  for (std::string_view list = native.parameters; !list.empty();) {
    std::string_view name = take_name(list);
    open = name == "*";
    if (open) break;
    optional |= name.starts_with('?');
    if (name.starts_with('?')) name.remove_prefix(1);
    const Value* value = nullptr;
    if (positional < arguments.positional.size()) value = &arguments.positional[positional++];
    for (size_t i = 0; i < arguments.named.size(); ++i) {
      if (arguments.named[i].first != name) continue;
      if (value != nullptr) {
        return fail(ErrorCode::kTemplateRuntime, "{}() got two values for '{}'", native.name, name);
      }
      value = &arguments.named[i].second;
      named_used[i] = true;
    }
    if (value == nullptr && !optional) {
      return fail(ErrorCode::kTemplateRuntime, "{}() needs an argument '{}'", native.name, name);
    }
    bound.values.push_back(value);
  }
  if (open) {
    const auto from = arguments.positional.begin() + static_cast<ptrdiff_t>(positional);
    bound.rest.positional.assign(from, arguments.positional.end());
  } else if (positional < arguments.positional.size()) {
    return fail(ErrorCode::kTemplateRuntime, "{}() takes at most {} arguments", native.name,
                positional);
  }
  for (size_t i = 0; i < arguments.named.size(); ++i) {
    if (named_used[i]) continue;
    if (!open) {
      return fail(ErrorCode::kTemplateRuntime, "{}() has no argument '{}'", native.name,
                  arguments.named[i].first);
    }
    bound.rest.named.push_back(arguments.named[i]);
  }
  return bound;
}

}  // namespace

Result<int64_t> Bound::integer(size_t i, int64_t otherwise) const {
  if (values[i] == nullptr) return otherwise;
  if (!values[i]->is_integral()) return type_error("place of an integer", *values[i]);
  return values[i]->as_int();
}

Result<std::string_view> Bound::text(size_t i, std::string_view otherwise) const {
  if (values[i] == nullptr) return otherwise;
  if (!values[i]->is(Kind::kString)) return type_error("place of a string", *values[i]);
  return values[i]->text();
}

Result<Value> call_native(Runtime& runtime, const Native& native, const Value& self,
                          const Arguments& arguments) {
  REPRISE_TRY(const Bound bound, bind(native, arguments));
  return native.function(runtime, self, bound);
}

}  // namespace reprise::jinja
