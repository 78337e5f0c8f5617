// Data parallelism: every rank computes with its part of the batch, gradients are summed over the
// ranks, and the optimizer's work and memory may be shared out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nn/module.h"
#include "optim/parameter_shards.h"
#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"
#include "parallel_core/distributed/model_gradients.h"
#include "parallel_core/distributed/param_and_grad_bucket.h"

namespace tapestry {

struct DataParallelOptions {
  Sharding sharding = Sharding::kNone;
  /// A bucket is closed when it has this many elements; 0: one bucket for everything.
  int64_t bucket_size = 0;
  /// Start the reduction of a bucket during the backward pass, as soon as its gradients are
  /// complete. Without, gradients are reduced after it (from z2 on: at once, and waited for).
  bool overlap_grad_reduce = false;
  /// Bring updated parameters together while the next step has begun; each bucket is waited for
  /// where it is first touched.
  bool overlap_param_gather = false;
  DType grad_dtype = kFloat32;
  /// Gradients are exact sums until finish_reduce(), then float32, which grad_dtype must be.
  bool exact = false;
  DType compute_dtype = kFloat32;
  uint64_t seed = 0;  ///< of the stochastic rounding of bfloat16 gradients
  /// The dtype that a parameter is to have from here on; left out: the one it has. Only for sharded
  /// optimizers, which place the parameters.
  std::function<DType(const nn::Parameter&)> param_dtype;
  /// Called with the parameters of a bucket before it is reduced: what has to be summed over other
  /// groups while gradients are whole. From z2 on that is once for each backward pass.
  std::function<void(const std::vector<const nn::Parameter*>&)> complete_gradients;
  /// Parameters that get a bucket of their own, which is reduced after all backward passes: other
  /// ranks' gradients of it have to be added first.
  std::function<bool(const nn::Parameter&)> isolated;
  /// With z3: what was gathered stays until parameters_changed().
  bool keeps_gathered_parameters = false;
};

/// Owns the gradients of a model on one rank of a data-parallel group, and its parameters where the
/// optimizer is sharded. Parameters of experts have a group of their own (edp), and buckets: what
/// is said of ranks is then said of the ranks of this one. In a group of one nothing is sharded.
///
/// Gradients are summed: who starts a backward pass divides by the number of ranks where a mean is
/// wanted. With a sharded optimizer, what is updated are the pieces().
///
/// With z3 the memory of a paged parameter comes when it is touched, stays as long as the op runs
/// that does so (LeaseScope), and goes when two others have been touched, unless what was gathered
/// is to be kept. Reading or saving one is collective, like every touch: all ranks of its group
/// touch the same ones in the same order, whichever tokens they have.
class DistributedDataParallel final : public ModelGradients {
 public:
  /// Parameters lie in buckets in reverse order of their making, which is about the order in which
  /// backward finishes them. The groups outlive the object; without `expert_group` parameters of
  /// experts are like all others.
  DistributedDataParallel(const std::vector<nn::Module::NamedParameter>& parameters,
                          const DataParallelOptions& options,
                          ProcessGroup& group,
                          ProcessGroup* expert_group = nullptr);
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;
  ~DistributedDataParallel() override;

  ProcessGroup& group() const;
  /// Of parameters of experts.
  ProcessGroup& expert_group() const;
  const DataParallelOptions& options() const;
  /// True if each rank updates only its pieces.
  bool shards_optimizer() const { return options().sharding != Sharding::kNone; }
  /// This rank's piece of every parameter, in the order of their making; some may be empty. With a
  /// sharded optimizer only.
  std::vector<ParameterPiece> pieces() const;
  /// How pieces make up parameters.
  std::shared_ptr<const optim::ParameterShards> shards() const;
  size_t num_buckets() const;
  /// Elements of all buckets, gaps included.
  int64_t size() const;

  void start_step(int64_t step, int64_t backward_passes) override;
  void finish_reduce() override;
  bool exact() const override { return options().exact; }
  void scale(double factor) override;
  double squares(const std::function<bool(const nn::Parameter&)>& counts) const override;
  /// All of it, or with a sharded optimizer its piece [n]. Parameters in a bucket of their own are
  /// cut alike wherever they have one size.
  Held held_gradient(const nn::Module::NamedParameter& entry) const override;
  double sum_over_pieces(double value, bool of_experts) const override;
  ProcessGroup* pieces_group(bool of_experts) const override;
  void gather_gradients() override;
  void release_gradients() override;
  /// The pieces have been updated: starts bringing the parameters together.
  void parameters_changed() override;
  /// Returns when they are.
  void finish_gather();

 private:
  void round_gradients();

  struct State;
  std::shared_ptr<State> state_;
};

/// The data-parallel layout that a configuration asks for, over the current rank's data-parallel
/// group, context-parallel ranks among it: they too have gradients of their own tokens only; of
/// experts over the data-modulo-expert-parallel group. Null if these have one rank, or there are
/// none. ValueError for what cannot be combined with several
/// ranks. With a sharded optimizer the model's parameters get their final dtype and place here, so
/// weights are loaded before, or later through the optimizer.
std::unique_ptr<DistributedDataParallel> get_data_parallel(const AllConfig& config,
                                                           const nn::Module& model);

/// RuntimeError, with the first parameter and the ranks that differ, unless the parameters have the
/// same bits on all ranks of the group; those of experts on all ranks of `expert_group`, left out:
/// of copies_group(true). Collective; compares checksums.
void check_equal_parameters(const nn::Module& model,
                            ProcessGroup& group,
                            ProcessGroup* expert_group = nullptr);

}  // namespace tapestry
