#include "examples/gpt/diagnosis_modes.h"

#include <tapestry_version.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/error.h"
#include "diagnosis/autopsy/replay_capsule.h"
#include "diagnosis/dump/dump_config.h"
#include "diagnosis/dump/run/add_dump.h"
#include "diagnosis/dump/run/measured_rounding.h"
#include "diagnosis/profile/analysis.h"
#include "diagnosis/report/plot_runs.h"
#include "diagnosis/report/schedule_plot.h"
#include "diagnosis/report/verdict_report.h"
#include "diagnosis/report/write_report.h"
#include "diagnosis/run_parts.h"
#include "diagnosis/verify/exact/prove_step.h"
#include "diagnosis/verify/exact/rerun_step.h"
#include "diagnosis/verify/faults/find_fault.h"
#include "diagnosis/verify/injection/injection.h"
#include "diagnosis/verify/injection/reference_state.h"
#include "diagnosis/verify/op_error.h"
#include "diagnosis/verify/run_twice.h"
#include "diagnosis/verify/verify_layout.h"
#include "diagnosis/verify/zero_learning_rate.h"
#include "examples/gpt/command_line.h"
#include "examples/gpt/pretrain_options.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/post_training/run_task.h"
#include "parallel_core/training/log/terminal.h"
#include "parallel_core/training/program.h"

