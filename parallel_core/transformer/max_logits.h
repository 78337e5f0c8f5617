// The largest attention scores of a model in a training step, on all ranks together.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "nn/module.h"
#include "parallel_core/transformer/token_mixer.h"

namespace tapestry {

/// By layer from 0: the largest score of each head of all ranks, -inf where a head saw nothing. The
/// scores are those that enter the softmax (AttentionOptions::max_logits).
using HeadMaxima = std::map<int64_t, std::vector<float>>;

/// Has the attention of the calling rank's model measure its scores, and brings together what the
/// ranks have found.
class MaxLogits {
 public:
  /// `model` outlives the object.
  explicit MaxLogits(nn::Module& model);

  /// Before the passes of a step, and again before they are run anew: forgets what was found.
  void start_step(bool measured);
  /// After them: the maxima over micro-batches and data- and context-parallel ranks of the layers
  /// of this rank's stage, the same on all ranks of the stage, which all make the call. Ends the
  /// measurement. Empty for a step that was not measured.
  HeadMaxima finish_step();

 private:
  std::vector<TokenMixer*> layers_;
  bool measured_ = false;
};

}  // namespace tapestry
