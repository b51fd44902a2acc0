// Filters of lists, dicts and texts as sequences.
#include <algorithm>

#include "base/try.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/filters.h"
#include "text/jinja/print.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

Result<Value> length(Runtime& runtime, const Value& self, const Bound&) {
  REPRISE_TRY(const int64_t count, runtime.length(self));
  return Value::integer(count);
}

Result<Value> list(Runtime& runtime, const Value& self, const Bound&) {
  REPRISE_TRY(std::vector<Value> items, runtime.iterate(self));
  return runtime.sequence(Flavour::kList, std::move(items));
}

Result<Value> first(Runtime& runtime, const Value& self, const Bound&) {
  if (self.is(Flavour::kGenerator) && self.sequence().consumed < self.sequence().items.size()) {
    return self.sequence().items[self.sequence().consumed++];
  }
  if (self.is(Kind::kString) && !self.text().empty()) {
    return runtime.text(std::string(self.text().substr(0, character_size(self.text(), 0))));
  }
  REPRISE_TRY(const std::vector<Value> items, runtime.iterate(self));
  if (!items.empty()) return items.front();
  return runtime.undefined("No first item, sequence was empty.");
}

Result<Value> last(Runtime& runtime, const Value& self, const Bound&) {
  if (self.is(Flavour::kGenerator)) return type_error("last", self);
  if (self.is(Kind::kString) && !self.text().empty()) {
    const size_t at = previous_character(self.text(), self.text().size());
    return runtime.text(std::string(self.text().substr(at)));
  }
  REPRISE_TRY(const std::vector<Value> items, runtime.iterate(self));
  if (!items.empty()) return items.back();
  return runtime.undefined("No last item, sequence was empty.");
}

Result<Value> reverse(Runtime& runtime, const Value& self, const Bound&) {
  REPRISE_TRY(std::vector<Value> items, runtime.iterate(self));
  std::reverse(items.begin(), items.end());
  if (!self.is(Kind::kString)) {
    return runtime.sequence(self.is(Flavour::kGenerator) ? Flavour::kList : Flavour::kGenerator,
                            std::move(items));
  }
  TextBuilder out(runtime);
  for (const Value& character : items) out.append(character.text());
  return out.finish();
}

Result<Value> join(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const AttributeGetter getter, AttributeGetter::make(arguments[1]));
  REPRISE_TRY(const std::vector<Value> items, runtime.iterate(self));
  REPRISE_TRY(const std::string separator,
              arguments[0] != nullptr ? str(runtime, *arguments[0]) : Result<std::string>(""));
  TextBuilder out(runtime);
  for (size_t i = 0; i < items.size() && !out.overflow(); ++i) {
    REPRISE_TRY(const Value item, getter.get(runtime, items[i]));
    REPRISE_TRY(const Value text, str_value(runtime, item));
    if (i > 0) out.append(separator);
    out.append(text.text());
  }
  return out.finish();
}

Result<Value> sum(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const AttributeGetter getter, AttributeGetter::make(arguments[0]));
  REPRISE_TRY(const std::vector<Value> items, runtime.iterate(self));
  Value total = arguments[1] != nullptr ? *arguments[1] : Value::integer(0);
  if (total.is(Kind::kString)) return fail(ErrorCode::kTemplateRuntime, "sum() of strings");
  for (const Value& element : items) {
    REPRISE_TRY(const Value item, getter.get(runtime, element));
    REPRISE_TRY(total, binary(runtime, Operator::kAdd, total, item));
  }
  return total;
}

Result<Value> items(Runtime& runtime, const Value& self, const Bound&) {
  std::vector<Value> pairs;
  if (!self.is(Kind::kUndefined)) {
    if (!self.is(Kind::kDict)) {
      return fail(ErrorCode::kTemplateRuntime, "Can only get item pairs from a mapping.");
    }
    for (const auto& [key, value] : self.dict().entries) {
      REPRISE_TRY(Value pair, runtime.sequence(Flavour::kTuple, {key, value}));
      pairs.push_back(std::move(pair));
    }
  }
  return runtime.sequence(Flavour::kGenerator, std::move(pairs));
}

Result<Value> batch(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const int64_t size, arguments.integer(0, 0));
  REPRISE_TRY(const std::vector<Value> elements, runtime.iterate(self));
  const bool fills = arguments[1] != nullptr && !arguments[1]->is(Kind::kNone);
  std::vector<Value> rows, row;
  for (size_t i = 0; i < elements.size(); ++i) {
    row.push_back(elements[i]);
    const bool full = static_cast<int64_t>(row.size()) == size;
    if (!full && i + 1 < elements.size()) continue;
    if (fills && static_cast<int64_t>(row.size()) < size) {
      const auto missing = static_cast<uint64_t>(size) - row.size();
      REPRISE_CHECK(runtime.budget().spend(missing));
      row.insert(row.end(), missing, *arguments[1]);
    }
    REPRISE_TRY(Value made, runtime.sequence(Flavour::kList, std::exchange(row, {})));
    rows.push_back(std::move(made));
  }
  return runtime.sequence(Flavour::kGenerator, std::move(rows));
}

Result<Value> slice_columns(Runtime& runtime, const Value& self, const Bound& arguments) {
  REPRISE_TRY(const int64_t count, arguments.integer(0, 0));
  REPRISE_TRY(const std::vector<Value> elements, runtime.iterate(self));
  if (count == 0) return fail(ErrorCode::kTemplateRuntime, "division by zero");
  const auto size = static_cast<int64_t>(elements.size());
  const bool fills = arguments[1] != nullptr && !arguments[1]->is(Kind::kNone);
  std::vector<Value> columns;
  auto from = elements.begin();
  for (int64_t i = 0; i < count; ++i) {
    REPRISE_CHECK(runtime.budget().spend(1));
    const auto to = from + static_cast<ptrdiff_t>(size / count + (i < size % count ? 1 : 0));
    std::vector<Value> column(from, to);
    if (fills && i >= size % count) column.push_back(*arguments[1]);
    REPRISE_TRY(Value made, runtime.sequence(Flavour::kList, std::move(column)));
    columns.push_back(std::move(made));
    from = to;
  }
  return runtime.sequence(Flavour::kGenerator, std::move(columns));
}

constexpr Native kFilters[] = {
    {"batch", "linecount,?fill_with", batch},
    {"count", "", length},
    {"first", "", first},
    {"items", "", items},
    {"join", "?d,?attribute", join},
    {"last", "", last},
    {"length", "", length},
    {"list", "", list},
    {"reverse", "", reverse},
    {"slice", "slices,?fill_with", slice_columns},
    {"sum", "?attribute,?start", sum},
};

}  // namespace

std::span<const Native> sequence_filters() { return kFilters; }

}  // namespace reprise::jinja
