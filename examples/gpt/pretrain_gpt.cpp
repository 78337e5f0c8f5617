// Trains a GPT from a YAML configuration.
#include <tapestry_version.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "autograd/kernels/cpu.h"
#include "autograd/kernels/gemm.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/comm/distributed.h"
#include "parallel_core/config/config.h"
#include "parallel_core/config/render.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/training/evaluate_checkpoint.h"
#include "parallel_core/training/memory_estimate.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/program.h"
#include "parallel_core/verification/verify_layout.h"

namespace {

namespace po = boost::program_options;

using tapestry::kBadInput;
using tapestry::kFailure;
using tapestry::kFinished;

std::string version_text() {
  return std::string("pretrain_gpt ") + tapestry::kVersion + "\nbuild: " + tapestry::kBuildType +
         ", " + tapestry::kCompiler +
         "\nCPU level: " + std::string(name_of(tapestry::cpu_level())) +
         "\nBLAS: " + std::string(tapestry::kernels::blas_flavour()) +
         "\nMPI: " + tapestry::mpi_library_version() + "\n";
}

int dry_run(const tapestry::AllConfig& config, const tapestry::Distributed& job) {
  const tapestry::ModelParallelConfig& p = config.parallel_config;
  const int64_t model =
      p.tensor_model_parallel_size * p.pipeline_model_parallel_size * p.context_parallel_size;
  const int64_t data_parallel_size = std::max<int64_t>(1, job.world()->size() / model);
  std::cout << tapestry::layout_line(p, data_parallel_size) << "\n"
            << tapestry::config_log_text(config) << "\n";
  const tapestry::MemoryEstimate estimate = tapestry::estimate_memory(config, data_parallel_size);
  std::cout << tapestry::memory_text(estimate) << "\n";
  for (const std::string& note : config.notes) {
    std::cout << "note: " << note << "\n";
  }
  if (!config.unsupported.empty()) {
    std::cout << "not supported yet:\n";
    for (const std::string& finding : config.unsupported) {
      std::cout << "  " << finding << "\n";
    }
  }
  tapestry::check_fits(estimate, tapestry::available_memory() / job.ranks_on_host());
  return kFinished;
}

// Exit code 1 means that the layout does not compute what one process does.
int verify(const std::string& config_path,
           const tapestry::LoadOptions& load,
           const std::string& layout,
           int64_t steps) {
  const tapestry::LayoutPair pair =
      tapestry::load_layout_pair(layout, [&](const std::vector<std::string>& more) {
        tapestry::LoadOptions all = load;
        all.overrides.insert(all.overrides.end(), more.begin(), more.end());
        return tapestry::init_configs_from_yaml(config_path, all);
      });
  const tapestry::LayoutReport report = tapestry::compare_layout(pair, {.steps = steps});
  std::cout << tapestry::report_text(report, pair);
  return report.agrees() ? kFinished : kFailure;
}

int evaluate(const po::variables_map& arguments,
             const tapestry::LoadOptions& load,
             const tapestry::Distributed& job) {
  const std::string checkpoint =
      tapestry::resolve_checkpoint(arguments["evaluate"].as<std::string>());
  const std::string saved = checkpoint + "/config.yaml";
  const bool has_path = arguments.count("config_path") != 0;
  tapestry::check<tapestry::IoError>(
      has_path || std::filesystem::exists(saved), saved,
      ": is missing, so --evaluate does not know the model; name its configuration with "
      "--config_path");
  const tapestry::AllConfig config = tapestry::init_configs_from_yaml(
      has_path ? arguments["config_path"].as<std::string>() : saved, load);
  tapestry::evaluate_checkpoint(config, checkpoint, job.world());
  return kFinished;
}

int run(const std::vector<std::string>& words, const tapestry::Distributed& job) {
  const bool first = job.world()->rank() == 0;
  po::options_description options("pretrain_gpt --config_path FILE [options]");
  options.add_options()("config_path", po::value<std::string>(), "YAML file of the run")(
      "set", po::value<std::vector<std::string>>()->composing(),
      "section.key=value, goes before the file; may be repeated")(
      "model_type", po::value<std::string>()->default_value("model_config"),
      "YAML section that holds the model")("run_cmd", po::value<std::string>()->default_value(""),
                                           "text that is recorded in the log")(
      "verify_layout", po::value<std::string>(),
      "compare a parallel layout, such as \"tp=2,sp,pp=2,dp=2,zero=z1\", with one process: "
      "activations, gradients and updated weights of a few steps, all ranks as threads of this "
      "process; exit code 1 and the first difference if there is one. Entries: tp, sp, pp, vpp, "
      "dp, cp, layers, offset, embedding_stage, micro, dist_opt, zero, bucket, overlap, delay; "
      "what is "
      "not named stays as configured")("verify_steps", po::value<int64_t>()->default_value(3),
                                       "steps that --verify_layout trains")(
      "evaluate", po::value<std::string>(),
      "a checkpoint, or a folder of them: print its loss on the validation and test data, and "
      "exit; "
      "without --config_path by the configuration that it was saved with")(
      "dry_run", "check the configuration, print layout, parameters and memory, and exit")(
      "version", "print build, CPU level, BLAS and MPI, and exit")(
      "help", "print this text and all configuration keys, and exit");
  po::variables_map arguments;
  try {
    arguments = tapestry::examples::parse_command_line(words, options);
    po::notify(arguments);
  } catch (const po::error& error) {
    if (first) {
      std::cerr << "pretrain_gpt: " << error.what() << "; see --help\n";
    }
    return kBadInput;
  }
  if (arguments.count("help") != 0) {
    if (first) {
      std::cout << options << "\n" << tapestry::render_configuration_help();
    }
    return kFinished;
  }
  if (arguments.count("version") != 0) {
    if (first) {
      std::cout << version_text();
    }
    return kFinished;
  }
  const bool evaluates = arguments.count("evaluate") != 0;
  if (arguments.count("config_path") == 0 && !evaluates) {
    if (first) {
      std::cerr << "pretrain_gpt: --config_path FILE is needed; the tiny preset is "
                   "examples/gpt/pretrain_gpt_tiny.yaml\n";
    }
    return kBadInput;
  }
  tapestry::LoadOptions load;
  load.model_type = arguments["model_type"].as<std::string>();
  if (arguments.count("set") != 0) {
    load.overrides = arguments["set"].as<std::vector<std::string>>();
  }
  if (evaluates) {
    for (const char* other : {"dry_run", "verify_layout"}) {
      tapestry::check<tapestry::ValueError>(arguments.count(other) == 0, "--evaluate and --", other,
                                            " exclude each other");
    }
    return evaluate(arguments, load, job);
  }
  const auto config_path = arguments["config_path"].as<std::string>();
  if (arguments.count("verify_layout") != 0) {
    tapestry::check<tapestry::ValueError>(
        job.world()->size() == 1, "--verify_layout runs all ranks in one process; this job has ",
        job.world()->size(), " processes");
    return verify(config_path, load, arguments["verify_layout"].as<std::string>(),
                  arguments["verify_steps"].as<int64_t>());
  }
  const tapestry::AllConfig config = tapestry::init_configs_from_yaml(config_path, load);
  if (arguments.count("dry_run") != 0) {
    return first ? dry_run(config, job) : kFinished;
  }
  tapestry::pretrain(config, {.run_cmd = arguments["run_cmd"].as<std::string>(),
                              .stop_requested = tapestry::stop_on_signals(),
                              .world = job.world(),
                              .ranks_on_host = job.ranks_on_host(),
                              .progress_text = job.progress_text()});
  return kFinished;
}

}  // namespace

int main(int argc, char** argv) { return tapestry::run_program(argc, argv, run); }
