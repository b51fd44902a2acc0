#include "text/jinja/compare.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/try.h"

namespace reprise::jinja {
namespace {

constexpr size_t kBytesPerStep = 256;

bool is_tuple(const Value& value) { return value.is(Flavour::kTuple) || value.is(Flavour::kGroup); }

bool same_sequence_type(const Value& a, const Value& b) {
  if (is_tuple(a) && is_tuple(b)) return true;
  const Flavour flavour = a.sequence().flavour;
  return flavour == b.sequence().flavour && flavour != Flavour::kGenerator &&
         flavour != Flavour::kValues;
}

Result<bool> equal_items(Runtime& runtime, const Sequence& a, const Sequence& b) {
  if (a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    REPRISE_CHECK(runtime.budget().spend(1));
    REPRISE_TRY(const bool same, equal(runtime, a.items[i], b.items[i]));
    if (!same) return false;
  }
  return true;
}

Result<bool> equal_dicts(Runtime& runtime, const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    REPRISE_CHECK(runtime.budget().spend(1));
    REPRISE_TRY(const Value* other, runtime.find(b, key));
    if (other == nullptr) return false;
    REPRISE_TRY(const bool same, equal(runtime, value, *other));
    if (!same) return false;
  }
  return true;
}

Result<bool> less_items(Runtime& runtime, const Sequence& a, const Sequence& b) {
  for (size_t i = 0; i < std::min(a.items.size(), b.items.size()); ++i) {
    REPRISE_CHECK(runtime.budget().spend(1));
    REPRISE_TRY(const bool same, equal(runtime, a.items[i], b.items[i]));
    if (!same) return less(runtime, a.items[i], b.items[i]);
  }
  return a.items.size() < b.items.size();
}

}  // namespace

Result<bool> equal(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      if (a.text().size() != b.text().size()) return false;
      REPRISE_CHECK(runtime.budget().spend(a.text().size() / kBytesPerStep));
      return a.text() == b.text();
    case Kind::kSequence:
      if (identical(a, b)) return true;
      if (!same_sequence_type(a, b)) return false;
      return equal_items(runtime, a.sequence(), b.sequence());
    case Kind::kDict:
      if (identical(a, b)) return true;
      return equal_dicts(runtime, a.dict(), b.dict());
    default:
      return identical(a, b);
  }
}

Result<bool> less(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int();
  if (a.is_number() && b.is_number()) return a.as_double() < b.as_double();
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    REPRISE_CHECK(
        runtime.budget().spend(std::min(a.text().size(), b.text().size()) / kBytesPerStep));
    return a.text() < b.text();  // UTF-8 sorts as its code points do
  }
  const bool lists = a.is(Flavour::kList) && b.is(Flavour::kList);
  if (lists || (is_tuple(a) && is_tuple(b))) {
    return less_items(runtime, a.sequence(), b.sequence());
  }
  for (const Value* value : {&a, &b}) {
    if (value->is(Kind::kUndefined)) return type_error("a comparison", *value);
  }
  return fail(ErrorCode::kTemplateRuntime, "'{}' and '{}' have no order", a.type_name(),
              b.type_name());
}

Result<bool> contains(Runtime& runtime, const Value& hay, const Value& needle) {
  if (hay.is(Kind::kString)) {
    if (!needle.is(Kind::kString)) {
      return fail(ErrorCode::kTemplateRuntime, "'in <string>' requires a string, not '{}'",
                  needle.type_name());
    }
    REPRISE_CHECK(runtime.search(hay.text(), needle.text()));
    return hay.text().find(needle.text()) != std::string_view::npos;
  }
  if (hay.is(Kind::kDict)) {
    REPRISE_CHECK(check_hashable(needle));
    REPRISE_TRY(const Value* found, runtime.find(hay.dict(), needle));
    return found != nullptr;
  }
  REPRISE_TRY(const std::vector<Value> items, runtime.iterate(hay));
  for (const Value& item : items) {
    REPRISE_TRY(const bool same, equal(runtime, item, needle));
    if (same) return true;
  }
  return false;
}

bool identical(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.shared() != nullptr || b.shared() != nullptr) return a.shared() == b.shared();
  if (a.is(Kind::kFloat)) {
    return std::bit_cast<uint64_t>(a.as_double()) == std::bit_cast<uint64_t>(b.as_double());
  }
  return a.as_int() == b.as_int();
}

Result<std::vector<size_t>> sorted_order(Runtime& runtime, const std::vector<Value>& keys,
                                         bool reverse) {
  REPRISE_CHECK(runtime.budget().spend(keys.size() * std::bit_width(keys.size())));
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Status status;
  std::stable_sort(order.begin(), order.end(), [&](size_t i, size_t j) {
    if (!status) return false;
    const auto before = reverse ? less(runtime, keys[j], keys[i]) : less(runtime, keys[i], keys[j]);
    if (!before) status = tl::unexpected<Error>(before.error());
    return before && *before;
  });
  REPRISE_CHECK(std::move(status));
  return order;
}

}  // namespace reprise::jinja
