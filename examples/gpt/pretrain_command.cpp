#include "examples/gpt/pretrain_command.h"

#include <tapestry_version.h>

#include <exception>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string_view>
#include <utility>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "examples/gpt/data_commands.h"
#include "examples/gpt/plan_commands.h"
#include "examples/gpt/pretrain_options.h"
#include "interop/export/resized_folder.h"
#include "parallel_core/config/read/load.h"
#include "parallel_core/config/read/unknown_names.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/config/yaml/value.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/post_training/run_task.h"
#include "parallel_core/training/dry_run.h"
#include "parallel_core/training/evaluate_checkpoint.h"
#include "parallel_core/training/files/resumed_run.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/program.h"

namespace tapestry::examples {

namespace {

namespace po = boost::program_options;

std::string version_text() {
  return std::string("pretrain_gpt ") + kVersion + "\nbuild: " + kBuildType + ", " + kCompiler +
         "\nCPU level: " + std::string(name_of(cpu_level())) +
         "\nBLAS: " + std::string(kernels::blas_flavour()) + "\nMPI: " + mpi_library_version() +
         "\n";
}

// Reads the file with further overrides.
ConfigLoader loader_of(const std::string& config_path, const LoadOptions& load, int64_t ranks) {
  return [config_path, load, ranks](const std::vector<std::string>& more) {
    LoadOptions all = load;
    all.overrides.insert(all.overrides.end(), more.begin(), more.end());
    return init_configs_for_ranks(config_path, ranks, all);
  };
}

// A run's own config.yaml goes on where it lies, not where the run has been before it was moved.
AllConfig load_config(const std::string& path,
                      const LoadOptions& load,
                      std::optional<int64_t> ranks) {
  const auto read = [&](const LoadOptions& options) {
    return ranks ? init_configs_for_ranks(path, *ranks, options)
                 : init_configs_from_yaml(path, options);
  };
  AllConfig config = read(load);
  std::vector<std::string> moved = overrides_of_moved_run(path, config);
  if (moved.empty()) {
    return config;
  }
  const std::string old = config.training_config.output_dir;
  LoadOptions all = load;
  moved.insert(moved.end(), load.overrides.begin(), load.overrides.end());
  all.overrides = std::move(moved);
  config = read(all);
  config.notes.push_back(concat(path, ": the run that it belongs to was moved here from ", old,
                                " and goes on in ", config.training_config.output_dir,
                                "; to go on elsewhere give --set training_config.output_dir=DIR"));
  return config;
}

// What to type to go on with a run.
std::string go_on_text(const std::string& output_dir, const Distributed& job) {
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
  return concat(ranks > 1 ? concat("RANKS=", ranks, " pretrain_gpt.sh") : "pretrain_gpt",
                " --resume ", quoted);
}

void say_dry_run(const AllConfig& config,
                 const Distributed& job,
                 bool verbose,
                 const PretrainModes& modes) {
  std::ostringstream text;
  try {
    dry_run(config,
            {.world = job.world(),
             .ranks_on_host = job.ranks_on_host(),
             .verbose = verbose,
             .parts = modes.parts(),
             .task = post_training::run_task},
            text);
  } catch (const Error&) {  // what stands in the way is said after all else
    print_wrapped(text.str());
    throw;
  }
  print_wrapped(text.str());
}

int evaluate(const po::variables_map& arguments, const LoadOptions& load, const Distributed& job) {
  const std::string checkpoint = resolve_checkpoint(arguments["evaluate"].as<std::string>());
  const std::string saved = checkpoint + "/config.yaml";
  const bool has_path = arguments.count("config_path") != 0;
  check<IoError>(has_path || std::filesystem::exists(saved), saved,
                 ": is missing, so --evaluate does not know the model; name its configuration with "
                 "--config_path");
  LoadOptions from = load;
  if (!has_path) {  // before what is given on the command line
    const std::vector<std::string> base = base_overrides(checkpoint);
    from.overrides.insert(from.overrides.begin(), base.begin(), base.end());
  }
  const AllConfig config =
      init_configs_from_yaml(has_path ? arguments["config_path"].as<std::string>() : saved, from);
  evaluate_checkpoint(config, checkpoint, job.world());
  return kFinished;
}

po::variables_map parsed(const std::vector<std::string>& words) {
  po::options_description all("All");
  all.add(pretrain_options()).add(accuracy_options()).add(plan_options());
  po::variables_map arguments =
      parse_command_line(flags_as_settings(words, all), all, config::word_hint);
  po::notify(arguments);
  return arguments;
}

constexpr const char* kUsualFile = "pretrain_gpt.yaml";

// The configuration that is given, or lies in the current folder; empty without.
std::string config_file(const po::variables_map& arguments) {
  if (arguments.count("config_path") != 0) {
    return arguments["config_path"].as<std::string>();
  }
  std::error_code error;
  return std::filesystem::is_regular_file(kUsualFile, error) ? kUsualFile : std::string();
}

void check_has_config(const po::variables_map& arguments) {
  if (config_file(arguments).empty()) {
    std::error_code error;
    throw ValueError(concat("--config_path FILE is needed: the current folder, ",
                            std::filesystem::current_path(error).string(), ", has no ", kUsualFile,
                            ", which would be taken without; the tiny preset is "
                            "examples/gpt/pretrain_gpt_tiny.yaml"));
  }
}

// The file, and what goes before it.
struct AskedConfig {
  std::string path;
  LoadOptions load;
};

AskedConfig asked_config(const po::variables_map& arguments) {
  AskedConfig asked;
  asked.path = config_file(arguments);
  asked.load.model_type = arguments["model_type"].as<std::string>();
  if (arguments.count("set") != 0) {
    asked.load.overrides = arguments["set"].as<std::vector<std::string>>();
    config::check_flags_agree(asked.load.overrides);
  }
  if (arguments.count("from_hf") != 0) {
    asked.load.overrides.push_back("model_config.from_hf=" +
                                   config::path_text(arguments["from_hf"].as<std::string>()));
  }
  if (asked.path.empty() && arguments.count("prove") != 0) {  // the run has it
    asked.path = resumed_run(arguments["prove"].as<std::vector<std::string>>().front(),
                             asked.load.model_type)
                     .config_path;
  }
  return asked;
}

// Of --resume: the configuration of the run that goes on.
void add_resumed(const po::variables_map& arguments, AskedConfig& asked) {
  if (arguments.count("resume") == 0) {
    return;
  }
  const ResumedRun resumed =
      resumed_run(arguments["resume"].as<std::string>(), asked.load.model_type);
  asked.path = resumed.config_path;
  asked.load.overrides.insert(asked.load.overrides.begin(), resumed.overrides.begin(),
                              resumed.overrides.end());
}

// The same for the model with a row for each id of the tokenizer, where that has more.
AllConfig with_resized_model(AskedConfig asked,
                             const AllConfig& config,
                             bool replaces,
                             const Distributed& job) {
  const std::optional<std::string>& from_hf = config.model_config.from_hf;
  check<ValueError>(from_hf.has_value(),
                    "--resize_embeddings is for a model that exists: name its folder with "
                    "--from_hf, or raise model_config.vocab_size where a model begins");
  std::string resized = *from_hf;
  all_or_none_on_disk(*job.world(), [&] {
    if (job.world()->rank() == 0) {
      resized = resized_folder(*from_hf, ids_of_run(config, *from_hf),
                               resized_folder_of(config.training_config.output_dir), replaces);
    }
  });
  resized = all_gather_text(*job.world(), resized).front();
  if (resized == *from_hf) {
    return config;
  }
  constexpr std::string_view kFromHf = "model_config.from_hf=";
  std::erase_if(asked.load.overrides,
                [&](const std::string& word) { return word.starts_with(kFromHf); });
  asked.load.overrides.push_back(concat(kFromHf, config::path_text(resized)));
  AllConfig with_rows = load_config(asked.path, asked.load, job.world()->size());
  if (job.world()->rank() == 0) {
    say("pretrain_gpt",
        concat("wrote ", resized, ": the model of ", *from_hf, " with ",
               with_rows.model_config.vocab_size, " rows, the new ones the mean of the others"));
  }
  return with_rows;
}

void check_exclude(const po::variables_map& arguments,
                   const char* option,
                   std::initializer_list<const char*> others) {
  for (const char* other : others) {
    check<ValueError>(arguments.count(option) == 0 || arguments.count(other) == 0, "--", option,
                      " and --", other, " exclude each other");
  }
}

// Options that say more of another one, and those that cannot stand beside each other.
void check_details(const po::variables_map& arguments) {
  check<ValueError>(arguments.count("verbose") == 0 || arguments.count("dry_run") != 0,
                    "--verbose says more of a --dry_run; without one it has no effect");
  check<ValueError>(arguments.count("to") == 0 || arguments.count("convert_config") != 0 ||
                        arguments.count("plan") != 0,
                    "--to names the file of --convert_config or --plan; without one of them it has "
                    "no effect");
  for (const char* other :
       {"config_path", "overwrite", "evaluate", "from_hf", "resize_embeddings"}) {
    check<ValueError>(arguments.count("resume") == 0 || arguments.count(other) == 0,
                      "--resume goes on with the run in a folder, by its "
                      "own configuration; leave out --",
                      other);
  }
  check_exclude(arguments, "evaluate",
                {"dry_run", "verify_layout", "overwrite", "replace", "plot_schedule"});
  check_exclude(arguments, "plot_schedule", {"dry_run", "verify_layout"});
}

// The configuration in the spelling that was asked for; nothing without such an option.
std::optional<std::string> spelled_config(const po::variables_map& arguments,
                                          const AllConfig& config,
                                          int64_t ranks) {
  if (arguments.count("convert_config") != 0) {
    return spelled_yaml(config, arguments["convert_config"].as<std::string>(), ranks);
  }
  if (arguments.count("print_config") == 0) {
    return std::nullopt;
  }
  const auto& words = arguments["print_config"].as<std::vector<std::string>>();
  check<ValueError>(words.size() < 2, "--print_config takes one spelling, 1.x or 2.0");
  return words.empty() || words.front() == "1.x" ? resolved_yaml(config)
                                                 : spelled_yaml(config, words.front(), ranks);
}

// Rank 0 prints it, or writes it to the file of --to. False if it was not asked for.
bool gives_config(const po::variables_map& arguments,
                  const AllConfig& config,
                  const ProcessGroup& world) {
  const std::optional<std::string> text = spelled_config(arguments, config, world.size());
  if (!text || world.rank() != 0) {
    return text.has_value();
  }
  if (arguments.count("to") == 0) {
    print_result(*text);
    return true;
  }
  const std::string path = arguments["to"].as<std::string>();
  check<ValueError>(!std::filesystem::exists(path), path,
                    ": is there already; give another name, or remove it");
  AtomicFile file(path);
  file.write(*text);
  file.commit();
  return true;
}

}  // namespace

int PretrainModes::train(const Arguments& /*arguments*/,
                         const AllConfig& config,
                         const PretrainOptions& options,
                         const Distributed& /*job*/) {
  pretrain(config, options);
  return kFinished;
}

int run_pretrain(const std::vector<std::string>& words,
                 const Distributed& job,
                 PretrainModes& modes) {
  const bool first = job.world()->rank() == 0;
  std::vector<std::string> without_help = words;
  if (const std::optional<std::string> topic = take_help(without_help)) {
    const std::string text = pretrain_help(*topic);
    if (first) {
      print_result(text);
    }
    return kFinished;
  }
  const po::variables_map arguments = parsed(without_help);
  if (arguments.count("version") != 0) {
    if (first) {
      print_wrapped(version_text());
    }
    return kFinished;
  }
  asks_for_view(arguments);  // refuses what belongs to a view that is not there
  if (const std::optional<int> code = modes.answer(arguments, job)) {
    return *code;
  }
  const bool plans = asks_for_plan(arguments);
  if (arguments.count("measure_network") != 0) {
    return measure_network(arguments, job.world(), job.ranks_on_host());
  }
  const bool evaluates = arguments.count("evaluate") != 0;
  const bool resumes = arguments.count("resume") != 0;
  if (!evaluates && !resumes && arguments.count("prove") == 0) {
    check_has_config(arguments);
  }
  check_details(arguments);
  const bool is_about_data = asks_for_data(arguments);
  for (const char* mode : {"evaluate", "verify_layout", "dry_run", "plot_schedule", "find_fault",
                           "which_data", "which_steps", "plan", "prove", "trace_step"}) {
    if (arguments.count(mode) != 0) {
      check_trains(arguments, mode);
    }
  }
  AskedConfig asked = asked_config(arguments);
  if (evaluates) {
    return evaluate(arguments, asked.load, job);
  }
  add_resumed(arguments, asked);
  if (const std::optional<int> code = modes.answer_file(
          arguments, loader_of(asked.path, asked.load, job.world()->size()), job)) {
    return *code;
  }
  for (std::string& override : modes.overrides(arguments)) {
    asked.load.overrides.push_back(std::move(override));
  }
  AllConfig config =
      load_config(asked.path, asked.load, plans ? ranks_of_batch(arguments) : job.world()->size());
  if (gives_config(arguments, config, *job.world())) {
    return kFinished;
  }
  if (first && !resumes && arguments.count("config_path") == 0) {
    say("pretrain_gpt", concat("takes ", kUsualFile, " of this folder, without --config_path"));
  }
  if (is_about_data) {
    print_data(arguments, config, *job.world());
    return kFinished;
  }
  if (plans) {
    print_plan(arguments, config, *job.world());
    return kFinished;
  }
  if (const std::optional<int> code = modes.answer_config(arguments, config, job)) {
    return *code;
  }
  if (arguments.count("dry_run") != 0) {
    say_dry_run(config, job, arguments.count("verbose") != 0, modes);
    return kFinished;
  }
  if (arguments.count("resize_embeddings") != 0) {
    config = with_resized_model(
        asked, config, arguments.count("overwrite") + arguments.count("replace") != 0, job);
  }
  set_log_format(config.training_config.log_format);
  const PretrainOptions training = {.run_cmd = arguments["run_cmd"].as<std::string>(),
                                    .stop_requested = stop_on_signals(),
                                    .go_on = go_on_text(config.training_config.output_dir, job),
                                    .overwrite = arguments.count("overwrite") != 0,
                                    .replace = arguments.count("replace") != 0,
                                    .world = job.world(),
                                    .ranks_on_host = job.ranks_on_host(),
                                    .rank_on_host = job.rank_on_host(),
                                    .progress_text = job.progress_text(),
                                    .parts = modes.parts(),
                                    .task = post_training::run_task};
  return modes.train(arguments, config, training, job);
}

std::optional<std::string> beyond(std::vector<std::string> words,
                                  const std::vector<RunPartFactory>& parts) {
  try {
    if (take_help(words)) {
      return std::nullopt;
    }
    const po::variables_map arguments = parsed(words);
    if (std::optional<std::string> option = diagnosis_option(arguments)) {
      return option;
    }
    const bool has_run = !config_file(arguments).empty() || arguments.count("resume") != 0;
    if (!has_run || arguments.count("version") != 0 || arguments.count("evaluate") != 0) {
      return std::nullopt;
    }
    AskedConfig asked = asked_config(arguments);
    add_resumed(arguments, asked);
    const std::vector<std::unique_ptr<RunPart>> made = make_parts(parts);
    return missing_part(load_config(asked.path, asked.load, std::nullopt), pointers_to(made));
  } catch (const std::exception&) {  // whoever runs says what is wrong
    return std::nullopt;
  }
}

}  // namespace tapestry::examples
