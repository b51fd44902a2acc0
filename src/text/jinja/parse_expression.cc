// Operators, from the loosest to the tightest.
#include <optional>

#include "base/try.h"
#include "text/jinja/parser.h"

namespace reprise::jinja {
namespace {

struct BinaryOperator {
  std::string_view text;
  int precedence;
  std::optional<Operator> op;  // none: ~, which joins text
};

constexpr int kConcatPrecedence = 1;
constexpr BinaryOperator kBinaryOperators[] = {
    {"+", 0, Operator::kAdd},      {"-", 0, Operator::kSubtract}, {"~", kConcatPrecedence, {}},
    {"*", 2, Operator::kMultiply}, {"/", 2, Operator::kDivide},   {"//", 2, Operator::kFloorDivide},
    {"%", 2, Operator::kModulo},   {"**", 3, Operator::kPower}};

constexpr std::pair<std::string_view, Comparison> kComparisons[] = {
    {"==", Comparison::kEqual},  {"!=", Comparison::kNotEqual}, {"<", Comparison::kLess},
    {"<=", Comparison::kAtMost}, {">", Comparison::kGreater},   {">=", Comparison::kAtLeast}};

}  // namespace

const Token& ExpressionParser::take() {
  const Token& token = tokens_[next_];
  if (next_ + 1 < tokens_.size()) ++next_;
  return token;
}

bool ExpressionParser::skip_operator(std::string_view text) {
  if (!at_operator(text)) return false;
  take();
  return true;
}

bool ExpressionParser::skip_name(std::string_view text) {
  if (!at_name(text)) return false;
  take();
  return true;
}

Status ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) return unexpected(fmt::format("'{}'", text));
  return {};
}

Result<std::string_view> ExpressionParser::expect_name() {
  if (!at(TokenKind::kName)) return unexpected("a name");
  return take().text;
}

tl::unexpected<Error> ExpressionParser::unexpected(std::string_view wanted) const {
  switch (current().kind) {
    case TokenKind::kEnd:
      return error(current().at, fmt::format("expected {}, got the end", wanted));
    case TokenKind::kBlockEnd:
    case TokenKind::kPrintEnd:
      return error(current().at, fmt::format("expected {}, got the end of the tag", wanted));
    default:
      return error(current().at,
                   fmt::format("expected {}, got {:?}", wanted, current().text.substr(0, 40)));
  }
}

Status ExpressionParser::enter(size_t where) {
  if (++depth_ <= max_depth_) return {};
  return fail(ErrorCode::kTemplateLimit, "chat template, {}: nested more than {} deep",
              describe_position(source_, where), max_depth_);
}

Status ExpressionParser::add_depth(Expr& node, const Expr* child) {
  if (child == nullptr || child->depth < node.depth) return {};
  node.depth = child->depth + 1;
  if (node.depth <= max_depth_) return {};
  return fail(ErrorCode::kTemplateLimit, "chat template, {}: nested more than {} deep",
              describe_position(source_, node.at), max_depth_);
}

Result<ExprPtr> ExpressionParser::make(ExprKind kind, size_t where, std::vector<ExprPtr> operands) {
  auto node = std::make_unique<Expr>();
  node->kind = kind;
  node->at = static_cast<uint32_t>(where);
  node->operands = std::move(operands);
  for (const ExprPtr& operand : node->operands) REPRISE_CHECK(add_depth(*node, operand.get()));
  return node;
}

Result<ExprPtr> ExpressionParser::parse_expression() {
  REPRISE_CHECK(enter(current().at));
  auto parsed = parse_conditional();
  leave();
  return parsed;
}

Result<ExprPtr> ExpressionParser::parse_conditional() {
  const size_t unknown = unknown_.size();
  REPRISE_TRY(ExprPtr value, parse_or());
  while (at_name("if")) {
    const size_t where = take().at;
    REPRISE_TRY(ExprPtr condition, parse_or());
    ExprPtr otherwise;
    if (skip_name("else")) {
      REPRISE_TRY(otherwise, parse_expression());
    }
    REPRISE_TRY(value, make(ExprKind::kConditional, where, std::move(condition), std::move(value),
                            std::move(otherwise)));
    unknown_.resize(unknown);
  }
  return value;
}

