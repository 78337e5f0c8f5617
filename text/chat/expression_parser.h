// Expressions of templates, with the precedence of Jinja: conditional, or, and, not, comparisons, +
// -,
// ~, * / // %, **, signs, then attributes, calls, filters and tests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/chat/syntax.h"
#include "text/chat/token_stream.h"

namespace tapestry::chat::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExpressionPtr parse_expression();
  /// One, or a tuple of several; ends before the end of the tag or the name `end`.
  ExpressionPtr parse_tuple(bool with_conditional = true, std::string_view end = "");
  /// `| f | g` behind `set x`, or null.
  ExpressionPtr parse_block_filters();
  /// `f | g` behind `filter`.
  ExpressionPtr parse_filter_names();

  /// Macros whose bodies are being read: told which of the special variables they use.
  std::vector<MacroSyntax*>& open_macros() { return open_macros_; }

 private:
  ExpressionPtr make(Expression::Kind kind, int line, std::vector<ExpressionPtr> parts = {});
  ExpressionPtr finished(ExpressionPtr expression);

  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_comparison();
  bool next_comparison(Comparison& comparison);
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concat();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filters);
  ExpressionPtr parse_primary();
  ExpressionPtr parse_name(const Token& token);
  ExpressionPtr parse_in_parentheses(int line);
  ExpressionPtr parse_list(int line);
  ExpressionPtr parse_dict(int line);
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_filters_and_tests(ExpressionPtr node);
  ExpressionPtr parse_attribute(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_subscript_part(ExpressionPtr& node);
  ExpressionPtr parse_call(ExpressionPtr node);
  CallArguments parse_arguments();
  ExpressionPtr parse_filter(ExpressionPtr node);
  ExpressionPtr parse_test(ExpressionPtr node);
  std::string parse_dotted_name();
  void check_named_function(const Expression& node) const;

  TokenStream& tokens_;
  std::vector<MacroSyntax*> open_macros_;
};

}  // namespace tapestry::chat::jinja
