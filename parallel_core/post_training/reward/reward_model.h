// Reward models at work: what texts are worth.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "parallel_core/inference/open_model.h"
#include "text/chat/chat_format.h"

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

/// A text that is judged.
struct JudgedText {
  /// A string, an array of messages ({"role", "content"}), or null: the completion is all of it.
  nlohmann::ordered_json prompt;
  std::string completion;  ///< after messages that of the assistant
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
  std::vector<double> rewards(std::span<const JudgedText> texts);

  /// As the data of task reward are encoded: prompt and completion are one text, or conversation by
  /// the chat template of the model's folder; the end token follows where it is missing.
  /// ValueError that begins with `place` for a conversation that the template cannot write.
  std::vector<int32_t> encode(const JudgedText& text, const std::string& place = "text") const;

  const data::Tokenizer& tokenizer() const { return *opened_.saved.tokenizer; }
  const chat::ChatFormat* chat_format() const { return format_ ? &*format_ : nullptr; }
  /// The token that ends a text.
  int32_t eod_id() const { return static_cast<int32_t>(opened_.saved.eod_id); }
  const std::string& folder() const { return opened_.folder; }
  /// Most tokens of a sequence.
  int64_t context() const { return opened_.saved.config.model_config.seq_length; }
  /// For the user: what was found and assumed.
  const std::vector<std::string>& remarks() const { return opened_.remarks; }

 private:
  OpenModel opened_;
  std::optional<chat::ChatFormat> format_;
  int64_t tokens_per_pass_ = 0;
  int64_t pad_id_ = -1;  // tokens of it at the end do not count; -1: there is none
};

}  // namespace tapestry::post_training
