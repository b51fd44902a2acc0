// map, and the filters that keep the elements which pass a test.
#include "base/try.h"
#include "text/jinja/filters.h"

namespace reprise::jinja {
namespace {

Result<Value> map_attribute(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const Value *path = nullptr, *otherwise = nullptr;
  for (const auto& [name, value] : arguments.named) {
    if (name != "attribute" && name != "default") {
      return fail(ErrorCode::kTemplateRuntime, "map() has no argument '{}'", name);
    }
    (name == "attribute" ? path : otherwise) = &value;
  }
  if (path == nullptr) {
    return fail(ErrorCode::kTemplateRuntime, "map requires a filter argument");
  }
  REPRISE_TRY(const AttributeGetter getter, AttributeGetter::make(path));
  REPRISE_TRY(const std::vector<Value> elements, runtime.iterate(self));
  std::vector<Value> mapped;
  for (const Value& element : elements) {
    REPRISE_TRY(Value value, getter.get(runtime, element, otherwise));
    mapped.push_back(std::move(value));
  }
  return runtime.sequence(Flavour::kGenerator, std::move(mapped));
}

Result<Value> map(Runtime& runtime, const Value& self, const Bound& bound) {
  Arguments arguments = bound.rest;
  if (!self.truthy()) return runtime.sequence(Flavour::kGenerator, {});
  if (arguments.positional.empty()) return map_attribute(runtime, self, arguments);
  const Value name = arguments.positional[0];
  arguments.positional.erase(arguments.positional.begin());
  const Native* filter = name.is(Kind::kString) ? find_filter(name.text()) : nullptr;
  if (filter == nullptr) return fail(ErrorCode::kTemplateRuntime, "map: there is no such filter");
  REPRISE_TRY(const std::vector<Value> elements, runtime.iterate(self));
  std::vector<Value> mapped;
  for (const Value& element : elements) {
    REPRISE_CHECK(runtime.budget().spend(1));
    REPRISE_TRY(Value value, call_native(runtime, *filter, element, arguments));
    mapped.push_back(std::move(value));
  }
  return runtime.sequence(Flavour::kGenerator, std::move(mapped));
}

// Keeps the elements whose value (or attribute, the first argument) passes the test, or fails it.
template <bool keep, bool by_attribute>
Result<Value> select(Runtime& runtime, const Value& self, const Bound& bound) {
  Arguments arguments = bound.rest;
  const auto take = [&] {
    Value taken = arguments.positional.front();
    arguments.positional.erase(arguments.positional.begin());
    return taken;
  };
  if (!self.truthy()) return runtime.sequence(Flavour::kGenerator, {});
  Value path = Value::none();
  if (by_attribute) {
    if (arguments.positional.empty()) {
      return fail(ErrorCode::kTemplateRuntime, "Missing parameter for attribute name");
    }
    path = take();
  }
  REPRISE_TRY(const AttributeGetter getter, AttributeGetter::make(&path));
  const Native* test = nullptr;
  if (!arguments.positional.empty()) {
    const Value name = take();
    if (name.is(Kind::kString)) test = find_test(name.text());
    if (test == nullptr) return fail(ErrorCode::kTemplateRuntime, "there is no such test");
  }
  REPRISE_TRY(const std::vector<Value> elements, runtime.iterate(self));
  std::vector<Value> kept;
  for (const Value& element : elements) {
    REPRISE_TRY(Value value, getter.get(runtime, element));
    if (test != nullptr) {
      REPRISE_TRY(value, call_native(runtime, *test, value, arguments));
    }
    if (value.truthy() == keep) kept.push_back(element);
  }
  return runtime.sequence(Flavour::kGenerator, std::move(kept));
}

constexpr Native kFilters[] = {
    {"map", "*", map},
    {"reject", "*", select<false, false>},
    {"rejectattr", "*", select<false, true>},
    {"select", "*", select<true, false>},
    {"selectattr", "*", select<true, true>},
};

}  // namespace

std::span<const Native> select_filters() { return kFilters; }

}  // namespace reprise::jinja
