// Tunes a model of a Hugging Face folder on a file of examples.
#include <boost/program_options.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "diagnosis/run_parts.h"
#include "examples/gpt/command_line.h"
#include "interop/finetune/finetune.h"
#include "parallel_core/comm/distributed.h"
#include "parallel_core/training/program.h"

namespace {

namespace po = boost::program_options;

using tapestry::check;
using tapestry::FinetuneExport;
using tapestry::FinetuneOptions;
using tapestry::FinetuneRecipe;
using tapestry::kFinished;
using tapestry::ValueError;

using Words = std::vector<std::string>;

po::options_description describe_options() {
  const FinetuneRecipe d;
  po::options_description options("Options", tapestry::examples::help_columns());
  const auto text = [&](const char* name, const char* value, const char* doc) {
    options.add_options()(name, po::value<std::string>()->value_name(value), doc);
  };
  const auto texts = [&](const char* name, const char* value, const char* doc) {
    options.add_options()(name, po::value<Words>()->composing()->multitoken()->value_name(value),
                          doc);
  };
  const auto number = [&](const char* name, const char* value, const char* doc) {
    options.add_options()(name, po::value<int64_t>()->value_name(value), doc);
  };
  const auto real = [&](const char* name, const char* value, const char* doc) {
    options.add_options()(name, po::value<double>()->value_name(value), doc);
  };
  text("from_hf", "DIR", "folder of the Hugging Face model, or a GGUF file");
  text("task", "TASK",
       "dpo | kto | orpo | cpo | reward | distil | grpo: learn preferences (the first four), a "
       "reward, from a teacher or by sampling in place of the examples' answers; its keys by --set "
       "post_training_config.KEY=VALUE");
  text("reference", "DIR", "of dpo, kto, grpo: a folder, or adapter_off (the model at the start)");
  text("teacher", "DIR", "of distil: the model to learn from");
  texts("reward", "KIND: ARG", "of grpo: what rewards a completion, as reward_funcs");
  texts("data", "FILE",
        "examples, a JSON object a line: files, folders, patterns; or weights and files in turn");
  options.add_options()("skip_bad_lines", "leave out lines that cannot be read, and list them");
  options.add_options()("resize_embeddings",
                        "give the model a row for each id that its tokenizer has beyond its table; "
                        "a new row is the mean of the others");
  texts("validation_data", "FILE", "examples to evaluate on; else a share of the data");
  real("validation_share", "X", "that share of the examples (0.05); 0: none");
  text("output_dir", "DIR", "where everything goes (./output)");
  options.add_options()("full", "train all weights, in place of an adapter");
  number("lora_rank", "N", "rank of the adapter (16)");
  real("lora_alpha", "X", "its scale times the rank (twice the rank)");
  real("lora_dropout", "P", "dropout of its input (0)");
  texts("lora_targets", "REGEX", "matrices that get one, by name (all of the layers)");
  options.add_options()("int8", "keep the frozen matrices in blocks of 8 bits a number (Q8_0)");
  options.add_options()("int4", "keep them in blocks of 4 bits a number (Q4_0)");
  number("epochs", "N", "times that the examples are read (3; 1 with --task)");
  real("learning_rate", "X", "2e-4 for an adapter, 2e-5 for all weights; by task");
  number("batch_rows", "N",
         "rows of an update (8; fewer where examples are few); of a task pairs or completions");
  number("seq_length", "N", "tokens of a row (as the longest example needs, at most 2048)");
  number("seed", "N", "of everything random (1234)");
  options.add_options()("set", po::value<Words>()->composing()->value_name("KEY=VALUE"),
                        "any key of the configuration, section.key=value; may be repeated");
  texts("export", "WHAT", "hf | gguf | adapter | none: what to write (hf)");
  text("type", "TYPE", "F32 | F16 | BF16 | Q8_0: of the GGUF file (F16)");
  number("answers", "N", "prompts of the validation part to answer at the end (3)");
  options.add_options()("overwrite", "move an earlier run in the output folder to its old/");
  options.add_options()("replace", "end the run in the output folder; then as --overwrite");
  options.add_options()("dry_run", "derive the configuration, check data and memory, print it");
  options.add_options()("help,h", "print this page");
  return options;
}

std::string help_text(const po::options_description& options) {
  std::ostringstream text;
  text << "Usage: finetune_gpt --from_hf DIR --data FILE [--full | --lora_rank N] [OPTION]...\n\n"
       << options
       << "\nSeveral ranks: mpirun -n N finetune_gpt ... --set parallel_config.KEY=VALUE. "
          "See docs/finetune.md.\n"
          "Exit codes: 0 finished, 2 wrong configuration or input, 1 any other failure.\n";
  return text.str();
}

std::vector<FinetuneExport> exports_of(const po::variables_map& arguments) {
  std::vector<FinetuneExport> exports;
  const Words names =
      arguments.count("export") != 0 ? arguments["export"].as<Words>() : Words{"hf"};
  for (const std::string& name : names) {
    if (name == "hf") {
      exports.push_back(FinetuneExport::kHf);
    } else if (name == "gguf") {
      exports.push_back(FinetuneExport::kGguf);
    } else if (name == "adapter") {
      exports.push_back(FinetuneExport::kAdapter);
    } else {
      check<ValueError>(name == "none", "--export ", name, ": expected hf, gguf, adapter or none");
      check<ValueError>(names.size() == 1, "--export none excludes the others");
    }
  }
  return exports;
}

FinetuneOptions options_of(const po::variables_map& arguments) {
  FinetuneOptions options;
  FinetuneRecipe& r = options.recipe;
  const auto take = [&](const char* name, auto& member) {
    if (arguments.count(name) == 0) {
      return;
    }
    using Member = std::remove_reference_t<decltype(member)>;
    if constexpr (requires {
                    typename Member::value_type;
                    member.has_value();
                  }) {
      member = arguments[name].as<typename Member::value_type>();
    } else {
      member = arguments[name].as<Member>();
    }
  };
  take("from_hf", r.from_hf);
  take("task", r.task);
  take("reference", r.reference);
  take("teacher", r.teacher);
  take("reward", r.reward_funcs);
  if (!r.task.empty()) {
    r.epochs = 1;
  }
  take("data", r.data);
  take("validation_data", r.validation_data);
  take("validation_share", r.validation_share);
  take("output_dir", r.output_dir);
  r.full = arguments.count("full") != 0;
  r.skip_bad_lines = arguments.count("skip_bad_lines") != 0;
  r.resize_embeddings = arguments.count("resize_embeddings") != 0;
  take("lora_rank", r.lora_rank);
  take("lora_alpha", r.lora_alpha);
  take("lora_dropout", r.lora_dropout);
  take("lora_targets", r.lora_targets);
  for (const char* of_adapter : {"lora_rank", "lora_alpha", "lora_dropout"}) {
    check<ValueError>(!r.full || arguments.count(of_adapter) == 0, "--full and --", of_adapter,
                      " exclude each other");
  }
  const bool int4 = arguments.count("int4") != 0;
  check<ValueError>(!int4 || arguments.count("int8") == 0,
                    "--int8 and --int4 say both how the frozen matrices are kept; leave one out");
  if (int4 || arguments.count("int8") != 0) {
    r.blocks = int4 ? tapestry::BlockFormat::kQ4_0 : tapestry::BlockFormat::kQ8_0;
  }
  take("epochs", r.epochs);
  take("learning_rate", r.learning_rate);
  take("batch_rows", r.batch_rows);
  take("seq_length", r.seq_length);
  take("seed", r.seed);
  take("set", r.overrides);
  options.exports = exports_of(arguments);
  take("type", options.gguf_type);
  take("answers", options.answers);
  options.overwrite = arguments.count("overwrite") != 0;
  options.replace = arguments.count("replace") != 0;
  options.dry_run = arguments.count("dry_run") != 0;
  return options;
}

int run(const Words& given, const tapestry::Distributed& job) {
  const po::options_description description = describe_options();
  Words words = given;
  if (const auto topic = tapestry::examples::take_help(words)) {
    if (job.world()->rank() == 0) {
      tapestry::print_result(
          tapestry::examples::help_page(help_text(description), description, *topic));
    }
    return kFinished;
  }
  po::variables_map arguments = tapestry::examples::parse_command_line(words, description);
  po::notify(arguments);
  FinetuneOptions options = options_of(arguments);
  for (const std::string& word : given) {
    options.run_cmd += (options.run_cmd.empty() ? "finetune_gpt " : " ") + word;
  }
  options.stop_requested = tapestry::stop_on_signals();
  options.world = job.world();
  options.ranks_on_host = job.ranks_on_host();
  options.rank_on_host = job.rank_on_host();
  options.progress_text = job.progress_text();
  options.parts = tapestry::diagnosis::run_parts();
  tapestry::finetune(options);
  return kFinished;
}

}  // namespace

int main(int argc, char** argv) { return tapestry::run_program(argc, argv, run); }
