#include "examples/gpt/pretrain_options.h"

#include <cstdint>
#include <cstdlib>
#include <set>
#include <sstream>
#include <vector>

#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "examples/gpt/data_commands.h"
#include "examples/gpt/option_tables.h"
#include "examples/gpt/plan_commands.h"
#include "parallel_core/config/read/load.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/training/log/terminal.h"

namespace tapestry::examples {

namespace po = boost::program_options;

po::options_description accuracy_options() {
  po::options_description options("Options", help_columns());
  options.add_options()("dump", po::value<std::string>()->value_name("FILE.json"),
                        "write tensors of steps as this dump configuration says (docs/dump.md); "
                        "without it the environment variable MINDSPORE_DUMP_CONFIG is asked");
  options.add_options()(
      "measure_rounding", po::value<int64_t>()->value_name("K"),
      "with a dump of tensors: repeat its steps K times with results of ops moved by up to half a "
      "unit in the last place, and once at another CPU level; the largest movements become "
      "rounding.csv in the dump's folder, which `accuracy compare` takes its bounds from");
  options.add_options()("inject_weights", po::value<std::string>()->value_name("DIR"),
                        "start weights of a reference: a dump, with --find_fault also a replay "
                        "case, or what "
                        "training_config.load_checkpoint takes (docs/injection.md)");
  options.add_options()("inject_data", po::value<std::string>()->value_name("DIR"),
                        "recorded steps, step_N/rank_R/*.npy, in place of the configured data");
  options.add_options()("inject_grads", po::value<std::string>()->value_name("DIR"),
                        "gradients of a reference, before clipping, in place of those computed, in "
                        "every step that DIR has: grads_step_N.safetensors, step_N/grad_NAME.npy, "
                        "grad_NAME.npy of the first step, "
                        "or a dump");
  options.add_options()("inject_inputs", po::value<std::string>()->value_name("DIR"),
                        "values of a reference's dump, and their gradients, in place of the "
                        "model's wherever it goes on with them: each stretch between two is "
                        "computed from the reference's inputs, so that faults are told apart; a "
                        "dump shows what was computed before it is replaced");
  options.add_options()(
      "map", po::value<std::string>()->value_name("FILE"),
      "names in the folders of the four options above, and in that of --find_fault, "
      "and what they are here: YAML or JSON, as for `accuracy compare`");
  options.add_options()("op_error", po::value<std::string>()->value_name("REGEX"),
                        "in the first step, run ops whose name (type, or module and type) matches "
                        "again in float64 from the same inputs, forward and backward; print their "
                        "errors in units of what half a unit in the last place of the inputs does; "
                        "exit code 1 if one is beyond --op_error_multiple");
  options.add_options()("op_error_multiple", po::value<double>()->default_value(8)->value_name("X"),
                        "of that unit which an op may be off by");
  options.add_options()(
      "twice", po::value<int64_t>()->value_name("N"),
      "train the first N steps twice and compare bits: of all op results, losses, "
      "norms, gradients and weights; exit code 1 and the first op that differs");
  options.add_options()(
      "lr_zero", po::value<int64_t>()->value_name("N"),
      "N steps with learning rate 0 and no weight decay, for loss and norm of the "
      "start weights on many batches (metrics.jsonl); exit code 1 if a weight "
      "changes");
  options.add_options()(
      "find_fault", po::value<std::string>()->value_name("REFERENCE"),
      "hold this training against a replay case or the output folder of a run, stage by stage, "
      "and end at the first that fails: config weights data forward loss backward reduction clip "
      "schedule optimizer determinism long_run none (docs/accuracy.md)");
  options.add_options()("expand", po::value<std::string>()->value_name("LAYOUTS"),
                        "with --find_fault: layouts as for --verify_layout, separated by "
                        "semicolons, that are then held against one process");
  options.add_options()("fault_steps", po::value<int64_t>()->value_name("N"),
                        "steps that --find_fault compares number by number: 3, or 5 of a model of "
                        "up to 4 million weights");
  options.add_options()(
      "prove", po::value<std::vector<std::string>>()->multitoken()->value_name("CHECKPOINT STEP"),
      "of a run in exact mode: run the steps after this checkpoint again, up to STEP, with the "
      "run's config.yaml (--config_path, or that of the run that the checkpoint lies in), in this "
      "job's ranks and in any layout that --set asks for; exit code 1 unless the recorded hash "
      "returns");
  options.add_options()("trace_step", po::value<int64_t>()->value_name("STEP"),
                        "of the run that the file of --config_path lies in: run this step again in "
                        "one process and write checksums of all that it computes to --json; what "
                        "`accuracy compare --bits` starts");
  options.add_options()("trace_batch", po::value<int64_t>()->value_name("N"),
                        "with --trace_step: sequences of a micro-batch");
  options.add_options()("verify_steps", po::value<int64_t>()->default_value(3)->value_name("N"),
                        "steps that --verify_layout trains");
  options.add_options()("json", po::value<std::string>()->value_name("FILE.json"),
                        "also write the verdict of --find_fault, --op_error, --twice, --lr_zero or "
                        "--prove to this file");
  options.add_options()("html", po::value<std::string>()->value_name("FILE.html"),
                        "and to this page");
  return options;
}

namespace {

constexpr const char* kViewDetails[] = {"out", "x", "smooth"};

void add_view_options(po::options_description& options) {
  options.add_options()(
      "plot",
      po::value<std::vector<std::string>>()->multitoken()->composing()->value_name("RUN..."),
      "losses of runs as a table, or with --out as a picture");
  options.add_options()(
      "report",
      po::value<std::vector<std::string>>()->multitoken()->composing()->value_name("RUN..."),
      "write an HTML page about runs, to the first one or to --out");
  options.add_options()("out", po::value<std::string>()->default_value("", "")->value_name("FILE"),
                        "write the plot (SVG) or the report (HTML) to this file");
  options.add_options()("x", po::value<std::string>()->default_value("steps")->value_name("AXIS"),
                        "steps | tokens | time: what plot and report are over");
  options.add_options()("smooth", po::value<double>()->default_value(0)->value_name("W"),
                        "smooth losses: weight of the mean before a step, such as 0.9");
}

}  // namespace

po::options_description pretrain_options() {
  po::options_description options("Options", help_columns());
  options.add_options()("config_path", po::value<std::string>()->value_name("FILE"),
                        "YAML file of the run; else pretrain_gpt.yaml of this folder");
  options.add_options()("set",
                        po::value<std::vector<std::string>>()->composing()->value_name("KEY=VALUE"),
                        "section.key=value before the file's; also --key value");
  options.add_options()("from_hf", po::value<std::string>()->value_name("DIR"),
                        "model_config.from_hf: a Hugging Face model and its weights");
  options.add_options()("resize_embeddings",
                        "give the --from_hf model a row for each id of the tokenizer");
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
  options.add_options()("verify_layout", po::value<std::string>()->value_name("LAYOUT"),
                        "compare a layout, such as tp=2,sp,pp=2, with one process");
  options.add_options()("plot_schedule", po::value<std::string>()->value_name("FILE"),
                        "draw learning rate and weight decay to this SVG file, and exit");
  options.add_options()(
      "print_config",
      po::value<std::vector<std::string>>()->multitoken()->zero_tokens()->value_name("[2.0]"),
      "print all values and their origins, or the sections of 2.0");
  options.add_options()("convert_config", po::value<std::string>()->value_name("1.x|2.0"),
                        "print the file in this MindFormers spelling");
  options.add_options()("to", po::value<std::string>()->value_name("FILE.yaml"),
                        "with --convert_config or --plan: write there");
  options.add_options()("plan", po::value<int64_t>()->value_name("RANKS"),
                        "rank layouts by time and memory, give the best one: --help plan");
  options.add_options()("replay", po::value<std::string>()->value_name("DIR"),
                        "run the bad step of a capsule again (docs/autopsy.md)");
  options.add_options()("evaluate", po::value<std::string>()->value_name("DIR"),
                        "print validation and test loss of a checkpoint, or of many");
  options.add_options()("analyse_profile", po::value<std::string>()->value_name("DIR"),
                        "put together what the ranks have written of a profile");
  add_data_options(options);
  add_view_options(options);
  options.add_options()("version", "print build, CPU level, BLAS and MPI, and exit");
  options.add_options()("help,h", "print this page; --help SECTION or KEY: of the YAML file");
  return options;
}

std::vector<std::string> flags_as_settings(const std::vector<std::string>& words,
                                           const po::options_description& options) {
  std::vector<std::string> made;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const size_t equals = word.find('=');
    const std::string name = word.starts_with("--") ? word.substr(2, equals - 2) : std::string();
    if (name.empty() || options.find_nothrow(name, /*approx=*/false) != nullptr ||
        !config::is_flag(name)) {
      made.push_back(word);
      continue;
    }
    made.push_back("--set=" + word);
    if (equals == std::string::npos && i + 1 < words.size() && !words[i + 1].starts_with("--")) {
      made.back() += " " + words[++i];
    }
  }
  return made;
}

