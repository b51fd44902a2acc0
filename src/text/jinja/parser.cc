#include "text/jinja/parser.h"

#include <algorithm>

#include "base/try.h"

namespace reprise::jinja {
namespace {

using Statements = Result<std::unique_ptr<Statement>>;

class Parser : public ExpressionParser {
 public:
  Parser(std::string_view source, std::vector<Token> tokens, int max_depth)
      : ExpressionParser(source, std::move(tokens), max_depth) {}
  Result<Body> parse_template();

 private:
  // Statements up to a tag that is one of ends; the tag's name is taken, not its end.
  Result<Body> parse_body(std::initializer_list<std::string_view> ends, std::string_view& end);
  // As a tag's body: behind the end of the opening tag, up to the closing one.
  Result<Body> parse_block(std::initializer_list<std::string_view> ends, std::string_view& end);
  Result<Body> parse_scope(std::string_view end_tag);
  Statements parse_statement();
  Statements parse_if(size_t where);
  Statements parse_for(size_t where);
  Statements parse_set(size_t where);
  Statements parse_macro(size_t where);
  Statements parse_call_block(size_t where);
  Statements parse_filter_block(size_t where);
  Statements parse_with(size_t where);
  Statements parse_jump(size_t where, StatementKind kind);
  Status parse_signature(MacroSource& macro);
  Result<Body> parse_macro_body(MacroSource& macro, std::string_view end_tag);
  std::unique_ptr<Statement> statement(StatementKind kind, size_t where) {
    auto made = std::make_unique<Statement>();
    made->kind = kind;
    made->at = static_cast<uint32_t>(where);
    return made;
  }

