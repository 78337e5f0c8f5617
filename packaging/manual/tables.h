// What a program says of itself with `--help as_json`, for pages and completions.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tapestry::manual {

enum class Takes { kNone, kOne, kMany };

struct Option {
  std::string name;
  std::string short_name;
  std::string value;                ///< "FILE"; empty of one that takes none
  std::vector<std::string> values;  ///< all that it can be, where they are listed
  Takes takes = Takes::kNone;
  bool repeats = false;
  std::string usual;
  std::string doc;
};

struct OptionGroup {
  std::string topic;  ///< of its page, --help TOPIC
  std::string title;
  std::vector<Option> options;
};

struct Key {
  std::string name;
  std::string type;
  std::vector<std::string> values;
  std::string check;
  std::string usual;
  std::string doc;
  std::vector<std::string> flags;
};

struct Section {
  std::string name;
  std::string doc;
  std::vector<Key> keys;
};

struct Program {
  std::string name;
  std::string page;  ///< what --help prints
  std::vector<Option> options;
  std::vector<OptionGroup> groups;          ///< more of them, each with a page of its own
  std::vector<Section> sections;            ///< of its configuration
  std::map<std::string, Program> commands;  ///< by their words: "compare", "compare --bits"
  std::vector<std::string> operands = {};   ///< kinds of words before options: "preset"
};

/// Reads the tables in a folder: NAME.json; NAME.COMMAND.json of a program's commands; NAME.sh.txt,
/// what a script prints for --help, whose options join those of the program NAME.
std::map<std::string, Program> read_programs(const std::filesystem::path& folder);

/// The options of the program and of its groups.
std::vector<Option> all_options(const Program& program);

/// The words that --help of the program takes, but for those of single keys and options.
std::vector<std::string> topics_of(const Program& program);

/// A page of --help in parts: paragraphs, and lists of "  WORD  MEANING" under a heading.
struct PagePart {
  std::string heading;  ///< "Environment" above a list
  std::string text;
  std::vector<std::pair<std::string, std::string>> rows;
};
struct Page {
  std::vector<std::string> usage;  ///< without "Usage: "
  std::vector<PagePart> before;    ///< the list of options
  std::vector<PagePart> after;
};

/// The page without its list of options (lines that begin with "  -" and what belongs to them),
/// which is in the tables; with `options_are_rows` they are parts as any other list.
Page parts_of(const std::string& page, bool options_are_rows);

/// What a value is, by its name and its meaning: "file", "folder", "preset", "key", "topic" or "".
std::string kind_of(const Option& option);

/// The first clause of a text, without marks, for a line beside a word.
std::string summary_of(const std::string& doc);

}  // namespace tapestry::manual
