// Syntax tree of a template. Names and texts are views into the source.
#pragma once

#include <memory>

#include "text/jinja/arithmetic.h"
#include "text/jinja/native.h"

namespace reprise::jinja {

struct Expr;
struct Statement;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<std::unique_ptr<Statement>>;

enum class ExprKind : uint8_t {
  kConstant,
  kName,
  kTuple,
  kList,
  kDict,       ///< operands: key, value, key, value, ...
  kAttribute,  ///< operand 0 . name
  kItem,       ///< operand 0 [operand 1]
  kSlice,      ///< as operand 1 of kItem: start, stop, step; null where left out
  kCall,       ///< operand 0 (arguments)
  kFilter,     ///< operand 0 | name(arguments); null in a filter block
  kTest,       ///< operand 0 is name(arguments)
  kNot,
  kNegative,
  kPositive,
  kBinary,  ///< operand 0 op operand 1
  kConcat,  ///< operands joined as text
  kAnd,
  kOr,
  kCompare,     ///< operand 0, comparisons[i], operand i + 1
  kConditional  ///< operand 1 if operand 0 else operand 2 (null: undefined)
};

enum class Comparison : uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kAtMost,
  kGreater,
  kAtLeast,
  kIn,
  kNotIn
};

struct CallArgument {
  enum class Form : uint8_t { kPositional, kNamed, kSpread, kNamedSpread };
  Form form;
  std::string_view name;
  ExprPtr value;
};

struct Expr {
  ExprKind kind;
  uint32_t at;    ///< byte offset in the source
  int depth = 1;  ///< of the tree from here down
  Value constant;
  std::string_view name;
  Operator op = Operator::kAdd;
  std::vector<ExprPtr> operands;
  std::vector<Comparison> comparisons;
  std::vector<CallArgument> arguments;
  const Native* native = nullptr;  ///< of a filter or test; null when it is unknown
};

/// What an assignment writes: a name, a namespace's attribute or several of them.
struct Target {
  std::string_view name;
  std::string_view attribute;  ///< empty for a plain name
  bool is_tuple = false;
  std::vector<Target> items;
  uint32_t at = 0;
};

struct Parameter {
  std::string_view name;
  ExprPtr otherwise;  ///< null when it has no default
};

/// A macro, or the body of a call block.
struct MacroSource {
  std::string_view name;
  std::vector<Parameter> parameters;
  Body body;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

enum class StatementKind : uint8_t {
  kText,
  kPrint,
  kIf,   ///< exprs[i] guards bodies[i]; one body more is the else
  kFor,  ///< exprs: iterable, filter or null; bodies: loop, else
  kSet,
  kSetBlock,  ///< exprs: filter or null
  kMacro,
  kCallBlock,    ///< exprs: the call
  kFilterBlock,  ///< exprs: the filter
  kWith,         ///< exprs[i] is the value of targets[i]
  kScope,        ///< a body alone
  kBreak,
  kContinue
};

struct Statement {
  StatementKind kind;
  uint32_t at;
  std::string_view text;
  std::vector<ExprPtr> exprs;
  std::vector<Target> targets;
  std::vector<Body> bodies;
  std::unique_ptr<MacroSource> macro;
};

}  // namespace reprise::jinja
