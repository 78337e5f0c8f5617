// pretrain_gpt --which_data and --which_steps: their options and what they print.
#pragma once

#include <boost/program_options.hpp>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"

namespace tapestry::examples {

/// Adds --which_data, --which_steps and --ranks.
void add_data_options(boost::program_options::options_description& options);

/// True if one of the first two is given. ValueError if both are, if --ranks stands alone, or
/// beside options of a run or of another command.
bool asks_for_data(const boost::program_options::variables_map& arguments);

/// Prints the rows, one JSON object a line, to standard output and remarks to standard error; the
/// first rank of a job alone. The job is that of --ranks, else this one. Errors as WhichData.
void print_data(const boost::program_options::variables_map& arguments,
                const AllConfig& config,
                const ProcessGroup& world);

}  // namespace tapestry::examples
