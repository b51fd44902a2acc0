// Expressions.
#include "base/try.h"
#include "text/jinja/compare.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/print.h"

namespace reprise::jinja {
namespace {

Result<Value> compare(Runtime& runtime, Comparison comparison, const Value& a, const Value& b) {
  const auto as_value = [](Result<bool> result, bool expected) -> Result<Value> {
    REPRISE_TRY(const bool holds, std::move(result));
    return Value::boolean(holds == expected);
  };
  switch (comparison) {
    case Comparison::kEqual:
      return as_value(equal(runtime, a, b), true);
    case Comparison::kNotEqual:
      return as_value(equal(runtime, a, b), false);
    case Comparison::kLess:
      return as_value(less(runtime, a, b), true);
    case Comparison::kGreater:
      return as_value(less(runtime, b, a), true);
    case Comparison::kIn:
      return as_value(contains(runtime, b, a), true);
    case Comparison::kNotIn:
      return as_value(contains(runtime, b, a), false);
    default:
      break;
  }
  // a <= b is a < b or a == b, so that it is false for what is not a number.
  const bool at_most = comparison == Comparison::kAtMost;
  REPRISE_TRY(const bool strict, at_most ? less(runtime, a, b) : less(runtime, b, a));
  return strict ? Value::boolean(true) : as_value(equal(runtime, a, b), true);
}

}  // namespace

Result<Value> Interpreter::evaluate(const Expr& expr) {
  if (expr.kind == ExprKind::kConstant) return expr.constant;
  auto paid = budget_.spend(1);
  if (!paid) return located(std::move(paid.error()), expr.at);
  if (++depth_ > limits_.max_depth) {
    return located(
        {ErrorCode::kTemplateLimit, fmt::format("nested more than {} deep", limits_.max_depth)},
        expr.at);
  }
  auto value = dispatch(expr);
  --depth_;
  if (!value) return located(std::move(value.error()), expr.at);
  return value;
}

Result<Value> Interpreter::dispatch(const Expr& expr) {
  switch (expr.kind) {
    case ExprKind::kConstant:
      return expr.constant;
    case ExprKind::kName:
      return lookup(expr.name);
    case ExprKind::kTuple:
      return evaluate_sequence(expr, Flavour::kTuple);
    case ExprKind::kList:
      return evaluate_sequence(expr, Flavour::kList);
    case ExprKind::kDict:
      return evaluate_dict(expr);
    case ExprKind::kItem:
      return evaluate_item(expr);
    case ExprKind::kSlice:
      return fail(ErrorCode::kTemplateRuntime, "a slice among several subscripts");
    case ExprKind::kCall:
      return evaluate_call(expr);
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return evaluate_native(expr);
    case ExprKind::kBinary:
      return evaluate_binary(expr);
    case ExprKind::kConcat:
      return evaluate_concat(expr);
    case ExprKind::kAnd:
    case ExprKind::kOr:
      return evaluate_logic(expr);
    case ExprKind::kCompare:
      return evaluate_compare(expr);
    case ExprKind::kConditional:
      return evaluate_conditional(expr);
    default:
      break;
  }
  REPRISE_TRY(const Value operand, evaluate(*expr.operands[0]));
  if (expr.kind == ExprKind::kAttribute) return attribute(operand, expr.name);
  if (expr.kind == ExprKind::kNot) return Value::boolean(!operand.truthy());
  if (expr.kind == ExprKind::kNegative) return negated(*this, operand);
  if (!operand.is_number()) return type_error("unary plus", operand);
  return operand.is(Kind::kBool) ? Value::integer(operand.as_int()) : operand;
}

Result<Value> Interpreter::lookup(std::string_view name) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    REPRISE_CHECK(budget_.spend(scope->variables.size() / 32));
    if (const Value* found = scope->find(name)) return *found;
  }
  const auto entry = context_.find(name);
  if (entry != context_.end()) {
    REPRISE_TRY(Value value, from_json(*entry, 0));
    context_scope_->set(name, value);
    return value;
  }
  if (const Native* native = find_global(name)) {
    auto function = std::make_shared<Function>();
    function->native = native;
    return Value::object(Kind::kFunction, std::move(function));
  }
  return undefined(fmt::format("'{}' is undefined", name));
}

