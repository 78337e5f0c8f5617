// Attention scores that have grown too large are brought back by their weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel_core/transformer/max_logits.h"

namespace tapestry {

/// QK-clip: after an update, each head whose largest score m in the step is at least the threshold
/// has the weights of its queries and keys multiplied so that its scores shrink by g = threshold /
/// m, by sqrt(g) on either side (TokenMixer::score_factors says what shared keys ask for). States
/// of the optimizer stay as they are. Source: Kimi Team 2025, Kimi K2, arXiv:2507.20534,
/// section 2.1.
class QkClip {
 public:
  /// Model and optimizer outlive the object; the optimizer's names are the model's. ValueError for
  /// a threshold that is not above 0, and, naming it, for a frozen weight of queries or keys.
  QkClip(nn::Module& model, optim::Optimizer& optimizer, double threshold);

  /// After the update of a step with such maxima, of this rank's layers; before other ranks get the
  /// new values of the rank's pieces of parameters. Masters and 16-bit weights are scaled. Returns
  /// how many heads were, counted on all tensor-parallel ranks alike.
  int64_t scale_weights(const HeadMaxima& maxima) const;

 private:
  void scale(const RowFactors& rows) const;

  optim::Optimizer& optimizer_;
  double threshold_;
  std::map<int64_t, const TokenMixer*> layers_;  // by number from 0
  std::map<const nn::Parameter*, std::string> names_;
};

}  // namespace tapestry
