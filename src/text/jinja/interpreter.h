// Runs a syntax tree.
#pragma once

#include <deque>

#include "text/jinja/ast.h"

namespace reprise::jinja {

/// Variables of one block. Recycled when the block ends, unless a macro remembers it.
struct Scope {
  Scope* parent = nullptr;
  bool captured = false;
  std::vector<std::pair<std::string_view, Value>> variables;

  Value* find(std::string_view name);
  void set(std::string_view name, Value value);
};

/// The `loop` variable. Its items are dropped when the loop ends.
struct Loop : Object {
  std::vector<Value> items;
  size_t length = 0;
  size_t index = 0;
  std::vector<Value> last_changed;
  bool has_changed = false;
  int depth0 = 0;
};

struct Macro : Object {
  const MacroSource* source = nullptr;
  Scope* scope = nullptr;  ///< where it was defined
};

/// Member of a loop; empty when it has none of that name.
Result<Value> loop_attribute(Runtime& runtime, const Value& loop, std::string_view name);

class Interpreter : public Runtime {
 public:
  /// source and context must outlive the interpreter.
  Interpreter(const TemplateLimits& limits, int64_t now, std::string_view source,
              const nlohmann::ordered_json& context);

  Result<std::string> render(const Body& body);
  Result<Value> attribute(const Value& value, std::string_view name) override;

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  // Statements (execute.cc).
  Result<Flow> run(const Body& body);
  Result<Flow> run_in_scope(const Body& body);
  Result<Flow> execute(const Statement& statement);
  Result<Flow> dispatch(const Statement& statement);
  Result<Flow> execute_if(const Statement& statement);
  Result<Flow> execute_for(const Statement& statement);
  Result<Flow> run_loop(const Statement& statement, std::vector<Value> items);
  Result<Flow> execute_with(const Statement& statement);
  Status execute_call_block(const Statement& statement);
  Status execute_set_block(const Statement& statement);
  Result<std::vector<Value>> filtered(const Statement& loop, std::vector<Value> items);
  Result<Value> capture(const Body& body);  ///< what it prints, as a text
  Status assign(const Target& target, const Value& value);
  Status print(const Value& value);
  Status emit(std::string_view text);

  // Expressions (evaluate.cc).
  Result<Value> evaluate(const Expr& expr);
  Result<Value> dispatch(const Expr& expr);
  Result<Value> lookup(std::string_view name);
  Result<Value> evaluate_item(const Expr& expr);
  Result<Value> evaluate_slice(const Value& value, const Expr& bounds);
  Result<Value> evaluate_compare(const Expr& expr);
  Result<Value> evaluate_concat(const Expr& expr);
  Result<Value> evaluate_binary(const Expr& expr);
  Result<Value> evaluate_logic(const Expr& expr);
  Result<Value> evaluate_conditional(const Expr& expr);
  Result<Value> evaluate_sequence(const Expr& expr, Flavour flavour);
  Result<Value> evaluate_dict(const Expr& expr);
  Result<Value> evaluate_native(const Expr& expr);
  Result<Value> apply_native(const Expr& expr, const Value& self);
  Result<Value> apply_filters(const Expr& filter, const Value& text);  ///< of a filter block

  // Calls (call.cc).
  Result<Arguments> evaluate_arguments(const Expr& expr);
  Result<Value> evaluate_call(const Expr& expr, const Value* caller = nullptr);
  Result<Value> call(const Value& callee, Arguments arguments);
  Result<Value> call_macro(const Macro& macro, Arguments arguments);
  Status bind_parameters(const MacroSource& source, Arguments& arguments);
  Status bind_rest(const MacroSource& source, Arguments& arguments);
  Result<Value> make_macro(const MacroSource& source);

  Result<Value> from_json(const nlohmann::ordered_json& json, int depth);
  Scope& open_scope(Scope* parent);
  void close_scope();  ///< the innermost one
  tl::unexpected<Error> located(Error error, uint32_t at);

  std::string_view source_;
  const nlohmann::ordered_json& context_;
  std::deque<Scope> scopes_;
  std::vector<Scope*> free_scopes_;
  Scope* scope_ = nullptr;
  Scope* context_scope_ = nullptr;
  std::string* out_ = nullptr;
  int depth_ = 0;
  bool located_ = false;
};

}  // namespace reprise::jinja
