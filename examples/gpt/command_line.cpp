#include "examples/gpt/command_line.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <typeinfo>

#include "autograd/tensor/error.h"
#include "examples/gpt/option_tables.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/show/help_topics.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/training/log/terminal.h"
#include "parallel_core/training/program.h"

namespace tapestry::examples {
namespace {

namespace po = boost::program_options;

std::string nearest_option(const std::string& word, const po::options_description& options) {
  std::vector<std::string_view> names;
  for (const auto& option : options.options()) {
    names.emplace_back(option->long_name());
  }
  const std::string name = config::plain_topic(word);
  const std::string_view best = config::nearest(name, names);
  // Of a short word at least a letter has to be right.
  const int size = static_cast<int>(name.size());
  const int limit = std::min(std::max(2, size / 3), size - 1);
  return config::edit_distance(name, best) <= limit ? concat("; did you mean --", best, "?")
                                                    : std::string();
}

// "an integer", of the option's value; empty for texts.
std::string wanted(const std::string& option, const po::options_description& options) {
  const auto* description = options.find_nothrow(config::plain_topic(option), /*approx=*/false);
  const auto* value =
      description == nullptr
          ? nullptr
          : dynamic_cast<const po::typed_value_base*>(description->semantic().get());
  if (value == nullptr) {
    return {};
  }
  const std::type_info& type = value->value_type();
  return type == typeid(int64_t) || type == typeid(int) ? "an integer"
         : type == typeid(double)                       ? "a number"
                                                        : "";
}

std::string meaning(const std::string& word,
                    const po::options_description& options,
                    const std::function<std::string(const std::string&)>& hint) {
  std::string text = nearest_option(word, options);
  if (text.empty() && hint) {
    text = hint(word);
  }
  return text.empty() ? "; --help lists the options" : text;
}

void refuse_loose_words(const po::parsed_options& parsed,
                        const std::function<std::string(const std::string&)>& hint) {
  for (const auto& option : parsed.options) {
    if (option.position_key >= 0) {
      const std::string word =
          option.original_tokens.empty() ? std::string() : option.original_tokens.front();
      const std::string text = hint ? hint(word) : std::string();
      throw ValueError(concat("'", word, "' belongs to no option",
                              text.empty() ? "; --help lists the options" : text));
    }
  }
}

using Options = std::vector<boost::shared_ptr<po::option_description>>;

template <class Predicate>
Options options_with(const po::options_description& options, const Predicate& holds) {
  Options found;
  std::copy_if(options.options().begin(), options.options().end(), std::back_inserter(found),
               [&](const auto& option) { return holds(option->long_name()); });
  return found;
}

Options options_of_topic(const po::options_description& options, const std::string& name) {
  for (const std::string& spelling : config::spellings_of(name)) {
    if (Options found = options_with(options, [&](const auto& known) { return known == spelling; });
        !found.empty()) {
      return found;
    }
  }
  Options found = options_with(
      options, [&](const std::string& known) { return config::has_parts(known, name); });
  return !found.empty() ? found : options_with(options, [&](const auto& known) {
    return config::is_near(name, known);
  });
}

std::string shown(const Options& found) {
  po::options_description page(help_columns());
  for (const auto& option : found) {
    page.add(option);
  }
  std::ostringstream text;
  text << page;
  return text.str();
}

}  // namespace

std::string option_help(const po::options_description& options, const std::string& name) {
  const std::string plain = config::plain_topic(name);
  const Options found = options_with(options, [&](const auto& known) { return known == plain; });
  return found.empty() ? std::string() : shown(found);
}

std::string help_page(const std::string& page,
                      const po::options_description& options,
                      const std::string& topic) {
  if (topic.empty()) {
    return page;
  }
  if (topic == kTablesTopic) {
    auto tables = tables_of(page, options);
    if (options.find_nothrow("set", /*approx=*/false) != nullptr) {
      tables["sections"] = configuration_tables(/*as_options=*/false);
    }
    return tables_text(tables);
  }
  const std::string name = config::plain_topic(topic);
  if (const Options found = options_of_topic(options, name); !found.empty()) {
    return shown(found);
  }
  if (options.find_nothrow("set", /*approx=*/false) != nullptr &&
      !config::find_topic(name).keys.empty()) {
    return concat("With --set:\n",
                  fit_to_terminal(OutputStream::kOut, render_configuration_help(topic)));
  }
  std::vector<std::string_view> names;
  for (const auto& option : options.options()) {
    names.emplace_back(option->long_name());
  }
  throw ValueError(concat("--help ", topic, ": there is no such option; the nearest is --",
                          config::nearest(name, names), "; --help alone lists all"));
}

std::optional<std::string> take_help(std::vector<std::string>& words) {
  const auto found = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return word == "-h" || word == "--help" || word.starts_with("--help=");
  });
  if (found == words.end()) {
    return std::nullopt;
  }
  std::string topic;
  const size_t equals = found->find('=');
  auto end = found + 1;
  if (equals != std::string::npos) {
    topic = found->substr(equals + 1);
  } else if (end != words.end() && !end->starts_with('-')) {
    topic = *end++;
  }
  words.erase(found, end);
  return topic;
}

bool answer_help(std::vector<std::string>& words, const po::options_description& options) {
  const std::optional<std::string> topic = take_help(words);
  if (topic) {
    std::ostringstream text;
    text << options;
    print_result(help_page(text.str(), options, *topic));
  }
  return topic.has_value();
}

po::variables_map parse_command_line(const std::vector<std::string>& words,
                                     const po::options_description& options,
                                     const std::function<std::string(const std::string&)>& hint) {
  constexpr int kStyle =
      po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
  po::variables_map values;
  try {
    const po::parsed_options parsed =
        po::command_line_parser(words).options(options).style(kStyle).run();
    refuse_loose_words(parsed, hint);
    po::store(parsed, values);
  } catch (const po::unknown_option& error) {
    const std::string word = error.get_option_name();
    throw ValueError(concat("unknown option '", word, "'", meaning(word, options, hint)));
  } catch (const po::multiple_occurrences& error) {
    throw ValueError(concat(error.get_option_name(), " is given more than once; keep one"));
  } catch (const po::invalid_command_line_syntax& error) {
    const bool missing = error.kind() == po::invalid_syntax::missing_parameter ||
                         error.kind() == po::invalid_syntax::empty_adjacent_parameter;
    throw ValueError(concat(error.get_option_name(), missing ? ": a value is missing behind it"
                                                             : ": takes no value; write it alone"));
  } catch (const po::validation_error& error) {
    const std::string expected = wanted(error.get_option_name(), options);
    throw ValueError(concat(error.what(), expected.empty() ? "" : concat("; expected ", expected)));
  } catch (const po::error& error) {
    throw ValueError(error.what());
  }
  return values;
}

void print_wrapped(const std::string& text) {
  print_result(fit_to_terminal(OutputStream::kOut, text));
}

void say(const std::string& program, const std::string& text) {
  std::cerr << fit_to_terminal(OutputStream::kError, program + ": " + text) << std::endl;
}

unsigned help_columns() {
  constexpr int kLeast = 50;
  constexpr int kMost = 100;
  return static_cast<unsigned>(
      is_terminal(OutputStream::kOut) ? std::clamp(terminal_columns(), kLeast, kMost) : kMost);
}

std::vector<std::string> words_of(int argc, const char* const* argv) {
  return {argv + std::min(argc, 1), argv + argc};
}

}  // namespace tapestry::examples
