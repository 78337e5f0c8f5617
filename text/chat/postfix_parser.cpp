// What stands behind an operand: attributes, subscripts, calls, filters and tests.
#include <algorithm>

#include "text/chat/expression_parser.h"
#include "text/chat/methods.h"

namespace tapestry::chat::jinja {

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr node) {
  while (true) {
    if (tokens_.current().is_operator(".")) {
      node = parse_attribute(std::move(node));
    } else if (tokens_.current().is_operator("[")) {
      node = parse_subscript(std::move(node));
    } else if (tokens_.current().is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::parse_filters_and_tests(ExpressionPtr node) {
  while (true) {
    if (tokens_.skip_operator("|")) {
      node = parse_filter(std::move(node));
    } else if (tokens_.skip_name("is")) {
      node = parse_test(std::move(node));
    } else if (tokens_.current().is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExpressionPtr ExpressionParser::parse_attribute(ExpressionPtr node) {
  const int line = tokens_.next().line;
  if (tokens_.current().kind == Token::Kind::kInteger) {
    ExpressionPtr place = make(Expression::Kind::kConstant, line);
    place->constant = Value(tokens_.next().integer);
    return make(Expression::Kind::kItem, line, list_of(std::move(node), std::move(place)));
  }
  const Token name = tokens_.expect(Token::Kind::kName, "a name or a number");
  if (name.text.starts_with("__")) {
    tokens_.fail_at(name.line, "attribute '", name.text, "' is not known here");
  }
  ExpressionPtr attribute = make(Expression::Kind::kAttribute, line, list_of(std::move(node)));
  attribute->text = name.text;
  return attribute;
}

// A part between brackets; a slice takes `node` in and is returned whole.
ExpressionPtr ExpressionParser::parse_subscript_part(ExpressionPtr& node) {
  const int line = tokens_.current().line;
  ExpressionPtr start;
  if (!tokens_.current().is_operator(":")) {
    start = parse_expression();
    if (!tokens_.current().is_operator(":")) {
      return start;
    }
  }
  tokens_.expect_operator(":");
  const auto optional_part = [&]() -> ExpressionPtr {
    const Token& token = tokens_.current();
    const bool left_out =
        token.is_operator(":") || token.is_operator("]") || token.is_operator(",");
    return left_out ? nullptr : parse_expression();
  };
  ExpressionPtr stop = optional_part();
  ExpressionPtr step;
  if (tokens_.skip_operator(":")) {
    step = optional_part();
  }
  return make(Expression::Kind::kSlice, line,
              list_of(std::move(node), std::move(start), std::move(stop), std::move(step)));
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr node) {
  const int line = tokens_.next().line;
  if (tokens_.current().is_operator("]")) {
    tokens_.fail_unexpected("an expression");
  }
  ExpressionPtr first = parse_subscript_part(node);
  if (node == nullptr) {  // a slice
    tokens_.expect_operator("]");
    return first;
  }
  if (tokens_.current().is_operator(",")) {
    std::vector<ExpressionPtr> items = list_of(std::move(first));
    while (tokens_.skip_operator(",")) {
      items.push_back(parse_expression());
    }
    first = make(Expression::Kind::kTuple, line, std::move(items));
  }
  tokens_.expect_operator("]");
  return make(Expression::Kind::kItem, line, list_of(std::move(node), std::move(first)));
}

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr node) {
  const int line = tokens_.current().line;
  if (node->kind == Expression::Kind::kAttribute && !is_known_method(node->text)) {
    tokens_.fail_at(node->line, "method '", node->text, "' is not known here");
  }
  ExpressionPtr call = make(Expression::Kind::kCall, line, list_of(std::move(node)));
  call->arguments = parse_arguments();
  return finished(std::move(call));
}

CallArguments ExpressionParser::parse_arguments() {
  CallArguments arguments;
  tokens_.expect_operator("(");
  while (!tokens_.skip_operator(")")) {
    const Token token = tokens_.current();
    const bool is_named = token.kind == Token::Kind::kName && tokens_.look_ahead().is_operator("=");
    const bool is_more = token.is_operator("*");
    const bool is_more_named = token.is_operator("**");
    if (arguments.more_named || (is_more && arguments.more_positional) ||
        (!is_named && !is_more_named && !is_more &&
         (arguments.more_positional || !arguments.named.empty()))) {
      tokens_.fail("arguments of a call are in a wrong order");
    }
    if (is_named) {
      tokens_.next();
      tokens_.next();
      arguments.named.emplace_back(token.text, parse_expression());
    } else if (is_more) {
      tokens_.next();
      arguments.more_positional = parse_expression();
    } else if (is_more_named) {
      tokens_.next();
      arguments.more_named = parse_expression();
    } else {
      arguments.positional.push_back(parse_expression());
    }
    if (!tokens_.current().is_operator(")")) {
      tokens_.expect_operator(",");
    }
  }
  return arguments;
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = tokens_.expect(Token::Kind::kName, "a name").text;
  while (tokens_.skip_operator(".")) {
    name += "." + tokens_.expect(Token::Kind::kName, "a name").text;
  }
  return name;
}

// `map('upper')` and `select('odd')`: filters and tests that an argument names.
void ExpressionParser::check_named_function(const Expression& node) const {
  const bool by_attribute = node.text == "selectattr" || node.text == "rejectattr";
  const bool names_test = by_attribute || node.text == "select" || node.text == "reject";
  const size_t place = by_attribute ? 1 : 0;
  if ((!names_test && node.text != "map") || node.arguments.positional.size() <= place) {
    return;
  }
  const Expression& name = *node.arguments.positional[place];
  if (name.kind != Expression::Kind::kConstant || !name.constant.is_text()) {
    return;
  }
  const std::string& text = name.constant.bytes();
  if (names_test && find_test(text) == nullptr) {
    tokens_.fail_at(name.line, "test '", text, "' is not known here");
  }
  if (!names_test && find_filter(text) == nullptr) {
    tokens_.fail_at(name.line, unknown_filter(text));
  }
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr node) {
  const int line = tokens_.current().line;
  const std::string name = parse_dotted_name();
  ExpressionPtr filtered = make(Expression::Kind::kFilter, line, list_of(std::move(node)));
  filtered->text = name;
  filtered->filter = find_filter(name);
  if (tokens_.current().is_operator("(")) {
    filtered->arguments = parse_arguments();
  }
  if (filtered->filter == nullptr) {
    tokens_.fail_at(line, unknown_filter(name));
  }
  check_named_function(*filtered);
  return finished(std::move(filtered));
}

ExpressionPtr ExpressionParser::parse_block_filters() {
  ExpressionPtr node;
  while (tokens_.skip_operator("|")) {
    node = parse_filter(std::move(node));
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_filter_names() {
  ExpressionPtr node;
  do {
    node = parse_filter(std::move(node));
  } while (tokens_.skip_operator("|"));
  return node;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr node) {
  const bool negated = tokens_.skip_name("not");
  const int line = tokens_.current().line;
  const std::string name = parse_dotted_name();
  ExpressionPtr tested = make(Expression::Kind::kTest, line, list_of(std::move(node)));
  tested->text = name;
  tested->test = find_test(name);
  if (tested->test == nullptr) {
    tokens_.fail_at(line, "test '", name, "' is not known here");
  }
  const Token& token = tokens_.current();
  using TokenKind = Token::Kind;
  const bool begins_argument =
      (token.kind == TokenKind::kName && !token.is_name("else") && !token.is_name("or") &&
       !token.is_name("and")) ||
      token.kind == TokenKind::kText || token.kind == TokenKind::kInteger ||
      token.kind == TokenKind::kReal || token.is_operator("[") || token.is_operator("{");
  if (token.is_operator("(")) {
    tested->arguments = parse_arguments();
  } else if (begins_argument) {
    if (token.is_name("is")) {
      tokens_.fail("tests cannot follow each other");
    }
    ExpressionPtr argument = parse_primary();
    tested->arguments.positional.push_back(parse_postfix(std::move(argument)));
  }
  tested = finished(std::move(tested));
  return negated ? make(Expression::Kind::kNot, line, list_of(std::move(tested)))
                 : std::move(tested);
}

}  // namespace tapestry::chat::jinja