namespace tapestry::examples {

namespace po = boost::program_options;

namespace {

std::string option_if_given(const po::variables_map& arguments, const char* option) {
  if (arguments.count(option) == 0) {
    return {};
  }
  const auto text = arguments[option].as<std::string>();
  check<ValueError>(!text.empty(), "--", option, " is empty; give a name or leave it out");
  return text;
}

// Weights under names that only the map knows, or of a dump; else load_checkpoint takes them.
std::function<LogicalState()> given_start_weights(const std::string& path,
                                                  const accuracy::NameMap& map) {
  if (is_dump_folder(path)) {
    return [path, map] { return dumped_start_weights(path, map); };
  }
  if (map.empty()) {
    return {};
  }
  return [path, map] {
    LogicalState state;
    for (auto& [name, tensor] : read_weights(path)) {
      state.emplace(map.apply(name), tensor);
    }
    return state;
  };
}

// --inject_weights, --inject_grads, --inject_data, --inject_inputs and --map.
Injection injection_asked_for(const po::variables_map& arguments) {
  return {.weights = option_if_given(arguments, "inject_weights"),
          .grads = option_if_given(arguments, "inject_grads"),
          .data = option_if_given(arguments, "inject_data"),
          .inputs = option_if_given(arguments, "inject_inputs"),
          .map = option_if_given(arguments, "map")};
}

// A test that trains and ends in a verdict.
struct TrainingTest {
  std::vector<std::string> overrides;  // of the configuration
  std::function<accuracy::VerdictReport(const AllConfig&, const PretrainOptions&)> run;
  accuracy::ReportFiles files;
};

// --op_error, --twice or --lr_zero; not more than one of them, and no files of a report without it.
std::optional<TrainingTest> test_asked_for(const po::variables_map& arguments) {
  TrainingTest test;
  std::string chosen;
  for (const char* option : {"op_error", "twice", "lr_zero"}) {
    if (arguments.count(option) == 0) {
      continue;
    }
    check<ValueError>(chosen.empty(), "--", chosen, " and --", option, " exclude each other");
    chosen = option;
  }
  test.files = {.html = option_if_given(arguments, "html"),
                .json = option_if_given(arguments, "json")};
  if (chosen.empty()) {
    check<ValueError>(test.files.html.empty() && test.files.json.empty(),
                      "--json and --html: there is no report without --op_error, --twice or "
                      "--lr_zero");
    check<ValueError>(arguments["op_error_multiple"].defaulted(),
                      "--op_error_multiple has no effect without --op_error");
    return std::nullopt;
  }
  accuracy::check_report_files(test.files);
  if (chosen == "op_error") {
    test.run = [measured = OpErrorOptions{.names = option_if_given(arguments, "op_error"),
                                          .multiple = arguments["op_error_multiple"].as<double>()}](
                   const AllConfig& config, const PretrainOptions& options) {
      return measure_op_errors(config, options, measured);
    };
    return test;
  }
  const auto steps = arguments[chosen].as<int64_t>();
  check<ValueError>(arguments.count("measure_rounding") == 0, "--measure_rounding and --", chosen,
                    " exclude each other");
  check<ValueError>(steps >= 1, "--", chosen, " is ", steps,
                    "; expected a number of steps from 1 on");
  if (chosen == "lr_zero") {
    test.overrides.push_back(concat("training_config.training_iters=", steps));
    test.run = [steps](const AllConfig& config, const PretrainOptions& options) {
      return run_with_zero_learning_rate(config, options, steps);
    };
  } else {
    test.run = [steps](const AllConfig& config, const PretrainOptions& options) {
      return run_twice(config, options, steps);
    };
  }
  return test;
}

// --dump, else the environment variable MINDSPORE_DUMP_CONFIG.
std::optional<dump::DumpConfig> dump_asked_for(const po::variables_map& arguments) {
  std::string file;
  if (arguments.count("dump") != 0) {
    file = arguments["dump"].as<std::string>();
  } else if (const char* named = std::getenv("MINDSPORE_DUMP_CONFIG"); named != nullptr) {
    file = named;
  }
  if (file.empty()) {
    check<ValueError>(arguments.count("measure_rounding") == 0,
                      "--measure_rounding: there is no dump whose tensors could be measured; name "
                      "its configuration with --dump");
    return std::nullopt;
  }
  return dump::read_dump_config(file);
}

int find_fault(const po::variables_map& arguments,
               const ConfigLoader& load,
               const Distributed& job) {
  const auto text = [&](const char* option) {
    return arguments.count(option) == 0 ? std::string() : arguments[option].as<std::string>();
  };
  check<ValueError>(job.world()->size() == 1,
                    "--find_fault trains all ranks in one process; this job has ",
                    job.world()->size(), " processes");
  const accuracy::ReportFiles files = {.html = text("html"), .json = text("json")};
  accuracy::check_report_files(files);
  FindFaultOptions options;
  if (arguments.count("fault_steps") != 0) {
    options.steps = arguments["fault_steps"].as<int64_t>();
    check<ValueError>(*options.steps >= 1, "--fault_steps ", *options.steps,
                      ": expected at least one step");
  }
  options.config_file = text("config_path");
  std::istringstream layouts(text("expand"));
  for (std::string layout; std::getline(layouts, layout, ';');) {
    options.expand.push_back(layout);
  }
  Injection injection = injection_asked_for(arguments);
  if (!injection.map.empty()) {
    options.map = accuracy::NameMap(injection.map);
  }
  if (!injection.weights.empty()) {
    const std::string of_case = injection.weights + "/init.safetensors";
    injection.weights = std::filesystem::exists(of_case) ? of_case : injection.weights;
    options.start_weights = given_start_weights(injection.weights, options.map);
    if (options.start_weights) {
      injection.weights.clear();
    }
  }
  const ConfigLoader injected = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = injection_overrides(injection);
    all.insert(all.end(), more.begin(), more.end());
    return load(all);
  };
  const accuracy::VerdictReport report =
      tapestry::find_fault(injected, text("find_fault"), options);
  print_result(fit_to_terminal(OutputStream::kOut, accuracy::report_text(report)) +
               accuracy::write_report_files(report, files));
  return report.exit_code();
}

int verify(const ConfigLoader& load, const std::string& layout, int64_t steps) {
  const LayoutPair pair = load_layout_pair(layout, load);
  const LayoutReport report = compare_layout(pair, {.steps = steps});
  print_wrapped(report_text(report, pair));
  return report.agrees() ? kFinished : kFailure;
}

std::string text_if_given(const po::variables_map& arguments, const char* option) {
  return arguments.count(option) == 0 ? std::string() : arguments[option].as<std::string>();
}

// What a step that is run again trains with.
PretrainOptions training_of(const Distributed& job) {
  return {.world = job.world(),
          .ranks_on_host = job.ranks_on_host(),
          .rank_on_host = job.rank_on_host(),
          .progress_text = job.progress_text(),
          .parts = diagnosis::run_parts(),
          .task = post_training::run_task};
}

// --prove CHECKPOINT STEP
int prove(const po::variables_map& arguments, const ConfigLoader& load, const Distributed& job) {
  const auto& words = arguments["prove"].as<std::vector<std::string>>();
  check<ValueError>(words.size() == 2, "--prove takes a checkpoint and a step, not ", words.size(),
                    words.size() == 1 ? " word" : " words");
  std::optional<int64_t> step;
  int64_t number = 0;
  const auto [end, error] =
      std::from_chars(words[1].data(), words[1].data() + words[1].size(), number);
  if (error == std::errc() && end == words[1].data() + words[1].size() && number >= 1) {
    step = number;
  }
  check<ValueError>(step.has_value(), "--prove: '", words[1],
                    "' is no step; expected a number from 1 on");
  const accuracy::ReportFiles files = {.html = text_if_given(arguments, "html"),
                                       .json = text_if_given(arguments, "json")};
  accuracy::check_report_files(files);
  const std::string config_file = text_if_given(arguments, "config_path");
  const accuracy::VerdictReport report = prove_step({.config_file = config_file,
                                                     .checkpoint = words[0],
                                                     .step = *step,
                                                     .program = concat("pretrain_gpt ", kVersion),
                                                     .training = training_of(job)},
                                                    load);
  if (job.world()->rank() == 0) {
    print_wrapped(accuracy::report_text(report) + accuracy::write_report_files(report, files));
  }
  return report.exit_code();
}

// --trace_step STEP --json FILE
int trace(const po::variables_map& arguments, const ConfigLoader& load, const Distributed& job) {
  check<ValueError>(job.world()->size() == 1,
                    "--trace_step runs a step in one process; this job has ", job.world()->size(),
                    " processes");
  const std::string out = text_if_given(arguments, "json");
  check<ValueError>(!out.empty(), "--trace_step: --json FILE.json is needed");
  const auto step = arguments["trace_step"].as<int64_t>();
  check<ValueError>(step >= 1, "--trace_step is ", step, "; expected a number from 1 on");
  TraceRequest request = {.folder = run_of_config(text_if_given(arguments, "config_path")),
                          .step = step,
                          .training = training_of(job)};
  if (arguments.count("trace_batch") != 0) {
    request.batch_size = arguments["trace_batch"].as<int64_t>();
    check<ValueError>(request.batch_size >= 1, "--trace_batch is ", request.batch_size,
                      "; expected a number from 1 on");
  }
  accuracy::StepRerun rerun = trace_step(request, load);
  rerun.program = concat("pretrain_gpt ", kVersion);
  write_file_atomically(out, accuracy::rerun_json(rerun).dump());
  return kFinished;
}

// The schedule that trains, without data or model: updates are counted as if no step is skipped.
std::string plot_schedule(const AllConfig& config, int ranks, const std::string& out) {
  check<ValueError>(out.ends_with(".svg"), "--plot_schedule is '", out,
                    "'; expected a name that ends in .svg");
  const ModelParallelConfig& p = config.parallel_config;
  const int64_t data_parallel =
      std::max<int64_t>(1, ranks / (p.tensor_model_parallel_size * p.pipeline_model_parallel_size *
                                    p.context_parallel_size));
  const int64_t steps = total_training_iters(config, data_parallel);
  check<ValueError>(steps > 0,
                    "--plot_schedule: the number of steps is not known without the data; set "
                    "training_config.training_iters or dataset_config.train_samples");
  const auto schedule = get_optimizer_param_scheduler(config, data_parallel);
  write_file_atomically(out, report::schedule_svg(*schedule, steps));
  return concat("wrote ", out, ": learning rate and weight decay of ", steps,
                steps == 1 ? " step, " : " steps, ", data_parallel, " data-parallel ",
                data_parallel == 1 ? "rank\n" : "ranks\n");
}

// Exit code 1 means that the step does not come to what it came to.
int replay(const po::variables_map& arguments, const Distributed& job) {
  for (const char* other : {"config_path", "set", "from_hf", "dry_run", "verify_layout",
                            "overwrite", "replace", "plot_schedule", "evaluate", "resume"}) {
    check<ValueError>(arguments.count(other) == 0,
                      "--replay takes everything from its folder; leave out --", other);
  }
  const ReplayReport report = replay_capsule(arguments["replay"].as<std::string>(), job.world());
  if (job.world()->rank() == 0) {
    print_wrapped(report.text);
  }
  return report.returns ? kFinished : kFailure;
}

// Prints and writes the report of a test that trains, on the first rank; its exit code, on all.
int finish_test(const TrainingTest& test,
                const AllConfig& config,
                const PretrainOptions& options,
                bool first) {
  const accuracy::VerdictReport report = test.run(config, options);
  if (first) {
    print_wrapped(accuracy::report_text(report) + accuracy::write_report_files(report, test.files));
  }
  return report.exit_code();
}

std::string plot(const po::variables_map& arguments) {
  return report::plot_runs({.runs = arguments["plot"].as<std::vector<std::string>>(),
                            .out = arguments["out"].as<std::string>(),
                            .x = arguments["x"].as<std::string>(),
                            .smooth = arguments["smooth"].as<double>()});
}

std::string report(const po::variables_map& arguments, const std::string& version) {
  report::ReportOptions options{.runs = arguments["report"].as<std::vector<std::string>>(),
                                .out = arguments["out"].as<std::string>(),
                                .x = arguments["x"].as<std::string>(),
                                .version = version};
  if (is_given(arguments, "smooth")) {
    options.smooth = arguments["smooth"].as<double>();
  }
  return write_report(options);
}

class DiagnosisModes final : public PretrainModes {
 public:
  std::vector<RunPartFactory> parts() const override { return diagnosis::run_parts(); }

