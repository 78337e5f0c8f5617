// The rule by which an optimizer changes weights, in float64, apart from the optimizers themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
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

/// Logical tensors that people think of as one part of a model.
struct ModelPart {
  std::string text;  ///< "embeddings"
  std::function<bool(const std::string& tensor)> holds;
};

/// Adam or AdamW (optim/adam.h), SGD (optim/sgd.h) or Lion (optim/lion.h), with clipping in front.
struct UpdateRule {
  enum class Kind : uint8_t { kAdam, kSgd, kLion } kind = Kind::kAdam;
  bool decoupled = true;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0;  ///< of SGD
  double dampening = 0;
  double lr_factor = 1;
  bool corrects_bias = true;  ///< of both moments, as far as the next two say
  bool corrects_first = true;
  bool corrects_second = true;
  bool keeps_largest = false;  ///< AMSGrad: the largest second moment so far
  bool nesterov = false;       ///< of Adam: the first moment one step on; of SGD
  /// sqrt(v^) + eps; sqrt(v^ + eps); (sqrt(v) + eps) / sqrt(1 - beta2^t).
  enum class Eps : uint8_t { kOutside, kInRoot, kBeforeCorrection } eps_place = Eps::kOutside;
  /// The norm of all, each element, the norm of each tensor, or of each with queries, keys and
  /// values as one.
  enum class Clip : uint8_t { kOff, kByNorm, kByValue, kEachTensor, kEachFused } clip = Clip::kOff;
  double clip_value = 0;
  double gradient_factor = 1;  ///< of gradients, before they are clipped
  /// By its flag; or besides these also norms, or biases, or all but embeddings.
  enum class Decay : uint8_t {
    kByFlag,
    kAll,
    kNone,
    kNormsToo,
    kBiasesToo,
    kNotEmbeddings
  } decay = Decay::kByFlag;
  std::optional<double> weight_decay = {};  ///< of what decays, in place of what updates say
  double decay_factor = 1;
  bool decay_times_lr = true;  ///< of a decoupled decay
  /// Learning rates of the updates, from the first on, in place of those that they say.
  std::vector<double> rates = {};
  ModelPart part = {};  ///< whose learning rate has a factor of its own, if it is given
  double part_lr_factor = 1;
};

/// The rule that a configuration asks for; empty for other optimizers than these, and where states
/// are not float32 or updates are made in backward.
std::optional<UpdateRule> update_rule(const AllConfig& config);

/// One tensor's part of an update in float64.
struct NumericEntry {
  std::vector<double> gradient, before, after;
  double lr = 0;
  double weight_decay = 0;
  bool decays = true;
};
struct NumericUpdate {
  int64_t step = 0;
  std::map<std::string, NumericEntry> entries;
};
NumericUpdate numbers_of(const ObservedUpdate& update);

/// Tensors that follow a rule from zero states on.
class StatesByRule {
 public:
  explicit StatesByRule(UpdateRule rule) : rule_(std::move(rule)) {}

  /// To be called before the tensors of the next update.
  void next(const NumericUpdate& update);

  /// Calls f(i, due, allowed) with what the rule asks element i to move by, and how far from it a
  /// float32 optimizer may be: a part in 10^4 of the update, and what float32 can tell of the first
  /// moment where gradients of opposite signs cancel in it.
  using ForElement = std::function<void(size_t i, double due, double allowed)>;
  void for_elements(const std::string& name, const NumericEntry& entry, const ForElement& f);

 private:
  // How far those of a float32 optimizer may be from the first moment is beside it.
  struct States {
    std::vector<double> first, second, largest, first_rounding;
  };
  struct Element {
    double gradient = 0, before = 0, lr = 0, decay = 0;
  };
  struct Move {
    double due = 0, allowed = 0;
  };
  double clip_scale(const std::string& name) const;
  Move adam(States& s, size_t i, const Element& e) const;
  Move sgd(States& s, size_t i, const Element& e) const;
  Move lion(States& s, size_t i, const Element& e) const;
  void keep_first(States& s, size_t i, double old_share, double new_share, double g) const;
  double root_of(double v, double correction) const;

  UpdateRule rule_;
  std::map<std::string, States> states_;
  std::map<std::string, double> norms_;  // of tensors that are clipped together
  int64_t t_ = 0;
  double scale_ = 1;
};

/// What weights become by a rule, from zero states on: to be called with one update after the
/// other, of which gradients, weights before, learning rates and decay are used; float32.
using RuleFollower = std::function<std::map<std::string, Tensor>(const ObservedUpdate&)>;
RuleFollower follow_rule(const UpdateRule& rule);

}  // namespace tapestry
