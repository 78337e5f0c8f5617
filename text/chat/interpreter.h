// Goes through the tree and makes the text.
#pragma once

#include <functional>
#include <string>

#include "text/chat/run.h"
#include "text/chat/scope.h"
#include "text/chat/syntax.h"

namespace tapestry::chat::jinja {

class Loop;

class Interpreter {
 public:
  Interpreter(Run& run, const Syntax& syntax) : run_(run), syntax_(syntax) {}

  /// The whole template's text; `scope` has the variables that are given.
  std::string render(const ScopePtr& scope);

  /// The text of a macro's call.
  Value call_macro(const MacroSyntax& macro, const ScopePtr& around, const Arguments& arguments);
  /// The text of a recursive loop's call: its body for other items.
  Value call_loop(const Statement& loop, const ScopePtr& around, const Value& items, int depth);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // ---- Statements. What they put out is appended to `out`.
  Flow execute(const Block& block, const ScopePtr& scope, std::string& out);
  Flow execute(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow execute_if(const Statement& statement, const ScopePtr& scope, std::string& out);
  Flow execute_for(const Statement& statement,
                   const ScopePtr& scope,
                   const Value& items,
                   int depth,
                   std::string& out);
  Flow execute_with(const Statement& statement, const ScopePtr& scope, std::string& out);
  void execute_set_block(const Statement& statement, const ScopePtr& scope);
  void execute_call(const Statement& statement, const ScopePtr& scope, std::string& out);
  void assign(const Target& target, Value value, const ScopePtr& scope);
  /// A function that gives the items that pass the loop's condition, one at a time.
  std::function<bool(Value&)> items_to_loop_over(const Statement& statement,
                                                 const ScopePtr& scope,
                                                 const Value& items);
  /// The text of a block in a scope of its own, through filters, which may be null.
  Value captured(const Block& block, const Expression* filters, const ScopePtr& scope);
  void bind_parameters(const MacroSyntax& macro, const ScopePtr& scope, const Arguments& arguments);

  // ---- Expressions.
  Value evaluate(const Expression& node, const ScopePtr& scope);
  Value evaluate_variable(const Expression& node, const ScopePtr& scope);
  Values evaluate_all(const std::vector<ExpressionPtr>& nodes, const ScopePtr& scope);
  Value evaluate_dict(const Expression& node, const ScopePtr& scope);
  Value evaluate_slice(const Expression& node, const ScopePtr& scope);
  Value evaluate_filter(const Expression& node, const ScopePtr& scope);
  Value evaluate_comparison(const Expression& node, const ScopePtr& scope);
  Value evaluate_concat(const Expression& node, const ScopePtr& scope);
  Value evaluate_conditional(const Expression& node, const ScopePtr& scope);
  Value evaluate_call(const Expression& node, const ScopePtr& scope);
  Arguments evaluate_arguments(const CallArguments& arguments, const ScopePtr& scope);
  bool compare(Comparison comparison, const Value& left, const Value& right);

  Run& run_;
  const Syntax& syntax_;
  Value captured_;  // what the filters of a block begin with
};

}  // namespace tapestry::chat::jinja
