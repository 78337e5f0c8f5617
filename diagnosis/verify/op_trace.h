// Checksums of all that steps compute, in the order in which a rank computes it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tape/observer.h"
#include "parallel_core/training/step/step_observer.h"
#include "parallel_core/training/step/train_one_step.h"

namespace tapestry {

inline constexpr const char* kOpResults = "op results";

/// Something that was computed.
struct ComputedThing {
  /// kOpResults, "gradients", "loss", "grad_norm", "weights"; "start weights", "start states".
  std::string what;
  int64_t step = 0;
  int64_t micro_batch = -1;
  std::string pass;    ///< "forward", "backward", "again"
  std::string module;  ///< of an op: the path of the module whose forward calls it
  std::string name;    ///< of the op or tensor
  uint64_t checksum = 0;
  uint64_t inputs = 0;  ///< of what an op was given; 0 where they are not traced

  bool is_same_thing(const ComputedThing& other) const;
};
using OpTrace = std::vector<ComputedThing>;

struct TraceOptions {
  std::string name;  ///< of the cell's gradient observer
  /// Says for which steps; empty: for all.
  std::function<bool(int64_t step)> wanted = {};
  bool inputs = false;         ///< also of what ops are given
  bool start_weights = false;  ///< also weights and optimizer states before each step
};

/// Adds what the steps of a run compute to a trace: of each op its results, forward and backward;
/// complete gradients; then loss, norm and weights. Observes the calling rank while it lives.
class OpTracer final : public StepObserver, private Observer {
 public:
  OpTracer(TrainOneStepCell& cell, std::shared_ptr<OpTrace> trace, TraceOptions options);
  ~OpTracer() override;

  void before(int64_t step) override;
  void after(FinishedStep& step) override;

 private:
  void phase_begins(const PhaseRun& phase) override;
  void op_ended(const OpRun& run) override;
  void add_gradients();
  void add_weights(const char* what);
  void add_states();
  void add(const char* what,
           std::string_view pass,
           std::string_view module,
           std::string_view name,
           uint64_t checksum,
           uint64_t inputs = 0);

  TrainOneStepCell& cell_;
  std::shared_ptr<OpTrace> trace_;
  TraceOptions options_;
  std::unique_ptr<ObserverScope> scope_;
  int64_t step_ = 0;
  int64_t micro_batch_ = -1;
};

}  // namespace tapestry
