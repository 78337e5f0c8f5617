// Recomputes what an Adam optimizer did with its gradients, and finds out which rule it followed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// What one update had to go by and what it did, by logical tensor.
struct ObservedUpdate {
  struct Entry {
    Tensor gradient;  ///< complete, unscaled, before clipping
    Tensor before;    ///< the weight, or its float32 master
    Tensor after;
    double lr = 0;
    double weight_decay = 0;
    bool decays = true;  ///< by its flag (ParameterFlags::decay)
  };
  int64_t step = 0;  ///< of the run, from 1
  std::map<std::string, Entry> entries;
};

/// Adam or AdamW (optim/adam.h), in float64, with clipping in front.
struct AdamRule {
  bool decoupled = true;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double lr_factor = 1;
  bool corrects_bias = true;
  enum class Clip : uint8_t { kOff, kByNorm, kByValue } clip = Clip::kOff;
  double clip_value = 0;
  enum class Decay : uint8_t { kByFlag, kAll, kNone } decay = Decay::kByFlag;
};
/// The rule that a configuration asks for; empty for other optimizers, and where Adam has bfloat16
/// moments or updates in backward.
std::optional<AdamRule> adam_rule(const AllConfig& config);

/// The first update that does not follow the rule, and what would explain all of them.
struct OptimizerFault {
  int64_t step = 0;
  std::string tensor;
  double share = 0;  ///< largest |done - due| of its elements, as a multiple of what is allowed
  /// "as if clipping were off"; of some tensors where only their updates deviate: "as if no tensor
  /// decayed, of lm_head.weight alone". Empty: none was found.
  std::string explanation;
  bool is_clipping = false;
  bool is_learning_rate = false;
};

/// Follows the moments from zero through consecutive updates, the first of a run on. Allowed is, of
/// an element, a part in 10^4 of the update that the rule asks for, and what float32 can tell: of
/// the weight, and of the first moment where gradients of opposite signs cancel in it. If every
/// element was moved as the rule says there is no fault.
std::optional<OptimizerFault> find_optimizer_fault(const AdamRule& rule,
                                                   const std::vector<ObservedUpdate>& updates);

/// The largest deviation of all updates from the rule, as a multiple of what is allowed.
double largest_update_share(const AdamRule& rule, const std::vector<ObservedUpdate>& updates);

}  // namespace tapestry
