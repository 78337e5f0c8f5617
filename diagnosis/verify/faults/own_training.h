// A training of ours in one process, of which everything is kept that a reference may have.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor/rank_context.h"
#include "diagnosis/verify/compared_training.h"
#include "diagnosis/verify/faults/update_rule.h"
#include "optim/lr_scheduler.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/training/step/train_one_step.h"

namespace tapestry {

/// What our training has done in a step.
struct OwnStep {
  StepResult result;
  std::map<std::string, Tensor> values;  ///< as ActivationRecorder keeps them
  LogicalState gradients;
  ObservedUpdate update;
  /// The first parameter that, when the step began, was not its float32 master in the parameters'
  /// dtype; empty: none.
  std::string stale_copy;
};

struct OwnRun {
  std::vector<OwnStep> steps;
  std::vector<std::string> tensors;            ///< logical ones, in the order of their making
  std::map<std::string, std::string> paths;    ///< of the module of each
  std::map<std::string, std::string> types;    ///< of every module, by path
  std::map<std::string, int64_t> value_order;  ///< of a step

  /// "RMSNorm language_model.encoder.final_norm"; the path alone where the type is not known.
  std::string described(const std::string& path) const;
  /// The module that a logical tensor belongs to, described.
  std::string maker(const std::string& tensor) const { return described(paths.at(tensor)); }
};

/// Same shape, dtype and bits.
bool equal_bits(const Tensor& a, const Tensor& b);

/// One process with the data of all ranks of the configuration. The arguments outlive it.
class OwnTraining {
 public:
  OwnTraining(const AllConfig& config, const VerifyOptions& options);
  ~OwnTraining();
  OwnTraining(const OwnTraining&) = delete;
  OwnTraining& operator=(const OwnTraining&) = delete;

  LogicalState start_weights();
  /// Of each step its micro-batches.
  std::vector<std::vector<data::Batch>> batches(int64_t steps);
  /// With `draw`, results of ops are moved by roundings (RoundingNoise).
  OwnRun train(int64_t steps, const std::optional<uint64_t>& draw = std::nullopt);
  /// As if the optimizer followed another rule: the weights of each step are those that it makes of
  /// the gradients. Ends behind the first step, the last of the run so far, after which `goes_on`
  /// is false.
  OwnRun train_by_rule(int64_t steps,
                       const UpdateRule& rule,
                       const std::function<bool(const OwnRun&)>& goes_on);

 private:
  struct Parameters {
    std::unique_ptr<optim::Schedule> schedule;
    std::map<std::string, bool> decays;        // by logical tensor
    std::map<std::string, std::string> owner;  // path of the parameter
  };
  using AfterStep = std::function<bool(ComparedTraining& training, OwnRun& run)>;
  OwnRun train(int64_t steps, const std::optional<uint64_t>& draw, const AfterStep& after_step);
  void load_start(ComparedTraining& training) const;
  std::string stale_copy(const ComparedTraining& training, const LogicalState& masters) const;
  OwnStep train_step(ComparedTraining& training,
                     int64_t step,
                     const std::optional<uint64_t>& draw,
                     const Parameters& parameters,
                     std::vector<std::string>& value_order);

  RankContext context_;
  RankContextGuard guard_;
  const AllConfig& config_;
  const VerifyOptions& options_;
};

}  // namespace tapestry
