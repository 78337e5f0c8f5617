// The options of pretrain_gpt that look for faults, on a page of their own: --help accuracy.
#pragma once

#include <boost/program_options.hpp>
#include <string>

#include "parallel_core/comm/distributed.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/verification/find_fault.h"

namespace tapestry::examples {

boost::program_options::options_description accuracy_options();

/// The page of `--help accuracy`.
std::string accuracy_help();

/// The configuration of what is dumped: --dump, else the environment variable
/// MINDSPORE_DUMP_CONFIG, else none. ValueError and IoError for one that is wrong.
std::optional<dump::DumpConfig> dump_asked_for(
    const boost::program_options::variables_map& arguments);

/// --find_fault: prints the verdict, writes its files. Its exit code.
int find_fault(const boost::program_options::variables_map& arguments,
               const ConfigLoader& load,
               const Distributed& job);

}  // namespace tapestry::examples
