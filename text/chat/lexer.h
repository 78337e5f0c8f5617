// The words of a template.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::chat::jinja {

struct Token {
  enum class Kind {
    kData,  ///< text between tags, white space around tags already taken away
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kText,
    kInteger,
    kReal,
    kOperator,
    kEnd
  };

  Kind kind = Kind::kEnd;
  int line = 1;
  std::string text;  ///< of data, name, operator; what a text literal says
  int64_t integer = 0;
  double real = 0;

  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
  bool is_operator(std::string_view name) const { return kind == Kind::kOperator && text == name; }
};

/// All tokens, kEnd last. As Jinja's lexer with trim_blocks and lstrip_blocks: a newline behind a
/// block or comment goes, and so does white space before one that begins its line; `-` takes all
/// white space, `+` none; the template's last newline goes. ValueError "NAME:LINE: ..." for what is
/// no Jinja.
std::vector<Token> tokens_of(std::string_view source, const std::string& name);

}  // namespace tapestry::chat::jinja
