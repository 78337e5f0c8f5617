// How a model of a Hugging Face folder is tuned on a file of examples: what people say, and the
// configuration that follows from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autograd/ops/transformer/quantized_matrix.h"
#include "autograd/tensor/dtype.h"

namespace tapestry {

/// What is asked for. Everything has a default but the model and the data.
struct FinetuneRecipe {
  std::string from_hf;  ///< folder of the model
  /// dpo, kto, orpo, cpo, reward, distil or grpo (post_training_config.task); empty: the examples'
  /// answers are learned as they are.
  std::string task;
  std::string reference;                     ///< of dpo, kto and grpo: a folder, or adapter_off
  std::string teacher;                       ///< of distil: a folder
  std::vector<std::string> reward_funcs;     ///< of grpo
  std::vector<std::string> data;             ///< files of examples, or weights and files in turn
  std::vector<std::string> validation_data;  ///< empty: a share of the data
  double validation_share = 0.05;            ///< of the examples, where there is no such file
  std::string output_dir = "./output";
  bool full = false;  ///< train all weights, in place of an adapter
  int64_t lora_rank = 16;
  std::optional<double> lora_alpha;  ///< empty: twice the rank
  double lora_dropout = 0;
  std::vector<std::string> lora_targets;  ///< expressions; empty: all matrices of the layers
  std::optional<BlockFormat> blocks;      ///< of the frozen matrices; empty: none
  int64_t epochs = 3;
  /// Empty: 2e-4 for an adapter, 2e-5 for all weights; of tasks TRL's 1e-6 for all weights, ten
  /// times that for an adapter, and 1e-4 for a reward.
  std::optional<double> learning_rate;
  std::optional<int64_t> batch_rows;  ///< of an update, on all data-parallel ranks together;
                                      ///< empty: see derived_batch_rows
  bool skip_bad_lines = false;        ///< of the files of examples
  bool resize_embeddings = false;     ///< a row for each id that the model lacks (resized_folder.h)
  std::optional<int64_t> seq_length;  ///< empty: see derived_seq_length
  int64_t seed = 1234;
  /// "section.key=value", in YAML: these go before all that is derived.
  std::vector<std::string> overrides;
};

/// What the recipe's configuration depends on besides.
struct RecipeFacts {
  int64_t positions = 0;    ///< of the model: its longest row
  DType stored = kFloat32;  ///< of the model's weights on disk
  /// That of a GGUF file which has all frozen matrices in it.
  std::optional<BlockFormat> base_blocks = {};
  std::string tokenizer_type = "byte";  ///< of the model's folder, as dataset_config has it; empty:
                                        ///< it has none
  std::string tokenizer_model;          ///< its file; empty for bytes
  int64_t seq_length = 0;               ///< of a row
  int64_t data_parallel_size = 1;
  int64_t batch_rows = 8;      ///< rows of an update
  bool packing = true;         ///< several examples in a row
  bool has_validation = true;  ///< there are examples to evaluate on
  int64_t training_iters = 0;  ///< 0: not known yet, the epochs say it
};

/// Updates that a tuning should have, and fewer than which are remarked upon.
inline constexpr int64_t kWantedUpdates = 20;
inline constexpr int64_t kFewUpdates = 10;

/// Pairs, examples or completions of an update of a task where nobody says it, a multiple of the
/// data-parallel ranks: 8, of grpo 32, which are four prompts; and how many of them each rank
/// computes at once.
struct TaskBatch {
  int64_t update = 8;
  int64_t at_once = 2;
};
TaskBatch derived_task_batch(const FinetuneRecipe& recipe, int64_t data_parallel_size);

/// ValueError, naming the option, for one that is out of its range or excludes another.
void check_recipe(const FinetuneRecipe& recipe);

/// Tokens of a row that takes the longest example whole: the next multiple of 64, but at least 256,
/// so that short examples are packed, and at most `most`.
int64_t derived_seq_length(int64_t longest_example, int64_t most);

/// Rows of an update, a multiple of the data-parallel ranks: 8, or as many fewer as it takes to
/// make kWantedUpdates of `rows`, which are those of all epochs.
int64_t derived_batch_rows(int64_t rows, int64_t data_parallel_size);

/// The configuration as a YAML file for pretrain_gpt, with a line on each choice that is not the
/// user's. An adapter is trained beside weights in the dtype that they are stored in; where all
/// weights are trained these are float32, and 16-bit files are computed in bfloat16.
std::string recipe_yaml(const FinetuneRecipe& recipe, const RecipeFacts& facts);

}  // namespace tapestry
