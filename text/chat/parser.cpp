#include "text/chat/parser.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "text/chat/expression_parser.h"
#include "text/chat/token_stream.h"

namespace tapestry::chat::jinja {

namespace {

using StatementKind = Statement::Kind;
using StatementPtr = std::unique_ptr<Statement>;

StatementPtr make_statement(Statement::Kind kind, int line) {
  auto statement = std::make_unique<Statement>();
  statement->kind = kind;
  statement->line = line;
  return statement;
}

class StatementParser {
 public:
  StatementParser(std::vector<Token> tokens, const std::string& name)
      : tokens_(std::move(tokens), name), expressions_(tokens_) {}

  Syntax read() {
    Syntax syntax;
    syntax.body = parse_body({});
    if (tokens_.current().kind != Token::Kind::kEnd) {
      tokens_.fail_unexpected("a statement");
    }
    syntax.names = tokens_.take_names();
    return syntax;
  }

 private:
  bool is_at_any(std::initializer_list<std::string_view> names) const {
    return std::any_of(names.begin(), names.end(),
                       [&](std::string_view name) { return tokens_.current().is_name(name); });
  }

  // Up to a tag that begins with one of the names, whose begin is passed, or the template's end.
  Block parse_body(std::initializer_list<std::string_view> ends) {
    Block body;
    while (true) {
      const Token& token = tokens_.current();
      if (token.kind == Token::Kind::kData) {
        body.push_back(make_statement(StatementKind::kData, token.line));
        body.back()->data = tokens_.next().text;
      } else if (token.kind == Token::Kind::kVariableBegin) {
        body.push_back(make_statement(StatementKind::kOutput, tokens_.next().line));
        body.back()->expression = expressions_.parse_tuple();
        tokens_.expect(Token::Kind::kVariableEnd, "'}}'");
      } else if (token.kind == Token::Kind::kBlockBegin) {
        tokens_.next();
        if (is_at_any(ends)) {
          return body;
        }
        body.push_back(parse_statement());
        end_tag();
      } else if (ends.size() > 0) {
        tokens_.fail("the template ends where '", *(ends.end() - 1), "' is expected");
      } else {
        return body;
      }
    }
  }

  void end_tag() { tokens_.expect(Token::Kind::kBlockEnd, "'%}'"); }

  // The body behind the tag that is being read; its end tag is passed but for its '%}'.
  Block parse_block(std::string_view end) {
    end_of_head();
    Block body = parse_body({end});
    tokens_.next();
    return body;
  }

  void end_of_head() {
    tokens_.skip_operator(":");
    end_tag();
  }

  StatementPtr parse_statement() {
    const TokenStream::Level level(tokens_);
    const Token name = tokens_.expect(Token::Kind::kName, "the name of a statement");
    using Parse = StatementPtr (StatementParser::*)(int line);
    static constexpr std::pair<std::string_view, Parse> kStatements[] = {
        {"for", &StatementParser::parse_for},
        {"if", &StatementParser::parse_if},
        {"set", &StatementParser::parse_set},
        {"with", &StatementParser::parse_with},
        {"macro", &StatementParser::parse_macro},
        {"call", &StatementParser::parse_call},
        {"filter", &StatementParser::parse_filter},
        {"generation", &StatementParser::parse_generation},
        {"break", &StatementParser::parse_break},
        {"continue", &StatementParser::parse_continue}};
    for (const auto& [known, parse] : kStatements) {
      if (name.text == known) {
        return (this->*parse)(name.line);
      }
    }
    tokens_.fail_at(name.line, "statement '", name.text, "' is not known here");
  }

  // ---- Targets.

  Symbol parse_target_name() {
    const Token name = tokens_.expect(Token::Kind::kName, "the name of a variable");
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (name.text == constant) {
        tokens_.fail_at(name.line, "'", name.text, "' cannot be set");
      }
    }
    return tokens_.symbol_of(name.text);
  }

  Target parse_target_item() {
    const TokenStream::Level level(tokens_);
    if (tokens_.skip_operator("(")) {
      Target target = parse_target(false);
      tokens_.expect_operator(")");
      return target;
    }
    Target target;
    target.symbol = parse_target_name();
    return target;
  }

  Target parse_target(bool with_namespace) {
    if (with_namespace && tokens_.look_ahead().is_operator(".")) {
      Target target;
      target.kind = Target::Kind::kNamespace;
      target.symbol = parse_target_name();
      tokens_.expect_operator(".");
      target.attribute = tokens_.expect(Token::Kind::kName, "the name of an attribute").text;
      return target;
    }
    Target first = parse_target_item();
    if (!tokens_.current().is_operator(",")) {
      return first;
    }
    Target tuple;
    tuple.kind = Target::Kind::kTuple;
    tuple.parts.push_back(std::move(first));
    while (tokens_.skip_operator(",")) {
      const bool ends = tokens_.current().is_name("in") || tokens_.current().is_operator("=") ||
                        tokens_.current().is_operator(")");
      if (ends) {
        break;
      }
      tuple.parts.push_back(parse_target_item());
    }
    return tuple;
  }

  void check_no_loop(const Target& target, int line) const {
    if (target.kind == Target::Kind::kName && target.symbol == kLoopSymbol) {
      tokens_.fail_at(line, "the variable of a loop cannot be called 'loop'");
    }
    for (const Target& part : target.parts) {
      check_no_loop(part, line);
    }
  }

