// What a rank of a layout computes, against its places in what one process has computed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "diagnosis/verify/expert_choices.h"
#include "diagnosis/verify/layout_findings.h"
#include "diagnosis/verify/layout_trace.h"
#include "diagnosis/verify/rounding_spread.h"
#include "diagnosis/verify/sample_recorder.h"
#include "diagnosis/verify/verify_layout.h"
#include "nn/module.h"
#include "optim/optimizer.h"
#include "parallel_core/training/step/train_one_step.h"

namespace tapestry {

/// What makes the value that the model reports under a name; empty if that is not known.
std::string maker_of_activation(const std::string& activation);

/// The current rank's distances. Steps count from 1. The arguments outlive the object.
class RankComparison {
 public:
  /// Adds them to the findings, with the bounds that are measured; in exact mode
  /// (training_config.exact) all bounds are 0 and bits are compared.
  RankComparison(const LayoutPair& pair,
                 const LayoutTrace& trace,
                 const RoundingSpread& spread,
                 LayoutFindings& findings);
  /// Adds those that rounding moves to the spread.
  RankComparison(const LayoutPair& pair, const LayoutTrace& trace, RoundingSpread& measured);

  /// For the findings to name the modules of parameters.
  void describe_modules(ParallelModel& model);

  /// Bit for bit; `look` counts the calls from 0.
  void weights_before(const nn::Module& model, const LogicalState& expected, size_t look);
  void activations(int64_t step, SampleRecorder& recorder);
  /// A decision of a router that is not that of one process; how many were compared.
  void choice(int64_t step, const ChoiceDifference& difference);
  void choices_compared(int64_t count);
  /// What the whole step agrees in: what experts were given, loss, norm, numbers of tokens,
  /// schedules.
  void step_result(int64_t step, const StepResult& found);
  void gradients(int64_t step, const nn::Module& model);
  void weights(int64_t step, const nn::Module& model, const optim::Optimizer& optimizer);

 private:
  void expert_counts(int64_t step, const StepResult& found);
  bool has_free_bias(const std::string& activation) const;
  const StepTrace& step_of(int64_t step) const;
  std::string maker_of_parameter(const std::string& path) const;
  double distance(const Tensor& found, const Tensor& expected, const Tensor& whole) const;
  double of_bits(double distance, const Tensor& found, const Tensor& expected) const;
  /// `bound` where a number has one whatever rounding does.
  void number(Compared what,
              int64_t step,
              const std::string& name,
              double found,
              double expected,
              std::optional<double> bound,
              const std::string& made_by = "");
  void add(Finding finding, std::optional<double> bound = std::nullopt);

  const AllConfig& config_;
  bool by_norm_;  // single elements say little
  bool exact_;    // whatever has other bits differs
  const LayoutTrace& trace_;
  const RoundingSpread& spread_;
  LayoutFindings* findings_ = nullptr;
  RoundingSpread* measured_ = nullptr;
  std::string where_;
  std::map<std::string, std::string> types_;  // of modules by path
};

}  // namespace tapestry
