// Reward models at work: what texts are worth.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/training/checkpoints/saved_model.h"
#include "parallel_core/transformer/gpt_model.h"

namespace tapestry::post_training {

struct RewardModelOptions {
  /// A checkpoint, a folder of checkpoints or a run's folder (its latest), or a Hugging Face model
  /// for sequence classification with one label.
  std::string checkpoint;
  std::string adapter;  ///< a PEFT folder, or a checkpoint of a LoRA run; empty: none
  /// float32 | bfloat16. Empty: what the run that made a checkpoint computed in, float32 for
  /// others.
  std::string dtype;
  int64_t tokens_per_pass = 4096;  ///< that are computed together, at least one sequence
  bool checksums = true;           ///< the weights' are verified
};

/// A prompt and what was written after it.
struct PromptCompletion {
  std::string_view prompt;
  std::string_view completion;
};

/// A frozen model with a score head. It shares the layout of the calling ranks (parallel_state.h):
/// each holds its part for tensor, context, expert and pipeline parallelism, and copies are those
/// of data parallelism. Without groups each rank has all of it.
class RewardModel {
 public:
  /// Collective over all ranks. IoError or ValueError as open_saved_model, configure_adapter and
  /// load_weights; ValueError for a model without a score head and for another dtype.
  explicit RewardModel(const RewardModelOptions& options);

  /// The reward of each sequence, as a whole with what ends it: the score head's value at its last
  /// token that is not the model's pad id, as transformers takes it. Sequences share passes, but no
  /// attention. All ranks of a copy pass the same sequences and get the same rewards; copies have
  /// sequences of their own, any number of them. Collective over all ranks. ValueError for an empty
  /// sequence, one that is longer than context(), and an id that the vocabulary has not.
  std::vector<double> rewards(std::span<const std::vector<int32_t>> sequences);
  /// The same of texts by encode(). What is longer than context() loses its beginning.
  std::vector<double> rewards(std::span<const PromptCompletion> texts);

  /// The ids of a prompt and of a completion, encoded apart and joined, behind what begins every
  /// text of the tokenizer; the end token follows where the completion has none. As the data of
  /// training are.
  std::vector<int32_t> encode(const PromptCompletion& text) const;

  const data::Tokenizer& tokenizer() const { return *saved_.tokenizer; }
  const std::string& folder() const { return folder_; }
  /// Most tokens of a sequence.
  int64_t context() const { return context_; }
  /// For the user: what was found and assumed.
  const std::vector<std::string>& remarks() const { return remarks_; }

 private:
  std::string folder_;
  SavedModel saved_;
  std::vector<std::string> remarks_;
  std::unique_ptr<GPTModel> model_;
  int64_t context_ = 0;
  int64_t tokens_per_pass_ = 0;
  int64_t pad_id_ = -1;  // tokens of it at the end do not count; -1: there is none
};

}  // namespace tapestry::post_training
