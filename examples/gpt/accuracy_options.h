// The options of pretrain_gpt that look for faults, on a page of their own: --help accuracy.
#pragma once

#include <boost/program_options.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/dump/dump_config.h"
#include "diagnosis/report/verdict_report.h"
#include "diagnosis/verify/faults/find_fault.h"
#include "diagnosis/verify/injection/injection.h"
#include "parallel_core/comm/distributed.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry::examples {

boost::program_options::options_description accuracy_options();

/// The page of `--help accuracy`.
std::string accuracy_help();

/// The configuration of what is dumped: --dump, else the environment variable
/// MINDSPORE_DUMP_CONFIG, else none. ValueError and IoError for one that is wrong.
std::optional<dump::DumpConfig> dump_asked_for(
    const boost::program_options::variables_map& arguments);

/// ValueError, naming both, if there is an option of what injects or tests a training beside one
/// that does not train as configured.
void check_trains(const boost::program_options::variables_map& arguments, const std::string& mode);

/// --inject_weights, --inject_grads, --inject_data, --inject_inputs and --map. ValueError for empty
/// names.
Injection injection_asked_for(const boost::program_options::variables_map& arguments);

/// A test that trains and ends in a verdict.
struct TrainingTest {
  std::vector<std::string> overrides;  ///< of the configuration
  std::function<accuracy::VerdictReport(const AllConfig&, const PretrainOptions&)> run;
  accuracy::ReportFiles files;
};
/// --op_error, --twice or --lr_zero. ValueError for more than one of them, for numbers of steps
/// below 1, and for files of a report without a test.
std::optional<TrainingTest> test_asked_for(const boost::program_options::variables_map& arguments);

/// --find_fault: prints the verdict, writes its files. Its exit code.
int find_fault(const boost::program_options::variables_map& arguments,
               const ConfigLoader& load,
               const Distributed& job);

}  // namespace tapestry::examples