Result<ExprPtr> ExpressionParser::parse_or() {
  REPRISE_TRY(ExprPtr left, parse_and());
  while (at_name("or")) {
    const size_t where = take().at;
    REPRISE_TRY(ExprPtr right, parse_and());
    REPRISE_TRY(left, make(ExprKind::kOr, where, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::parse_and() {
  REPRISE_TRY(ExprPtr left, parse_not());
  while (at_name("and")) {
    const size_t where = take().at;
    REPRISE_TRY(ExprPtr right, parse_not());
    REPRISE_TRY(left, make(ExprKind::kAnd, where, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::parse_not() {
  std::vector<size_t> nots;
  while (at_name("not")) nots.push_back(take().at);
  REPRISE_TRY(ExprPtr value, parse_compare());
  for (; !nots.empty(); nots.pop_back()) {
    REPRISE_TRY(value, make(ExprKind::kNot, nots.back(), std::move(value)));
  }
  return value;
}

Result<ExprPtr> ExpressionParser::parse_compare() {
  const size_t where = current().at;
  std::vector<ExprPtr> operands;
  std::vector<Comparison> comparisons;
  while (true) {
    REPRISE_TRY(ExprPtr operand, parse_binary(0));
    operands.push_back(std::move(operand));
    const auto* symbol = std::begin(kComparisons);
    while (symbol != std::end(kComparisons) && !at_operator(symbol->first)) ++symbol;
    if (symbol != std::end(kComparisons)) {
      comparisons.push_back(symbol->second);
    } else if (at_name("in")) {
      comparisons.push_back(Comparison::kIn);
    } else if (at_name("not") && peek().kind == TokenKind::kName && peek().text == "in") {
      take();
      comparisons.push_back(Comparison::kNotIn);
    } else {
      break;
    }
    take();
  }
  if (comparisons.empty()) return std::move(operands[0]);
  REPRISE_TRY(ExprPtr node, make(ExprKind::kCompare, where, std::move(operands)));
  node->comparisons = std::move(comparisons);
  return node;
}

Result<ExprPtr> ExpressionParser::parse_binary(int precedence) {
  REPRISE_TRY(ExprPtr left, parse_unary(true));
  while (true) {
    const auto* found = std::begin(kBinaryOperators);
    while (found != std::end(kBinaryOperators) && !at_operator(found->text)) ++found;
    if (found == std::end(kBinaryOperators) || found->precedence < precedence) return left;
    const size_t where = take().at;
    REPRISE_TRY(ExprPtr right, parse_binary(found->precedence + 1));
    if (!found->op && left->kind == ExprKind::kConcat) {
      REPRISE_CHECK(add_depth(*left, right.get()));
      left->operands.push_back(std::move(right));
      continue;
    }
    REPRISE_TRY(left, make(found->op ? ExprKind::kBinary : ExprKind::kConcat, where,
                           std::move(left), std::move(right)));
    if (found->op) left->op = *found->op;
  }
}

Result<ExprPtr> ExpressionParser::parse_unary(bool with_filters) {
  REPRISE_CHECK(enter(current().at));
  auto parsed = parse_unary_inside(with_filters);
  leave();
  return parsed;
}

Result<ExprPtr> ExpressionParser::parse_unary_inside(bool with_filters) {
  ExprPtr node;
  if (at_operator("-") || at_operator("+")) {
    const Token& sign = take();
    REPRISE_TRY(ExprPtr operand, parse_unary(false));
    const ExprKind kind = sign.text == "-" ? ExprKind::kNegative : ExprKind::kPositive;
    REPRISE_TRY(node, make(kind, sign.at, std::move(operand)));
  } else {
    REPRISE_TRY(node, parse_primary());
  }
  REPRISE_TRY(node, parse_postfix(std::move(node)));
  if (!with_filters) return node;
  return parse_filters(std::move(node));
}

Result<ExprPtr> ExpressionParser::parse_tuple(bool conditional, bool empty_allowed) {
  const size_t where = current().at;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (!at(TokenKind::kPrintEnd) && !at(TokenKind::kBlockEnd) && !at_operator(")")) {
    auto item = conditional ? parse_expression() : parse_or();
    if (!item) return item;
    items.push_back(std::move(*item));
    if (!skip_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !empty_allowed) return unexpected("an expression");
  return make(ExprKind::kTuple, where, std::move(items));
}

}  // namespace reprise::jinja
