// pretrain_gpt --plan: its options and what it prints.
#pragma once

#include <boost/program_options.hpp>
#include <cstdint>
#include <memory>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"

namespace tapestry::examples {

/// Those of the page `--help plan`; --plan itself is on the page of all options.
boost::program_options::options_description plan_options();

/// True if --plan is given. ValueError for options of it without it, beside a command that excludes
/// it, or with a value out of range.
bool asks_for_plan(const boost::program_options::variables_map& arguments);

/// Ranks of the job whose batch is kept: those of --ranks, else of --plan.
int64_t ranks_of_batch(const boost::program_options::variables_map& arguments);

/// --measure_network, on every rank of the job: adds what messages between them take to the file of
/// measured times, and says so. The exit code.
int measure_network(const boost::program_options::variables_map& arguments,
                    const std::shared_ptr<ProcessGroup>& world,
                    int ranks_on_host);

/// Prints the ranked layouts, the best one as YAML, or with --to writes it to a file; the first
/// rank of a job alone. The last line is "plan: ranks=N". ValueError if no layout fits, or the file
/// is there already.
void print_plan(const boost::program_options::variables_map& arguments,
                const AllConfig& config,
                const ProcessGroup& world);

}  // namespace tapestry::examples