  // ---- Statements.

  StatementPtr parse_for(int line) {
    StatementPtr statement = make_statement(StatementKind::kFor, line);
    statement->target = parse_target(false);
    check_no_loop(statement->target, line);
    tokens_.expect_name("in");
    statement->expression = expressions_.parse_tuple(false, "recursive");
    if (tokens_.skip_name("if")) {
      statement->condition = expressions_.parse_expression();
    }
    statement->is_recursive = tokens_.skip_name("recursive");
    end_of_head();
    ++loops_;
    statement->body = parse_body({"else", "endfor"});
    --loops_;
    if (tokens_.next().text == "else") {
      statement->otherwise = parse_block("endfor");
    }
    return statement;
  }

  StatementPtr parse_if(int line) {
    StatementPtr statement = make_statement(StatementKind::kIf, line);
    ExpressionPtr condition = expressions_.parse_tuple(false);
    while (true) {
      end_of_head();
      Block body = parse_body({"elif", "else", "endif"});
      statement->branches.emplace_back(std::move(condition), std::move(body));
      const Token end = tokens_.next();
      if (end.text == "elif") {
        condition = expressions_.parse_tuple(false);
        continue;
      }
      if (end.text == "else") {
        statement->branches.emplace_back(nullptr, parse_block("endif"));
      }
      return statement;
    }
  }

  StatementPtr parse_set(int line) {
    StatementPtr statement = make_statement(StatementKind::kSet, line);
    statement->target = parse_target(true);
    if (tokens_.skip_operator("=")) {
      statement->expression = expressions_.parse_tuple();
      return statement;
    }
    statement->kind = StatementKind::kSetBlock;
    statement->expression = expressions_.parse_block_filters();
    statement->body = parse_outside_loops("endset");
    return statement;
  }

  StatementPtr parse_with(int line) {
    StatementPtr statement = make_statement(StatementKind::kWith, line);
    while (tokens_.current().kind != Token::Kind::kBlockEnd) {
      if (!statement->assignments.empty()) {
        tokens_.expect_operator(",");
      }
      // One name or a tuple in parentheses: a comma begins the next assignment.
      Target target = parse_target_item();
      tokens_.expect_operator("=");
      statement->assignments.emplace_back(std::move(target), expressions_.parse_expression());
    }
    statement->body = parse_block("endwith");
    return statement;
  }

  // A body that a loop around it cannot be left from.
  Block parse_outside_loops(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Block body = parse_block(end);
    loops_ = loops;
    return body;
  }

  void parse_parameters(MacroSyntax& macro) {
    tokens_.expect_operator("(");
    while (!tokens_.skip_operator(")")) {
      Parameter parameter;
      parameter.symbol = parse_target_name();
      if (tokens_.skip_operator("=")) {
        parameter.otherwise = expressions_.parse_expression();
      } else if (!macro.parameters.empty() && macro.parameters.back().otherwise) {
        tokens_.fail("a parameter without a default follows one that has one");
      }
      macro.parameters.push_back(std::move(parameter));
      if (!tokens_.current().is_operator(")")) {
        tokens_.expect_operator(",");
      }
    }
  }

  void parse_macro_body(MacroSyntax& macro, std::string_view end) {
    expressions_.open_macros().push_back(&macro);
    macro.body = parse_outside_loops(end);
    expressions_.open_macros().pop_back();
  }

  StatementPtr parse_macro(int line) {
    StatementPtr statement = make_statement(StatementKind::kMacro, line);
    statement->macro = std::make_unique<MacroSyntax>();
    statement->macro->name = tokens_.current().text;
    statement->symbol = parse_target_name();
    parse_parameters(*statement->macro);
    parse_macro_body(*statement->macro, "endmacro");
    return statement;
  }

  StatementPtr parse_call(int line) {
    StatementPtr statement = make_statement(StatementKind::kCall, line);
    statement->macro = std::make_unique<MacroSyntax>();
    statement->macro->name = "caller";
    if (tokens_.current().is_operator("(")) {
      parse_parameters(*statement->macro);
    }
    statement->expression = expressions_.parse_expression();
    if (statement->expression->kind != Expression::Kind::kCall) {
      tokens_.fail_at(line, "'call' takes a call of a macro");
    }
    parse_macro_body(*statement->macro, "endcall");
    return statement;
  }

  StatementPtr parse_filter(int line) {
    StatementPtr statement = make_statement(StatementKind::kFilter, line);
    statement->expression = expressions_.parse_filter_names();
    statement->body = parse_outside_loops("endfilter");
    return statement;
  }

  StatementPtr parse_generation(int line) {
    StatementPtr statement = make_statement(StatementKind::kScope, line);
    statement->body = parse_outside_loops("endgeneration");
    return statement;
  }

  StatementPtr parse_break(int line) {
    check_in_loop(line, "break");
    return make_statement(StatementKind::kBreak, line);
  }

  StatementPtr parse_continue(int line) {
    check_in_loop(line, "continue");
    return make_statement(StatementKind::kContinue, line);
  }

  void check_in_loop(int line, std::string_view name) const {
    if (loops_ == 0) {
      tokens_.fail_at(line, "'", name, "' outside of a loop");
    }
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

Syntax parse(std::string_view source, const std::string& name) {
  return StatementParser(tokens_of(source, name), name).read();
}

}  // namespace tapestry::chat::jinja
