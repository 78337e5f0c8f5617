// Recomputes what an Adam optimizer did with its gradients, and finds out which rule it followed.
#pragma once

#include <cstdint>
#include <functional>
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
  bool corrects_bias = true;  ///< of both moments, as far as the next two say
  bool corrects_first = true;
  bool corrects_second = true;
  bool keeps_largest = false;  ///< AMSGrad: the largest second moment so far
  bool nesterov = false;       ///< NAdam without its schedule: the first moment of one step on
  /// sqrt(v^) + eps; sqrt(v^ + eps); (sqrt(v) + eps) / sqrt(1 - beta2^t).
  enum class Eps : uint8_t { kOutside, kInRoot, kBeforeCorrection } eps_place = Eps::kOutside;
  enum class Clip : uint8_t { kOff, kByNorm, kByValue, kEachTensor } clip = Clip::kOff;
  double clip_value = 0;
  /// By its flag; or besides these also norms, or biases, or all but embeddings.
  enum class Decay : uint8_t {
    kByFlag,
    kAll,
    kNone,
    kNormsToo,
    kBiasesToo,
    kNotEmbeddings
  } decay = Decay::kByFlag;
  double decay_factor = 1;
  bool decay_times_lr = true;  ///< of a decoupled decay
  /// Learning rates of the updates, from the first on, in place of those that they say.
  std::vector<double> rates = {};
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

/// Learning rate of a step of the run, from 1, by the schedule that was meant.
using RateOfStep = std::function<double(int64_t step)>;

/// A rule that programs are known to follow in place of the one that was meant.
struct KnownRule {
  std::string text;  ///< "as if every tensor decayed"
  AdamRule rule;
  bool is_clipping = false;
  bool is_learning_rate = false;
};
/// With `rate` also other schedules, over the first `updates` updates.
std::vector<KnownRule> known_rules(const AdamRule& meant,
                                   const RateOfStep& rate = {},
                                   int64_t updates = 0);

/// What weights become by a rule, from zero moments on: to be called with one update after the
/// other, of which gradients, weights before, learning rates and decay are used; float32.
using RuleFollower = std::function<std::map<std::string, Tensor>(const ObservedUpdate&)>;
RuleFollower follow_rule(const AdamRule& rule);

/// Follows the moments from zero through consecutive updates, the first of a run on. Allowed is, of
/// an element, a part in 10^4 of the update that the rule asks for, and what float32 can tell: of
/// the weight, and of the first moment where gradients of opposite signs cancel in it. If every
/// element was moved as the rule says there is no fault. What explains one is among known_rules.
std::optional<OptimizerFault> find_optimizer_fault(const AdamRule& rule,
                                                   const std::vector<ObservedUpdate>& updates,
                                                   const RateOfStep& rate = {});

/// The largest deviation of all updates from the rule, as a multiple of what is allowed.
double largest_update_share(const AdamRule& rule, const std::vector<ObservedUpdate>& updates);

}  // namespace tapestry
