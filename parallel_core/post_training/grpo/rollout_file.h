// Stored completions: rollouts.jsonl.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel_core/post_training/grpo/rollout_batch.h"
#include "text/sources/text_source.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry::post_training {

struct RolloutFileOptions {
  int64_t num_generations = 1;
  int64_t vocab_size = 0;
  int64_t max_tokens = 0;  ///< of a prompt with its completion
  /// Leave out groups with a line that is wrong, instead of an error.
  bool skip_bad_lines = false;
  /// For texts in place of ids; null: there is none, and texts are refused.
  const data::Tokenizer* tokenizer = nullptr;
  int64_t end_id = -1;  ///< ends a completion; -1: none does, and all count as cut off
  int64_t pad_id = -1;
};

/// The groups of a file in its order: `all` has no advantages yet.
struct RolloutFile {
  RolloutBatch all;
  data::TextFile file;
  data::BadLines bad_lines;
};

/// Reads a file with a JSON object a line, blank lines aside; num_generations successive lines are
/// a group, completions of one prompt:
///
///   prompt_ids, completion_ids  token ids, not empty; or prompt, completion as texts, encoded
///   apart
///                               from each other: a completion that lacks the end id gets it,
///                               unless "truncated" is true
///   rewards                     a list with a number, or null for none, of each reward function,
///   or
///                               an object of these by name. Lists name them reward_1, reward_2, ..
///   logprobs                    of the completion's tokens when they were sampled; all lines have
///                               them, or none has
///   truncated                   whether the completion was cut off; without it a completion is
///   that
///                               does not end with end_id or pad_id
///
/// Other members are passed over. ValueError that begins with FILE:LINE for a line that is none of
/// this, for ids outside of the vocabulary, more than max_tokens, prompts of a group that differ,
/// and other reward functions than in the lines before; of the file, for lines that are no multiple
/// of num_generations, and for no group that is left. IoError for a file that cannot be read.
RolloutFile read_rollouts(const std::string& path, const RolloutFileOptions& options);

}  // namespace tapestry::post_training
