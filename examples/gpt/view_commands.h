// pretrain_gpt --plot and --report: their options and what they write about runs that there are.
#pragma once

#include <boost/program_options.hpp>
#include <string>

namespace tapestry::examples {

/// Adds --plot, --report and the options that go with them: --out, --x and --smooth.
void add_view_options(boost::program_options::options_description& options);

/// True if one of them is asked for. ValueError if both are, if options of a view stand without
/// one, or options of a training beside it, which would mean nothing.
bool asks_for_view(const boost::program_options::variables_map& arguments);

/// Draws or writes, and returns what goes to standard output; a plot as text in the width, letters
/// and colours that it shows there. `version` names the program. ValueError and IoError: see
/// plot_runs and write_report.
std::string view(const boost::program_options::variables_map& arguments,
                 const std::string& version);

}  // namespace tapestry::examples
