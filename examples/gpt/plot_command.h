// pretrain_gpt --plot: its options and what it writes.
#pragma once

#include <boost/program_options.hpp>
#include <string>

namespace tapestry::examples {

/// Adds --plot and the options that go with it: --out, --x and --smooth.
void add_plot_options(boost::program_options::options_description& options);

/// True if a plot is asked for. ValueError if options of a plot stand without --plot, or options of
/// a training beside it, which would mean nothing.
bool asks_for_plot(const boost::program_options::variables_map& arguments);

/// Draws, and returns what goes to standard output; as text in the width, letters and colours that
/// it shows there. ValueError and IoError: see plot_runs.
std::string plot(const boost::program_options::variables_map& arguments);

}  // namespace tapestry::examples