namespace {

std::string accuracy_help() {
  std::ostringstream text;
  text << accuracy_options();
  return fit_to_terminal(OutputStream::kOut,
                         "Options of pretrain_gpt that look for faults. All need --config_path "
                         "FILE; docs/accuracy.md tells how they are used.\n\n") +
         fit_to_terminal(OutputStream::kOut, text.str());
}

std::string plan_help() {
  std::ostringstream text;
  text << plan_options();
  return fit_to_terminal(
      OutputStream::kOut,
      "pretrain_gpt --config_path FILE --plan RANKS [OPTION]... predicts step time and memory of "
      "each layout that the run could have on so many ranks, with its batch of a step, and gives "
      "the fastest one that fits: as YAML, or with --to FILE.yaml as a whole configuration. "
      "--ranks N: the batch is the one that the configuration has on N ranks. docs/plan.md.\n\n" +
          text.str());
}

std::string page_of(const po::options_description& options, const std::string& topic) {
  if (!topic.empty()) {
    const std::string option = option_help(options, topic);
    return !option.empty() ? option
                           : fit_to_terminal(OutputStream::kOut, render_configuration_help(topic));
  }
  std::ostringstream text;
  text << "\nSections of FILE (--help SECTION lists the keys of one):\n"
       << render_sections_help()
       << "\nPresets: examples/gpt/*.yaml. Several ranks: pretrain_gpt.sh. Looking for faults: "
          "--help "
          "accuracy.\n"
          "Exit codes: 0 finished, 2 wrong configuration or input, 1 any other failure.\n";
  std::ostringstream fitting;
  fitting << options;
  return fit_to_terminal(OutputStream::kOut,
                         "Usage: pretrain_gpt [--config_path FILE | --resume DIR] [OPTION]...\n"
                         "       pretrain_gpt --plot|--report RUN... [--out FILE] [--x "
                         "steps|tokens|time]\n\n") +
         fitting.str() + fit_to_terminal(OutputStream::kOut, text.str());
}

}  // namespace

