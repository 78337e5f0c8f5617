// A group of ranks that communicate.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

enum class ReduceOp : uint8_t { kSum, kMax, kMin };

/// What a collective does, for labels and statistics.
enum class Collective : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kSend,
  kReceive,
  kBarrier,
};
inline constexpr int kNumCollectives = 8;

/// A collective that is under way. Its tensors must not be touched before wait() has returned,
/// which also throws what went wrong. One that is never waited for is waited for by its destructor.
class Work {
 public:
  Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  virtual ~Work() = default;
  /// Returns when the result is there. A second call returns at once.
  virtual void wait() = 0;
  /// True if it is there: wait() returns at once. Never waits, moves nothing on by itself (where
  /// nothing else does, it stays false), and throws nothing.
  virtual bool done() const = 0;
};
using WorkHandle = std::shared_ptr<Work>;

/// What one rank has handed to a group's collectives.
struct CommunicationStats {
  struct Counter {
    int64_t calls = 0;
    /// Bytes of the tensor as this rank knows it whole: of an all-reduce or broadcast its tensor,
    /// of an all-gather the output, of a reduce-scatter or all-to-all the input, of a message
    /// itself.
    int64_t bytes = 0;
  };
  std::array<Counter, kNumCollectives> by_collective{};
  const Counter& of(Collective c) const { return by_collective[static_cast<size_t>(c)]; }
};

/// The collectives that training is written against.
///
/// Every rank of the group makes the same calls in the same order with the same dtype and sizes;
/// where ranks disagree, or one does not come in time, all of them stop with a report of who waits
/// where for whom. Tensors are contiguous; none of the calls is recorded on the tape (the recorded
/// ops are in tensor_parallel/mappings.h). Sums have one fixed order, so that runs repeat bit for
/// bit; those of bfloat16 and float16 are made in float32 and rounded once. A call ending in _async
/// returns at once; the tensors are kept alive until it is done, and it moves on while the rank
/// computes (CommProgress::kThread).
///
/// All throw ValueError for a tensor that is not contiguous, a size that does not fit, or a rank
/// that is not in the group, and CommError for what goes wrong between ranks: where that is while
/// the rank computes, its next call throws it.
class ProcessGroup {
 public:
  ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;
  virtual ~ProcessGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// What messages call it, for example "tp-0-1".
  virtual std::string name() const = 0;
  /// The members' ranks in the world, in the order of their ranks here.
  virtual const std::vector<int>& world_ranks() const = 0;

  /// A group of some of this group's ranks, given as ranks of this group; the order is that of the
  /// list. Called by exactly these ranks, in the same order for groups that share ranks.
  virtual std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks,
                                                  const std::string& name) = 0;

  /// Replaces the tensor on every rank by the element-wise reduction over all ranks.
  virtual WorkHandle all_reduce_async(const Tensor& tensor, ReduceOp op = ReduceOp::kSum) = 0;
  /// output = the inputs of all ranks one after the other: size() times input.numel() elements.
  virtual WorkHandle all_gather_async(const Tensor& output, const Tensor& input) = 0;
  /// output = piece rank() of the reduction of all inputs, which have size() times its elements.
  virtual WorkHandle reduce_scatter_async(const Tensor& output,
                                          const Tensor& input,
                                          ReduceOp op = ReduceOp::kSum) = 0;
  /// Copies the tensor of rank `root` to every rank.
  virtual WorkHandle broadcast_async(const Tensor& tensor, int root) = 0;
  /// Sends input_counts[r] elements to rank r, one piece after the other, and receives
  /// output_counts[r] from it; empty counts: equal pieces.
  virtual WorkHandle all_to_all_async(const Tensor& output,
                                      const Tensor& input,
                                      const std::vector<int64_t>& output_counts = {},
                                      const std::vector<int64_t>& input_counts = {}) = 0;
  /// A message to rank `destination`. Messages between two ranks arrive in the order of sending.
  virtual WorkHandle send_async(const Tensor& tensor, int destination) = 0;
  virtual WorkHandle receive_async(const Tensor& tensor, int source) = 0;
  /// Returns when every rank has called it.
  virtual void barrier() = 0;

  /// What this rank has communicated since reset_stats().
  virtual const CommunicationStats& stats() const = 0;
  virtual void reset_stats() = 0;

  void all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::kSum) {
    all_reduce_async(tensor, op)->wait();
  }
  void all_gather(const Tensor& output, const Tensor& input) {
    all_gather_async(output, input)->wait();
  }
  void reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op = ReduceOp::kSum) {
    reduce_scatter_async(output, input, op)->wait();
  }
  void broadcast(const Tensor& tensor, int root) { broadcast_async(tensor, root)->wait(); }
  void all_to_all(const Tensor& output,
                  const Tensor& input,
                  const std::vector<int64_t>& output_counts = {},
                  const std::vector<int64_t>& input_counts = {}) {
    all_to_all_async(output, input, output_counts, input_counts)->wait();
  }
  void send(const Tensor& tensor, int destination) { send_async(tensor, destination)->wait(); }
  void receive(const Tensor& tensor, int source) { receive_async(tensor, source)->wait(); }
};

/// The group of a process that is alone: what a rank sends is what it receives.
std::shared_ptr<ProcessGroup> single_process_group();

}  // namespace tapestry
