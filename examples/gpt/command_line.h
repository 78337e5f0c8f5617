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

/// What --help TOPIC prints: `page` without a topic, else the options that it names, by their name,
/// by what other programs call the same, or by a part of their name; where there is an option
/// --set, also keys of the configuration; for kTablesTopic all options as data (option_tables.h).
/// ValueError with the nearest option for a topic that names none.
std::string help_page(const std::string& page,
                      const boost::program_options::options_description& options,
                      const std::string& topic);

/// Answers --help, where it is among the words, with that page or topic of the options; whether it
/// was.
bool answer_help(std::vector<std::string>& words,
                 const boost::program_options::options_description& options);

/// The option of exactly this name as a page shows it; empty if there is none.
std::string option_help(const boost::program_options::options_description& options,
                        const std::string& name);

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
