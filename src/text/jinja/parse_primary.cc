// Literals, names and what follows them: attributes, subscripts, calls, filters and tests.
#include <charconv>
#include <cmath>

#include "base/try.h"
#include "text/jinja/parser.h"

namespace reprise::jinja {
namespace {
constexpr size_t kMaxArguments = 255;  // of one call
}

Result<ExprPtr> ExpressionParser::parse_primary() {
  switch (current().kind) {
    case TokenKind::kName:
      return parse_name();
    case TokenKind::kString:
      return parse_string();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return parse_number();
    default:
      break;
  }
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  if (!skip_operator("(")) return unexpected("an expression");
  REPRISE_TRY(ExprPtr inner, parse_tuple(true, true));
  REPRISE_CHECK(expect_operator(")"));
  return inner;
}

Result<ExprPtr> ExpressionParser::parse_name() {
  const Token& token = take();
  REPRISE_TRY(ExprPtr node, make(ExprKind::kConstant, token.at));
  if (token.text == "true" || token.text == "True") {
    node->constant = Value::boolean(true);
  } else if (token.text == "false" || token.text == "False") {
    node->constant = Value::boolean(false);
  } else if (token.text == "none" || token.text == "None") {
    node->constant = Value::none();
  } else {
    node->kind = ExprKind::kName;
    node->name = token.text;
    for (MacroSource* macro : macros_) {
      macro->uses_caller |= token.text == "caller";
      macro->uses_varargs |= token.text == "varargs";
      macro->uses_kwargs |= token.text == "kwargs";
    }
  }
  return node;
}

Result<ExprPtr> ExpressionParser::parse_string() {
  REPRISE_TRY(ExprPtr node, make(ExprKind::kConstant, current().at));
  auto object = std::make_shared<Text>();
  while (at(TokenKind::kString)) {
    REPRISE_TRY(const std::string piece, unquote(source_, take()));
    object->owned += piece;
  }
  object->view = object->owned;
  node->constant = Value::object(Kind::kString, std::move(object));
  return node;
}

Result<ExprPtr> ExpressionParser::parse_number() {
  const Token& token = take();
  REPRISE_TRY(ExprPtr node, make(ExprKind::kConstant, token.at));
  std::string digits(token.text);
  std::erase(digits, '_');
  if (token.kind == TokenKind::kFloat) {
    double value = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool tiny = digits.find("e-") != digits.npos || digits.find("E-") != digits.npos;
    if (read.ec == std::errc::result_out_of_range) value = tiny ? 0.0 : HUGE_VAL;
    node->constant = Value::real(value);
    return node;
  }
  const char mark = digits.size() > 1 ? static_cast<char>(digits[1] | 32) : '\0';
  const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
  int64_t value = 0;
  const auto read = std::from_chars(digits.data() + (base == 10 ? 0 : 2),
                                    digits.data() + digits.size(), value, base);
  if (read.ec != std::errc()) return error(token.at, "the integer does not fit in 64 bits");
  node->constant = Value::integer(value);
  return node;
}

Result<ExprPtr> ExpressionParser::parse_list() {
  const size_t where = take().at;
  std::vector<ExprPtr> items;
  while (!at_operator("]")) {
    REPRISE_TRY(ExprPtr item, parse_expression());
    items.push_back(std::move(item));
    if (!skip_operator(",")) break;
  }
  REPRISE_CHECK(expect_operator("]"));
  return make(ExprKind::kList, where, std::move(items));
}

Result<ExprPtr> ExpressionParser::parse_dict() {
  const size_t where = take().at;
  std::vector<ExprPtr> items;
  while (!at_operator("}")) {
    REPRISE_TRY(ExprPtr key, parse_expression());
    REPRISE_CHECK(expect_operator(":"));
    REPRISE_TRY(ExprPtr value, parse_expression());
    items.push_back(std::move(key));
    items.push_back(std::move(value));
    if (!skip_operator(",")) break;
  }
  REPRISE_CHECK(expect_operator("}"));
  return make(ExprKind::kDict, where, std::move(items));
}

Result<ExprPtr> ExpressionParser::parse_postfix(ExprPtr operand) {
  while (true) {
    if (at_operator(".")) {
      REPRISE_TRY(operand, parse_attribute(std::move(operand)));
    } else if (at_operator("[")) {
      REPRISE_TRY(operand, parse_subscript(std::move(operand)));
    } else if (at_operator("(")) {
      REPRISE_TRY(operand, parse_call(std::move(operand)));
    } else {
      return operand;
    }
  }
}

Result<ExprPtr> ExpressionParser::parse_attribute(ExprPtr operand) {
  const size_t where = take().at;
  if (at(TokenKind::kInteger)) {
    REPRISE_TRY(ExprPtr index, parse_number());
    return make(ExprKind::kItem, where, std::move(operand), std::move(index));
  }
  REPRISE_TRY(const std::string_view name, expect_name());
  REPRISE_TRY(ExprPtr node, make(ExprKind::kAttribute, where, std::move(operand)));
  node->name = name;
  return node;
}

Result<ExprPtr> ExpressionParser::parse_subscript(ExprPtr operand) {
  const size_t where = take().at;
  std::vector<ExprPtr> parts;
  while (!at_operator("]")) {
    if (!parts.empty()) REPRISE_CHECK(expect_operator(","));
    REPRISE_TRY(ExprPtr part, parse_subscript_part());
    parts.push_back(std::move(part));
  }
  take();
  ExprPtr index;
  if (parts.size() == 1) {
    index = std::move(parts[0]);
  } else {
    REPRISE_TRY(index, make(ExprKind::kTuple, where, std::move(parts)));
  }
  return make(ExprKind::kItem, where, std::move(operand), std::move(index));
}

Result<ExprPtr> ExpressionParser::parse_subscript_part() {
  const size_t where = current().at;
  std::vector<ExprPtr> parts(3);
  size_t filled = 0;
  for (; filled < 3; ++filled) {
    if (!at_operator(":") && !at_operator("]") && !at_operator(",")) {
      REPRISE_TRY(parts[filled], parse_expression());
    }
    if (filled == 2 || !skip_operator(":")) break;
  }
  if (filled == 0) {
    if (parts[0] == nullptr) return unexpected("an expression");
    return std::move(parts[0]);
  }
  return make(ExprKind::kSlice, where, std::move(parts));
}

Result<CallArgument> ExpressionParser::parse_argument() {
  CallArgument argument{CallArgument::Form::kPositional, {}, nullptr};
  if (skip_operator("*")) {
    argument.form = CallArgument::Form::kSpread;
  } else if (skip_operator("**")) {
    argument.form = CallArgument::Form::kNamedSpread;
  } else if (at(TokenKind::kName) && peek().kind == TokenKind::kOperator && peek().text == "=") {
    argument.form = CallArgument::Form::kNamed;
    argument.name = take().text;
    take();
  }
  REPRISE_TRY(argument.value, parse_expression());
  return argument;
}

Status ExpressionParser::parse_arguments(Expr& call) {
  REPRISE_CHECK(expect_operator("("));
  using Form = CallArgument::Form;
  Form last = Form::kPositional;
  while (!at_operator(")")) {
    const size_t where = current().at;
    REPRISE_TRY(CallArgument argument, parse_argument());
    // Positional ones first, then names and one *, and one ** at the end.
    const bool in_order = argument.form == Form::kNamed        ? last != Form::kNamedSpread
                          : argument.form == Form::kPositional ? last == Form::kPositional
                                                               : argument.form > last;
    if (!in_order) return error(where, "this argument cannot stand behind the one before");
    if (call.arguments.size() == kMaxArguments) return error(where, "too many arguments");
    if (argument.form == Form::kNamed) {
      for (const CallArgument& other : call.arguments) {
        if (other.name == argument.name) return error(where, "this argument is given twice");
      }
    }
    last = std::max(last, argument.form);
    REPRISE_CHECK(add_depth(call, argument.value.get()));
    call.arguments.push_back(std::move(argument));
    if (!skip_operator(",")) break;
  }
  return expect_operator(")");
}

Result<ExprPtr> ExpressionParser::parse_call(ExprPtr callee) {
  REPRISE_TRY(ExprPtr node, make(ExprKind::kCall, current().at, std::move(callee)));
  REPRISE_CHECK(parse_arguments(*node));
  return node;
}

Result<ExprPtr> ExpressionParser::parse_filters(ExprPtr operand) {
  while (true) {
    if (skip_operator("|")) {
      REPRISE_TRY(operand, parse_filter(std::move(operand)));
    } else if (at_name("is")) {
      REPRISE_TRY(operand, parse_test(std::move(operand)));
    } else if (at_operator("(")) {
      REPRISE_TRY(operand, parse_call(std::move(operand)));
    } else {
      return operand;
    }
  }
}

Result<ExprPtr> ExpressionParser::parse_filter(ExprPtr operand) {
  const size_t where = current().at;
  REPRISE_TRY(const std::string_view name, expect_name());
  REPRISE_TRY(ExprPtr node, make(ExprKind::kFilter, where, std::move(operand)));
  node->name = name;
  node->native = find_filter(name);
  if (node->native == nullptr && !lenient_) {
    unknown_.emplace_back(where, fmt::format("there is no filter '{}'", name));
  }
  if (at_operator("(")) REPRISE_CHECK(parse_arguments(*node));
  return node;
}

Result<ExprPtr> ExpressionParser::parse_test(ExprPtr operand) {
  const size_t is = take().at;
  const bool negated = skip_name("not");
  const size_t where = current().at;
  REPRISE_TRY(const std::string_view name, expect_name());
  REPRISE_TRY(ExprPtr node, make(ExprKind::kTest, where, std::move(operand)));
  node->name = name;
  node->native = find_test(name);
  if (node->native == nullptr && !lenient_) {
    unknown_.emplace_back(where, fmt::format("there is no test '{}'", name));
  }
  const bool word = at(TokenKind::kName);
  if (at_operator("(")) {
    REPRISE_CHECK(parse_arguments(*node));
  } else if (word && current().text == "is") {
    return error(current().at, "tests cannot be chained; put the first one in parentheses");
  } else if ((word && !at_name("else") && !at_name("or") && !at_name("and")) ||
             at(TokenKind::kString) || at(TokenKind::kInteger) || at(TokenKind::kFloat) ||
             at_operator("[") || at_operator("{")) {
    REPRISE_CHECK(enter(current().at));
    auto argument = parse_primary();
    if (argument) argument = parse_postfix(std::move(*argument));
    leave();
    REPRISE_TRY(ExprPtr value, std::move(argument));
    REPRISE_CHECK(add_depth(*node, value.get()));
    node->arguments.push_back({CallArgument::Form::kPositional, {}, std::move(value)});
  }
  if (!negated) return node;
  return make(ExprKind::kNot, is, std::move(node));
}

}  // namespace reprise::jinja