Result<Value> Interpreter::evaluate_sequence(const Expr& expr, Flavour flavour) {
  std::vector<Value> items;
  items.reserve(expr.operands.size());
  for (const ExprPtr& operand : expr.operands) {
    REPRISE_TRY(Value item, evaluate(*operand));
    items.push_back(std::move(item));
  }
  return sequence(flavour, std::move(items));
}

Result<Value> Interpreter::evaluate_dict(const Expr& expr) {
  std::vector<std::pair<Value, Value>> entries;
  for (size_t i = 0; i < expr.operands.size(); i += 2) {
    REPRISE_TRY(Value key, evaluate(*expr.operands[i]));
    REPRISE_TRY(Value value, evaluate(*expr.operands[i + 1]));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return dict(std::move(entries));
}

Result<Value> Interpreter::evaluate_item(const Expr& expr) {
  REPRISE_TRY(const Value value, evaluate(*expr.operands[0]));
  const Expr& index = *expr.operands[1];
  if (index.kind == ExprKind::kSlice) return evaluate_slice(value, index);
  REPRISE_TRY(const Value key, evaluate(index));
  return item(value, key);
}

Result<Value> Interpreter::evaluate_slice(const Value& value, const Expr& bounds) {
  Value parts[3] = {Value::none(), Value::none(), Value::none()};
  for (size_t i = 0; i < 3; ++i) {
    if (bounds.operands[i] == nullptr) continue;
    REPRISE_TRY(parts[i], evaluate(*bounds.operands[i]));
  }
  return slice(*this, value, &parts[0], &parts[1], &parts[2]);
}

Result<Value> Interpreter::evaluate_compare(const Expr& expr) {
  REPRISE_TRY(Value left, evaluate(*expr.operands[0]));
  Value result = Value::boolean(true);
  for (size_t i = 0; i < expr.comparisons.size(); ++i) {
    REPRISE_TRY(Value right, evaluate(*expr.operands[i + 1]));
    REPRISE_TRY(result, compare(*this, expr.comparisons[i], left, right));
    if (!result.truthy()) return result;
    left = std::move(right);
  }
  return result;
}

Result<Value> Interpreter::evaluate_binary(const Expr& expr) {
  REPRISE_TRY(const Value left, evaluate(*expr.operands[0]));
  REPRISE_TRY(const Value right, evaluate(*expr.operands[1]));
  return binary(*this, expr.op, left, right);
}

Result<Value> Interpreter::evaluate_concat(const Expr& expr) {
  TextBuilder out(*this);
  for (const ExprPtr& operand : expr.operands) {
    REPRISE_TRY(const Value value, evaluate(*operand));
    REPRISE_TRY(const Value text, str_value(*this, value));
    out.append(text.text());
  }
  return out.finish();
}

Result<Value> Interpreter::evaluate_logic(const Expr& expr) {
  REPRISE_TRY(Value left, evaluate(*expr.operands[0]));
  if (left.truthy() == (expr.kind == ExprKind::kOr)) return left;
  return evaluate(*expr.operands[1]);
}

Result<Value> Interpreter::evaluate_conditional(const Expr& expr) {
  REPRISE_TRY(const Value condition, evaluate(*expr.operands[0]));
  if (condition.truthy()) return evaluate(*expr.operands[1]);
  if (expr.operands[2] != nullptr) return evaluate(*expr.operands[2]);
  return undefined("the inline if-expression evaluated to false and no else section was defined");
}

Result<Value> Interpreter::evaluate_native(const Expr& expr) {
  REPRISE_TRY(const Value self, evaluate(*expr.operands[0]));
  return apply_native(expr, self);
}

Result<Value> Interpreter::apply_native(const Expr& expr, const Value& self) {
  if (expr.native == nullptr) {
    return fail(ErrorCode::kTemplateRuntime, "there is no {} '{}'",
                expr.kind == ExprKind::kFilter ? "filter" : "test", expr.name);
  }
  REPRISE_TRY(const Arguments arguments, evaluate_arguments(expr));
  return call_native(*this, *expr.native, self, arguments);
}

Result<Value> Interpreter::apply_filters(const Expr& filter, const Value& text) {
  Value value = text;
  if (filter.operands[0] != nullptr) {
    REPRISE_TRY(value, apply_filters(*filter.operands[0], text));
  }
  return apply_native(filter, value);
}

}  // namespace reprise::jinja