  int loops_ = 0;  // around the statement being parsed, inside the same macro
};

Result<Body> Parser::parse_template() {
  std::string_view end;
  return parse_body({}, end);
}

Result<Body> Parser::parse_body(std::initializer_list<std::string_view> ends,
                                std::string_view& end) {
  Body body;
  while (!at(TokenKind::kEnd)) {
    const Token& token = take();
    if (token.kind == TokenKind::kData) {
      body.push_back(statement(StatementKind::kText, token.at));
      body.back()->text = token.text;
    } else if (token.kind == TokenKind::kPrintBegin) {
      body.push_back(statement(StatementKind::kPrint, token.at));
      REPRISE_TRY(ExprPtr value, parse_tuple(true));
      body.back()->exprs.push_back(std::move(value));
      if (!at(TokenKind::kPrintEnd)) return unexpected("'}}'");
      take();
      if (!unknown_.empty()) return error(unknown_[0].first, unknown_[0].second);
    } else {
      if (!at(TokenKind::kName)) return unexpected("the name of a tag");
      if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) {
        end = take().text;
        return body;
      }
      REPRISE_CHECK(enter(token.at));
      auto parsed = parse_statement();
      leave();
      REPRISE_TRY(auto made, std::move(parsed));
      body.push_back(std::move(made));
      if (!at(TokenKind::kBlockEnd)) return unexpected("'%}'");
      take();
      if (!unknown_.empty()) return error(unknown_[0].first, unknown_[0].second);
    }
  }
  if (ends.size() == 0) return body;
  return error(current().at, fmt::format("expected the tag '{}', got the end", *ends.begin()));
}

Result<Body> Parser::parse_block(std::initializer_list<std::string_view> ends,
                                 std::string_view& end) {
  skip_operator(":");
  if (!at(TokenKind::kBlockEnd)) return unexpected("'%}'");
  take();
  return parse_body(ends, end);
}

// A body whose tag opens a new scope, where Jinja again checks the names of filters.
Result<Body> Parser::parse_scope(std::string_view end_tag) {
  const bool lenient = std::exchange(lenient_, false);
  std::string_view end;
  auto body = parse_block({end_tag}, end);
  lenient_ = lenient;
  return body;
}

Statements Parser::parse_statement() {
  const Token& tag = take();
  const size_t where = tag.at;
  const std::string_view name = tag.text;
  if (name == "if") return parse_if(where);
  if (name == "for") return parse_for(where);
  if (name == "set") return parse_set(where);
  if (name == "macro") return parse_macro(where);
  if (name == "call") return parse_call_block(where);
  if (name == "filter") return parse_filter_block(where);
  if (name == "with") return parse_with(where);
  if (name == "break") return parse_jump(where, StatementKind::kBreak);
  if (name == "continue") return parse_jump(where, StatementKind::kContinue);
  if (name == "generation") {
    auto made = statement(StatementKind::kScope, where);
    REPRISE_TRY(Body body, parse_scope("endgeneration"));
    made->bodies.push_back(std::move(body));
    return made;
  }
  if (name != "print") return error(where, fmt::format("unknown tag '{}'", name.substr(0, 40)));
  auto made = statement(StatementKind::kPrint, where);
  while (!at(TokenKind::kBlockEnd)) {
    if (!made->exprs.empty()) REPRISE_CHECK(expect_operator(","));
    REPRISE_TRY(ExprPtr value, parse_expression());
    made->exprs.push_back(std::move(value));
  }
  return made;
}

Statements Parser::parse_if(size_t where) {
  auto made = statement(StatementKind::kIf, where);
  const bool lenient = std::exchange(lenient_, true);
  std::string_view end = "elif";
  while (end == "elif") {
    REPRISE_TRY(ExprPtr condition, parse_tuple(false));
    REPRISE_TRY(Body body, parse_block({"endif", "else", "elif"}, end));
    made->exprs.push_back(std::move(condition));
    made->bodies.push_back(std::move(body));
  }
  if (end == "else") {
    REPRISE_TRY(Body body, parse_block({"endif"}, end));
    made->bodies.push_back(std::move(body));
  }
  lenient_ = lenient;
  return made;
}

Statements Parser::parse_for(size_t where) {
  auto made = statement(StatementKind::kFor, where);
  REPRISE_TRY(Target target, parse_target(false));
  made->targets.push_back(std::move(target));
  if (!skip_name("in")) return unexpected("'in'");
  REPRISE_TRY(ExprPtr iterable, parse_tuple(false));
  made->exprs.push_back(std::move(iterable));
  made->exprs.emplace_back();
  const bool lenient = std::exchange(lenient_, false);
  if (skip_name("if")) {
    REPRISE_TRY(made->exprs[1], parse_expression());
  }
  if (at_name("recursive")) return error(current().at, "recursive loops are not supported");
  ++loops_;
  std::string_view end;
  REPRISE_TRY(Body body, parse_block({"endfor", "else"}, end));
  --loops_;
  made->bodies.push_back(std::move(body));
  made->bodies.emplace_back();
  if (end == "else") {
    REPRISE_TRY(made->bodies[1], parse_block({"endfor"}, end));
  }
  lenient_ = lenient;
  return made;
}

Statements Parser::parse_set(size_t where) {
  REPRISE_TRY(Target target, parse_target(true));
  const bool assigns = skip_operator("=");
  auto made = statement(assigns ? StatementKind::kSet : StatementKind::kSetBlock, where);
  made->targets.push_back(std::move(target));
  if (assigns) {
    REPRISE_TRY(ExprPtr value, parse_tuple(true));
    made->exprs.push_back(std::move(value));
    return made;
  }
  made->exprs.emplace_back();
  while (skip_operator("|")) {
    REPRISE_TRY(made->exprs[0], parse_filter(std::move(made->exprs[0])));
  }
  REPRISE_TRY(Body body, parse_scope("endset"));
  made->bodies.push_back(std::move(body));
  return made;
}

Status Parser::parse_signature(MacroSource& macro) {
  REPRISE_CHECK(expect_operator("("));
  while (!at_operator(")")) {
    const size_t where = current().at;
    REPRISE_TRY(const std::string_view name, expect_name());
    Parameter parameter{name, nullptr};
    if (skip_operator("=")) {
      REPRISE_TRY(parameter.otherwise, parse_expression());
    } else if (!macro.parameters.empty() && macro.parameters.back().otherwise != nullptr) {
      return error(where, "a parameter without default stands behind one that has one");
    }
    macro.parameters.push_back(std::move(parameter));
    if (!skip_operator(",")) break;
  }
  return expect_operator(")");
}

Result<Body> Parser::parse_macro_body(MacroSource& macro, std::string_view end_tag) {
  macros_.push_back(&macro);
  const int loops = std::exchange(loops_, 0);
  auto body = parse_scope(end_tag);
  loops_ = loops;
  macros_.pop_back();
  return body;
}

Statements Parser::parse_macro(size_t where) {
  auto made = statement(StatementKind::kMacro, where);
  made->macro = std::make_unique<MacroSource>();
  REPRISE_TRY(made->macro->name, expect_name());
  REPRISE_CHECK(parse_signature(*made->macro));
  REPRISE_TRY(made->macro->body, parse_macro_body(*made->macro, "endmacro"));
  return made;
}

Statements Parser::parse_call_block(size_t where) {
  auto made = statement(StatementKind::kCallBlock, where);
  made->macro = std::make_unique<MacroSource>();
  made->macro->name = "caller";
  if (at_operator("(")) REPRISE_CHECK(parse_signature(*made->macro));
  REPRISE_TRY(ExprPtr call, parse_expression());
  if (call->kind != ExprKind::kCall) return error(call->at, "expected a call");
  made->exprs.push_back(std::move(call));
  REPRISE_TRY(made->macro->body, parse_macro_body(*made->macro, "endcall"));
  return made;
}

Statements Parser::parse_filter_block(size_t where) {
  auto made = statement(StatementKind::kFilterBlock, where);
  REPRISE_TRY(ExprPtr filter, parse_filter(nullptr));
  while (skip_operator("|")) {
    REPRISE_TRY(filter, parse_filter(std::move(filter)));
  }
  made->exprs.push_back(std::move(filter));
  REPRISE_TRY(Body body, parse_scope("endfilter"));
  made->bodies.push_back(std::move(body));
  return made;
}

Statements Parser::parse_with(size_t where) {
  auto made = statement(StatementKind::kWith, where);
  while (!at(TokenKind::kBlockEnd)) {
    if (!made->targets.empty()) REPRISE_CHECK(expect_operator(","));
    REPRISE_TRY(Target target, parse_single_target(false));
    REPRISE_CHECK(expect_operator("="));
    REPRISE_TRY(ExprPtr value, parse_expression());
    made->targets.push_back(std::move(target));
    made->exprs.push_back(std::move(value));
  }
  REPRISE_TRY(Body body, parse_scope("endwith"));
  made->bodies.push_back(std::move(body));
  return made;
}

Statements Parser::parse_jump(size_t where, StatementKind kind) {
  if (loops_ == 0) return error(where, "this tag stands outside of a loop");
  return statement(kind, where);
}

}  // namespace

