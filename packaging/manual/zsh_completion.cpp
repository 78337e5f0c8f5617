#include "packaging/manual/pages.h"

namespace tapestry::manual {
namespace {

std::string zsh_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return out + "'";
}

// Within a specification of _arguments, where colons and brackets have a meaning.
std::string zsh_plain(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += (c == ':' || c == '[' || c == ']' || c == '\\' ? "\\" : "") + std::string(1, c);
  }
  return out;
}

std::string action_of(const Option& option) {
  if (!option.values.empty()) {
    std::string words;
    for (const std::string& value : option.values) {
      words += (words.empty() ? "" : " ") + value;
    }
    return "(" + words + ")";
  }
  const std::string kind = kind_of(option);
  return kind == "file"     ? "_files"
         : kind == "folder" ? "_files -/"
         : kind == "preset" ? "_tapestry_preset"
         : kind == "key"    ? "_tapestry_key"
         : kind == "topic"  ? "_tapestry_topic"
                            : "( )";
}

// '*--plot=[meaning]:RUN...:_files'
std::string specification(const Option& option, bool has_topics) {
  const bool topic = has_topics && option.name == "help";
  std::string text = option.repeats ? "*" : "";
  text += "--" + option.name + (option.takes == Takes::kOne ? "=" : "") + "[" +
          zsh_plain(summary_of(option.doc)) + "]";
  if (option.takes != Takes::kNone || topic) {
    const std::string value = topic ? "section or key" : option.value;
    const char* separator = topic ? "::" : option.takes == Takes::kMany ? ":*-*:" : ":";
    text += separator + zsh_plain(value) + ":" + action_of(option);
  }
  return "    " + zsh_quoted(text) + "\n";
}

std::string specifications(const std::vector<Option>& options, bool has_topics) {
  std::string text;
  for (const Option& option : options) {
    text += specification(option, has_topics);
  }
  return text;
}

std::string tables_text(const Program& program) {
  std::string keys;
  std::string flags;
  std::string topics;
  for (const std::string& topic : topics_of(program)) {
    topics += (topics.empty() ? "" : " ") + topic;
  }
  for (const Section& section : program.sections) {
    for (const Key& key : section.keys) {
      std::string values;
      for (const std::string& value : key.values) {
        values += (values.empty() ? "" : " ") + value;
      }
      const std::string path = section.name + "." + key.name;
      keys += "    " + path + " " + zsh_quoted(values) + "\n";
      for (const std::string& flag : key.flags) {
        flags += "    " + flag + " " + path + "\n";
      }
    }
  }
  return "  local -A keys=(\n" + keys + "  )\n  local -A flags=(\n" + flags +
         "  )\n  local topics=" + zsh_quoted(topics) + "\n";
}

std::string zsh_commands_text(const Program& program) {
  std::string names;
  std::string cases;
  for (const auto& [words, command] : program.commands) {
    const size_t space = words.find(' ');
    if (space == std::string::npos) {
      names += " " + words;
    }
    // "compare --bits" before "compare".
    const std::string pattern = space == std::string::npos
                                    ? words + " *"
                                    : words.substr(0, space) + " *" + words.substr(space + 1) + "*";
    std::string glob = "    (";
    for (const char c : pattern) {
      glob += c == ' ' ? "\\ " : std::string(1, c);
    }
    const std::string body =
        glob + ") specs=(\n" + specifications(command.options, false) + "      ) ;;\n";
    cases = space == std::string::npos ? cases + body : body + cases;
  }
  return "  if ((CURRENT == 2)); then\n    compadd --" + names +
         " --help\n    return\n  fi\n  local -a specs=()\n  case \"${words[2]} ${words[3,-1]}\" "
         "in\n" +
         cases +
         "  esac\n  words=(${words[1]} ${words[3,-1]})\n  ((--CURRENT))\n"
         "  _arguments -S $specs '*:folder or file:_files'\n";
}

}  // namespace

std::string zsh_completion(const Program& program, const std::string& logic) {
  // `export` without a path is the shell's own.
  const std::string command = program.name == "export" ? "-p */export" : program.name;
  std::string text = "#compdef " + command + "\n# Completion of " + program.name +
                     " for zsh, made by Tapestry's build from the tables of its --help.\n" + logic +
                     function_name(program) + "() {\n";
  if (!program.commands.empty()) {
    text += zsh_commands_text(program);
  } else {
    const bool has_keys = !program.sections.empty();
    text += tables_text(program) + "  local -a reply=()\n" +
            (has_keys ? "  _tapestry_flags\n" : "") + "  _arguments -S $reply \\\n";
    std::string specs = specifications(all_options(program), has_keys);
    for (size_t at = specs.find('\n'); at != std::string::npos; at = specs.find('\n', at + 3)) {
      specs.replace(at, 1, " \\\n");
    }
    const std::string operands =
        program.operands.empty() ? program.name == "compare_checkpoints" ? "'*:folder:_files'" : ""
                                 : "'1:configuration:_tapestry_preset'";
    text += specs + "    " + operands + "\n";
  }
  return text + "}\n" + function_name(program) + " \"$@\"\n";
}

}  // namespace tapestry::manual
