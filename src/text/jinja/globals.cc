// Functions that every template can call, and the members of `loop`.
#include <algorithm>
#include <ctime>

#include "base/try.h"
#include "text/jinja/compare.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/print.h"

namespace reprise::jinja {
namespace {

constexpr uint64_t kMaxRange = 100'000;  // as Jinja's sandbox

Value bound_function(const Native& native, const Value& self) {
  auto function = std::make_shared<Function>();
  function->native = &native;
  function->self = self;
  return Value::object(Kind::kFunction, std::move(function));
}

Result<Value> range(Runtime& runtime, const Value&, const Bound& arguments) {
  REPRISE_TRY(const int64_t first, arguments.integer(0, 0));
  REPRISE_TRY(const int64_t second, arguments.integer(1, first));
  REPRISE_TRY(const int64_t step, arguments.integer(2, 1));
  const int64_t start = arguments[1] == nullptr ? 0 : first;
  if (step == 0) return fail(ErrorCode::kTemplateRuntime, "range() arg 3 must not be zero");
  const bool empty = step > 0 ? start >= second : start <= second;
  if (empty) return runtime.sequence(Flavour::kRange, {});
  // In unsigned arithmetic no difference of two 64-bit integers overflows.
  const uint64_t from = static_cast<uint64_t>(start), to = static_cast<uint64_t>(second);
  const uint64_t span = step > 0 ? to - from : from - to;
  const uint64_t stride =
      step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  const uint64_t count = (span - 1) / stride + 1;
  if (count > kMaxRange) {
    return fail(ErrorCode::kTemplateRuntime, "Range too big. The limit is {}", kMaxRange);
  }
  std::vector<Value> items;
  for (uint64_t i = 0; i < count; ++i) {
    items.push_back(Value::integer(static_cast<int64_t>(from + i * static_cast<uint64_t>(step))));
  }
  return runtime.sequence(Flavour::kRange, std::move(items));
}

// The pairs of dict(mapping, name=value, ...).
Result<std::vector<std::pair<Value, Value>>> pairs_of(Runtime& runtime, const Bound& bound) {
  std::vector<std::pair<Value, Value>> entries;
  const Arguments& given = bound.rest;
  if (given.positional.size() > 1) {
    return fail(ErrorCode::kTemplateRuntime, "expected at most 1 argument, got {}",
                given.positional.size());
  }
  if (!given.positional.empty() && given.positional[0].is(Kind::kDict)) {
    entries = given.positional[0].dict().entries;
  } else if (!given.positional.empty()) {
    REPRISE_TRY(const std::vector<Value> items, runtime.iterate(given.positional[0]));
    for (const Value& item : items) {
      REPRISE_TRY(std::vector<Value> pair, runtime.iterate(item));
      if (pair.size() != 2) return type_error("place of a pair", item);
      entries.emplace_back(std::move(pair[0]), std::move(pair[1]));
    }
  }
  for (const auto& [name, value] : given.named) {
    REPRISE_TRY(Value key, runtime.text(name));
    entries.emplace_back(std::move(key), value);
  }
  return entries;
}

Result<Value> make_dict(Runtime& runtime, const Value&, const Bound& bound) {
  REPRISE_TRY(auto entries, pairs_of(runtime, bound));
  return runtime.dict(std::move(entries));
}

Result<Value> make_namespace(Runtime& runtime, const Value& self, const Bound& bound) {
  REPRISE_TRY(const Value entries, make_dict(runtime, self, bound));
  REPRISE_TRY(Value space, runtime.name_space());
  for (const auto& [key, value] : entries.dict().entries) {
    if (!key.is(Kind::kString)) return type_error("place of an attribute's name", key);
    REPRISE_CHECK(runtime.budget().reserve(sizeof(Value) * 2));
    space.name_space().entries.emplace_back(key.text(), value);
  }
  return space;
}

Result<Value> raise_exception(Runtime& runtime, const Value&, const Bound& arguments) {
  REPRISE_TRY(const std::string message, str(runtime, *arguments[0]));
  return fail(ErrorCode::kTemplateRuntime, "{}", message);
}

Result<Value> strftime_now(Runtime& runtime, const Value&, const Bound& arguments) {
  REPRISE_TRY(const std::string_view format, arguments.text(0, ""));
  const auto now = static_cast<time_t>(runtime.now());
  tm parts = {};
  gmtime_r(&now, &parts);
  // A space more, so that an empty result differs from one that does not fit.
  const std::string pattern = std::string(format) + ' ';
  char buffer[1024];
  const size_t size = strftime(buffer, sizeof buffer, pattern.c_str(), &parts);
  if (size == 0) return fail(ErrorCode::kTemplateLimit, "strftime_now: the result is too long");
  return runtime.text(std::string(buffer, size - 1));
}

// A cycler is a namespace whose functions know it.
Result<Value> cycler_step(Runtime&, const Value& self, int64_t position, bool returns_new) {
  Namespace& space = self.name_space();
  const std::vector<Value>& items = space.find("items")->sequence().items;
  const Value before = *space.find("current");
  *space.find("pos") = Value::integer(position % static_cast<int64_t>(items.size()));
  *space.find("current") = items[static_cast<size_t>(position) % items.size()];
  return returns_new ? Value::none() : before;
}

Result<Value> cycler_next(Runtime& runtime, const Value& self, const Bound&) {
  return cycler_step(runtime, self, self.name_space().find("pos")->as_int() + 1, false);
}

Result<Value> cycler_reset(Runtime& runtime, const Value& self, const Bound&) {
  return cycler_step(runtime, self, 0, true);
}

constexpr Native kCyclerNext = {"next", "", cycler_next};
constexpr Native kCyclerReset = {"reset", "", cycler_reset};

Result<Value> make_cycler(Runtime& runtime, const Value&, const Bound& bound) {
  const std::vector<Value>& items = bound.rest.positional;
  if (items.empty())
    return fail(ErrorCode::kTemplateRuntime, "at least one item has to be provided");
  REPRISE_TRY(Value space, runtime.name_space());
  REPRISE_TRY(Value list, runtime.sequence(Flavour::kTuple, items));
  space.name_space().entries = {{"items", std::move(list)},
                                {"pos", Value::integer(0)},
                                {"current", items[0]},
                                {"next", bound_function(kCyclerNext, space)},
                                {"reset", bound_function(kCyclerReset, space)}};
  return space;
}

Result<Value> joiner_call(Runtime&, const Value& self, const Bound&) {
  Namespace& space = self.name_space();
  if (!space.find("used")->as_bool()) {
    *space.find("used") = Value::boolean(true);
    return Value::borrowed("");
  }
  return *space.find("sep");
}

constexpr Native kJoiner = {"joiner", "", joiner_call};

Result<Value> make_joiner(Runtime& runtime, const Value&, const Bound& arguments) {
  REPRISE_TRY(Value space, runtime.name_space());
  space.name_space().entries = {
      {"sep", arguments[0] != nullptr ? *arguments[0] : Value::borrowed(", ")},
      {"used", Value::boolean(false)}};
  return bound_function(kJoiner, space);
}

constexpr Native kGlobals[] = {
    {"cycler", "*", make_cycler},
    {"dict", "*", make_dict},
    {"joiner", "?sep", make_joiner},
    {"namespace", "*", make_namespace},
    {"raise_exception", "message", raise_exception},
    {"range", "start,?stop,?step", range},
    {"strftime_now", "format", strftime_now},
};

Loop& loop_of(const Value& value) {
  return const_cast<Loop&>(static_cast<const Loop&>(*value.shared()));
}

Result<Value> loop_cycle(Runtime&, const Value& self, const Bound& bound) {
  const std::vector<Value>& items = bound.rest.positional;
  if (items.empty()) return fail(ErrorCode::kTemplateRuntime, "no items for cycling given");
  return items[loop_of(self).index % items.size()];
}

Result<Value> loop_changed(Runtime& runtime, const Value& self, const Bound& bound) {
  Loop& loop = loop_of(self);
  const std::vector<Value>& given = bound.rest.positional;
  bool same = loop.has_changed && loop.last_changed.size() == given.size();
  for (size_t i = 0; same && i < given.size(); ++i) {
    REPRISE_TRY(same, equal(runtime, loop.last_changed[i], given[i]));
  }
  loop.has_changed = true;
  loop.last_changed = given;
  return Value::boolean(!same);
}

constexpr Native kLoopCycle = {"cycle", "*", loop_cycle};
constexpr Native kLoopChanged = {"changed", "*", loop_changed};

}  // namespace

Result<Value> loop_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  const Loop& loop = loop_of(value);
  const auto index = static_cast<int64_t>(loop.index), length = static_cast<int64_t>(loop.length);
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(length - index);
  if (name == "revindex0") return Value::integer(length - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == length);
  if (name == "length") return Value::integer(length);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "cycle") return bound_function(kLoopCycle, value);
  if (name == "changed") return bound_function(kLoopChanged, value);
  if (name == "previtem" || name == "nextitem") {
    const size_t at = name == "previtem" ? loop.index - 1 : loop.index + 1;
    if (at < loop.items.size()) return loop.items[at];
    return runtime.undefined(fmt::format("there is no {}", name));
  }
  return runtime.undefined(fmt::format("'LoopContext object' has no attribute '{}'", name));
}

const Native* find_global(std::string_view name) {
  const auto* found = std::find_if(std::begin(kGlobals), std::end(kGlobals),
                                   [&](const Native& native) { return native.name == name; });
  return found == std::end(kGlobals) ? nullptr : found;
}

}  // namespace reprise::jinja
