// The options of pretrain_gpt: all of them, whichever program answers them (diagnosis_modes.h).
#pragma once

#include <boost/program_options.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tapestry::examples {

/// Those of the page of `--help`.
boost::program_options::options_description pretrain_options();

/// Those that look for faults, which have a page of their own: `--help accuracy`.
boost::program_options::options_description accuracy_options();

/// The words with each flag of the configuration that is none of these options ("--lr 1e-3",
/// "--training_config.seed=1") as one --set, whose value is the flag: LoadOptions takes them so.
std::vector<std::string> flags_as_settings(
    const std::vector<std::string>& words,
    const boost::program_options::options_description& options);

/// What --help prints; with a topic: of an option, a section or a key, or "accuracy".
std::string pretrain_help(const std::string& topic);

/// Whether the option was given, not only its default.
bool is_given(const boost::program_options::variables_map& arguments, const std::string& option);

/// The first option given that diagnosis answers: comparisons, dumps, reports, plots. The variable
/// MINDSPORE_DUMP_CONFIG counts as one where a run is trained.
std::optional<std::string> diagnosis_option(const boost::program_options::variables_map& arguments);

/// True for --plot and --report. ValueError if both are given, if options of a view stand without
/// one, or options of a training beside it, which would mean nothing.
bool asks_for_view(const boost::program_options::variables_map& arguments);

/// ValueError, naming both, if there is an option of what changes or tests a training beside one
/// that does not train as configured.
void check_trains(const boost::program_options::variables_map& arguments, const std::string& mode);

}  // namespace tapestry::examples
