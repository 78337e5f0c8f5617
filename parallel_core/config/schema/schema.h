// The table of all configuration keys. It drives parsing, checking, the help text and
// docs/configuration.md; nothing else knows the keys.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/config/registered_names.h"
#include "parallel_core/config/schema/field.h"

namespace tapestry::config {

/// A condition on one value. For lists of numbers a range holds for every element.
struct Check {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;  // low itself is refused
  bool high_open = false;
  std::string_view choices;                          // "a|b|c"
  std::string (*predicate)(const Value&) = nullptr;  // empty, or what is wrong
  std::string_view predicate_text;                   // the predicate in words
};

constexpr Check at_least(double low) { return {.low = low}; }
constexpr Check above(double low) { return {.low = low, .low_open = true}; }
constexpr Check between(double low, double high) { return {.low = low, .high = high}; }
constexpr Check one_of(std::string_view choices) { return {.choices = choices}; }
constexpr Check satisfies(std::string (*predicate)(const Value&), std::string_view text) {
  return {.predicate = predicate, .predicate_text = text};
}

/// What null means for a key.
enum class Null {
  kByType,   // a value of its own where the member is optional, else an error
  kDefault,  // the default
};

/// Whether a key says what a model is, so that the files of a model have it.
enum class Form : uint8_t {
  kNone,
  kTold,
  kDecided,  ///< and models of a family that has no word for it have its default
};

struct Key {
  /// "hidden_size", or "rotary_config.rotary_base" for an entry of a mapping.
  std::string_view name;
  Field field;
  Form form = Form::kNone;
  Check check = {};
  /// Names that the program has registered as parts of this type are taken beside those of `check`.
  std::optional<ModuleType> registers = {};
  bool required = false;
  Null null = Null::kByType;
  /// A number, or a list of numbers, stands for the text "1" or "1,2" without quotes.
  bool numbers_as_text = false;
  /// A path, or several: `~` and `${NAME}` stand for what the environment says.
  bool path = false;
  /// Stands for other keys, which the resolved configuration holds, where it is null itself.
  bool until_resolved = false;
  /// Other spellings, separated by '|', in the same section; "/name" stands at top level.
  std::string_view aliases = {};
  /// Other spellings of values: "mint.AdamW=AdamW|...".
  std::string_view value_aliases = {};
  /// Of a mapping: the entry that a scalar in its place gives.
  std::string_view scalar_entry = {};
  /// Shown as the default where the member's initialiser does not say it.
  std::string_view default_text = {};
  /// Not empty: only these values (YAML text, separated by '|') are taken ...
  std::string_view accepted = {};
  /// ... and why the others are refused, and what to set instead.
  std::string_view reason = {};
  /// A feature that is to come will take them; else they are refused for good.
  bool planned = false;
  /// A usual value, shown where a required key is missing or wrong.
  std::string_view example = {};
  std::string_view doc;
};

struct Section {
  std::string_view name;
  std::string_view title;
  std::string_view doc;
  std::span<const Key> keys;
};

/// All sections in the order in which they are shown. The model's is called "model_config" here.
std::span<const Section> schema();

/// The row of "section.key" with the section's canonical name; nullptr if there is none.
const Key* find_key(std::string_view section, std::string_view key);
const Section* find_section(std::string_view name);

/// The default of a key.
Value default_value(const Key& key);

/// The last part of its name: "rotary_base" of "rotary_config.rotary_base".
std::string_view last_name(const Key& key);

/// What holds without the key, for people: "512", "required", "its entries' defaults".
std::string default_text(const Key& key);

/// "integer", "float or null", "list of integers", ...
std::string type_text(const Key& key);
/// "> 0", "one of a, b", "in [0, 1]"; empty if there is no condition.
std::string check_text(const Key& key);

/// The end of a message about a wrong value: "; allowed: integer > 0; default: 10", or an example
/// in place of the default of a required key.
std::string usual_value(const Key& key);

/// The value as YAML that reads back as it is: to_yaml, but for dollar signs of paths (path_text).
std::string yaml_of(const Key& key, const Value& value);

/// Whether the name is one that the table itself knows for the key, or an alias of such.
bool is_built_in(const Key& key, std::string_view name);

/// What is wrong with the value, or an empty text. The value has the key's type.
std::string complaint(const Key& key, const Value& value);

/// True if this release implements the value.
bool is_supported(const Key& key, const Value& value);

/// Pieces of a text between separators; none for an empty text.
std::vector<std::string_view> split_text(std::string_view text, char separator);

/// Edits (insert, delete, replace, swap neighbours) between two names.
int edit_distance(std::string_view a, std::string_view b);
/// The name nearest to `name`; an empty view if there are none.
std::string_view nearest(std::string_view name, std::span<const std::string_view> names);

// The sections, each in a file of its own.
std::span<const Key> training_keys();
std::span<const Key> parallel_keys();
std::span<const Key> dataset_keys();
std::span<const Key> model_keys();
std::span<const Key> optimizer_keys();
std::span<const Key> moe_keys();
std::span<const Key> lora_keys();
std::span<const Key> post_training_keys();
std::span<const Key> tensorboard_keys();
std::span<const Key> telemetry_keys();
std::span<const Key> monitor_keys();

/// Of a list of texts: empty, or which of them is no regular expression.
std::string check_patterns(const Value& value);

}  // namespace tapestry::config
