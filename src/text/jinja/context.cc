// JSON to values.
#include "base/try.h"
#include "text/jinja/interpreter.h"

namespace reprise::jinja {

// Texts stay in the context, which outlives the rendering.
Result<Value> Interpreter::from_json(const nlohmann::ordered_json& json, int depth) {
  using Type = nlohmann::ordered_json::value_t;
  REPRISE_CHECK(budget_.spend(1));
  if (depth >= limits_.max_depth) {
    return fail(ErrorCode::kTemplateLimit, "the context is nested more than {} deep", depth);
  }
  switch (json.type()) {
    case Type::boolean:
      return Value::boolean(json.get<bool>());
    case Type::number_integer:
      return Value::integer(json.get<int64_t>());
    case Type::number_unsigned: {
      const auto value = json.get<uint64_t>();
      if (value <= INT64_MAX) return Value::integer(static_cast<int64_t>(value));
      return fail(ErrorCode::kTemplateRuntime, "the context's {} does not fit in 64 bits", value);
    }
    case Type::number_float:
      return Value::real(json.get<double>());
    case Type::string:
      return Value::borrowed(json.get_ref<const std::string&>());
    case Type::array: {
      std::vector<Value> items;
      for (const auto& element : json) {
        REPRISE_TRY(Value item, from_json(element, depth + 1));
        items.push_back(std::move(item));
      }
      return sequence(Flavour::kList, std::move(items));
    }
    case Type::object: {
      std::vector<std::pair<Value, Value>> entries;
      for (const auto& [key, element] : json.items()) {
        REPRISE_TRY(Value value, from_json(element, depth + 1));
        entries.emplace_back(Value::borrowed(key), std::move(value));
      }
      return dict(std::move(entries), true);
    }
    default:
      return Value::none();
  }
}

}  // namespace reprise::jinja
