// The command line of the programs.
#pragma once

#include <boost/program_options.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace tapestry::examples {

/// Takes --help or -h out of the words, and the word behind it that says of what, "" if there is
/// none: "--help", "--help SECTION", "--help=SECTION".
std::optional<std::string> take_help(std::vector<std::string>& words);

/// The options that were given. Abbreviations, which would change their meaning when an option is
/// added, are not taken. ValueError, in words for the user, for an unknown option (with the nearest
/// one), a word that belongs to no option, an option without its value, with one that it does not
/// take or that is no number, and one that is given twice. `hint` may know what an unknown word
/// means: its text, such as "; write --set ...", ends the message. po::notify is left to the
/// caller.
boost::program_options::variables_map parse_command_line(
    const std::vector<std::string>& words,
    const boost::program_options::options_description& options,
    const std::function<std::string(const std::string& word)>& hint = {});

/// print_result (program.h), with lines that the terminal has room for.
void print_wrapped(const std::string& text);

/// "PROGRAM: TEXT" on standard error, in such lines.
void say(const std::string& program, const std::string& text);

/// Columns for a program's page of options: those of the terminal, at most 100.
unsigned help_columns();

/// The words of main's arguments.
std::vector<std::string> words_of(int argc, const char* const* argv);

}  // namespace tapestry::examples
