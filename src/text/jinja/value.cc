#include "text/jinja/value.h"

namespace reprise::jinja {

Value Value::boolean(bool value) {
  Value result(Kind::kBool);
  result.number_.integer = value ? 1 : 0;
  return result;
}

Value Value::integer(int64_t value) {
  Value result(Kind::kInt);
  result.number_.integer = value;
  return result;
}

Value Value::real(double value) {
  Value result(Kind::kFloat);
  result.number_.real = value;
  return result;
}

Value Value::object(Kind kind, std::shared_ptr<const Object> object, bool markup) {
  Value result(kind);
  result.object_ = std::move(object);
  result.markup_ = markup;
  return result;
}

Value Value::borrowed(std::string_view text) {
  auto object = std::make_shared<Text>();
  object->view = text;
  return Value::object(Kind::kString, std::move(object));
}

bool Value::is(Flavour flavour) const {
  return is(Kind::kSequence) && sequence().flavour == flavour;
}

double Value::as_double() const {
  return is(Kind::kFloat) ? number_.real : static_cast<double>(number_.integer);
}

std::string_view Value::text() const { return static_cast<const Text&>(*object_).view; }

std::string_view Value::hint() const {
  return object_ ? static_cast<const Text&>(*object_).view : "the value is undefined";
}

const Sequence& Value::sequence() const { return static_cast<const Sequence&>(*object_); }

const Dict& Value::dict() const { return static_cast<const Dict&>(*object_); }

Namespace& Value::name_space() const {
  return const_cast<Namespace&>(static_cast<const Namespace&>(*object_));
}

bool Value::truthy() const {
  switch (kind_) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return number_.integer != 0;
    case Kind::kFloat:
      return number_.real != 0;
    case Kind::kString:
      return !text().empty();
    case Kind::kSequence:
      return is(Flavour::kGenerator) || !sequence().items.empty();
    case Kind::kDict:
      return !dict().entries.empty();
    default:
      return true;
  }
}

int Value::depth() const {
  if (is(Kind::kSequence)) return sequence().depth;
  return is(Kind::kDict) ? dict().depth : 0;
}

std::string_view Value::type_name() const {
  static constexpr std::string_view kFlavours[] = {
      "list", "tuple", "tuple", "range", "generator", "dict_keys", "dict_values", "dict_items"};
  switch (kind_) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return markup_ ? "Markup" : "str";
    case Kind::kSequence:
      return kFlavours[static_cast<size_t>(sequence().flavour)];
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kMacro:
      return "Macro";
    case Kind::kFunction:
      return "function";
  }
  return "object";
}

Value* Namespace::find(std::string_view name) {
  for (auto& [key, value] : entries) {
    if (key == name) return &value;
  }
  return nullptr;
}

}  // namespace reprise::jinja
