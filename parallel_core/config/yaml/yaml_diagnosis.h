// Why a YAML parser refuses a text: the line and the likely cause in the words of its writer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tapestry::config {

/// A fault of a text; line and column count from 1, the column in bytes.
struct YamlFault {
  int line = 0;
  int column = 0;
  std::string message;
};

/// The first byte that is no UTF-8 text: Latin-1 and UTF-16 files, files that are no text. The
/// message says how to convert `name`.
std::optional<YamlFault> encoding_fault(std::string_view text, const std::string& name);

/// What a parser takes for something else without a complaint: a quote that is open where a key
/// begins, for all that follows is its text then, and {{ }} of a template.
std::optional<YamlFault> misread_fault(std::string_view text);

/// What is wrong with a text that the parser refuses, where `parser` says: the first line up to
/// there with a tab in its indentation, an unclosed quote or bracket, a missing colon or space, `=`
/// in place of a colon, two keys, an indentation that fits no line above, a character that begins
/// no value; else the parser's own words. The message ends with the remedy.
YamlFault yaml_fault(std::string_view text, const YamlFault& parser);

/// What one line lacks to be `key: value`, with the remedy; empty if it looks like it.
std::string line_fault(std::string_view line);

/// "model_config.num_layers": the keys whose values the line belongs to, itself included, from
/// the indentation alone. Empty where there is none.
std::string key_path_of_line(std::string_view text, int line);

/// The line as it stands in the text below a message, with a mark under the column.
std::string source_excerpt(std::string_view text, int line, int column);

}  // namespace tapestry::config
