// What the ops of one step were given and made: how large their values were, and where the first
// ones came up that are no finite numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/tape/observer.h"
#include "diagnosis/autopsy/known_parameters.h"

namespace tapestry::autopsy {

/// One run of an op.
struct TracedOp {
  std::string_view op;
  std::string_view module;
  OpPass pass = OpPass::kForward;
  bool in_backward = false;  ///< phase: an op may run again in the backward pass
  int64_t micro_batch = -1;
  int64_t chunk = 0;
  int64_t number = 0;  ///< among the ops of its phase and micro-batch, from 0
  double largest_input = 0;
  double largest_output = 0;
  bool finite_inputs = true;
  bool finite_outputs = true;
  /// Of the result with the largest value, where that is asked for: its shape, and the value's
  /// row-major number; -1: not known.
  Shape shape;
  int64_t largest_at = -1;
  int32_t parameter = -1;  ///< of its inputs, or whose gradient it adds to: the most suspect one
};

/// Where values came up that are no finite numbers.
struct BadValue {
  enum class Origin : uint8_t {
    kMade,       ///< by the op, out of finite inputs
    kParameter,  ///< a parameter has them
    kReceived,   ///< the op's inputs have them, and no op of this rank made them
  };
  Origin origin = Origin::kMade;
  size_t op = 0;        ///< of StepTrace::ops()
  Shape shape;          ///< of the tensor that has them
  int64_t element = 0;  ///< number of the first
  std::string value;    ///< "nan", "inf", "-inf"
  /// Nothing but minus infinities, and an op has since made finite values of them: a mask.
  bool is_mask = false;
  bool masked_only = false;
};

/// Losses of the rows of a micro-batch, where an op makes one for each token.
struct RowLosses {
  int64_t micro_batch = 0;
  Shape shape;  ///< of the tokens' losses
  std::vector<double> tokens;
};

/// Observes the calling thread until stop(). Only what runs in a phase that has a micro-batch is
/// taken in. Costs a pass over all tensors that ops read and write.
class StepTrace final : public Observer {
 public:
  /// The parameters outlive the object. `finds_largest`: also where the largest results are, for
  /// about another half of a pass over them.
  explicit StepTrace(const KnownParameters& parameters, bool finds_largest = false);

  /// Ends the observation; what was seen stays.
  void stop() { scope_.reset(); }

  const std::vector<TracedOp>& ops() const { return ops_; }
  /// In the order in which they came up; the first hundred or so.
  const std::vector<BadValue>& bad_values() const { return bad_; }
  /// The one that the others came from: null if there are none.
  const BadValue* first_bad() const;
  const std::vector<RowLosses>& row_losses() const { return row_losses_; }

  void op_begins(const OpRun& run) override;
  void op_ended(const OpRun& run) override;
  void phase_begins(const PhaseRun& phase) override;
  void phase_ended(const PhaseRun& phase) override;

 private:
  struct Running {
    TracedOp op;
    bool poisoned_inputs = false;
    Shape shape;
    ValueRange worst;
    int32_t parameter_of_worst = -1;
  };

  void keep_losses(const OpRun& run);
  void add_bad(BadValue bad);
  void heal();

  const KnownParameters& parameters_;
  bool finds_largest_;
  std::vector<TracedOp> ops_;
  std::vector<BadValue> bad_;
  std::vector<RowLosses> row_losses_;
  std::vector<Running> running_;  // an op may make values again that it touches
  PhaseRun phase_;
  bool in_phase_ = false;
  int64_t next_number_ = 0;
  std::unique_ptr<ObserverScope> scope_;
};

}  // namespace tapestry::autopsy
