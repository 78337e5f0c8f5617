#include "packaging/manual/tables.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>

#include "autograd/io/json.h"

namespace tapestry::manual {
namespace {

using Json = nlohmann::json;

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(path.string() + ": cannot be read");
  }
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Option option_of(const Json& json) {
  const auto takes = json.at("takes").get<std::string>();
  return {.name = json.at("name"),
          .short_name = json.at("short"),
          .value = json.at("value"),
          .values = json.at("values"),
          .takes = takes == "none"  ? Takes::kNone
                   : takes == "one" ? Takes::kOne
                                    : Takes::kMany,
          .repeats = json.at("repeats"),
          .usual = json.at("default"),
          .doc = json.at("doc")};
}

std::vector<Option> options_of(const Json& json) {
  std::vector<Option> options;
  std::transform(json.begin(), json.end(), std::back_inserter(options), option_of);
  return options;
}

Section section_of(const Json& json) {
  Section section{.name = json.at("name"), .doc = json.at("doc"), .keys = {}};
  for (const Json& key : json.at("keys")) {
    section.keys.push_back({.name = key.at("name"),
                            .type = key.at("type"),
                            .values = key.at("values"),
                            .check = key.at("check"),
                            .usual = key.at("default"),
                            .doc = key.at("doc"),
                            .flags = key.at("flags")});
  }
  return section;
}

Program program_of(const std::filesystem::path& path) {
  const Json json = Json::parse(content_of(path));
  Program program{.page = json.at("page"), .options = options_of(json.at("options"))};
  for (const Json& group : json.value("groups", Json::array())) {
    program.groups.push_back({.topic = group.at("topic"),
                              .title = group.at("title"),
                              .options = options_of(group.at("options"))});
  }
  for (const Json& section : json.value("sections", Json::array())) {
    program.sections.push_back(section_of(section));
  }
  return program;
}

// "--restarts N" and what is said of it.
Option option_of_row(const std::string& word, const std::string& meaning) {
  const size_t space = word.find(' ');
  Option option{.name = word.substr(2, space - 2), .doc = meaning};
  if (space != std::string::npos) {
    option.value = word.substr(space + 1);
    option.takes = Takes::kOne;
  }
  return option;
}

// Of a script that starts the program: its page, and the program's options after its own.
Program script_of(const std::string& page, const Program& program) {
  Program script = program;
  script.page = page;
  script.operands = {"preset"};
  script.options.clear();
  std::set<std::string> own;
  for (const PagePart& part : parts_of(page, /*options_are_rows=*/true).before) {
    for (const auto& [word, meaning] : part.rows) {
      if (word.starts_with("--")) {
        script.options.push_back(option_of_row(word, meaning));
        own.insert(script.options.back().name);
      }
    }
  }
  std::copy_if(program.options.begin(), program.options.end(), std::back_inserter(script.options),
               [&](const Option& option) { return !own.contains(option.name); });
  return script;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(line);
  }
  return lines;
}

size_t indentation_of(const std::string& line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

// "  WORD  MEANING": two blanks at least are between them.
bool add_row(const std::string& line, PagePart& part) {
  const size_t indentation = indentation_of(line);
  if (indentation != 2) {
    if (indentation > 2 && !part.rows.empty()) {
      part.rows.back().second += " " + line.substr(indentation);
      return true;
    }
    return false;
  }
  const size_t gap = line.find("  ", indentation);
  if (gap == std::string::npos) {
    return false;
  }
  part.rows.emplace_back(line.substr(indentation, gap - indentation),
                         line.substr(line.find_first_not_of(' ', gap)));
  return true;
}

// A paragraph: lines without an empty one between them.
std::vector<PagePart> parts_of_paragraph(const std::vector<std::string>& lines) {
  std::vector<PagePart> parts(1);
  for (const std::string& line : lines) {
    if (indentation_of(line) > 0 && add_row(line, parts.back())) {
      PagePart& part = parts.back();
      if (part.text.ends_with(':') && part.heading.empty()) {  // the heading of the list
        part.heading = part.text.substr(0, part.text.size() - 1);
        part.text.clear();
      }
      continue;
    }
    if (!parts.back().rows.empty()) {
      parts.emplace_back();
    }
    std::string& text = parts.back().text;
    text += (text.empty() ? "" : " ") + line.substr(indentation_of(line));
  }
  return parts;
}

}  // namespace

