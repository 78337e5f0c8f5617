// The command line of a program that measures.
#pragma once

#include <boost/program_options.hpp>
#include <optional>
#include <string_view>

namespace tapestry::bench {

/// The words of the command line, by `options` and the two that all programs have: --help, which is
/// answered here (nothing is returned), and --threads, which sets the team's size. ValueError for a
/// size below 1; boost's errors for words that are not understood.
std::optional<boost::program_options::variables_map> parse_options(
    int argc, char** argv, boost::program_options::options_description options);

/// True unless the option names another value: of options that choose some of several things.
bool is_chosen(const boost::program_options::variables_map& arguments,
               const char* option,
               std::string_view value);

}  // namespace tapestry::bench
