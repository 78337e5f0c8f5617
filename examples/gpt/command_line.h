// The command line of the programs.
#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

namespace tapestry::examples {

/// The options that were given. Throws boost::program_options::error for unknown options, for words
/// that belong to no option and for abbreviations, which would change their meaning when an option
/// is added. po::notify is left to the caller, who may first want to look for --help.
inline boost::program_options::variables_map parse_command_line(
    const std::vector<std::string>& words,
    const boost::program_options::options_description& options) {
  namespace po = boost::program_options;
  constexpr int kStyle =
      po::command_line_style::default_style & ~po::command_line_style::allow_guessing;
  po::variables_map values;
  po::store(po::command_line_parser(words)
                .options(options)
                .positional(po::positional_options_description())
                .style(kStyle)
                .run(),
            values);
  return values;
}
inline boost::program_options::variables_map parse_command_line(
    int argc, const char* const* argv, const boost::program_options::options_description& options) {
  return parse_command_line(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc),
                            options);
}

}  // namespace tapestry::examples
