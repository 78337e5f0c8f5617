// From a Hugging Face folder and a file of examples to a tuned model, in one call.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "interop/finetune/recipe.h"
#include "parallel_core/comm/process_group.h"
#include "parallel_core/training/step/run_part.h"

namespace tapestry {

/// What becomes of the tuned model.
enum class FinetuneExport : uint8_t {
  kHf,       ///< OUTPUT/hf: a Hugging Face folder, an adapter merged in
  kGguf,     ///< OUTPUT/model.gguf, the same for llama.cpp
  kAdapter,  ///< OUTPUT/adapter: a PEFT folder
};

struct FinetuneOptions {
  FinetuneRecipe recipe;
  std::vector<FinetuneExport> exports;
  std::string gguf_type = "F16";  ///< F32, F16, BF16 or Q8_0
  int64_t answers = 3;            ///< prompts of the validation part that are answered at the end
  int64_t answer_tokens = 128;    ///< of each, at most
  bool dry_run = false;           ///< derive, check and save nothing
  // As in PretrainOptions.
  std::string run_cmd;
  std::function<bool()> stop_requested;
  bool overwrite = false;
  bool replace = false;
  std::shared_ptr<ProcessGroup> world = single_process_group();
  int ranks_on_host = 1;
  std::optional<int> rank_on_host = std::nullopt;
  std::string progress_text;
  std::vector<RunPartFactory> parts = {};
};

/// A prompt of the validation part, what its example says, and what the tuned model does.
struct FinetuneAnswer {
  std::string prompt;
  std::string expected;
  std::string answer;
};

struct FinetuneSummary {
  std::string config_path;            ///< OUTPUT/finetune.yaml
  std::optional<double> loss_before;  ///< on the validation part, if there is one
  std::optional<double> loss_after;
  int64_t updates = 0;              ///< that the run makes
  bool stopped_on_request = false;  ///< then nothing below
  std::vector<FinetuneAnswer> answers;
  std::vector<std::string> exported;  ///< paths
};

/// Derives the configuration (recipe_yaml) and saves it, checks memory before anything is loaded,
/// trains by pretrain(), with the loss on the validation part before the first and after the last
/// step, answers some of its prompts greedily, and exports. Few examples are put into so few rows
/// an update that there are enough updates. Collective over the world. Errors are those of its
/// parts; RuntimeError, before anything is exported, if no weight has changed; an adapter cannot be
/// exported of a run that trains all weights: ValueError before it begins.
FinetuneSummary finetune(const FinetuneOptions& options);

}  // namespace tapestry
