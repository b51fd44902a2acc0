// Statements.
#include <algorithm>

#include "base/try.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/lexer.h"
#include "text/jinja/print.h"

namespace reprise::jinja {

Value* Scope::find(std::string_view name) {
  for (auto& [known, value] : variables) {
    if (known == name) return &value;
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  if (Value* known = find(name)) {
    *known = std::move(value);
  } else {
    variables.emplace_back(name, std::move(value));
  }
}

Interpreter::Interpreter(const TemplateLimits& limits, int64_t now, std::string_view source,
                         const nlohmann::ordered_json& context)
    : Runtime(limits, now), source_(source), context_(context) {
  context_scope_ = &open_scope(nullptr);
  open_scope(context_scope_);
}

Scope& Interpreter::open_scope(Scope* parent) {
  if (free_scopes_.empty()) {
    scopes_.emplace_back();
    free_scopes_.push_back(&scopes_.back());
  }
  scope_ = free_scopes_.back();
  free_scopes_.pop_back();
  scope_->parent = parent;
  return *scope_;
}

void Interpreter::close_scope() {
  Scope* closed = scope_;
  scope_ = closed->parent;
  if (closed->captured) return;
  closed->variables.clear();
  free_scopes_.push_back(closed);
}

tl::unexpected<Error> Interpreter::located(Error error, uint32_t at) {
  if (!std::exchange(located_, true)) {
    error.message =
        fmt::format("chat template, {}: {}", describe_position(source_, at), error.message);
  }
  return tl::unexpected<Error>(std::move(error));
}

Result<std::string> Interpreter::render(const Body& body) {
  std::string out;
  out_ = &out;
  REPRISE_CHECK(run(body));
  return out;
}

Status Interpreter::emit(std::string_view text) {
  if (text.size() > limits_.max_output - out_->size()) {
    return fail(ErrorCode::kTemplateLimit, "the output is larger than {} bytes",
                limits_.max_output);
  }
  REPRISE_CHECK(budget_.reserve(text.size()));
  *out_ += text;
  return {};
}

Status Interpreter::print(const Value& value) {
  if (value.is(Kind::kString)) return emit(value.text());
  REPRISE_TRY(const std::string text, str(*this, value));
  return emit(text);
}

Result<Value> Interpreter::capture(const Body& body) {
  std::string text;
  std::string* outer = std::exchange(out_, &text);
  const auto flow = run_in_scope(body);
  out_ = outer;
  budget_.release(text.size());
  REPRISE_CHECK(flow);
  return this->text(std::move(text));
}

Result<Interpreter::Flow> Interpreter::run(const Body& body) {
  for (const auto& statement : body) {
    REPRISE_TRY(const Flow flow, execute(*statement));
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Result<Interpreter::Flow> Interpreter::run_in_scope(const Body& body) {
  open_scope(scope_);
  auto flow = run(body);
  close_scope();
  return flow;
}

Result<Interpreter::Flow> Interpreter::execute(const Statement& statement) {
  auto paid = budget_.spend(1);
  if (!paid) return located(std::move(paid.error()), statement.at);
  if (++depth_ > limits_.max_depth) {
    return located(
        {ErrorCode::kTemplateLimit, fmt::format("nested more than {} deep", limits_.max_depth)},
        statement.at);
  }
  auto flow = dispatch(statement);
  --depth_;
  if (!flow) return located(std::move(flow.error()), statement.at);
  return flow;
}

Result<Interpreter::Flow> Interpreter::dispatch(const Statement& statement) {
  switch (statement.kind) {
    case StatementKind::kText:
      REPRISE_CHECK(emit(statement.text));
      break;
    case StatementKind::kPrint:
      for (const ExprPtr& expr : statement.exprs) {
        REPRISE_TRY(const Value value, evaluate(*expr));
        REPRISE_CHECK(print(value));
      }
      break;
    case StatementKind::kIf:
      return execute_if(statement);
    case StatementKind::kFor:
      return execute_for(statement);
    case StatementKind::kSet: {
      REPRISE_TRY(const Value value, evaluate(*statement.exprs[0]));
      REPRISE_CHECK(assign(statement.targets[0], value));
      break;
    }
    case StatementKind::kSetBlock:
      REPRISE_CHECK(execute_set_block(statement));
      break;
    case StatementKind::kMacro: {
      REPRISE_TRY(Value macro, make_macro(*statement.macro));
      scope_->set(statement.macro->name, std::move(macro));
      break;
    }
    case StatementKind::kCallBlock:
      REPRISE_CHECK(execute_call_block(statement));
      break;
    case StatementKind::kFilterBlock: {
      REPRISE_TRY(const Value text, capture(statement.bodies[0]));
      REPRISE_TRY(const Value value, apply_filters(*statement.exprs[0], text));
      REPRISE_CHECK(print(value));
      break;
    }
    case StatementKind::kWith:
      return execute_with(statement);
    case StatementKind::kScope:
      return run_in_scope(statement.bodies[0]);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Result<Interpreter::Flow> Interpreter::execute_if(const Statement& statement) {
  for (size_t i = 0; i < statement.exprs.size(); ++i) {
    REPRISE_TRY(const Value condition, evaluate(*statement.exprs[i]));
    if (condition.truthy()) return run(statement.bodies[i]);
  }
  if (statement.bodies.size() > statement.exprs.size()) return run(statement.bodies.back());
  return Flow::kNormal;
}

Result<std::vector<Value>> Interpreter::filtered(const Statement& loop, std::vector<Value> items) {
  if (loop.exprs[1] == nullptr) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    open_scope(scope_);
    Status assigned = assign(loop.targets[0], item);
    auto passes = assigned ? evaluate(*loop.exprs[1]) : tl::unexpected<Error>(assigned.error());
    close_scope();
    REPRISE_TRY(const Value condition, std::move(passes));
    if (condition.truthy()) kept.push_back(std::move(item));
  }
  return kept;
}

Result<Interpreter::Flow> Interpreter::execute_for(const Statement& statement) {
  REPRISE_TRY(const Value iterable, evaluate(*statement.exprs[0]));
  REPRISE_TRY(std::vector<Value> all, iterate(iterable));
  REPRISE_TRY(std::vector<Value> items, filtered(statement, std::move(all)));
  if (items.empty()) return run_in_scope(statement.bodies[1]);
  const size_t bytes = items.size() * sizeof(Value);
  REPRISE_CHECK(budget_.reserve(bytes));
  auto flow = run_loop(statement, std::move(items));
  budget_.release(bytes);
  return flow;
}

Result<Interpreter::Flow> Interpreter::run_loop(const Statement& statement,
                                                std::vector<Value> items) {
  REPRISE_CHECK(budget_.reserve(sizeof(Loop)));
  Loop& loop = keep(std::make_unique<Loop>());
  loop.items = std::move(items);
  loop.length = loop.items.size();
  const Value loop_value = Value::object(Kind::kLoop, {std::shared_ptr<Object>(), &loop});
  Result<Flow> flow = Flow::kNormal;
  bool completed = false;  // an iteration that neither broke nor continued
  for (loop.index = 0; loop.index < loop.length; ++loop.index) {
    open_scope(scope_);
    scope_->set("loop", loop_value);
    const Status assigned = assign(statement.targets[0], loop.items[loop.index]);
    flow = assigned ? run(statement.bodies[0]) : tl::unexpected<Error>(assigned.error());
    close_scope();
    if (!flow || *flow == Flow::kBreak) break;
    completed |= *flow == Flow::kNormal;
  }
  loop.items.clear();
  loop.index = std::min(loop.index, loop.length - 1);
  if (!flow) return flow;
  if (!completed) return run_in_scope(statement.bodies[1]);
  return Flow::kNormal;
}

Result<Interpreter::Flow> Interpreter::execute_with(const Statement& statement) {
  std::vector<Value> values;
  for (const ExprPtr& expr : statement.exprs) {
    REPRISE_TRY(Value value, evaluate(*expr));
    values.push_back(std::move(value));
  }
  open_scope(scope_);
  Status assigned;
  for (size_t i = 0; i < values.size() && assigned; ++i) {
    assigned = assign(statement.targets[i], values[i]);
  }
  auto flow = assigned ? run(statement.bodies[0]) : tl::unexpected<Error>(assigned.error());
  close_scope();
  return flow;
}

Status Interpreter::execute_set_block(const Statement& statement) {
  REPRISE_TRY(Value value, capture(statement.bodies[0]));
  if (statement.exprs[0] != nullptr) {
    REPRISE_TRY(value, apply_filters(*statement.exprs[0], value));
  }
  return assign(statement.targets[0], value);
}

Status Interpreter::execute_call_block(const Statement& statement) {
  REPRISE_TRY(const Value caller, make_macro(*statement.macro));
  REPRISE_TRY(const Value value, evaluate_call(*statement.exprs[0], &caller));
  return print(value);
}

Status Interpreter::assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    REPRISE_TRY(const std::vector<Value> items, iterate(value));
    if (items.size() != target.items.size()) {
      return fail(ErrorCode::kTemplateRuntime, "{} values cannot be unpacked into {} names",
                  items.size(), target.items.size());
    }
    for (size_t i = 0; i < items.size(); ++i) REPRISE_CHECK(assign(target.items[i], items[i]));
    return {};
  }
  if (target.attribute.empty()) {
    scope_->set(target.name, value);
    return {};
  }
  REPRISE_TRY(const Value owner, lookup(target.name));
  if (!owner.is(Kind::kNamespace)) {
    return fail(ErrorCode::kTemplateRuntime, "cannot assign attribute on non-namespace object");
  }
  Namespace& space = owner.name_space();
  if (Value* known = space.find(target.attribute)) {
    *known = value;
    return {};
  }
  REPRISE_CHECK(budget_.reserve(sizeof(Value) * 2));
  space.entries.emplace_back(target.attribute, value);
  return {};
}

}  // namespace reprise::jinja
