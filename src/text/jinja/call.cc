// Calls of macros, functions and methods; attributes of values.
#include <algorithm>
#include <optional>

#include "base/try.h"
#include "text/jinja/interpreter.h"

namespace reprise::jinja {
namespace {

// Takes a named argument out, if it was given.
std::optional<Value> take_named(Arguments& arguments, std::string_view name) {
  const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (found == arguments.named.end()) return {};
  Value value = std::move(found->second);
  arguments.named.erase(found);
  return value;
}

}  // namespace

Result<Arguments> Interpreter::evaluate_arguments(const Expr& expr) {
  Arguments arguments;
  for (const CallArgument& argument : expr.arguments) {
    REPRISE_TRY(Value value, evaluate(*argument.value));
    switch (argument.form) {
      case CallArgument::Form::kPositional:
        arguments.positional.push_back(std::move(value));
        break;
      case CallArgument::Form::kNamed:
        arguments.named.emplace_back(argument.name, std::move(value));
        break;
      case CallArgument::Form::kSpread: {
        REPRISE_TRY(std::vector<Value> items, iterate(value));
        for (Value& item : items) arguments.positional.push_back(std::move(item));
        break;
      }
      case CallArgument::Form::kNamedSpread:
        if (!value.is(Kind::kDict)) return type_error("place of named arguments", value);
        for (const auto& [name, entry] : value.dict().entries) {
          if (!name.is(Kind::kString)) return type_error("place of an argument's name", name);
          REPRISE_CHECK(budget_.spend(1 + arguments.named.size()));
          for (const auto& other : arguments.named) {
            if (other.first != name.text()) continue;
            return fail(ErrorCode::kTemplateRuntime, "two values for the argument '{}'",
                        name.text());
          }
          arguments.named.emplace_back(name.text(), entry);
        }
        break;
    }
  }
  return arguments;
}

Result<Value> Interpreter::evaluate_call(const Expr& expr, const Value* caller) {
  REPRISE_TRY(const Value callee, evaluate(*expr.operands[0]));
  REPRISE_TRY(Arguments arguments, evaluate_arguments(expr));
  if (caller != nullptr) arguments.named.emplace_back("caller", *caller);
  return call(callee, std::move(arguments));
}

Result<Value> Interpreter::call(const Value& callee, Arguments arguments) {
  if (callee.is(Kind::kMacro)) {
    return call_macro(static_cast<const Macro&>(*callee.shared()), std::move(arguments));
  }
  if (callee.is(Kind::kFunction)) {
    const auto& function = static_cast<const Function&>(*callee.shared());
    return call_native(*this, *function.native, function.self, arguments);
  }
  if (callee.is(Kind::kUndefined)) {
    return fail(ErrorCode::kTemplateRuntime, "{}", callee.hint());
  }
  return fail(ErrorCode::kTemplateRuntime, "'{}' object is not callable", callee.type_name());
}

Result<Value> Interpreter::make_macro(const MacroSource& source) {
  REPRISE_CHECK(budget_.reserve(sizeof(Macro) + sizeof(Scope)));
  Macro& macro = keep(std::make_unique<Macro>());
  macro.source = &source;
  macro.scope = scope_;
  for (Scope* scope = scope_; scope != nullptr && !scope->captured; scope = scope->parent) {
    scope->captured = true;
  }
  return Value::object(Kind::kMacro, {std::shared_ptr<Object>(), &macro});
}

// Sets the parameters in the innermost scope, the macro's own.
Status Interpreter::bind_parameters(const MacroSource& source, Arguments& arguments) {
  for (size_t i = 0; i < source.parameters.size(); ++i) {
    const Parameter& parameter = source.parameters[i];
    Value value;
    if (i < arguments.positional.size()) {
      value = arguments.positional[i];
    } else if (auto given = take_named(arguments, parameter.name)) {
      value = std::move(*given);
    } else if (parameter.otherwise != nullptr) {
      REPRISE_TRY(value, evaluate(*parameter.otherwise));
    } else {
      REPRISE_TRY(value, undefined(fmt::format("parameter '{}' was not provided", parameter.name)));
    }
    scope_->set(parameter.name, std::move(value));
  }
  return bind_rest(source, arguments);
}

// caller, kwargs and varargs, if the macro mentions them; other arguments are too many.
Status Interpreter::bind_rest(const MacroSource& source, Arguments& arguments) {
  if (source.uses_caller) {
    auto caller = take_named(arguments, "caller");
    if (!caller) {
      REPRISE_TRY(caller, undefined("No caller defined"));
    }
    scope_->set("caller", std::move(*caller));
  }
  if (source.uses_kwargs) {
    std::vector<std::pair<Value, Value>> entries;
    for (auto& [name, value] : arguments.named) {
      REPRISE_TRY(Value key, text(name));
      entries.emplace_back(std::move(key), std::move(value));
    }
    arguments.named.clear();
    REPRISE_TRY(Value kwargs, dict(std::move(entries)));
    scope_->set("kwargs", std::move(kwargs));
  }
  if (!arguments.named.empty()) {
    return fail(ErrorCode::kTemplateRuntime, "macro '{}' takes no keyword argument '{}'",
                source.name, arguments.named.front().first);
  }
  const size_t taken = std::min(source.parameters.size(), arguments.positional.size());
  std::vector<Value> rest(arguments.positional.begin() + static_cast<ptrdiff_t>(taken),
                          arguments.positional.end());
  if (!rest.empty() && !source.uses_varargs) {
    return fail(ErrorCode::kTemplateRuntime, "macro '{}' takes not more than {} argument(s)",
                source.name, source.parameters.size());
  }
  if (source.uses_varargs) {
    REPRISE_TRY(Value varargs, sequence(Flavour::kTuple, std::move(rest)));
    scope_->set("varargs", std::move(varargs));
  }
  return {};
}

Result<Value> Interpreter::call_macro(const Macro& macro, Arguments arguments) {
  Scope* caller_scope = scope_;
  open_scope(macro.scope);
  Status bound = bind_parameters(*macro.source, arguments);
  auto text = bound ? capture(macro.source->body) : tl::unexpected<Error>(bound.error());
  close_scope();
  scope_ = caller_scope;
  return text;
}

Result<Value> Interpreter::attribute(const Value& value, std::string_view name) {
  if (value.is(Kind::kUndefined)) return fail(ErrorCode::kTemplateRuntime, "{}", value.hint());
  if (is_mutator(value, name)) {
    return undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe", name, value.type_name()));
  }
  if (const Native* method = find_method(value, name)) {
    auto function = std::make_shared<Function>();
    function->native = method;
    function->self = value;
    return Value::object(Kind::kFunction, std::move(function));
  }
  if (value.is(Kind::kDict)) {
    REPRISE_TRY(const Value* found, find(value.dict(), Value::borrowed(name)));
    if (found != nullptr) return *found;
  } else if (value.is(Kind::kNamespace)) {
    if (const Value* found = value.name_space().find(name)) return *found;
  } else if (value.is(Kind::kLoop)) {
    return loop_attribute(*this, value, name);
  } else if (value.is(Flavour::kGroup) && (name == "grouper" || name == "list")) {
    return value.sequence().items[name == "list" ? 1 : 0];
  } else if (value.is(Kind::kMacro) && name == "name") {
    return Value::borrowed(static_cast<const Macro&>(*value.shared()).source->name);
  }
  if (value.is(Kind::kNone)) {
    return undefined(fmt::format("'None' has no attribute '{}'", name));
  }
  return undefined(fmt::format("'{} object' has no attribute '{}'", value.type_name(), name));
}

}  // namespace reprise::jinja
