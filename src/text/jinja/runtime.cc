#include "text/jinja/runtime.h"

#include <algorithm>

#include "base/try.h"
#include "text/jinja/compare.h"
#include "text/jinja/print.h"
#include "text/jinja/unicode.h"

namespace reprise::jinja {
namespace {

constexpr size_t kBytesPerStep = 256;      // copied text that costs as much as one node
constexpr size_t kElementsPerStep = 8;     // copied or compared elements likewise
constexpr size_t kCharactersPerStep = 32;  // looked at one by one
constexpr size_t kBytesAtOnce = 32;        // compared like one character
constexpr size_t kMemoryPerOutput = 4;     // live values may take this many times the output limit

}  // namespace

Runtime::Runtime(const TemplateLimits& limits, int64_t now)
    : limits_(limits),
      budget_(limits.max_steps,
              std::min(limits.max_output, SIZE_MAX / kMemoryPerOutput) * kMemoryPerOutput),
      now_(now) {}

Result<Value> Runtime::text(std::string text, bool markup) {
  REPRISE_CHECK(budget_.spend(text.size() / kBytesPerStep));
  REPRISE_CHECK(budget_.reserve(text.size() + sizeof(Text)));
  auto object = std::make_shared<Text>();
  object->bytes = text.size() + sizeof(Text);
  object->budget = &budget_;
  object->owned = std::move(text);
  object->view = object->owned;
  return Value::object(Kind::kString, std::move(object), markup);
}

Result<Value> Runtime::undefined(std::string hint) {
  REPRISE_TRY(const Value text, this->text(std::move(hint)));
  return Value::object(Kind::kUndefined, text.shared());
}

Result<Value> Runtime::sequence(Flavour flavour, std::vector<Value> items) {
  const size_t bytes = items.size() * sizeof(Value) + sizeof(Sequence);
  REPRISE_CHECK(budget_.spend(items.size() / kElementsPerStep));
  REPRISE_CHECK(budget_.reserve(bytes));
  auto object = std::make_shared<Sequence>();
  object->bytes = bytes;
  object->budget = &budget_;
  object->flavour = flavour;
  object->items = std::move(items);
  for (const Value& item : object->items) {
    object->depth = std::max(object->depth, item.depth() + 1);
  }
  if (object->depth > limits_.max_depth) {
    return fail(ErrorCode::kTemplateLimit, "lists are nested more than {} deep", limits_.max_depth);
  }
  return Value::object(Kind::kSequence, std::move(object));
}

Result<Value> Runtime::dict(std::vector<std::pair<Value, Value>> entries, bool distinct) {
  const size_t bytes = entries.size() * 2 * sizeof(Value) + sizeof(Dict);
  REPRISE_CHECK(budget_.spend(entries.size() / kElementsPerStep));
  REPRISE_CHECK(budget_.reserve(bytes));
  auto object = std::make_shared<Dict>();
  object->bytes = bytes;
  object->budget = &budget_;
  for (auto& entry : entries) {
    const auto& [key, value] = entry;
    REPRISE_CHECK(check_hashable(key));
    const Value* old = nullptr;
    if (!distinct) {
      REPRISE_TRY(old, find(*object, key));
    }
    object->depth = std::max({object->depth, key.depth() + 1, value.depth() + 1});
    if (old != nullptr) {
      *const_cast<Value*>(old) = std::move(entry.second);
    } else {
      object->entries.push_back(std::move(entry));
    }
  }
  if (object->depth > limits_.max_depth) {
    return fail(ErrorCode::kTemplateLimit, "dicts are nested more than {} deep", limits_.max_depth);
  }
  return Value::object(Kind::kDict, std::move(object));
}

Result<Value> Runtime::name_space() {
  REPRISE_CHECK(budget_.reserve(sizeof(Namespace)));
  Namespace& made = keep(std::make_unique<Namespace>());
  return Value::object(Kind::kNamespace, {std::shared_ptr<Object>(), &made});
}

Result<const Value*> Runtime::find(const Dict& dict, const Value& key) {
  REPRISE_CHECK(budget_.spend(dict.entries.size() / kElementsPerStep));
  for (const auto& [known, value] : dict.entries) {
    REPRISE_TRY(const bool same, equal(*this, known, key));
    if (same) return &value;
  }
  return nullptr;
}

Status Runtime::scan(std::string_view text, size_t compared) {
  return budget_.spend(1 + text.size() * (1 + compared) / kCharactersPerStep);
}

Status Runtime::search(std::string_view text, std::string_view needle) {
  return scan(text, needle.size() / kBytesAtOnce);
}

Result<std::vector<Value>> Runtime::iterate(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      break;
    case Kind::kSequence: {
      const Sequence& sequence = value.sequence();
      REPRISE_CHECK(budget_.spend(sequence.items.size() / kElementsPerStep));
      const size_t start = sequence.flavour == Flavour::kGenerator ? sequence.consumed : 0;
      items.assign(sequence.items.begin() + static_cast<ptrdiff_t>(start), sequence.items.end());
      sequence.consumed = sequence.items.size();
      break;
    }
    case Kind::kDict:
      REPRISE_CHECK(budget_.spend(value.dict().entries.size() / kElementsPerStep));
      for (const auto& entry : value.dict().entries) items.push_back(entry.first);
      break;
    case Kind::kString:
      for (size_t at = 0; at < value.text().size();) {
        const size_t size = character_size(value.text(), at);
        REPRISE_CHECK(budget_.spend(1));
        REPRISE_TRY(Value character, text(std::string(value.text().substr(at, size))));
        items.push_back(std::move(character));
        at += size;
      }
      break;
    default:
      return fail(ErrorCode::kTemplateRuntime, "'{}' object is not iterable", value.type_name());
  }
  return items;
}

