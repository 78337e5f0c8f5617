#include "examples/gpt/option_tables.h"

#include <algorithm>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/config/read/load.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::examples {
namespace {

namespace po = boost::program_options;
using Json = nlohmann::ordered_json;

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos
             ? std::string()
             : std::string(text.substr(first, text.find_last_not_of(' ') + 1 - first));
}

// Words between bars, of which there must be two.
Json words_between_bars(std::string_view text) {
  Json words = Json::array();
  for (const std::string_view part : config::split_text(text, '|')) {
    const std::string word = trimmed(part);
    if (word.empty() || word.find_first_of(" \"'`$,;:") != std::string::npos) {
      return Json::array();
    }
    words.push_back(word);
  }
  return words.size() < 2 ? Json::array() : words;
}

// Of "[2.0]" and of "1.x|2.0"; else of what the meaning begins with, up to a colon or semicolon.
Json values_of(const std::string& value, const std::string& doc) {
  if (value.starts_with('[') && value.ends_with(']')) {
    return Json::array({value.substr(1, value.size() - 2)});
  }
  const Json named = words_between_bars(value);
  return !named.empty() ? named : words_between_bars(doc.substr(0, doc.find_first_of(":;")));
}

Json table_of(const po::option_description& option) {
  const po::value_semantic& semantic = *option.semantic();
  std::string value;
  std::string usual;
  if (semantic.max_tokens() > 0 || semantic.min_tokens() > 0) {
    value = semantic.name();  // "N (=3)"
    if (const size_t at = value.find(" (="); at != std::string::npos && value.ends_with(')')) {
      usual = value.substr(at + 3, value.size() - at - 4);
      value = value.substr(0, at);
    }
  }
  const std::string shown = option.format_name();  // "-h [ --help ]"
  return {{"name", option.long_name()},
          {"short", shown.starts_with("--") ? std::string() : shown.substr(1, 1)},
          {"value", value},
          {"values", value.empty() ? Json::array() : values_of(value, option.description())},
          {"takes", value.empty()               ? "none"
                    : semantic.max_tokens() > 1 ? "many"
                                                : "one"},
          {"repeats", semantic.is_composing()},
          {"default", usual},
          {"doc", option.description()}};
}

Json values_of(const config::Key& key) {
  Json values = Json::array();
  if (!key.accepted.empty()) {
    for (const std::string_view value : config::split_text(key.accepted, '|')) {
      values.push_back(value);
    }
  } else if (key.field.type == config::Type::kBool) {
    values = {"True", "False"};
  } else if (key.field.type == config::Type::kDType) {
    values = {"float16", "bfloat16", "float32"};
  } else {
    for (const std::string_view value : config::split_text(key.check.choices, '|')) {
      values.push_back(value);
    }
  }
  return values;
}

Json flags_of(const config::Section& section, const config::Key& key) {
  Json flags = Json::array();
  if (const std::string_view name = config::last_name(key); config::is_flag(name)) {
    flags.push_back(name);
  }
  const std::string path = concat(section.name, ".", key.name);
  for (const config::FlatName& flat : config::flat_names()) {
    if (flat.key == path && std::find(flags.begin(), flags.end(), flat.flag) == flags.end()) {
      flags.push_back(flat.flag);
    }
  }
  return flags;
}

Json table_of(const config::Section& section, const config::Key& key, bool as_options) {
  return {{"name", key.name},
          {"type", config::type_text(key)},
          {"values", values_of(key)},
          {"check", config::check_text(key)},
          {"default", config::default_text(key)},
          {"doc", key.doc},
          {"flags", as_options ? flags_of(section, key) : Json::array()}};
}

}  // namespace

Json tables_of(const std::string& page, const po::options_description& options) {
  Json tables = {{"page", page}, {"options", Json::array()}};
  for (const auto& option : options.options()) {
    tables["options"].push_back(table_of(*option));
  }
  return tables;
}

void add_group(const std::string& topic,
               const std::string& title,
               const po::options_description& options,
               Json& tables) {
  tables["groups"].push_back(
      {{"topic", topic}, {"title", title}, {"options", tables_of({}, options)["options"]}});
}

Json configuration_tables(bool as_options) {
  Json sections = Json::array();
  for (const config::Section& section : config::schema()) {
    Json keys = Json::array();
    for (const config::Key& key : section.keys) {
      keys.push_back(table_of(section, key, as_options));
    }
    sections.push_back({{"name", section.name}, {"doc", section.doc}, {"keys", std::move(keys)}});
  }
  return sections;
}

std::string tables_text(const Json& tables) { return tables.dump(1) + "\n"; }

}  // namespace tapestry::examples
