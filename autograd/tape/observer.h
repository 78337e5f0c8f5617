// The seam for whoever wants to see what is computed: anomaly mode, recorders, dumps, profiles.
//
// An Observer in an ObserverScope is told, on its thread, of
//   - ops, before and after they run: forward, backward, and where they run once more because their
//     results were not kept. Ops inside ops are part of these and not told; those inside a
//     checkpoint() are, and checkpoint() itself is not.
//   - calls of modules (nn/module_call.h),
//   - values that a model reports under names that no parallel layout changes,
//   - collectives, as the rank hands them over and as it has waited for them, also inside ops,
//   - phases of a training step.
// Tensors that are shown belong to the run: an observer reads them during the call, does not change
// them, and may keep handles of a forward pass's tensors only if it expects them to change in
// place. The gradients of a backward pass may be overwritten or go into a main_grad: what a call
// shows is what there is at that moment. A parameter may be a window of memory that ranks share
// (z3): the first touch is a collective, which all ranks of its group have to make, so an observer
// that reads a tensor on one rank touches it (Tensor::raw) on all. Tensors are read in the scope
// that leases an op's memory.
//
// Unobserved, all of this costs a look at a pointer per op.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "autograd/tensor/thread_state.h"

namespace tapestry {

class Node;

enum class OpPass : uint8_t {
  kForward,
  kBackward,
  kAgain,  ///< forward, a second time: in backward, because results were not kept
};
/// "forward", "backward", "again"
std::string_view name_of(OpPass pass);

/// An op, as it was before it ran, for other inputs: as many as it had, lists of tensors one after
/// the other, undefined ones where it had those; of the dtypes that it had, or all floating ones
/// float64. It records what it does if grad mode is on, and
/// observers are told of it, unless an UnobservedScope says otherwise. The results are those of
/// OpRun::outputs. Throws what the op throws, which may not take every dtype.
using OpAgain = std::function<TensorList(std::span<const Tensor> inputs)>;

/// One run of an op.
struct OpRun {
  std::string_view op;
  OpPass pass = OpPass::kForward;
  /// Path of the module whose forward called the op, in backward too; empty outside of modules.
  std::string_view module;
  /// Of forward and backward alike: Node::sequence_number(); 0 where nothing is recorded.
  uint64_t number = 0;
  /// The recorded op; null where nothing is recorded, and with kAgain where a dropped value is
  /// made.
  const Node* node = nullptr;
  /// Forward: the inputs, lists of tensors one after the other, undefined where one was left out;
  /// none with kAgain where a dropped value is made. Backward: the gradients of the results,
  /// undefined where none arrived.
  std::span<const Tensor> inputs;
  /// When it has run: results; backward: gradients of the inputs, undefined where none is wanted.
  /// Of a leaf whose main_grad took the contribution it is that main_grad: the sum so far.
  std::span<const Tensor> outputs;
  /// Forward, if an observer wants_ops_again(): what runs it on other inputs, to be copied by who
  /// needs it longer. Null for ops that communicate and for those that cannot be copied.
  const OpAgain* again = nullptr;
};

/// One call of a module.
struct ModuleCall {
  std::string_view path;
  std::string type;                   ///< Module::type_name()
  bool again = false;                 ///< in checkpoint()'s second run
  std::span<const Tensor> arguments;  ///< those that are tensors
  std::span<const Tensor> results;    ///< when it has returned
};

/// How an observed value lies in the whole one of its micro-batch, which no layout changes.
struct ValuePlacement {
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  Shape global_shape;
  /// Of each axis the ranges of the whole that this rank has, one after the other. Ranks that have
  /// the same ranges have equal copies, unless they are summands.
  std::vector<std::vector<Range>> ranges;
  bool is_partial = false;  ///< a summand: the whole is the sum over the tensor-parallel ranks
};

/// A value under its layout-free name, see ActivationRecorder for the names.
struct ObservedValue {
  std::string_view name;
  const Tensor& value;
  const ValuePlacement& placement;
  /// What the model goes on with, whose gradient is the value's: `value`, or what an observer has
  /// put in its place. Of a value that is made only to be shown: a tensor with its gradient.
  const Tensor& goes_on;
  int64_t batch_axis = 0;  ///< 1: sequence-first
};

/// One collective of this rank.
struct CollectiveRun {
  std::string_view kind;   ///< "all_reduce", ...
  std::string_view group;  ///< "tp-0-1"
  uint64_t group_id = 0;   ///< the same on all of its ranks
  uint64_t sequence = 0;   ///< among the group's collectives; of a message among those to its peer
  int peer = -1;           ///< of a message: the other side's rank in the world
  int64_t bytes = 0;       ///< as CommunicationStats counts them
  std::string_view module;
  /// When it has been waited for: when its result was there and when the wait began, in seconds of
  /// observer_clock().
  double finished = 0;
  double wait_began = 0;
};

/// Where a step is.
struct PhaseRun {
  std::string_view name;     ///< "forward", "backward", "optimizer", ...
  int64_t micro_batch = -1;  ///< from 0; -1: the phase has none
  int64_t chunk = 0;         ///< of the model, in an interleaved pipeline
};

/// Seconds of the monotonic clock that observers measure in.
double observer_clock();

class Observer {
 public:
  Observer() = default;
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  virtual ~Observer();