std::map<std::string, Program> read_programs(const std::filesystem::path& folder) {
  std::map<std::string, Program> programs;
  std::map<std::string, std::string> scripts;
  std::set<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.insert(entry.path());
  }
  std::vector<std::pair<std::string, Program>> commands;
  for (const std::filesystem::path& path : paths) {
    const std::string stem = path.stem().string();
    if (path.extension() == ".txt") {
      scripts[stem] = content_of(path);
    } else if (path.extension() == ".json") {
      Program program = program_of(path);
      const size_t dot = stem.find('.');
      program.name = stem.substr(0, dot);
      if (dot == std::string::npos) {
        programs[stem] = std::move(program);
      } else {
        commands.emplace_back(stem.substr(dot + 1), std::move(program));
      }
    }
  }
  for (auto& [name, command] : commands) {
    programs.at(command.name).commands[name] = std::move(command);
  }
  for (const auto& [name, page] : scripts) {
    Program script = script_of(page, programs.at(name.substr(0, name.find('.'))));
    script.name = name;
    programs[name] = std::move(script);
  }
  return programs;
}

std::vector<Option> all_options(const Program& program) {
  std::vector<Option> options = program.options;
  for (const OptionGroup& group : program.groups) {
    options.insert(options.end(), group.options.begin(), group.options.end());
  }
  return options;
}

std::vector<std::string> topics_of(const Program& program) {
  std::vector<std::string> topics;
  for (const Section& section : program.sections) {
    topics.push_back(section.name);
  }
  for (const OptionGroup& group : program.groups) {
    topics.push_back(group.topic);
  }
  return topics;
}

Page parts_of(const std::string& page, bool options_are_rows) {
  Page parts;
  std::vector<std::string> paragraph;
  bool in_usage = false;
  bool in_options = false;
  bool after_options = false;
  const auto end_paragraph = [&] {
    std::vector<PagePart>& list = after_options ? parts.after : parts.before;
    for (PagePart& part : parts_of_paragraph(paragraph)) {
      if (part.text == "Options" || part.heading == "Options") {
        part.text.clear();
        part.heading = part.rows.empty() ? "" : "Options";
      }
      if (!part.text.empty() || !part.rows.empty()) {
        list.push_back(std::move(part));
      }
    }
    paragraph.clear();
  };
  for (std::string line : lines_of(page)) {
    const bool is_option = !options_are_rows && line.starts_with("  -");
    if (is_option && !in_options && !paragraph.empty() && paragraph.back().ends_with(':')) {
      paragraph.back().pop_back();  // boost's, after the caption
    } else if (is_option && !in_options && in_usage && parts.usage.back().ends_with(':')) {
      parts.usage.back().pop_back();
    }
    if (is_option || (in_options && indentation_of(line) > 0)) {
      in_options = true;
      continue;
    }
    if (in_options) {
      end_paragraph();
      in_options = false;
      after_options = true;
    }
    if (line.starts_with("Usage: ") ||
        (parts.usage.empty() && paragraph.empty() && !line.empty())) {
      parts.usage.push_back(line.starts_with("Usage: ") ? line.substr(7) : line);
      in_usage = true;
    } else if (in_usage && indentation_of(line) >= 7) {
      const std::string form = line.substr(indentation_of(line));
      const std::string program = parts.usage.front().substr(0, parts.usage.front().find(' '));
      if (form.starts_with(program)) {
        parts.usage.push_back(form);
      } else {  // a form that is longer than a line
        parts.usage.back() += " " + form;
      }
    } else {
      in_usage = false;
      if (line.empty()) {
        end_paragraph();
      } else {
        paragraph.push_back(std::move(line));
      }
    }
  }
  end_paragraph();
  return parts;
}

std::string kind_of(const Option& option) {
  if (option.name == "config_path") {
    return "preset";
  }
  if (option.value == "KEY=VALUE") {
    return "key";
  }
  const std::string plain = option.value.substr(0, option.value.find("..."));
  static const std::set<std::string> kFiles = {"PATH",      "PREFIX",  "RUN",
                                               "REFERENCE", "PROGRAM", "CHECKPOINT STEP"};
  if (plain.starts_with("FILE") || kFiles.contains(plain)) {
    return "file";
  }
  if (plain == "DIR") {
    return option.doc.find("file") == std::string::npos ? "folder" : "file";
  }
  return option.name == "help" ? "topic" : "";
}

std::string summary_of(const std::string& doc) {
  std::string plain;
  for (const char c : doc) {
    if (c != '`' && c != '*' && static_cast<unsigned char>(c) >= 0x20) {
      plain += c;
    }
  }
  const size_t end = std::min(plain.find(". "), plain.find("; "));
  plain = plain.substr(0, end);
  return plain.ends_with('.') ? plain.substr(0, plain.size() - 1) : plain;
}

}  // namespace tapestry::manual
