// Values of the template language: Python's, immutable except for namespaces.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/budget.h"

namespace reprise::jinja {

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kSequence,
  kDict,
  kNamespace,
  kLoop,
  kMacro,
  kFunction
};

/// What Python type a sequence is; they differ in printing, indexing and comparing.
enum class Flavour : uint8_t {
  kList,
  kTuple,
  kGroup,  ///< the pair that groupby yields: a tuple with names
  kRange,
  kGenerator,  ///< can be walked once
  kKeys,
  kValues,
  kItems
};

/// Heap part of a value; gives its bytes back to the budget that paid for it.
struct Object {
  Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() {
    if (budget != nullptr) budget->release(bytes);
  }
  Budget* budget = nullptr;
  size_t bytes = 0;
};

struct Text;
struct Sequence;
struct Dict;
struct Namespace;

class Value {
 public:
  Value() = default;  ///< undefined, without a name
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value real(double value);
  static Value object(Kind kind, std::shared_ptr<const Object> object, bool markup = false);
  /// Text that outlives every value (template source, context); costs nothing.
  static Value borrowed(std::string_view text);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is(Flavour flavour) const;
  bool is_integral() const { return is(Kind::kInt) || is(Kind::kBool); }
  bool is_number() const { return is_integral() || is(Kind::kFloat); }
  bool is_markup() const { return markup_; }  ///< text that `safe` or `escape` made

  bool as_bool() const { return number_.integer != 0; }
  int64_t as_int() const { return number_.integer; }  ///< kInt or kBool
  double as_double() const;                           ///< any number
  std::string_view text() const;                      ///< kString
  std::string_view hint() const;                      ///< why it is kUndefined
  const Sequence& sequence() const;
  const Dict& dict() const;
  Namespace& name_space() const;
  const std::shared_ptr<const Object>& shared() const { return object_; }

  bool truthy() const;
  /// Levels of containers from here down; 0 for what is no container.
  int depth() const;
  /// Python's name of the type, e.g. "NoneType".
  std::string_view type_name() const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kUndefined;
  bool markup_ = false;
  union {
    int64_t integer = 0;
    double real;
  } number_;
  std::shared_ptr<const Object> object_;
};

struct Text : Object {
  std::string owned;
  std::string_view view;
};

struct Sequence : Object {
  Flavour flavour = Flavour::kList;
  int depth = 1;
  std::vector<Value> items;
  mutable size_t consumed = 0;  ///< of a generator
};

struct Dict : Object {
  int depth = 1;
  std::vector<std::pair<Value, Value>> entries;  ///< in order of insertion
};

/// The only mutable value. Owned by the rendering, so cycles through it are harmless.
struct Namespace : Object {
  std::vector<std::pair<std::string, Value>> entries;

  Value* find(std::string_view name);
};

}  // namespace reprise::jinja
