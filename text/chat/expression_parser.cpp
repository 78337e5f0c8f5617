#include "text/chat/expression_parser.h"

#include <algorithm>
#include <array>

namespace tapestry::chat::jinja {

namespace {

using ExpressionKind = Expression::Kind;

bool is_end_of_tag(const Token& token) {
  return token.kind == Token::Kind::kVariableEnd || token.kind == Token::Kind::kBlockEnd ||
         token.is_operator(")");
}

}  // namespace

ExpressionPtr ExpressionParser::make(Expression::Kind kind,
                                     int line,
                                     std::vector<ExpressionPtr> parts) {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  node->parts = std::move(parts);
  return finished(std::move(node));
}

ExpressionPtr ExpressionParser::finished(ExpressionPtr node) {
  int depth = 0;
  const auto look = [&](const ExpressionPtr& part) {
    depth = part ? std::max(depth, part->depth) : depth;
  };
  std::for_each(node->parts.begin(), node->parts.end(), look);
  const CallArguments& arguments = node->arguments;
  std::for_each(arguments.positional.begin(), arguments.positional.end(), look);
  for (const auto& named : arguments.named) {
    look(named.second);
  }
  look(arguments.more_positional);
  look(arguments.more_named);
  node->depth = depth + 1;
  if (node->depth > kMaxSyntaxDepth) {
    tokens_.fail_at(node->line, "an expression is nested more than ", kMaxSyntaxDepth, " deep");
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_tuple(bool with_conditional, std::string_view end) {
  const int line = tokens_.current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  do {
    if (is_end_of_tag(tokens_.current()) || (!end.empty() && tokens_.current().is_name(end))) {
      break;
    }
    items.push_back(with_conditional ? parse_expression() : parse_or());
    is_tuple = is_tuple || tokens_.current().is_operator(",");
  } while (tokens_.skip_operator(","));
  if (items.empty()) {
    tokens_.fail_unexpected("an expression");
  }
  return is_tuple ? make(ExpressionKind::kTuple, line, std::move(items)) : std::move(items[0]);
}

ExpressionPtr ExpressionParser::parse_expression() {
  const TokenStream::Level level(tokens_);
  const int line = tokens_.current().line;
  ExpressionPtr node = parse_or();
  while (tokens_.skip_name("if")) {
    ExpressionPtr condition = parse_or();
    ExpressionPtr otherwise;
    if (tokens_.skip_name("else")) {
      otherwise = parse_expression();
    }
    node = make(ExpressionKind::kConditional, line,
                list_of(std::move(condition), std::move(node), std::move(otherwise)));
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_or() {
  ExpressionPtr node = parse_and();
  for (int line = tokens_.current().line; tokens_.skip_name("or"); line = tokens_.current().line) {
    node = make(ExpressionKind::kOr, line, list_of(std::move(node), parse_and()));
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_and() {
  ExpressionPtr node = parse_not();
  for (int line = tokens_.current().line; tokens_.skip_name("and"); line = tokens_.current().line) {
    node = make(ExpressionKind::kAnd, line, list_of(std::move(node), parse_not()));
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_not() {
  const TokenStream::Level level(tokens_);
  const int line = tokens_.current().line;
  if (tokens_.skip_name("not")) {
    return make(ExpressionKind::kNot, line, list_of(parse_not()));
  }
  return parse_comparison();
}

bool ExpressionParser::next_comparison(Comparison& comparison) {
  static constexpr std::array<std::pair<std::string_view, Comparison>, 6> kOperators = {
      {{"==", Comparison::kEqual},
       {"!=", Comparison::kUnequal},
       {"<=", Comparison::kLessEqual},
       {">=", Comparison::kGreaterEqual},
       {"<", Comparison::kLess},
       {">", Comparison::kGreater}}};
  for (const auto& [text, meaning] : kOperators) {
    if (tokens_.skip_operator(text)) {
      comparison = meaning;
      return true;
    }
  }
  if (tokens_.skip_name("in")) {
    comparison = Comparison::kIn;
    return true;
  }
  if (tokens_.current().is_name("not") && tokens_.look_ahead().is_name("in")) {
    tokens_.next();
    tokens_.next();
    comparison = Comparison::kNotIn;
    return true;
  }
  return false;
}

ExpressionPtr ExpressionParser::parse_comparison() {
  const int line = tokens_.current().line;
  std::vector<ExpressionPtr> parts = list_of(parse_sum());
  std::vector<Comparison> comparisons;
  Comparison comparison = Comparison::kEqual;
  while (next_comparison(comparison)) {
    comparisons.push_back(comparison);
    parts.push_back(parse_sum());
  }
  if (comparisons.empty()) {
    return std::move(parts[0]);
  }
  ExpressionPtr node = make(ExpressionKind::kComparison, line, std::move(parts));
  node->comparisons = std::move(comparisons);
  return node;
}

ExpressionPtr ExpressionParser::parse_sum() {
  ExpressionPtr node = parse_concat();
  while (tokens_.current().is_operator("+") || tokens_.current().is_operator("-")) {
    const Token token = tokens_.next();
    node = make(ExpressionKind::kBinary, token.line, list_of(std::move(node), parse_concat()));
    node->op = token.text == "+" ? BinaryOperator::kAdd : BinaryOperator::kSubtract;
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_concat() {
  const int line = tokens_.current().line;
  std::vector<ExpressionPtr> parts = list_of(parse_product());
  while (tokens_.skip_operator("~")) {
    parts.push_back(parse_product());
  }
  return parts.size() == 1 ? std::move(parts[0])
                           : make(ExpressionKind::kConcat, line, std::move(parts));
}

ExpressionPtr ExpressionParser::parse_product() {
  static constexpr std::array<std::pair<std::string_view, BinaryOperator>, 4> kOperators = {
      {{"*", BinaryOperator::kMultiply},
       {"/", BinaryOperator::kDivide},
       {"//", BinaryOperator::kFloorDivide},
       {"%", BinaryOperator::kModulo}}};
  ExpressionPtr node = parse_power();
  while (true) {
    const Token& token = tokens_.current();
    const auto* const found =
        std::find_if(kOperators.begin(), kOperators.end(),
                     [&](const auto& entry) { return token.is_operator(entry.first); });
    if (found == kOperators.end()) {
      return node;
    }
    const int line = tokens_.next().line;
    node = make(ExpressionKind::kBinary, line, list_of(std::move(node), parse_power()));
    node->op = found->second;
  }
}

ExpressionPtr ExpressionParser::parse_power() {
  ExpressionPtr node = parse_unary(true);
  for (int line = tokens_.current().line; tokens_.skip_operator("**");
       line = tokens_.current().line) {
    node = make(ExpressionKind::kBinary, line, list_of(std::move(node), parse_unary(true)));
    node->op = BinaryOperator::kPower;
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
  const TokenStream::Level level(tokens_);
  const int line = tokens_.current().line;
  ExpressionPtr node;
  if (tokens_.skip_operator("-")) {
    node = make(ExpressionKind::kNegate, line, list_of(parse_unary(false)));
  } else if (tokens_.skip_operator("+")) {
    node = make(ExpressionKind::kPlus, line, list_of(parse_unary(false)));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExpressionPtr ExpressionParser::parse_primary() {
  const Token token = tokens_.current();
  switch (token.kind) {
    case Token::Kind::kName:
      tokens_.next();
      return parse_name(token);
    case Token::Kind::kText: {
      std::string text;
      while (tokens_.current().kind == Token::Kind::kText) {
        text += tokens_.next().text;
      }
      ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
      node->constant = Value(std::move(text));
      return node;
    }
    case Token::Kind::kInteger:
    case Token::Kind::kReal: {
      tokens_.next();
      ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
      node->constant =
          token.kind == Token::Kind::kInteger ? Value(token.integer) : Value(token.real);
      return node;
    }
    default:
      break;
  }
  if (tokens_.skip_operator("(")) {
    return parse_in_parentheses(token.line);
  }
  if (tokens_.skip_operator("[")) {
    return parse_list(token.line);
  }
  if (tokens_.skip_operator("{")) {
    return parse_dict(token.line);
  }
  tokens_.fail_unexpected("an expression");
}

ExpressionPtr ExpressionParser::parse_name(const Token& token) {
  const std::string& name = token.text;
  const bool is_true = name == "true" || name == "True";
  if (is_true || name == "false" || name == "False" || name == "none" || name == "None") {
    ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
    node->constant = name[0] == 'n' || name[0] == 'N' ? Value(None{}) : Value(is_true);
    return node;
  }
  if (name == "self" || name == "super" || name == "lipsum") {
    tokens_.fail_at(token.line, "'", name, "' is not known here");
  }
  ExpressionPtr node = make(ExpressionKind::kVariable, token.line);
  node->symbol = tokens_.symbol_of(name);
  node->text = name;
  for (MacroSyntax* macro : open_macros_) {
    macro->uses_caller = macro->uses_caller || node->symbol == kCallerSymbol;
    macro->uses_varargs = macro->uses_varargs || node->symbol == kVarargsSymbol;
    macro->uses_kwargs = macro->uses_kwargs || node->symbol == kKwargsSymbol;
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_in_parentheses(int line) {
  if (tokens_.skip_operator(")")) {
    return make(ExpressionKind::kTuple, line);
  }
  ExpressionPtr node = parse_tuple();
  tokens_.expect_operator(")");
  return node;
}

ExpressionPtr ExpressionParser::parse_list(int line) {
  std::vector<ExpressionPtr> items;
  while (!tokens_.skip_operator("]")) {
    items.push_back(parse_expression());
    if (!tokens_.current().is_operator("]")) {
      tokens_.expect_operator(",");
    }
  }
  return make(ExpressionKind::kList, line, std::move(items));
}

ExpressionPtr ExpressionParser::parse_dict(int line) {
  std::vector<ExpressionPtr> items;
  while (!tokens_.skip_operator("}")) {
    items.push_back(parse_expression());
    tokens_.expect_operator(":");
    items.push_back(parse_expression());
    if (!tokens_.current().is_operator("}")) {
      tokens_.expect_operator(",");
    }
  }
  return make(ExpressionKind::kDict, line, std::move(items));
}

}  // namespace tapestry::chat::jinja
