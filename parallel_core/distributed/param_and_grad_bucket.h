// Parameters whose gradients are reduced together, and the memory behind them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/kernels/random_rows.h"
#include "nn/module.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// What each data-parallel rank keeps only its share of (ZeRO, Rajbhandari et al. 2020,
/// arXiv:1910.02054); each level includes the ones before.
enum class Sharding : uint8_t {
  kNone,        ///< as zero_level() counts
  kOptimizer,   ///< z1: state and masters
  kGradients,   ///< z2: gradients, once they are reduced
  kParameters,  ///< z3: weights of matrix products and embeddings, between their uses
};

/// A rank's piece of a parameter: elements [begin, end), in order.
struct ParameterPiece {
  std::string name;
  const nn::Parameter* parameter = nullptr;
  int64_t begin = 0;
  int64_t end = 0;
  Tensor values;    ///< a leaf [end - begin] to update, whose main_grad is `gradient`
  Tensor place;     ///< where the values go in the parameter's dtype; `values` itself if float32
  Tensor gradient;  ///< of these elements, summed over the ranks, once the reduction is finished
};

/// A flat buffer in which some parameters of one dtype lie one after the other, each on a multiple
/// of 64 elements, filled up to a multiple of 64 times the number of ranks; rank r owns the r-th of
/// that many equal shards. So each parameter has at most one piece on each rank, which begins at a
/// multiple of 64: that, and the order in which sums are made, give a sharded update the bits of
/// the whole one.
///
/// Without sharding the parameters stay where they are and there are no pieces. Otherwise the
/// parameters move into the buffer. What is not kept (gradients from z2 on, parameters of a `paged`
/// bucket) is behind a window (Storage): an op that touches it makes it come, and throws
/// RuntimeError once the bucket is gone.
///
/// In exact mode gradients are exact sums in float64 (kernels/exact_sums.h) from zero() to
/// round_gradients(): added without rounding, over the ranks too, so in any order. Rounded, they
/// are float32 and have the first half of that memory; only then pieces' gradients, the squares and
/// what scale() and gather_gradients() do have a meaning.
class ParamAndGradBucket {
 public:
  struct Placed {
    std::string name;
    nn::Parameter* parameter;
    int64_t offset = 0;  // set by the bucket
  };
  struct Options {
    Sharding sharding = Sharding::kNone;
    bool paged = false;            ///< parameters exist only while they are used; needs kParameters
    DType param_dtype = kFloat32;  ///< that the parameters are to have
    DType compute_dtype = kFloat32;
    DType grad_dtype = kFloat32;
    bool exact = false;  ///< exact sums; grad_dtype is then float32
    uint64_t seed = 0;   ///< of the random numbers that round sums (gradient_numbers)
    /// Called when a paged bucket's memory has come.
    std::function<void(ParamAndGradBucket&)> on_open;
  };

  /// ValueError if what is paged is not sharded, or exact sums are wanted in another dtype.
  ParamAndGradBucket(std::vector<Placed> parameters, const Options& options, ProcessGroup& group);
  ParamAndGradBucket(const ParamAndGradBucket&) = delete;
  ParamAndGradBucket& operator=(const ParamAndGradBucket&) = delete;
  ~ParamAndGradBucket();

  static constexpr int64_t kAlignment = 64;  ///< elements

  const std::vector<Placed>& parameters() const { return parameters_; }
  std::vector<ParameterPiece>& pieces() { return pieces_; }
  bool is_paged() const { return options_.paged; }
  /// True if the memory of whole gradients goes as soon as they are reduced.
  bool frees_gradients() const { return options_.sharding >= Sharding::kGradients; }
  /// An op is using the parameters of a paged bucket: not to be closed.
  bool is_leased() const;
  /// The ranks over which gradients are summed.
  ProcessGroup& group() const { return group_; }
  /// Elements, gaps included.
  int64_t size() const { return size_; }
  int64_t shard_size() const { return size_ / group_.size(); }
  /// Elements of a parameter that rank `rank` owns.
  std::pair<int64_t, int64_t> range_of(const Placed& placed, int rank) const;

  // -- gradients ----------------------------------------------------------------------------
  /// All gradients stand for zeros from here on.
  void zero(int64_t step);
  /// Starts the sum over the ranks of what the backward pass has added since the last one.
  void start_reduce();
  bool is_reducing() const { return reduction_ != nullptr; }
  /// Waits for it. From z2 on the whole gradients' memory goes, and the sum is added to the shard.
  void finish_reduce();
  /// Exact sums become float32 numbers, once all reductions of the step are finished. Returns the
  /// largest magnitude among those that this rank holds, in units; NaN where one is not finite. 0,
  /// and nothing done, without exact sums.
  double round_gradients();
  /// The parameter with the largest magnitude among the gradients that this rank holds.
  const Placed& largest_gradient() const;
  /// Brings together every rank's shard of the gradients, so that the parameters' main_grads are
  /// whole until the next zero() or release_gradients(). Nothing to do without sharding.
  void gather_gradients();
  void release_gradients();
  /// Multiplies what this rank holds of the reduced gradients.
  void scale(double factor);
  /// Sum of squares of the reduced gradients that this rank holds, of the parameters for which
  /// `counts` says true.
  double squares(const std::function<bool(const nn::Parameter&)>& counts) const;

  // -- parameters ---------------------------------------------------------------------------
  /// The parameters have changed: starts bringing the ranks' shards together. A paged bucket's are
  /// only forgotten.
  void start_gather();
  /// Waits for what start_gather started. The first touch of a parameter does the same.
  void finish_gather();
  /// Lets a paged bucket's memory go until the next touch.
  void close();

 private:
  int64_t start_of(size_t index) const;
  void place_parameters();
  void make_gradients();
  void show_gradients(const Tensor& whole, const Tensor& shard);
  Tensor held_gradient(size_t index) const;
  DType sum_dtype() const { return is_open_ ? kFloat64 : options_.grad_dtype; }
  void number_shard();
  Ref<Storage> make_window(DType dtype, std::byte* (ParamAndGradBucket::*open)());
  std::byte* open_parameters();
  std::byte* open_copies();
  std::byte* open_gradients();
  void clear_gaps() const;
  void forget_gradients();
  void add_to_shard();

  std::vector<Placed> parameters_;
  Options options_;
  ProcessGroup& group_;
  int64_t size_ = 0;
  std::vector<ParameterPiece> pieces_;
  std::shared_ptr<ParamAndGradBucket*> self_;  // windows, which parameters hold, find it gone

  Tensor grads_;  // [size]; from z2 on undefined while nobody needs it
  Tensor grad_shard_;
  bool is_open_ = false;                            // these are exact sums
  std::vector<kernels::RandomRows> shard_numbers_;  // of sums in it, where these are in 16 bits
  Ref<Storage> grad_window_;
  WorkHandle reduction_;
  Tensor reduced_;  // what the reduction under way writes to, where that is not the shard
  bool shard_is_fresh_ = true;
  int64_t step_ = 0;
  int64_t reductions_ = 0;  // in this step

  Tensor values_;  // [size]; of a paged bucket undefined while nobody uses it
  Tensor value_shard_;
  Ref<Storage> value_window_;
  // 16-bit copies of a paged float32 parameter.
  Tensor copies_;
  Tensor copy_;  // what the parameter knows of them
  Ref<Storage> copy_window_;
  WorkHandle gather_;
};

}  // namespace tapestry
