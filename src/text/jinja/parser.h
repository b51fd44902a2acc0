// Tokens to syntax tree.
#pragma once

#include "text/chat_template.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace reprise::jinja {

/// source must be normalized and outlive the tree. Errors: kTemplateSyntax with line and column;
/// kTemplateLimit for nesting deeper than limits.max_depth.
Result<Body> parse(std::string_view source, const TemplateLimits& limits);

/// Grammar of expressions; the base of the parser of statements.
class ExpressionParser {
 protected:
  ExpressionParser(std::string_view source, std::vector<Token> tokens, int max_depth)
      : source_(source), tokens_(std::move(tokens)), max_depth_(max_depth) {}

  const Token& current() const { return tokens_[next_]; }
  const Token& peek() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  const Token& take();
  bool at(TokenKind kind) const { return current().kind == kind; }
  bool at_operator(std::string_view text) const {
    return at(TokenKind::kOperator) && current().text == text;
  }
  bool at_name(std::string_view text) const {
    return at(TokenKind::kName) && current().text == text;
  }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  Status expect_operator(std::string_view text);
  Result<std::string_view> expect_name();
  tl::unexpected<Error> error(size_t where, std::string_view problem) const {
    return syntax_error(source_, where, problem);
  }
  tl::unexpected<Error> unexpected(std::string_view wanted) const;
  Status enter(size_t where);  ///< one level deeper; kTemplateLimit at max_depth
  void leave() { --depth_; }

  Result<ExprPtr> parse_expression();
  Result<ExprPtr> parse_or();
  /// An expression, or several divided by commas: a tuple. empty_allowed: "()" is one.
  Result<ExprPtr> parse_tuple(bool conditional, bool empty_allowed = false);
  Result<ExprPtr> parse_filters(ExprPtr operand);
  Result<ExprPtr> parse_filter(ExprPtr operand);
  Result<Target> parse_target(bool with_namespace);
  Result<Target> parse_single_target(bool with_namespace);
  /// A node over its operands. Errors: kTemplateLimit when the tree gets too deep.
  Result<ExprPtr> make(ExprKind kind, size_t where, std::vector<ExprPtr> operands);
  template <class... Operands>
  Result<ExprPtr> make(ExprKind kind, size_t where, Operands... operands) {
    std::vector<ExprPtr> list;
    (list.push_back(std::move(operands)), ...);
    return make(kind, where, std::move(list));
  }

  std::string_view source_;
  std::vector<Token> tokens_;
  size_t next_ = 0;
  int max_depth_;
  int depth_ = 0;
  // Jinja reports unknown filters and tests before rendering, except inside an if tag or an inline
  // if: there only when they are reached.
  bool lenient_ = false;
  std::vector<std::pair<size_t, std::string>> unknown_;  ///< where, and what is to be reported
  std::vector<MacroSource*> macros_;                     ///< being parsed, innermost last

 private:
  Result<ExprPtr> parse_conditional();
  Result<ExprPtr> parse_and();
  Result<ExprPtr> parse_not();
  Result<ExprPtr> parse_compare();
  Result<ExprPtr> parse_binary(int precedence);
  Result<ExprPtr> parse_unary(bool with_filters);
  Result<ExprPtr> parse_unary_inside(bool with_filters);
  Result<ExprPtr> parse_primary();
  Result<ExprPtr> parse_name();
  Result<ExprPtr> parse_string();
  Result<ExprPtr> parse_number();
  Result<ExprPtr> parse_list();
  Result<ExprPtr> parse_dict();
  Result<ExprPtr> parse_postfix(ExprPtr operand);
  Result<ExprPtr> parse_attribute(ExprPtr operand);
  Result<ExprPtr> parse_subscript(ExprPtr operand);
  Result<ExprPtr> parse_subscript_part();
  Result<ExprPtr> parse_call(ExprPtr callee);
  Result<ExprPtr> parse_test(ExprPtr operand);
  Status parse_arguments(Expr& call);
  Result<CallArgument> parse_argument();
  Status add_depth(Expr& node, const Expr* child);
};

}  // namespace reprise::jinja