  /// Whether it wants to be told of values: some are made only to be shown.
  virtual bool wants_values() const { return false; }

  /// Whether it wants OpRun::again, which costs a copy of each op.
  virtual bool wants_ops_again() const { return false; }
  /// Whether it has a replacement() for values; such an observer wants_values() too.
  virtual bool replaces_values() const { return false; }
  /// Asked of values that the model goes on with, before anybody is told of them: what it is to go
  /// on with instead, of the same shape and dtype; undefined: the value itself. With several such
  /// observers each is shown what the one before it has made of the value.
  virtual Tensor replacement(const ObservedValue& /*value*/) { return {}; }

  /// An exception from one of these ends the op as one from the op would.
  virtual void op_begins(const OpRun& /*run*/) {}
  virtual void op_ended(const OpRun& /*run*/) {}
  virtual void module_begins(const ModuleCall& /*call*/) {}
  virtual void module_ended(const ModuleCall& /*call*/) {}
  virtual void value_made(const ObservedValue& /*value*/) {}
  virtual void collective_begins(const CollectiveRun& /*run*/) {}
  virtual void collective_ended(const CollectiveRun& /*run*/) {}
  virtual void phase_begins(const PhaseRun& /*phase*/) {}
  virtual void phase_ended(const PhaseRun& /*phase*/) {}
};

/// Shows what the calling thread runs to an observer, for the lifetime. Observers are told in the
/// order in which their scopes were opened; scopes may be closed in any order, each by the thread
/// that opened it and not inside an op that it was opened around.
class ObserverScope {
 public:
  explicit ObserverScope(Observer& observer);
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;
  ~ObserverScope();

 private:
  Observer* observer_;
  ObserverScope* below_;
  ObserverScope* above_ = nullptr;
  void* previous_all_;
  void* previous_of_ops_;
  std::vector<Observer*> all_;
  std::vector<Observer*> of_ops_;
};

/// Hides the ops and modules that run in its scope: what is computed only to be shown.
class UnobservedScope {
 public:
  UnobservedScope() : previous_(std::exchange(thread_state().op_observers, nullptr)) {}
  UnobservedScope(const UnobservedScope&) = delete;
  UnobservedScope& operator=(const UnobservedScope&) = delete;
  ~UnobservedScope() { thread_state().op_observers = previous_; }

 private:
  void* previous_;
};

/// Names a part of a step to observers.
class PhaseScope {
 public:
  explicit PhaseScope(std::string_view name, int64_t micro_batch = -1, int64_t chunk = 0);
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;
  ~PhaseScope();

 private:
  PhaseRun phase_;
};

/// True if somebody observes what the calling thread runs now, between ops.
inline bool is_observed() { return thread_state().op_observers != nullptr; }

namespace detail {

using ObserverList = std::vector<Observer*>;

/// Those that are told of ops and modules here; null inside an op, and where nobody observes.
inline const ObserverList* op_observers() {
  return static_cast<const ObserverList*>(thread_state().op_observers);
}
/// Those that are told of collectives and phases, inside ops too.
inline const ObserverList* all_observers() {
  return static_cast<const ObserverList*>(thread_state().observers);
}

/// Path of the module whose forward runs, or in backward has called the op; empty: none.
std::string_view current_module();

template <class Event>
void tell(const ObserverList* observers,
          void (Observer::*function)(const Event&),
          const Event& what) {
  if (observers != nullptr) [[unlikely]] {
    for (Observer* observer : *observers) {
      (observer->*function)(what);
    }
  }
}

/// Whether one of them wants_ops_again().
bool wants_ops_again(const ObserverList& observers);

/// Tells of a forward run: begins when it is made, ends with end(). An op that throws has no end.
class ForwardReport {
 public:
  ForwardReport(std::string_view op, const Node* node, TensorList inputs, OpAgain again);
  ForwardReport(const ForwardReport&) = delete;
  ForwardReport& operator=(const ForwardReport&) = delete;
  ~ForwardReport() = default;
  void begin(const ObserverList& observers);
  void end(std::span<const Tensor> results);

 private:
  TensorList inputs_;
  OpAgain again_;
  OpRun run_;
  const ObserverList* observers_ = nullptr;
};

/// Tells of a run that makes a dropped value again, inside the op that touches it.
class AgainReport {
 public:
  AgainReport(std::string_view op, std::string_view module);
  void end(std::span<const Tensor> results);

 private:
  OpRun run_;
};

}  // namespace detail

}  // namespace tapestry
