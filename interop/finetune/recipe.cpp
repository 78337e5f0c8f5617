#include "interop/finetune/recipe.h"

#include <algorithm>
#include <sstream>
#include <string_view>

#include "autograd/tensor/error.h"
#include "parallel_core/config/yaml/expand_path.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry {

namespace {

constexpr int64_t kShortestRow = 256;
constexpr int64_t kRowStep = 64;
constexpr int64_t kUsualCompletion = 512;  // TRL's max_completion_length

// A list of paths, or of other texts.
std::string list_text(const std::vector<std::string>& entries,
                      std::string (*quoted)(std::string_view) = config::path_text) {
  std::string text = "[";
  for (const std::string& entry : entries) {
    text += concat(text.size() > 1 ? ", " : "", quoted(entry));
  }
  return text + "]";
}

// The shortest text that reads back as the number.
std::string shortest_number(double value) {
  std::ostringstream text;
  for (int digits = 6; digits <= 17; ++digits) {
    text.str("");
    text.precision(digits);
    text << value;
    if (std::stod(text.str()) == value) {
      break;
    }
  }
  return text.str();
}

// "969,31,0" of shares in thousandths.
std::string split_of(double validation_share) {
  const double valid = validation_share * 1000;
  return shortest_number(1000 - valid) + "," + shortest_number(valid) + ",0";
}

class YamlText {
 public:
  void section(const char* name) { text_ += concat("\n", name, ":\n"); }
  void key(const char* name, const std::string& value, const std::string& why = "") {
    text_ += concat("  ", name, ": ", value, why.empty() ? "" : "  # ", why, "\n");
  }
  void key(const char* name, int64_t value, const std::string& why = "") {
    key(name, std::to_string(value), why);
  }
  void remark(std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    text_ += concat("# ", text, "\n");
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

bool is_16_bit(DType dtype) { return dtype != kFloat32 && dtype != kFloat64; }

// Where post_training_config lies in the text, the task's own keys of the recipe.
void add_task(YamlText& yaml, const FinetuneRecipe& recipe, int64_t seq_length) {
  yaml.section("post_training_config");
  yaml.key("task", recipe.task);
  yaml.key("data", list_text(recipe.data));
  if (!recipe.validation_data.empty()) {
    yaml.key("validation_data", list_text(recipe.validation_data));
  }
  if (!recipe.reference.empty()) {
    yaml.key("reference", recipe.reference == "adapter_off" ? recipe.reference
                                                            : config::path_text(recipe.reference));
  }
  if (!recipe.teacher.empty()) {
    yaml.key("teacher", config::path_text(recipe.teacher));
  }
  if (!recipe.reward_funcs.empty()) {
    yaml.key("reward_funcs", list_text(recipe.reward_funcs, config::string_text));
  }
  if (recipe.task == "grpo" && seq_length <= kUsualCompletion) {
    yaml.key("max_completion_length", std::max<int64_t>(1, seq_length / 2), "half a row");
  }
}

double derived_learning_rate(const FinetuneRecipe& recipe) {
  if (recipe.task == "reward") {
    return 1e-4;
  }
  if (recipe.task.empty() || recipe.task == "distil") {
    return recipe.full ? 2e-5 : 2e-4;
  }
  return recipe.full ? 1e-6 : 1e-5;
}

void check_task(const FinetuneRecipe& recipe) {
  constexpr const char* kTasks = "dpo, kto, orpo, cpo, reward, distil, grpo";
  const std::string& task = recipe.task;
  check<ValueError>(task.empty() || task == "dpo" || task == "kto" || task == "orpo" ||
                        task == "cpo" || task == "reward" || task == "distil" || task == "grpo",
                    "--task ", task, " is not known; expected one of ", kTasks);
  const auto belongs = [&](const char* option, bool is_given, bool is_known, const char* tasks) {
    check<ValueError>(!is_given || is_known, option, " belongs to --task ", tasks,
                      task.empty() ? std::string() : concat(", not to ", task));
  };
  belongs("--reference", !recipe.reference.empty(),
          task == "dpo" || task == "kto" || task == "grpo", "dpo, kto or grpo");
  belongs("--teacher", !recipe.teacher.empty(), task == "distil", "distil");
  belongs("--reward", !recipe.reward_funcs.empty(), task == "grpo", "grpo");
  check<ValueError>(recipe.reference != "adapter_off" || !recipe.full,
                    "--reference adapter_off: --full trains all weights, there is no adapter to "
                    "switch off");
}

}  // namespace

TaskBatch derived_task_batch(const FinetuneRecipe& recipe, int64_t data_parallel_size) {
  const bool samples = recipe.task == "grpo";
  const int64_t usual = recipe.batch_rows.value_or(samples ? 32 : 8);
  const int64_t on_each = std::max<int64_t>(1, usual / data_parallel_size);
  int64_t at_once = samples ? 8 : 2;
  while (on_each % at_once != 0) {
    at_once /= 2;
  }
  return {.update = on_each * data_parallel_size, .at_once = at_once};
}

void check_recipe(const FinetuneRecipe& recipe) {
  check<ValueError>(!recipe.from_hf.empty(), "--from_hf DIR is needed: the model to tune");
  check_task(recipe);
  check<ValueError>(!recipe.data.empty(), "--data FILE is needed: the examples, one JSON a line");
  check<ValueError>(recipe.epochs > 0, "--epochs must be positive, got ", recipe.epochs);
  check<ValueError>(!recipe.batch_rows || *recipe.batch_rows > 0,
                    "--batch_rows must be positive, got ", recipe.batch_rows.value_or(0));
  check<ValueError>(recipe.lora_rank > 0, "--lora_rank must be positive, got ", recipe.lora_rank);
  check<ValueError>(!recipe.lora_alpha || *recipe.lora_alpha > 0,
                    "--lora_alpha must be positive, got ", recipe.lora_alpha.value_or(0));
  check<ValueError>(recipe.lora_dropout >= 0 && recipe.lora_dropout < 1,
                    "--lora_dropout must lie in [0, 1), got ", recipe.lora_dropout);
  check<ValueError>(!recipe.learning_rate || *recipe.learning_rate > 0,
                    "--learning_rate must be positive, got ", recipe.learning_rate.value_or(0));
  check<ValueError>(!recipe.seq_length || *recipe.seq_length > 0,
                    "--seq_length must be positive, got ", recipe.seq_length.value_or(0));
  check<ValueError>(recipe.validation_share >= 0 && recipe.validation_share < 1,
                    "--validation_share must lie in [0, 1), got ", recipe.validation_share);
  check<ValueError>(!recipe.full || !recipe.blocks,
                    "--full trains all weights, --int8 and --int4 freeze them in blocks; leave one "
                    "out");
  check<ValueError>(!recipe.full || recipe.lora_targets.empty(),
                    "--full trains all weights, --lora_targets says which get an adapter; leave "
                    "one out");
}

int64_t derived_seq_length(int64_t longest_example, int64_t most) {
  const int64_t rows = (longest_example + kRowStep - 1) / kRowStep * kRowStep;
  return std::min(std::max(rows, kShortestRow), most);
}

int64_t derived_batch_rows(int64_t rows, int64_t data_parallel_size) {
  constexpr int64_t kMost = 8;
  const auto whole = [&](int64_t batch) {  // on every rank as many
    return std::max<int64_t>(1, batch / data_parallel_size) * data_parallel_size;
  };
  int64_t batch = kMost;
  while (whole(batch) > data_parallel_size &&
         (rows + whole(batch) - 1) / whole(batch) < kWantedUpdates) {
    batch /= 2;
  }
  return whole(batch);
}

namespace {

void add_data(YamlText& yaml, const FinetuneRecipe& recipe, const RecipeFacts& facts) {
  const bool is_task = !recipe.task.empty();  // whose section names the files
  yaml.section("dataset_config");
  if (!is_task) {
    yaml.key("sft_data_path", list_text(recipe.data));
  }
  if (!is_task && !recipe.validation_data.empty()) {
    yaml.key("sft_valid_data_path", list_text(recipe.validation_data));
  } else if (!is_task) {
    yaml.key("split", config::string_text(split_of(recipe.validation_share)), "of the examples");
  }
  if (!facts.tokenizer_type.empty()) {
    yaml.key("tokenizer_type", facts.tokenizer_type);
  }
  if (!facts.tokenizer_model.empty()) {
    yaml.key("tokenizer_model", config::path_text(facts.tokenizer_model));
  }
  const int64_t on_each = std::max<int64_t>(1, facts.batch_rows / facts.data_parallel_size);
  const int64_t at_once =
      is_task ? derived_task_batch(recipe, facts.data_parallel_size).at_once : 1;
  yaml.key("batch_size", at_once);
  yaml.key(
      "micro_batch_num", on_each / at_once,
      concat(is_task ? "times batch_size" : "rows", " of an update on each data-parallel rank"));
  if (!facts.packing) {
    yaml.key("sft_packing", "False", "so few examples would make too few updates together");
  }
  if (recipe.skip_bad_lines) {
    yaml.key("skip_bad_lines", "True");
  }
}

}  // namespace

std::string recipe_yaml(const FinetuneRecipe& recipe, const RecipeFacts& facts) {
  YamlText yaml;
  yaml.remark(concat("Tunes ", recipe.full ? "all weights" : "a low-rank adapter", " of ",
                     recipe.from_hf, recipe.task.empty() ? "" : ", task ", recipe.task, "."));
  yaml.remark("Derived by finetune_gpt; pretrain_gpt --config_path takes it as it is.");
  for (const std::string& set : recipe.overrides) {
    yaml.remark("Besides, as the run's config.yaml has it: --set " + config::string_text(set));
  }
  yaml.section("training_config");
  yaml.key("seed", recipe.seed);
  yaml.key("output_dir", config::path_text(recipe.output_dir));
  if (facts.training_iters > 0) {
    const int64_t iters = facts.training_iters;
    yaml.key("training_iters", iters,
             concat(recipe.epochs, recipe.epochs == 1 ? " epoch" : " epochs"));
    if (facts.has_validation) {
      yaml.key("eval_interval", std::max<int64_t>(1, iters / 10), "ten evaluations");
    }
    yaml.key("save_interval", std::max<int64_t>(1, (iters + 3) / 4), "four checkpoints");
  } else {
    yaml.key("epochs", recipe.epochs);
  }
  yaml.key("eval_iters", 50, "global batches at most");

  add_data(yaml, recipe, facts);
  if (!recipe.task.empty()) {
    add_task(yaml, recipe, facts.seq_length);
  }

  yaml.section("model_config");
  yaml.key("from_hf", config::path_text(recipe.from_hf));
  yaml.key("seq_length", facts.seq_length,
           recipe.seq_length || !recipe.task.empty()
               ? ""
               : "takes the longest example, as far as that is reasonable");
  yaml.key("hidden_dropout", "0.0");
  yaml.key("attention_dropout", "0.0");
  if (is_16_bit(facts.stored)) {
    yaml.key("compute_dtype", "bfloat16", "the weights are stored in 16 bits");
    yaml.key("params_dtype", recipe.full ? "float32" : "bfloat16",
             recipe.full ? "what is trained" : "of the frozen weights, one copy");
  }
  if (!recipe.full) {
    const double alpha = recipe.lora_alpha.value_or(2.0 * static_cast<double>(recipe.lora_rank));
    yaml.section("lora_config");
    yaml.key("use_lora", "True");
    yaml.key("lora_rank", recipe.lora_rank);
    yaml.key("lora_alpha", shortest_number(alpha), recipe.lora_alpha ? "" : "twice the rank");
    yaml.key("lora_dropout", shortest_number(recipe.lora_dropout));
    if (!recipe.lora_targets.empty()) {
      yaml.key(
          "target_cells",
          concat("[{target_cells: ", list_text(recipe.lora_targets, config::string_text), "}]"));
    }
    if (const auto blocks = recipe.blocks ? recipe.blocks : facts.base_blocks) {
      yaml.key(
          "base_dtype", std::string(name_of(*blocks)),
          concat("frozen matrices in blocks of ", *blocks == BlockFormat::kQ8_0 ? 8 : 4,
                 " bits a number", facts.base_blocks == blocks ? ", as the file has them" : ""));
    }
  }

  yaml.section("optimizer_config");
  yaml.key("optimizer_type", "AdamW");
  yaml.key("learning_rate",
           shortest_number(recipe.learning_rate.value_or(derived_learning_rate(recipe))));
  if (facts.training_iters > 0) {  // what a cosine needs to know
    yaml.key("lr_decay_style", "cosine");
    yaml.key("min_lr", "0.0");
    yaml.key("lr_warmup_iters", facts.training_iters * 3 / 100, "3 % of the updates");
  } else {
    yaml.key("lr_decay_style", "constant");
  }
  yaml.key("weight_decay", "0.0");
  yaml.key("betas", "[0.9, 0.999]");
  yaml.key("eps", "1.0e-8");
  yaml.key("clip_grad", "1.0");
  return yaml.text();
}

}  // namespace tapestry
