// Filters that sort, compare or group elements.
#include "base/try.h"
#include "text/jinja/compare.h"
#include "text/jinja/filters.h"

namespace reprise::jinja {
namespace {

// What each element is compared by: one attribute, or a tuple of several divided by commas.
Result<std::vector<Value>> keys_of(Runtime& runtime, const std::vector<Value>& elements,
                                   const Value* path, bool case_sensitive,
                                   const Value* otherwise = nullptr) {
  REPRISE_TRY(const AttributeGetter getter, AttributeGetter::make(path));
  std::vector<Value> keys;
  for (const Value& element : elements) {
    REPRISE_TRY(const Value value, getter.get(runtime, element, otherwise));
    REPRISE_TRY(Value key, sort_key(runtime, value, case_sensitive));
    keys.push_back(std::move(key));
  }
  return keys;
}

Result<std::vector<Value>> tuple_keys_of(Runtime& runtime, const std::vector<Value>& elements,
                                         const Value* path, bool case_sensitive) {
  const bool several = path != nullptr && path->is(Kind::kString) &&
                       path->text().find(',') != std::string_view::npos;
  if (!several) return keys_of(runtime, elements, path, case_sensitive);
  std::vector<std::vector<Value>> columns(elements.size());
  const std::string_view paths = path->text();
  for (size_t at = 0; at <= paths.size();) {
    const size_t end = std::min(paths.find(',', at), paths.size());
    const Value part = Value::borrowed(paths.substr(at, end - at));
    REPRISE_TRY(std::vector<Value> keys, keys_of(runtime, elements, &part, case_sensitive));
    for (size_t i = 0; i < keys.size(); ++i) columns[i].push_back(std::move(keys[i]));
    at = end + 1;
  }
  std::vector<Value> tuples;
  for (std::vector<Value>& column : columns) {
    REPRISE_TRY(Value tuple, runtime.sequence(Flavour::kTuple, std::move(column)));
    tuples.push_back(std::move(tuple));
  }
  return tuples;
}

Result<Value> sort(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::vector<Value> elements, runtime.iterate(self));
  REPRISE_TRY(const std::vector<Value> keys,
              tuple_keys_of(runtime, elements, arguments[2], arguments.flag(1)));
  REPRISE_TRY(const std::vector<size_t> order, sorted_order(runtime, keys, arguments.flag(0)));
  std::vector<Value> sorted;
  sorted.reserve(order.size());
  for (const size_t i : order) sorted.push_back(elements[i]);
  return runtime.sequence(Flavour::kList, std::move(sorted));
}

Result<Value> dict_sort(Runtime& runtime, const Value& self, const Bound& arguments) {
  if (!self.is(Kind::kDict)) return type_error("dictsort", self);
  REPRISE_TRY(const std::string_view by, arguments.text(1, "key"));
  if (by != "key" && by != "value") {
    return fail(ErrorCode::kTemplateRuntime, "You can only sort by either \"key\" or \"value\"");
  }
  std::vector<Value> pairs, keys;
  for (const auto& [key, value] : self.dict().entries) {
    REPRISE_TRY(Value pair, runtime.sequence(Flavour::kTuple, {key, value}));
    pairs.push_back(std::move(pair));
    REPRISE_TRY(Value by_what, sort_key(runtime, by == "key" ? key : value, arguments.flag(0)));
    keys.push_back(std::move(by_what));
  }
  REPRISE_TRY(const std::vector<size_t> order, sorted_order(runtime, keys, arguments.flag(2)));
  std::vector<Value> sorted;
  sorted.reserve(order.size());
  for (const size_t i : order) sorted.push_back(pairs[i]);
  return runtime.sequence(Flavour::kList, std::move(sorted));
}

template <bool largest>
Result<Value> extreme(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::vector<Value> elements, runtime.iterate(self));
  if (elements.empty()) return runtime.undefined("No aggregated item, sequence was empty.");
  REPRISE_TRY(const std::vector<Value> keys,
              keys_of(runtime, elements, arguments[1], arguments.flag(0)));
  size_t best = 0;
  for (size_t i = 1; i < keys.size(); ++i) {
    REPRISE_TRY(const bool better,
                largest ? less(runtime, keys[best], keys[i]) : less(runtime, keys[i], keys[best]));
    if (better) best = i;
  }
  return elements[best];
}

Result<Value> unique(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::vector<Value> elements, runtime.iterate(self));
  REPRISE_TRY(const std::vector<Value> keys,
              keys_of(runtime, elements, arguments[1], arguments.flag(0)));
  std::vector<Value> kept, seen;
  for (size_t i = 0; i < elements.size(); ++i) {
    REPRISE_CHECK(check_hashable(keys[i]));
    REPRISE_CHECK(runtime.budget().spend(1 + seen.size() / 8));
    bool known = false;
    for (size_t j = 0; j < seen.size() && !known; ++j) {
      REPRISE_TRY(known, equal(runtime, seen[j], keys[i]));
    }
    if (known) continue;
    seen.push_back(keys[i]);
    kept.push_back(elements[i]);
  }
  return runtime.sequence(Flavour::kGenerator, std::move(kept));
}

Result<Value> group_by(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const std::vector<Value> elements, runtime.iterate(self));
  REPRISE_TRY(const std::vector<Value> keys,
              keys_of(runtime, elements, arguments[0], arguments.flag(2), arguments[1]));
  REPRISE_TRY(const std::vector<Value> names,
              keys_of(runtime, elements, arguments[0], true, arguments[1]));
  REPRISE_TRY(const std::vector<size_t> order, sorted_order(runtime, keys, false));
  std::vector<Value> groups, members;
  for (size_t i = 0; i < order.size(); ++i) {
    members.push_back(elements[order[i]]);
    bool more = i + 1 < order.size();
    if (more) {
      REPRISE_TRY(more, equal(runtime, keys[order[i]], keys[order[i + 1]]));
    }
    if (more) continue;
    const Value& name = names[order[i + 1 - members.size()]];
    REPRISE_TRY(Value list, runtime.sequence(Flavour::kList, std::exchange(members, {})));
    REPRISE_TRY(Value group, runtime.sequence(Flavour::kGroup, {name, std::move(list)}));
    groups.push_back(std::move(group));
  }
  return runtime.sequence(Flavour::kList, std::move(groups));
}

constexpr Native kFilters[] = {
    {"dictsort", "?case_sensitive,?by,?reverse", dict_sort},
    {"groupby", "attribute,?default,?case_sensitive", group_by},
    {"max", "?case_sensitive,?attribute", extreme<true>},
    {"min", "?case_sensitive,?attribute", extreme<false>},
    {"sort", "?reverse,?case_sensitive,?attribute", sort},
    {"unique", "?case_sensitive,?attribute", unique},
};

}  // namespace

std::span<const Native> order_filters() { return kFilters; }

}  // namespace reprise::jinja
