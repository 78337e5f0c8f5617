// Expressions.
#include <algorithm>
#include <utility>

#include "text/chat/interpreter.h"
#include "text/chat/operators.h"
#include "text/chat/value_text.h"

namespace tapestry::chat::jinja {

Value Interpreter::evaluate(const Expression& node, const ScopePtr& scope) {
  using Kind = Expression::Kind;
  const Run::Level level(run_);
  run_.step();
  const auto part = [&](size_t i) { return evaluate(*node.parts[i], scope); };
  switch (node.kind) {
    case Kind::kConstant:
      return node.constant;
    case Kind::kVariable:
      return evaluate_variable(node, scope);
    case Kind::kTuple:
      return run_.tuple(evaluate_all(node.parts, scope));
    case Kind::kList:
      return run_.list(evaluate_all(node.parts, scope));
    case Kind::kDict:
      return evaluate_dict(node, scope);
    case Kind::kAttribute: {
      const Value value = part(0);
      run_.set_line(node.line);
      return get_attribute(run_, value, node.text);
    }
    case Kind::kItem: {
      const Value value = part(0);
      const Value key = part(1);
      run_.set_line(node.line);
      return get_item(run_, value, key);
    }
    case Kind::kSlice:
      return evaluate_slice(node, scope);
    case Kind::kCall:
      return evaluate_call(node, scope);
    case Kind::kFilter:
    case Kind::kTest:
      return evaluate_filter(node, scope);
    case Kind::kBinary: {
      const Value left = part(0);
      const Value right = part(1);
      run_.set_line(node.line);
      return apply(run_, node.op, left, right);
    }
    case Kind::kNegate: {
      const Value value = part(0);
      run_.set_line(node.line);
      return negate(run_, value);
    }
    case Kind::kPlus: {
      const Value value = part(0);
      run_.set_line(node.line);
      return plus(run_, value);
    }
    case Kind::kNot:
      return Value(!truth_of(part(0)));
    case Kind::kAnd: {
      Value left = part(0);
      return truth_of(left) ? part(1) : left;
    }
    case Kind::kOr: {
      Value left = part(0);
      return truth_of(left) ? left : part(1);
    }
    case Kind::kConcat:
      return evaluate_concat(node, scope);
    case Kind::kComparison:
      return evaluate_comparison(node, scope);
    case Kind::kConditional:
      return evaluate_conditional(node, scope);
  }
  return {};
}

Value Interpreter::evaluate_variable(const Expression& node, const ScopePtr& scope) {
  if (const Value* value = scope->find(node.symbol)) {
    return *value;
  }
  return global_of(run_, node.text);
}

Values Interpreter::evaluate_all(const std::vector<ExpressionPtr>& nodes, const ScopePtr& scope) {
  Values values;
  values.reserve(nodes.size());
  for (const ExpressionPtr& node : nodes) {
    values.push_back(evaluate(*node, scope));
  }
  return values;
}

Value Interpreter::evaluate_dict(const Expression& node, const ScopePtr& scope) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i < node.parts.size(); i += 2) {
    Value key = evaluate(*node.parts[i], scope);
    Value value = evaluate(*node.parts[i + 1], scope);
    run_.set_line(node.parts[i]->line);
    run_.set(*dict, std::move(key), std::move(value));
  }
  return run_.dict(std::move(dict));
}

Value Interpreter::evaluate_slice(const Expression& node, const ScopePtr& scope) {
  const auto bound = [&](size_t i) {
    return node.parts[i] ? evaluate(*node.parts[i], scope) : Value(None{});
  };
  const Value value = evaluate(*node.parts[0], scope);
  const Value start = bound(1);
  const Value stop = bound(2);
  const Value step = bound(3);
  run_.set_line(node.line);
  return get_slice(run_, value, start, stop, step);
}

Value Interpreter::evaluate_filter(const Expression& node, const ScopePtr& scope) {
  const Value input = node.parts[0] ? evaluate(*node.parts[0], scope) : std::move(captured_);
  const Arguments arguments = evaluate_arguments(node.arguments, scope);
  run_.set_line(node.line);
  return node.kind == Expression::Kind::kFilter ? node.filter(run_, input, arguments)
                                                : Value(node.test(run_, input, arguments));
}

Value Interpreter::evaluate_concat(const Expression& node, const ScopePtr& scope) {
  std::string out;
  for (const ExpressionPtr& part : node.parts) {
    const Value value = evaluate(*part, scope);
    run_.set_line(node.line);
    append_text(run_, out, value);
  }
  return run_.text(std::move(out));
}

Value Interpreter::evaluate_conditional(const Expression& node, const ScopePtr& scope) {
  if (truth_of(evaluate(*node.parts[0], scope))) {
    return evaluate(*node.parts[1], scope);
  }
  return node.parts[2]
             ? evaluate(*node.parts[2], scope)
             : run_.undefined(concat("the inline if-expression on line ", node.line,
                                     " evaluated to false and no else section was defined"));
}

bool Interpreter::compare(Comparison comparison, const Value& left, const Value& right) {
  switch (comparison) {
    case Comparison::kEqual:
      return equal(run_, left, right);
    case Comparison::kUnequal:
      return !equal(run_, left, right);
    case Comparison::kLess:
      return less(run_, left, right);
    case Comparison::kLessEqual:
      return less(run_, left, right) || equal(run_, left, right);
    case Comparison::kGreater:
      return less(run_, right, left);
    case Comparison::kGreaterEqual:
      return less(run_, right, left) || equal(run_, left, right);
    case Comparison::kIn:
      return contains(run_, right, left);
    case Comparison::kNotIn:
      return !contains(run_, right, left);
  }
  return false;
}

// a < b < c: the parts up to the first that does not hold.
Value Interpreter::evaluate_comparison(const Expression& node, const ScopePtr& scope) {
  Value left = evaluate(*node.parts[0], scope);
  for (size_t i = 0; i < node.comparisons.size(); ++i) {
    Value right = evaluate(*node.parts[i + 1], scope);
    run_.set_line(node.line);
    if (!compare(node.comparisons[i], left, right)) {
      return Value(false);
    }
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::evaluate_call(const Expression& node, const ScopePtr& scope) {
  const Value callee = evaluate(*node.parts[0], scope);
  const Arguments arguments = evaluate_arguments(node.arguments, scope);
  run_.set_line(node.line);
  return call(run_, callee, arguments);
}

Arguments Interpreter::evaluate_arguments(const CallArguments& arguments, const ScopePtr& scope) {
  Arguments out;
  out.positional = evaluate_all(arguments.positional, scope);
  for (const auto& [name, node] : arguments.named) {
    out.named.emplace_back(name, evaluate(*node, scope));
  }
  if (arguments.more_positional) {
    const Values more = items_of(run_, evaluate(*arguments.more_positional, scope));
    out.positional.insert(out.positional.end(), more.begin(), more.end());
  }
  if (arguments.more_named) {
    const Value more = evaluate(*arguments.more_named, scope);
    if (!more.is_dict()) {
      run_.fail("argument after ** must be a mapping, not ", more.type_name());
    }
    for (const auto& [key, value] : more.dict().entries()) {
      out.named.emplace_back(expect_text(run_, key, "the name of an argument"), value);
    }
  }
  return out;
}

}  // namespace tapestry::chat::jinja