  std::optional<int> answer(const Arguments& arguments, const Distributed& job) override {
    const bool first = job.world()->rank() == 0;
    if (asks_for_view(arguments)) {
      if (first) {
        print_result(is_given(arguments, "plot")
                         ? plot(arguments)
                         : report(arguments, concat("pretrain_gpt ", kVersion)));
      }
      return kFinished;
    }
    if (arguments.count("replay") != 0) {
      return replay(arguments, job);
    }
    if (arguments.count("analyse_profile") != 0) {
      if (first) {
        print_result(profile::analyse(arguments["analyse_profile"].as<std::string>()));
      }
      return kFinished;
    }
    return std::nullopt;
  }

  std::optional<int> answer_file(const Arguments& arguments,
                                 const ConfigLoader& load,
                                 const Distributed& job) override {
    if (arguments.count("verify_layout") != 0) {
      check<ValueError>(job.world()->size() == 1,
                        "--verify_layout runs all ranks in one process; this job has ",
                        job.world()->size(), " processes");
      return verify(load, arguments["verify_layout"].as<std::string>(),
                    arguments["verify_steps"].as<int64_t>());
    }
    if (arguments.count("find_fault") != 0) {
      return find_fault(arguments, load, job);
    }
    if (arguments.count("prove") != 0) {
      return prove(arguments, load, job);
    }
    if (arguments.count("trace_step") != 0) {
      return trace(arguments, load, job);
    }
    return std::nullopt;
  }

