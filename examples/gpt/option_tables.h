// The tables behind --help as data, of which the build makes man pages and completions for shells:
// packaging/manual.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <string_view>

#include "autograd/io/json.h"

namespace tapestry::examples {

/// The topic of --help that prints a program's tables.
inline constexpr std::string_view kTablesTopic = "as_json";

/// {"page": what --help prints, "options": [{"name", "short", "value", "values", "takes",
/// "repeats", "default", "doc"}, ...]}. "takes" is "none", "one", or "many" values, "values" those
/// that the meaning of an option or its value's name lists: "hf | gguf: the form of the result".
nlohmann::ordered_json tables_of(const std::string& page,
                                 const boost::program_options::options_description& options);

/// Adds options that have a page of their own, `--help TOPIC`, to those tables: an entry {"topic",
/// "title", "options"} of the list "groups".
void add_group(const std::string& topic,
               const std::string& title,
               const boost::program_options::options_description& options,
               nlohmann::ordered_json& tables);

/// [{"name", "doc", "keys": [{"name", "type", "values", "check", "default", "doc", "flags"}]}]: the
/// sections of a configuration. "flags" are the names of a key as an option of its own, of a
/// program that takes such (`as_options`).
nlohmann::ordered_json configuration_tables(bool as_options);

/// The tables as --help prints them.
std::string tables_text(const nlohmann::ordered_json& tables);

}  // namespace tapestry::examples
