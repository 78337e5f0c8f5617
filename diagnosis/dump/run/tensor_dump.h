// Writes what steps compute into a dump: ops, modules, the model's values, gradients, weights.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "autograd/tape/observer.h"
#include "diagnosis/dump/dump_config.h"
#include "diagnosis/dump/dump_writer.h"
#include "diagnosis/dump/run/kernel_search.h"
#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// What a rank writes of a step that the dump's configuration asks for, in the order of its making:
///
///   op_type            op_name                                  what
///   the op's           MODULE/PATH/OP-opN, Gradients/MODULE...  inputs and results, both passes; N
///                                                               counts such ops of a module and
///                                                               micro-batch
///   Module             MODULE/PATH, Gradients/MODULE/PATH       arguments and results; gradients
///   of
///                                                               results
///   Value              layers.0.attention.q, Gradients/...      see ActivationRecorder, and where
///                                                               they are part of the graph their
///                                                               gradients
///   Parameter          Gradients/NAME, NAME, Updates/NAME       complete gradients of the step
///                                                               before clipping, weights after the
///                                                               update, and what it has changed
///   Scalar             loss, grad_norm, lr                      of the step
///
/// Values, parameters and scalars have names and places that no layout changes. Where ranks divide
/// a layer's tensors or the layers (tp, cp, ep, pp), what ops and modules see belongs to the rank:
/// their names end in
/// "@tp0" or the like and compare with the same layout only. Gradients of parameters need an
/// optimizer that does not update in backward. What runs a second time (recompute) is written once.
///
/// An entry of the list `kernels` that nothing of the first step is called by, on any rank, is a
/// warning.
///
/// Costs memory for a copy of the weights where updates are asked for.
class TensorDump final : public StepObserver, private Observer {
 public:
  /// The cell outlives it. `rank_on_host` is what support_device goes by. IoError for a folder that
  /// cannot be made.
  TensorDump(TrainOneStepCell& cell,
             const AllConfig& config,
             dump::DumpConfig dump,
             int64_t rank_on_host);
  ~TensorDump() override;

  void before(int64_t step) override;
  void after(FinishedStep& step) override;

 private:
  using Counts = std::map<std::tuple<bool, int64_t, std::string, std::string>, int64_t>;
  struct Named {
    std::string name;
    int64_t micro_batch = 0;
    std::vector<int64_t> samples;
  };
  struct RunningModule {
    std::string path;
    int64_t task = 0;
  };

  bool wants_values() const override { return in_step_; }
  void op_begins(const OpRun& run) override;
  void op_ended(const OpRun& run) override;
  void module_begins(const ModuleCall& call) override;
  void module_ended(const ModuleCall& call) override;
  void value_made(const ObservedValue& value) override;
  void phase_begins(const PhaseRun& phase) override;
  void phase_ended(const PhaseRun& phase) override;

  std::string name_of_op(const OpRun& run);
  dump::DumpedTensor described(std::string op_type, std::string op_name, int64_t task);
  void write(dump::DumpedTensor& entry, std::span<const Tensor> tensors, bool input);
  void write(dump::DumpedTensor& entry, const Tensor& value, bool input, int64_t slot);
  void watch_gradient(const Tensor& value, dump::DumpedTensor entry);
  void write_gradients();
  void write_state(const std::string& prefix, const std::string& pass, const LogicalState& state);
  void write_number(const std::string& name, double value);
  bool wants_parameter(const std::string& prefix) const;

  TrainOneStepCell& cell_;
  AllConfig config_;
  dump::DumpWriter writer_;
  bool writes_state_;                     // one rank of those that have the same
  bool touches_;                          // parameters are windows: a touch is collective
  std::string suffix_;                    // of what belongs to the rank alone
  std::unique_ptr<ObserverScope> scope_;  // of a step that is dumped
  std::shared_ptr<bool> open_;            // false when hooks come too late
  bool in_step_ = false;                  // not in the evaluation behind it
  int64_t micro_batch_ = 0;
  int64_t next_task_ = 0;
  Counts counts_;
  std::map<uint64_t, Named> names_;  // of recorded ops, by number
  std::vector<std::pair<Named, int64_t>> running_ops_;
  std::vector<RunningModule> running_modules_;
  LogicalState weights_before_;
  KernelSearch kernels_;
};

}  // namespace tapestry
