// Statements.
#include "text/chat/interpreter.h"

#include <algorithm>
#include <utility>

#include "text/chat/callables.h"
#include "text/chat/operators.h"
#include "text/chat/value_text.h"

namespace tapestry::chat::jinja {

std::string Interpreter::render(const ScopePtr& scope) {
  std::string out;
  run_.set_whole(out);
  execute(syntax_.body, scope, out);
  return out;
}

Interpreter::Flow Interpreter::execute(const Block& block,
                                       const ScopePtr& scope,
                                       std::string& out) {
  for (const auto& statement : block) {
    const Flow flow = execute(*statement, scope, out);
    if (flow != Flow::kNext) {
      return flow;
    }
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Statement& statement,
                                       const ScopePtr& scope,
                                       std::string& out) {
  using Kind = Statement::Kind;
  const Run::Level level(run_);
  run_.step();
  run_.set_line(statement.line);
  switch (statement.kind) {
    case Kind::kData:
      run_.check_text(out.size() + statement.data.size());
      run_.step(statement.data.size() / 64);
      out += statement.data;
      break;
    case Kind::kOutput: {
      const Value value = evaluate(*statement.expression, scope);
      const size_t before = out.size();
      append_text(run_, out, value);
      run_.step((out.size() - before) / 64);
      break;
    }
    case Kind::kIf:
      return execute_if(statement, scope, out);
    case Kind::kFor:
      return execute_for(statement, scope, evaluate(*statement.expression, scope), 0, out);
    case Kind::kSet:
      assign(statement.target, evaluate(*statement.expression, scope), scope);
      break;
    case Kind::kSetBlock:
      execute_set_block(statement, scope);
      break;
    case Kind::kWith:
      return execute_with(statement, scope, out);
    case Kind::kMacro:
      scope->set(
          statement.symbol,
          Value(std::shared_ptr<Object>(std::make_shared<Macro>(*this, *statement.macro, scope))));
      break;
    case Kind::kCall:
      execute_call(statement, scope, out);
      break;
    case Kind::kFilter:
      append_text(run_, out, captured(statement.body, statement.expression.get(), scope));
      break;
    case Kind::kScope: {
      const size_t before = out.size();
      append_text(run_, out, captured(statement.body, nullptr, scope));
      run_.mark(out, before);
      break;
    }
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_if(const Statement& statement,
                                          const ScopePtr& scope,
                                          std::string& out) {
  for (const auto& [condition, body] : statement.branches) {
    if (condition == nullptr || truth_of(evaluate(*condition, scope))) {
      return execute(body, scope, out);
    }
  }
  return Flow::kNext;
}

std::function<bool(Value&)> Interpreter::items_to_loop_over(const Statement& statement,
                                                            const ScopePtr& scope,
                                                            const Value& items) {
  std::function<bool(Value&)> next;
  if (items.is_iterator()) {  // what the body takes of it, the loop does not see
    next = [items](Value& item) {
      Iterator& iterator = items.iterator();
      if (iterator.next == iterator.items.size()) {
        return false;
      }
      item = iterator.items[iterator.next++];
      return true;
    };
  } else {
    next = [all = items_of(run_, items), place = size_t{0}](Value& item) mutable {
      if (place == all.size()) {
        return false;
      }
      item = all[place++];
      return true;
    };
  }
  if (statement.condition == nullptr) {
    return next;
  }
  // The scope is held by whoever runs the loop.
  return [this, &statement, around = std::weak_ptr<Scope>(scope), next](Value& item) {
    while (next(item)) {
      const auto scope_of_test = std::make_shared<Scope>(around.lock());
      assign(statement.target, item, scope_of_test);
      if (truth_of(evaluate(*statement.condition, scope_of_test))) {
        return true;
      }
    }
    return false;
  };
}

Interpreter::Flow Interpreter::execute_for(const Statement& statement,
                                           const ScopePtr& scope,
                                           const Value& items,
                                           int depth,
                                           std::string& out) {
  const auto loop = std::make_shared<Loop>(*this, statement, scope,
                                           items_to_loop_over(statement, scope, items), depth);
  // As Jinja compiles it, a turn that is left early does not count for `else`.
  bool has_finished_a_turn = false;
  while (loop->advance(run_)) {
    run_.step();
    const auto turn = std::make_shared<Scope>(scope);
    turn->set(kLoopSymbol, Value(std::shared_ptr<Object>(loop)));
    assign(statement.target, loop->item(), turn);
    const Flow flow = execute(statement.body, turn, out);
    if (flow == Flow::kBreak) {
      break;
    }
    has_finished_a_turn = has_finished_a_turn || flow == Flow::kNext;
  }
  if (!has_finished_a_turn && !statement.otherwise.empty()) {
    return execute(statement.otherwise, std::make_shared<Scope>(scope), out);
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute_with(const Statement& statement,
                                            const ScopePtr& scope,
                                            std::string& out) {
  const auto inner = std::make_shared<Scope>(scope);
  for (const auto& [target, expression] : statement.assignments) {
    assign(target, evaluate(*expression, scope), inner);
  }
  return execute(statement.body, inner, out);
}

Value Interpreter::captured(const Block& block, const Expression* filters, const ScopePtr& scope) {
  std::string text;
  execute(block, std::make_shared<Scope>(scope), text);
  Value value = run_.text(std::move(text));
  if (filters != nullptr) {
    captured_ = std::move(value);
    value = evaluate(*filters, scope);
  }
  return value;
}

void Interpreter::execute_set_block(const Statement& statement, const ScopePtr& scope) {
  assign(statement.target, captured(statement.body, statement.expression.get(), scope), scope);
}

void Interpreter::execute_call(const Statement& statement,
                               const ScopePtr& scope,
                               std::string& out) {
  const Expression& node = *statement.expression;
  const Value callee = evaluate(*node.parts[0], scope);
  Arguments arguments = evaluate_arguments(node.arguments, scope);
  arguments.named.emplace_back(
      "caller",
      Value(std::shared_ptr<Object>(std::make_shared<Macro>(*this, *statement.macro, scope))));
  run_.set_line(statement.line);
  append_text(run_, out, call(run_, callee, arguments));
}

void Interpreter::assign(const Target& target, Value value, const ScopePtr& scope) {
  run_.step();
  switch (target.kind) {
    case Target::Kind::kName:
      scope->set(target.symbol, std::move(value));
      return;
    case Target::Kind::kNamespace: {
      const Value* names = scope->find(target.symbol);
      if (names == nullptr || !names->is_namespace()) {
        run_.fail("cannot assign attribute '", target.attribute, "': '",
                  syntax_.names[static_cast<size_t>(target.symbol)], "' is no namespace");
      }
      names->names().set(target.attribute, std::move(value));
      return;
    }
    case Target::Kind::kTuple: {
      Values items = items_of(run_, value);
      if (items.size() != target.parts.size()) {
        run_.fail("cannot unpack ", items.size(), " values into ", target.parts.size(), " names");
      }
      for (size_t i = 0; i < items.size(); ++i) {
        assign(target.parts[i], std::move(items[i]), scope);
      }
    }
  }
}

void Interpreter::bind_parameters(const MacroSyntax& macro,
                                  const ScopePtr& scope,
                                  const Arguments& arguments) {
  // Those that no parameter has taken yet.
  std::vector<const std::pair<std::string, Value>*> named;
  for (const auto& entry : arguments.named) {
    named.push_back(&entry);
  }
  const auto take_named = [&](std::string_view name) -> const Value* {
    const auto found = std::find_if(named.begin(), named.end(),
                                    [&](const auto* entry) { return entry->first == name; });
    if (found == named.end()) {
      return nullptr;
    }
    const Value* value = &(*found)->second;
    named.erase(found);
    return value;
  };
  const Values& given = arguments.positional;
  bool has_caller_parameter = false;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const std::string& name = syntax_.names[static_cast<size_t>(parameter.symbol)];
    has_caller_parameter = has_caller_parameter || parameter.symbol == kCallerSymbol;
    const Value* value = i < given.size() ? &given[i] : take_named(name);
    if (value != nullptr) {
      scope->set(parameter.symbol, *value);
    } else if (parameter.otherwise) {
      scope->set(parameter.symbol, evaluate(*parameter.otherwise, scope));
    } else {
      scope->set(parameter.symbol,
                 run_.undefined(concat("parameter '", name, "' was not provided")));
    }
  }
  if (macro.uses_caller && !has_caller_parameter) {
    const Value* caller = take_named("caller");
    scope->set(kCallerSymbol, caller != nullptr ? *caller : run_.undefined("No caller defined"));
  }
  if (macro.uses_kwargs) {
    auto rest = std::make_shared<Dict>();
    for (const auto* entry : named) {
      run_.set(*rest, run_.text(entry->first), entry->second);
    }
    scope->set(kKwargsSymbol, run_.dict(std::move(rest)));
  } else if (!named.empty()) {
    run_.fail("macro '", macro.name, "' takes no keyword argument '", named[0]->first, "'");
  }
  const size_t taken = std::min(given.size(), macro.parameters.size());
  if (macro.uses_varargs) {
    scope->set(kVarargsSymbol,
               run_.tuple(Values(given.begin() + static_cast<ptrdiff_t>(taken), given.end())));
  } else if (given.size() > taken) {
    run_.fail("macro '", macro.name, "' takes not more than ", taken, " arguments");
  }
}

Value Interpreter::call_macro(const MacroSyntax& macro,
                              const ScopePtr& around,
                              const Arguments& arguments) {
  const Run::Level level(run_);
  const int line = run_.line();
  const auto scope = std::make_shared<Scope>(around);
  bind_parameters(macro, scope, arguments);
  std::string out;
  execute(macro.body, scope, out);
  run_.set_line(line);
  return run_.text(std::move(out));
}

Value Interpreter::call_loop(const Statement& loop,
                             const ScopePtr& around,
                             const Value& items,
                             int depth) {
  const Run::Level level(run_);
  const int line = run_.line();
  std::string out;
  execute_for(loop, around, items, depth, out);
  run_.set_line(line);
  return run_.text(std::move(out));
}

}  // namespace tapestry::chat::jinja
