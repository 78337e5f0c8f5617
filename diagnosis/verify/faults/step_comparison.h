// Steps of a training of ours against what a reference has stored of them, number by number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diagnosis/verify/faults/own_training.h"
#include "diagnosis/verify/faults/reference_run.h"
#include "diagnosis/verify/rounding_spread.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// One quantity on both sides.
struct ComparedQuantity {
  Finding finding;
  std::string stage;   ///< that fails if it differs (find_fault.h)
  std::string pass;    ///< "forward", "backward"; empty: neither
  std::string module;  ///< path; empty: none
  /// How far ours is above the reference's, as a share of it: of a number, or of a tensor's norm.
  double excess = 0;
};

/// The module that makes a value (ActivationRecorder) in the GPT of a configuration, by path:
/// "layers.1.ffn_norm" comes from "language_model.encoder.layers.1.post_attention_norm". Where the
/// model has no such module (it is one of the user's own), what maker_of_activation says.
std::string module_of_value(const OwnRun& run, const std::string& value);

/// Where the gradient of a value first goes wrong.
struct BackwardPlace {
  std::string module;  ///< path
  std::string detail;  ///< in words; what is around it and agrees
};
/// `gradients` are those of one step from the head back, of which number `first` is the first that
/// differs. If no other module's differ, it is the module of that tensor, whose own gradient is
/// wrong. Otherwise what arrives there is wrong: the module that holds both it and the one before,
/// which agrees, unless that is a whole layer or more; then the one before, which has handed it on.
BackwardPlace place_in_backward(const std::vector<const ComparedQuantity*>& gradients,
                                size_t first);

/// Distances of steps, and their bounds.
class StepComparison {
 public:
  /// All outlive it.
  StepComparison(const AllConfig& config, const OwnRun& own, const ReferenceRun& reference)
      : config_(config), own_(own), reference_(reference) {}

  /// Another run of ours by the bounds that were measured of the first.
  StepComparison(const StepComparison& measured, const OwnRun& own)
      : config_(measured.config_),
        own_(own),
        reference_(measured.reference_),
        spread_(measured.spread_) {}

  /// How far a repetition with moved roundings is from our run: what bounds are made of.
  void measure(const OwnRun& moved);

  /// In the order in which a step makes them.
  std::vector<ComparedQuantity> compare(int64_t step) const;

 private:
  void add(std::vector<ComparedQuantity>& all, ComparedQuantity entry) const;
  void add_values(int64_t step, std::vector<ComparedQuantity>& all) const;
  void add_gradients(int64_t step, std::vector<ComparedQuantity>& all) const;
  void add_learning_rates(int64_t step, std::vector<ComparedQuantity>& all) const;
  void add_weights(int64_t step, std::vector<ComparedQuantity>& all) const;
  ZeroGradient zero(const std::string& tensor) const;
  double distance_of(const Tensor& found, const Tensor& expected) const;
  double gradient_distance(const std::string& tensor,
                           const Tensor& found,
                           const Tensor& expected,
                           double norm) const;

  const AllConfig& config_;
  const OwnRun& own_;
  const ReferenceRun& reference_;
  RoundingSpread spread_;
};

}  // namespace tapestry
