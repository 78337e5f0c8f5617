#include <algorithm>
#include <cctype>

#include "packaging/manual/pages.h"

namespace tapestry::manual {
namespace {

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return out + "'";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : " ") + word;
  }
  return text;
}

// "  local -A NAME=([key]='value' ...)", a line each.
class Table {
 public:
  explicit Table(const std::string& name) : text_("  local -A " + name + "=(") {}
  void add(const std::string& key, const std::string& value) {
    text_ += "\n    [" + key + "]=" + shell_quoted(value);
  }
  std::string text() const { return text_ + ")\n"; }

 private:
  std::string text_;
};

// What stands behind each option, by "_--name", or by "_COMMAND --name" of a command's: bash takes
// no empty subscripts.
void add_options(const std::vector<Option>& options,
                 const std::string& command,
                 Table& kinds,
                 Table& values,
                 Table& offered) {
  std::vector<std::string> names;
  for (const Option& option : options) {
    const std::string name = "--" + option.name;
    names.push_back(name);
    const std::string kind = kind_of(option);
    if (option.takes != Takes::kNone || kind == "topic") {
      kinds.add(shell_quoted("_" + command + name),
                (option.takes == Takes::kMany ? "many " : "one ") +
                    (option.values.empty() ? kind : "words"));
    }
    if (!option.values.empty()) {
      values.add(shell_quoted("_" + command + name), joined(option.values));
    }
  }
  offered.add(shell_quoted("_" + command), joined(names));
}

}  // namespace

std::string function_name(const Program& program) {
  std::string name = "_tapestry_" + program.name;
  std::replace_if(
      name.begin(), name.end(),
      [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

std::string bash_completion(const Program& program, const std::string& logic) {
  Table kinds("kinds");
  Table values("values");
  Table offered("offered");
  Table keys("keys");
  Table flags("flags");
  add_options(all_options(program), "", kinds, values, offered);
  std::vector<std::string> commands;
  for (const auto& [words, command] : program.commands) {
    add_options(command.options, words + " ", kinds, values, offered);
    if (words.find(' ') == std::string::npos) {
      commands.push_back(words);
    }
  }
  for (const Section& section : program.sections) {
    for (const Key& key : section.keys) {
      const std::string path = section.name + "." + key.name;
      keys.add(path, joined(key.values));
      for (const std::string& flag : key.flags) {
        flags.add(flag, path);
      }
    }
  }
  return "# Completion of " + program.name +
         " for bash, made by Tapestry's build from the tables of its --help.\n" + logic +
         function_name(program) + "() {\n" + kinds.text() + values.text() + offered.text() +
         keys.text() + flags.text() + "  local commands=" + shell_quoted(joined(commands)) +
         " topics=" + shell_quoted(joined(topics_of(program))) +
         " operands=" + shell_quoted(joined(program.operands)) +
         "\n  _tapestry_complete\n}\ncomplete -F " + function_name(program) + " " + program.name +
         "\n";
}

}  // namespace tapestry::manual
