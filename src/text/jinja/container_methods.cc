// Methods of lists, tuples and dicts that leave them as they are.
#include <algorithm>

#include "base/try.h"
#include "text/jinja/compare.h"
#include "text/jinja/methods.h"
#include "text/jinja/print.h"

namespace reprise::jinja {
namespace {

Result<Value> count(Runtime& runtime, const Value& self, const Bound& arguments) {
  int64_t times = 0;
  REPRISE_CHECK(runtime.budget().spend(self.sequence().items.size() / 8));
  for (const Value& item : self.sequence().items) {
    REPRISE_TRY(const bool same, equal(runtime, item, *arguments[0]));
    times += same ? 1 : 0;
  }
  return Value::integer(times);
}

Result<Value> index(Runtime& runtime, const Value& self, const Bound& arguments) {
  const std::vector<Value>& items = self.sequence().items;
  REPRISE_CHECK(runtime.budget().spend(items.size() / 8));
  for (size_t i = 0; i < items.size(); ++i) {
    REPRISE_TRY(const bool same, equal(runtime, items[i], *arguments[0]));
    if (same) return Value::integer(static_cast<int64_t>(i));
  }
  REPRISE_TRY(const std::string shown, repr(runtime, *arguments[0]));
  return fail(ErrorCode::kTemplateRuntime, "{} is not in the list", shown);
}

Result<Value> copy(Runtime&, const Value& self, const Bound&) { return self; }

Result<Value> get(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_CHECK(check_hashable(*arguments[0]));
  REPRISE_TRY(const Value* found, runtime.find(self.dict(), *arguments[0]));
  if (found != nullptr) return *found;
  return arguments[1] != nullptr ? *arguments[1] : Value::none();
}

Result<Value> keys(Runtime& runtime, const Value& self, const Bound&) {
  REPRISE_TRY(std::vector<Value> found, runtime.iterate(self));
  return runtime.sequence(Flavour::kKeys, std::move(found));
}

Result<Value> values(Runtime& runtime, const Value& self, const Bound&) {
  std::vector<Value> found;
  for (const auto& entry : self.dict().entries) found.push_back(entry.second);
  return runtime.sequence(Flavour::kValues, std::move(found));
}

Result<Value> items(Runtime& runtime, const Value& self, const Bound&) {
  std::vector<Value> found;
  for (const auto& [key, value] : self.dict().entries) {
    REPRISE_TRY(Value pair, runtime.sequence(Flavour::kTuple, {key, value}));
    found.push_back(std::move(pair));
  }
  return runtime.sequence(Flavour::kItems, std::move(found));
}

constexpr Native kListMethods[] = {
    {"copy", "", copy}, {"count", "value", count}, {"index", "value", index}};

constexpr Native kDictMethods[] = {{"copy", "", copy},
                                   {"get", "key,?default", get},
                                   {"items", "", items},
                                   {"keys", "", keys},
                                   {"values", "", values}};

const Native* find_in(std::span<const Native> table, std::string_view name) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const Native& n) { return n.name == name; });
  return found == table.end() ? nullptr : &*found;
}

}  // namespace

std::span<const Native> list_methods() { return kListMethods; }

std::span<const Native> dict_methods() { return kDictMethods; }

const Native* find_method(const Value& value, std::string_view name) {
  if (value.is(Kind::kString)) {
    const Native* found = find_in(text_methods(), name);
    return found != nullptr ? found : find_in(text_queries(), name);
  }
  if (value.is(Kind::kDict)) return find_in(dict_methods(), name);
  if (value.is(Flavour::kTuple) || value.is(Flavour::kGroup) || value.is(Flavour::kRange)) {
    return name == "copy" ? nullptr : find_in(list_methods(), name);
  }
  return value.is(Flavour::kList) ? find_in(list_methods(), name) : nullptr;
}

bool is_mutator(const Value& value, std::string_view name) {
  static constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                               "insert", "sort",  "extend", "remove"};
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  const auto in = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return (value.is(Flavour::kList) && in(kList)) || (value.is(Kind::kDict) && in(kDict));
}

}  // namespace reprise::jinja