  std::vector<std::string> overrides(const Arguments& arguments) override {
    injection_ = injection_asked_for(arguments);
    test_ = test_asked_for(arguments);
    std::vector<std::string> all = injection_overrides(injection_);
    if (test_) {
      all.insert(all.end(), test_->overrides.begin(), test_->overrides.end());
    }
    return all;
  }

  std::optional<int> answer_config(const Arguments& arguments,
                                   const AllConfig& config,
                                   const Distributed& job) override {
    if (arguments.count("plot_schedule") == 0) {
      return std::nullopt;
    }
    if (job.world()->rank() == 0) {
      print_result(
          plot_schedule(config, job.world()->size(), arguments["plot_schedule"].as<std::string>()));
    }
    return kFinished;
  }

  int train(const Arguments& arguments,
            const AllConfig& config,
            const PretrainOptions& asked,
            const Distributed& job) override {
    PretrainOptions options = asked;
    add_injection(injection_, config, options);
    const PretrainOptions without_dump = options;
    const auto dump = dump_asked_for(arguments);
    if (dump) {
      add_dump(config, *dump, options);
    }
    if (test_) {
      return finish_test(*test_, config, options, job.world()->rank() == 0);
    }
    if (arguments.count("measure_rounding") == 0) {
      pretrain(config, options);
      return kFinished;
    }
    const auto repetitions = arguments["measure_rounding"].as<int64_t>();
    check_rounding_can_be_measured(config, *dump, repetitions);
    if (!pretrain(config, options).stopped_on_request) {
      measure_rounding(config, without_dump, *dump, repetitions);
    }
    return kFinished;
  }

 private:
  Injection injection_;
  std::optional<TrainingTest> test_;
};

}  // namespace

std::unique_ptr<PretrainModes> diagnosis_modes() { return std::make_unique<DiagnosisModes>(); }

}  // namespace tapestry::examples