Result<int64_t> Runtime::length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      REPRISE_CHECK(budget_.spend(value.text().size() / kBytesPerStep));
      return static_cast<int64_t>(character_count(value.text()));
    case Kind::kSequence:
      if (value.is(Flavour::kGenerator)) break;
      return static_cast<int64_t>(value.sequence().items.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries.size());
    default:
      break;
  }
  return fail(ErrorCode::kTemplateRuntime, "object of type '{}' has no len()", value.type_name());
}

Result<Value> Runtime::item(const Value& value, const Value& key) {
  if (value.is(Kind::kUndefined)) return fail(ErrorCode::kTemplateRuntime, "{}", value.hint());
  if (value.is(Kind::kDict) && check_hashable(key)) {
    REPRISE_TRY(const Value* found, find(value.dict(), key));
    if (found != nullptr) return *found;
  }
  const bool indexed = value.is(Flavour::kList) || value.is(Flavour::kTuple) ||
                       value.is(Flavour::kGroup) || value.is(Flavour::kRange);
  if (key.is_integral() && (indexed || value.is(Kind::kString))) {
    REPRISE_TRY(const int64_t count, length(value));
    const int64_t index = key.as_int() < 0 ? key.as_int() + count : key.as_int();
    if (index >= 0 && index < count) {
      if (indexed) return value.sequence().items[static_cast<size_t>(index)];
      const size_t at = character_offset(value.text(), static_cast<size_t>(index));
      return text(std::string(value.text().substr(at, character_size(value.text(), at))),
                  value.is_markup());
    }
  }
  if (key.is(Kind::kString)) return attribute(value, key.text());
  REPRISE_TRY(const std::string shown, repr(*this, key));
  return undefined(fmt::format("{} object has no element {}", value.type_name(), shown));
}

void TextBuilder::append(size_t count, std::string_view piece) {
  if (overflow_ || (!piece.empty() && count > (room_ - text_.size()) / piece.size())) {
    overflow_ = true;
    return;
  }
  if (piece.empty()) return;
  text_.reserve(text_.size() + count * piece.size());
  for (size_t i = 0; i < count; ++i) text_ += piece;
}

Result<std::string> TextBuilder::take() {
  if (overflow_) return fail(ErrorCode::kTemplateLimit, "the template builds too much text");
  return std::move(text_);
}

Result<Value> TextBuilder::finish(bool markup) {
  REPRISE_TRY(std::string text, take());
  return runtime_.text(std::move(text), markup);
}

Status check_hashable(const Value& value) {
  const bool list = value.is(Flavour::kList) || value.is(Kind::kDict);
  if (list || value.is(Flavour::kKeys) || value.is(Flavour::kItems)) {
    return fail(ErrorCode::kTemplateRuntime, "unhashable type: '{}'", value.type_name());
  }
  if (value.is(Flavour::kTuple) || value.is(Flavour::kGroup)) {
    for (const Value& item : value.sequence().items) REPRISE_CHECK(check_hashable(item));
  }
  return {};
}

tl::unexpected<Error> type_error(std::string_view operation, const Value& value) {
  if (value.is(Kind::kUndefined)) return fail(ErrorCode::kTemplateRuntime, "{}", value.hint());
  return fail(ErrorCode::kTemplateRuntime, "'{}' object cannot be used in {}", value.type_name(),
              operation);
}

}  // namespace reprise::jinja