Result<Target> ExpressionParser::parse_single_target(bool with_namespace) {
  const size_t where = current().at;
  Target target;
  target.at = static_cast<uint32_t>(where);
  if (skip_operator("(")) {
    REPRISE_CHECK(enter(where));
    auto inner = parse_target(with_namespace);
    leave();
    if (inner) REPRISE_CHECK(expect_operator(")"));
    return inner;
  }
  REPRISE_TRY(target.name, expect_name());
  static constexpr std::string_view kConstants[] = {"true",  "True", "false",
                                                    "False", "none", "None"};
  if (std::find(std::begin(kConstants), std::end(kConstants), target.name) !=
      std::end(kConstants)) {
    return error(where, "a constant cannot be assigned to");
  }
  if (with_namespace && skip_operator(".")) {
    REPRISE_TRY(target.attribute, expect_name());
  }
  return target;
}

Result<Target> ExpressionParser::parse_target(bool with_namespace) {
  REPRISE_TRY(Target first, parse_single_target(with_namespace));
  if (!at_operator(",")) return first;
  Target tuple;
  tuple.at = first.at;
  tuple.is_tuple = true;
  tuple.items.push_back(std::move(first));
  while (skip_operator(",")) {
    if (!at(TokenKind::kName) && !at_operator("(")) break;
    if (at_name("in")) break;
    REPRISE_TRY(Target next, parse_single_target(with_namespace));
    tuple.items.push_back(std::move(next));
  }
  return tuple;
}

Result<Body> parse(std::string_view source, const TemplateLimits& limits) {
  REPRISE_TRY(std::vector<Token> tokens, tokenize(source));
  return Parser(source, std::move(tokens), limits.max_depth).parse_template();
}

}  // namespace reprise::jinja
