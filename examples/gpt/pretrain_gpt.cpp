// Trains a GPT from a YAML configuration.
#include <tapestry_version.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/tensor/error.h"
#include "diagnosis/autopsy/replay_capsule.h"
#include "diagnosis/dump/run/add_dump.h"
#include "diagnosis/dump/run/measured_rounding.h"
#include "diagnosis/profile/analysis.h"
#include "diagnosis/report/schedule_plot.h"
#include "diagnosis/run_parts.h"
#include "diagnosis/verify/verify_layout.h"
#include "examples/gpt/accuracy_options.h"
#include "examples/gpt/command_line.h"
#include "examples/gpt/data_commands.h"
#include "examples/gpt/view_commands.h"
#include "parallel_core/comm/distributed.h"
#include "parallel_core/config/config.h"
#include "parallel_core/config/read/unknown_names.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/config/yaml/value.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/training/dry_run.h"
#include "parallel_core/training/evaluate_checkpoint.h"
#include "parallel_core/training/files/resumed_run.h"
#include "parallel_core/training/log/terminal.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/program.h"

namespace {

namespace po = boost::program_options;

using tapestry::kFailure;
using tapestry::kFinished;
using tapestry::examples::print_wrapped;

std::string version_text() {
  return std::string("pretrain_gpt ") + tapestry::kVersion + "\nbuild: " + tapestry::kBuildType +
         ", " + tapestry::kCompiler +
         "\nCPU level: " + std::string(name_of(tapestry::cpu_level())) +
         "\nBLAS: " + std::string(tapestry::kernels::blas_flavour()) +
         "\nMPI: " + tapestry::mpi_library_version() + "\n";
}

// Exit code 1 means that the layout does not compute what one process does.
// Reads the file with further overrides.
tapestry::ConfigLoader loader_of(const std::string& config_path,
                                 const tapestry::LoadOptions& load) {
  return [config_path, load](const std::vector<std::string>& more) {
    tapestry::LoadOptions all = load;
    all.overrides.insert(all.overrides.end(), more.begin(), more.end());
    return tapestry::init_configs_from_yaml(config_path, all);
  };
}

int verify(const std::string& config_path,
           const tapestry::LoadOptions& load,
           const std::string& layout,
           int64_t steps) {
  const tapestry::LayoutPair pair =
      tapestry::load_layout_pair(layout, loader_of(config_path, load));
  const tapestry::LayoutReport report = tapestry::compare_layout(pair, {.steps = steps});
  print_wrapped(tapestry::report_text(report, pair));
  return report.agrees() ? kFinished : kFailure;
}

// A run's own config.yaml goes on where it lies, not where the run has been before it was moved.
tapestry::AllConfig load_config(const std::string& path, const tapestry::LoadOptions& load) {
  tapestry::AllConfig config = tapestry::init_configs_from_yaml(path, load);
  std::vector<std::string> moved = tapestry::overrides_of_moved_run(path, config);
  if (moved.empty()) {
    return config;
  }
  const std::string old = config.training_config.output_dir;
  tapestry::LoadOptions all = load;
  moved.insert(moved.end(), load.overrides.begin(), load.overrides.end());
  all.overrides = std::move(moved);
  config = tapestry::init_configs_from_yaml(path, all);
  config.notes.push_back(
      tapestry::concat(path, ": the run that it belongs to was moved here from ", old,
                       " and goes on in ", config.training_config.output_dir,
                       "; to go on elsewhere give --set training_config.output_dir=DIR"));
  return config;
}

// What to type to go on with a run.
std::string go_on_text(const std::string& output_dir, const tapestry::Distributed& job) {
  std::string quoted = output_dir;
  if (output_dir.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789_-+=.,:/@%") != std::string::npos) {
    quoted = "'";
    for (const char c : output_dir) {
      quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    quoted += "'";
  }
  const int ranks = job.world()->size();
  return tapestry::concat(
      ranks > 1 ? tapestry::concat("RANKS=", ranks, " pretrain_gpt.sh") : "pretrain_gpt",
      " --resume ", quoted);
}

void dry_run(const tapestry::AllConfig& config, const tapestry::Distributed& job, bool verbose) {
  std::ostringstream text;
  try {
    tapestry::dry_run(config,
                      {.world = job.world(),
                       .ranks_on_host = job.ranks_on_host(),
                       .verbose = verbose,
                       .parts = tapestry::diagnosis::run_parts()},
                      text);
  } catch (const tapestry::Error&) {  // what stands in the way is said after all else
    print_wrapped(text.str());
    throw;
  }
  print_wrapped(text.str());
}

// The schedule that trains, without data or model: updates are counted as if no step is skipped.
std::string plot_schedule(const tapestry::AllConfig& config, int ranks, const std::string& out) {
  tapestry::check<tapestry::ValueError>(out.ends_with(".svg"), "--plot_schedule is '", out,
                                        "'; expected a name that ends in .svg");
  const tapestry::ModelParallelConfig& p = config.parallel_config;
  const int64_t data_parallel =
      std::max<int64_t>(1, ranks / (p.tensor_model_parallel_size * p.pipeline_model_parallel_size *
                                    p.context_parallel_size));
  const int64_t steps = tapestry::total_training_iters(config, data_parallel);
  tapestry::check<tapestry::ValueError>(
      steps > 0,
      "--plot_schedule: the number of steps is not known without the data; set "
      "training_config.training_iters or dataset_config.train_samples");
  const auto schedule = tapestry::get_optimizer_param_scheduler(config, data_parallel);
  tapestry::write_file_atomically(out, tapestry::report::schedule_svg(*schedule, steps));
  return tapestry::concat("wrote ", out, ": learning rate and weight decay of ", steps,
                          steps == 1 ? " step, " : " steps, ", data_parallel, " data-parallel ",
                          data_parallel == 1 ? "rank\n" : "ranks\n");
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
  tapestry::LoadOptions from = load;
  if (!has_path) {  // before what is given on the command line
    const std::vector<std::string> base = tapestry::base_overrides(checkpoint);
    from.overrides.insert(from.overrides.begin(), base.begin(), base.end());
  }
  const tapestry::AllConfig config = tapestry::init_configs_from_yaml(
      has_path ? arguments["config_path"].as<std::string>() : saved, from);
  tapestry::evaluate_checkpoint(config, checkpoint, job.world());
  return kFinished;
}

// Exit code 1 means that the step does not come to what it came to.
int replay(const po::variables_map& arguments, const tapestry::Distributed& job) {
  for (const char* other : {"config_path", "set", "from_hf", "dry_run", "verify_layout",
                            "overwrite", "replace", "plot_schedule", "evaluate", "resume"}) {
    tapestry::check<tapestry::ValueError>(arguments.count(other) == 0,
                                          "--replay takes everything from its folder; leave out --",
                                          other);
  }
  const tapestry::ReplayReport report =
      tapestry::replay_capsule(arguments["replay"].as<std::string>(), job.world());
  if (job.world()->rank() == 0) {
    print_wrapped(report.text);
  }
  return report.returns ? kFinished : kFailure;
}

// Prints and writes the report of a test that trains, on the first rank; its exit code, on all.
int finish_test(const tapestry::examples::TrainingTest& test,
                const tapestry::AllConfig& config,
                const tapestry::PretrainOptions& options,
                bool first) {
  const tapestry::accuracy::VerdictReport report = test.run(config, options);
  if (first) {
    print_wrapped(tapestry::accuracy::report_text(report) +
                  tapestry::accuracy::write_report_files(report, test.files));
  }
  return report.exit_code();
}

po::options_description describe_options() {
  po::options_description options("Options", tapestry::examples::help_columns());
  options.add_options()("config_path", po::value<std::string>()->value_name("FILE"),
                        "YAML file of the run");
  options.add_options()("set",
                        po::value<std::vector<std::string>>()->composing()->value_name("KEY=VALUE"),
                        "section.key=value, goes before the file; may be repeated");
  options.add_options()("from_hf", po::value<std::string>()->value_name("DIR"),
                        "model_config.from_hf: a Hugging Face model and its weights");
  options.add_options()("model_type",
                        po::value<std::string>()->default_value("model_config")->value_name("NAME"),
                        "section that holds the model");
  options.add_options()("run_cmd",
                        po::value<std::string>()->default_value("", "")->value_name("TEXT"),
                        "text that is recorded in the log");
  options.add_options()("overwrite", "move an earlier run in the output folder to its old/");
  options.add_options()("resume", po::value<std::string>()->value_name("DIR"),
                        "go on with the run in this folder, or at a checkpoint");
  options.add_options()("replace", "end the run in the output folder; then as --overwrite");
  options.add_options()("dry_run", "check all, print layout, memory, disk, time; write nothing");
  options.add_options()("verbose", "with --dry_run: also all keys, and where the memory goes");
  options.add_options()(
      "verify_layout", po::value<std::string>()->value_name("LAYOUT"),
      "compare a layout, such as \"tp=2,sp,pp=2,dp=2,zero=z1\", with one process; exit code 1 and "
      "the first difference if there is one (docs/parallel.md)");
  options.add_options()("verify_steps", po::value<int64_t>()->default_value(3)->value_name("N"),
                        "steps that --verify_layout trains");
  options.add_options()("plot_schedule", po::value<std::string>()->value_name("FILE"),
                        "draw learning rate and weight decay to this SVG file, and exit");
  options.add_options()("replay", po::value<std::string>()->value_name("DIR"),
                        "run the bad step of a capsule again (docs/autopsy.md)");
  options.add_options()("evaluate", po::value<std::string>()->value_name("DIR"),
                        "print validation and test loss of a checkpoint, or a folder of them, by "
                        "its own configuration unless --config_path is given");
  options.add_options()("analyse_profile", po::value<std::string>()->value_name("DIR"),
                        "put together what the ranks have written of a profile");
  tapestry::examples::add_data_options(options);
  tapestry::examples::add_view_options(options);
  options.add_options()("version", "print build, CPU level, BLAS and MPI, and exit");
  options.add_options()("help,h", "print this page; --help SECTION or KEY: of the YAML file");
  return options;
}

std::string help_text(const po::options_description& options, const std::string& topic) {
  using tapestry::fit_to_terminal;
  using tapestry::OutputStream;
  if (!topic.empty()) {
    const std::string option = tapestry::examples::option_help(options, topic);
    return !option.empty()
               ? option
               : fit_to_terminal(OutputStream::kOut, tapestry::render_configuration_help(topic));
  }
  std::ostringstream text;
  text << "\nSections of FILE (--help SECTION lists the keys of one):\n"
       << tapestry::render_sections_help()
       << "\nLooking for faults (dumps, comparisons): --help accuracy, docs/accuracy.md.\n"
       << "Presets: examples/gpt/pretrain_gpt_*.yaml. Several ranks: "
          "examples/gpt/pretrain_gpt.sh.\n"
          "Exit codes: 0 finished, 2 wrong configuration or input, 1 any other failure.\n";
  std::ostringstream fitting;
  fitting << options;
  return fit_to_terminal(
             OutputStream::kOut,
             "Usage: pretrain_gpt --config_path FILE [OPTION]...\n"
             "       pretrain_gpt --resume DIR [OPTION]...\n"
             "       pretrain_gpt --plot RUN... [--out FILE.svg] [--x steps|tokens|time]\n"
             "       pretrain_gpt --report RUN... [--out FILE.html] [--x steps|tokens|time]\n\n") +
         fitting.str() + fit_to_terminal(OutputStream::kOut, text.str());
}

int run(const std::vector<std::string>& given, const tapestry::Distributed& job) {
  const bool first = job.world()->rank() == 0;
  const po::options_description options = describe_options();
  po::options_description all("All");
  all.add(options).add(tapestry::examples::accuracy_options());
  std::vector<std::string> words = given;
  if (const std::optional<std::string> topic = tapestry::examples::take_help(words)) {
    const std::string text = *topic == "accuracy" ? tapestry::examples::accuracy_help()
                             : topic->empty()     ? help_text(options, *topic)
                                                  : help_text(all, *topic);
    if (first) {
      tapestry::print_result(text);
    }
    return kFinished;
  }
  po::variables_map arguments =
      tapestry::examples::parse_command_line(words, all, tapestry::config::word_hint);
  po::notify(arguments);
  if (arguments.count("version") != 0) {
    if (first) {
      print_wrapped(version_text());
    }
    return kFinished;
  }
  if (tapestry::examples::asks_for_view(arguments)) {
    if (first) {
      tapestry::print_result(tapestry::examples::view(
          arguments, tapestry::concat("pretrain_gpt ", tapestry::kVersion)));
    }
    return kFinished;
  }
  if (arguments.count("replay") != 0) {
    return replay(arguments, job);
  }
  if (arguments.count("analyse_profile") != 0) {
    if (first) {
      tapestry::print_result(
          tapestry::profile::analyse(arguments["analyse_profile"].as<std::string>()));
    }
    return kFinished;
  }
  const bool evaluates = arguments.count("evaluate") != 0;
  const bool resumes = arguments.count("resume") != 0;
  tapestry::check<tapestry::ValueError>(
      arguments.count("config_path") != 0 || evaluates || resumes,
      "--config_path FILE is needed; the tiny preset is examples/gpt/pretrain_gpt_tiny.yaml");
  for (const char* other : {"config_path", "overwrite", "evaluate", "from_hf"}) {
    tapestry::check<tapestry::ValueError>(!resumes || arguments.count(other) == 0,
                                          "--resume goes on with the run in a folder, by its "
                                          "own configuration; leave out --",
                                          other);
  }
  tapestry::check<tapestry::ValueError>(
      arguments.count("verbose") == 0 || arguments.count("dry_run") != 0,
      "--verbose says more of a --dry_run; without one it has no effect");
  const bool asks_for_data = tapestry::examples::asks_for_data(arguments);
  for (const char* mode : {"evaluate", "verify_layout", "dry_run", "plot_schedule", "find_fault",
                           "which_data", "which_steps"}) {
    if (arguments.count(mode) != 0) {
      tapestry::examples::check_trains(arguments, mode);
    }
  }
  tapestry::LoadOptions load;
  load.model_type = arguments["model_type"].as<std::string>();
  if (arguments.count("set") != 0) {
    load.overrides = arguments["set"].as<std::vector<std::string>>();
  }
  if (arguments.count("from_hf") != 0) {
    load.overrides.push_back("model_config.from_hf=" +
                             tapestry::config::path_text(arguments["from_hf"].as<std::string>()));
  }
  if (evaluates) {
    for (const char* other :
         {"dry_run", "verify_layout", "overwrite", "replace", "plot_schedule"}) {
      tapestry::check<tapestry::ValueError>(arguments.count(other) == 0, "--evaluate and --", other,
                                            " exclude each other");
    }
    return evaluate(arguments, load, job);
  }
  for (const char* other : {"dry_run", "verify_layout"}) {
    tapestry::check<tapestry::ValueError>(
        arguments.count("plot_schedule") == 0 || arguments.count(other) == 0,
        "--plot_schedule and --", other, " exclude each other");
  }
  tapestry::ResumedRun resumed;
  if (resumes) {
    resumed = tapestry::resumed_run(arguments["resume"].as<std::string>(), load.model_type);
    load.overrides.insert(load.overrides.begin(), resumed.overrides.begin(),
                          resumed.overrides.end());
  }
  const auto config_path =
      resumes ? resumed.config_path : arguments["config_path"].as<std::string>();
  if (arguments.count("verify_layout") != 0) {
    tapestry::check<tapestry::ValueError>(
        job.world()->size() == 1, "--verify_layout runs all ranks in one process; this job has ",
        job.world()->size(), " processes");
    return verify(config_path, load, arguments["verify_layout"].as<std::string>(),
                  arguments["verify_steps"].as<int64_t>());
  }
  if (arguments.count("find_fault") != 0) {
    return tapestry::examples::find_fault(arguments, loader_of(config_path, load), job);
  }
  const tapestry::Injection injection = tapestry::examples::injection_asked_for(arguments);
  const auto test = tapestry::examples::test_asked_for(arguments);
  for (std::string& override : tapestry::injection_overrides(injection)) {
    load.overrides.push_back(std::move(override));
  }
  if (test) {
    load.overrides.insert(load.overrides.end(), test->overrides.begin(), test->overrides.end());
  }
  const tapestry::AllConfig config = load_config(config_path, load);
  if (asks_for_data) {
    tapestry::examples::print_data(arguments, config, *job.world());
    return kFinished;
  }
  if (arguments.count("plot_schedule") != 0) {
    const std::string out = arguments["plot_schedule"].as<std::string>();
    if (first) {
      tapestry::print_result(plot_schedule(config, job.world()->size(), out));
    }
    return kFinished;
  }
  if (arguments.count("dry_run") != 0) {
    dry_run(config, job, arguments.count("verbose") != 0);
    return kFinished;
  }
  tapestry::PretrainOptions training = {.run_cmd = arguments["run_cmd"].as<std::string>(),
                                        .stop_requested = tapestry::stop_on_signals(),
                                        .go_on = go_on_text(config.training_config.output_dir, job),
                                        .overwrite = arguments.count("overwrite") != 0,
                                        .replace = arguments.count("replace") != 0,
                                        .world = job.world(),
                                        .ranks_on_host = job.ranks_on_host(),
                                        .rank_on_host = job.rank_on_host(),
                                        .progress_text = job.progress_text(),
                                        .parts = tapestry::diagnosis::run_parts()};
  tapestry::add_injection(injection, config, training);
  const tapestry::PretrainOptions without_dump = training;
  const auto dump = tapestry::examples::dump_asked_for(arguments);
  if (dump) {
    tapestry::add_dump(config, *dump, training);
  }
  if (test) {
    return finish_test(*test, config, training, first);
  }
  if (arguments.count("measure_rounding") == 0) {
    tapestry::pretrain(config, training);
    return kFinished;
  }
  const auto repetitions = arguments["measure_rounding"].as<int64_t>();
  tapestry::check_rounding_can_be_measured(config, *dump, repetitions);
  if (!tapestry::pretrain(config, training).stopped_on_request) {
    tapestry::measure_rounding(config, without_dump, *dump, repetitions);
  }
  return kFinished;
}

}  // namespace

int main(int argc, char** argv) { return tapestry::run_program(argc, argv, run); }