std::string pretrain_help(const std::string& topic) {
  const po::options_description options = pretrain_options();
  if (topic == "accuracy") {
    return accuracy_help();
  }
  if (topic == "plan") {
    return plan_help();
  }
  if (topic.empty()) {
    return page_of(options, topic);
  }
  if (topic == kTablesTopic) {
    auto tables = tables_of(page_of(options, {}), options);
    add_group("accuracy", "Options that look for faults", accuracy_options(), tables);
    add_group("plan", "Options of a plan", plan_options(), tables);
    tables["sections"] = configuration_tables(/*as_options=*/true);
    return tables_text(tables);
  }
  po::options_description all("All");
  all.add(options).add(accuracy_options()).add(plan_options());
  return page_of(all, topic);
}

bool is_given(const po::variables_map& arguments, const std::string& option) {
  return arguments.count(option) != 0 && !arguments[option].defaulted();
}

std::optional<std::string> diagnosis_option(const po::variables_map& arguments) {
  for (const char* option :
       {"plot", "report", "replay", "analyse_profile", "verify_layout", "plot_schedule"}) {
    if (is_given(arguments, option)) {
      return concat("--", option);
    }
  }
  const po::options_description described = accuracy_options();
  for (const auto& option : described.options()) {
    if (is_given(arguments, option->long_name())) {
      return concat("--", option->long_name());
    }
  }
  const bool trains = arguments.count("dry_run") == 0 && arguments.count("evaluate") == 0 &&
                      arguments.count("which_data") == 0 && arguments.count("which_steps") == 0 &&
                      arguments.count("plan") == 0;
  const char* dump = std::getenv("MINDSPORE_DUMP_CONFIG");
  if (trains && dump != nullptr && *dump != '\0') {
    return "MINDSPORE_DUMP_CONFIG";
  }
  return std::nullopt;
}

bool asks_for_view(const po::variables_map& arguments) {
  const bool plots = is_given(arguments, "plot");
  const bool reports = is_given(arguments, "report");
  if (!plots && !reports) {
    for (const char* option : kViewDetails) {
      check<ValueError>(!is_given(arguments, option), "--", option,
                        " belongs to --plot RUN... or --report RUN..., which are not given");
    }
    return false;
  }
  check<ValueError>(!plots || !reports, "--plot and --report exclude each other");
  const std::set<std::string> belonging = {plots ? "plot" : "report", "out", "x", "smooth"};
  for (const auto& [name, value] : arguments) {
    check<ValueError>(belonging.contains(name) || value.defaulted(), "--", name,
                      " means nothing to --", plots ? "plot" : "report", ", which ",
                      plots ? "draws" : "is about", " runs that there are; leave one out");
  }
  check<ValueError>(!is_given(arguments, "out") || !arguments["out"].as<std::string>().empty(),
                    "--out is empty; expected the name of an ", plots ? "SVG" : "HTML", " file");
  return true;
}

void check_trains(const po::variables_map& arguments, const std::string& mode) {
  const std::set<std::string> of_find_fault = {"inject_weights", "inject_data", "map"};
  for (const char* option :
       {"inject_weights", "inject_data", "inject_grads", "inject_inputs", "map", "op_error",
        "twice", "lr_zero", "prove", "trace_step", "resize_embeddings"}) {
    check<ValueError>(arguments.count(option) == 0 || mode == option ||
                          (mode == "find_fault" && of_find_fault.contains(option)),
                      "--", mode, " and --", option, " exclude each other");
  }
}

}  // namespace tapestry::examples
