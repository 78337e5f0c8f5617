// Records what a rank's thread runs, as an observer of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "autograd/tape/observer.h"
#include "diagnosis/profile/recording.h"

namespace tapestry::profile {

/// What is recorded besides steps, phases and collectives.
struct Detail {
  bool modules = true;      ///< slices of modules
  bool ops = false;         ///< slices of ops
  bool op_time = true;      ///< sums for the op table
  bool fetches = false;     ///< slices of the micro-batches that are read
  bool memory = true;       ///< memory in use at the ends of phases and modules
  bool with_stack = false;  ///< where ops were called
};

/// FLOPs are what kernels::work_counter() has counted while an op ran. Bytes are those of the
/// tensors that go into an op and come out, backward of what forward has saved besides: what has to
/// go through memory where no cache holds it. A result that is a view of an input counts nothing.
class Recorder final : public Observer {
 public:
  explicit Recorder(const Detail& detail) : detail_(detail) {}

  /// What follows belongs to the step, counted from 1.
  void start_step(int64_t step);
  /// Ends what is under way, and hands over what there is.
  Recording take();

  void op_begins(const OpRun& run) override;
  void op_ended(const OpRun& run) override;
  void module_begins(const ModuleCall& call) override;
  void module_ended(const ModuleCall& call) override;
  void collective_begins(const CollectiveRun& run) override;
  void collective_ended(const CollectiveRun& run) override;
  void phase_begins(const PhaseRun& phase) override;
  void phase_ended(const PhaseRun& phase) override;

 private:
  // A span that has not ended.
  struct Frame {
    Slice slice;
    int64_t inside = 0;  // nanoseconds of ops, phases and waits in it
    double flops_before = 0;
    double flops_inside = 0;
    double saved_before = 0;
    uint64_t number = 0;
  };
  // A collective: group, kind, the other side of a message, sequence.
  using ExchangeKey = std::tuple<uint64_t, std::string, int, uint64_t>;
  static ExchangeKey key_of(const CollectiveRun& run);

  void push(Slice slice, uint64_t number = 0);
  void end(Category category, uint32_t name, const OpRun* run, int64_t at);
  void finish(Frame frame, const OpRun* run, int64_t at);
  bool is_drawn(const Frame& frame) const;
  double bytes_of(const OpRun& run, const Frame& frame);
  uint32_t stack_of(const Frame& frame);
  void note_memory(int64_t at);

  Detail detail_;
  Recording recording_;
  int64_t step_ = 0;
  std::vector<Frame> frames_;
  std::map<ExchangeKey, size_t> under_way_;
  std::unordered_map<uint64_t, double> saved_;  // bytes that an op has saved, by its number
};

}  // namespace tapestry::profile
