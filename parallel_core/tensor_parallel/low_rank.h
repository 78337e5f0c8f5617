// What low-rank adapters add to a linear layer whose weight stays as it is.
//
// y += s (dropout(x) A^T) B^T for each adapted part of the layer's rows, with A [rank, in] and B
// [out, rank]. All As of a layer are one parameter, and all Bs another: one product makes x A^T for
// all of them, and each B is multiplied with its columns of that.
//
// Where the output features are divided over tensor-parallel ranks, B is divided with them and A is
// replicated; where the input features are, A is, the product x A^T (a few columns) is summed over
// the ranks, and B is replicated. With sequence parallelism x A^T is made of the rank's piece of
// the sequence, and gathered, or summed and scattered, in place of x.
//
// In exact mode x A^T, where the inputs are divided, and the gradient of x A^T, where the outputs
// are, are trees over the ranks in float32. Dropout and magnitudes are refused there (ValueError).
//
// With magnitudes (DoRA): y = (m / n) (x W^T + s (x A^T) B^T) + b, n being the lengths of the rows
// of W + s B A, constants in backward. Source: Liu et al. 2024, arXiv:2402.09353, section 4.3.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "nn/parameter.h"
#include "parallel_core/parameter_builder.h"
#include "parallel_core/precision.h"
#include "parallel_core/sequence_part.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

/// While one lives, this thread's layers do without what adapters add, experts too: the model is
/// the one that they are beside. They may stand inside one another.
class AdaptersOff {
 public:
  AdaptersOff();
  AdaptersOff(const AdaptersOff&) = delete;
  AdaptersOff& operator=(const AdaptersOff&) = delete;
  ~AdaptersOff();
};
bool adapters_are_off();

/// Rows of a layer that lie together in blocks: block i has rows first + i stride .. + rows - 1.
struct RowBlocks {
  int64_t first = 0;
  int64_t rows = 0;
  int64_t stride = 0;
  int64_t count = 1;

  int64_t total() const { return rows * count; }
};

/// The rows of a weight of `size` rows that a logical tensor of it is.
RowBlocks rows_of(const nn::LogicalTensor& weight);

/// One A, on this rank.
struct LowRankModule {
  std::string name;  ///< logical, of its dropout's random numbers
  int64_t rank = 0;
  double scale = 1;
  struct Output {
    RowBlocks rows;
    LogicalInit b;          ///< of all Bs behind one another; its global shape is [out, rank]
    LogicalInit magnitude;  ///< of all magnitudes behind one another; without a name: none
    nn::LogicalTensor weight;
  };
  LogicalInit a;  ///< rows of [sum of ranks, in]
  std::vector<Output> outputs;
};

struct LowRankSpec {
  std::vector<LowRankModule> modules;
  double dropout = 0;
  int64_t batch_axis = 0;      ///< of x
  int64_t first_feature = 0;   ///< of the logical input that x's features begin with
  int64_t total_features = 0;  ///< of the logical input
  /// Which positions x has, of that many tokens a sequence.
  std::function<SequencePart(int64_t)> positions;

  bool empty() const { return modules.empty(); }
  bool has_magnitudes() const {
    return !modules.empty() && !modules.front().outputs.front().magnitude.logical.name.empty();
  }
};

/// Parameters of such additions, which belong to the layer.
struct LowRankParameters {
  nn::Parameter* a = nullptr;          ///< "lora_a" [sum of ranks, in]
  nn::Parameter* b = nullptr;          ///< "lora_b": all Bs, [rows, rank] if all ranks are equal
  nn::Parameter* magnitude = nullptr;  ///< "lora_magnitude"; null: none
};

/// y + s t B^T on the rows of each module: y [.., out], t [.., sum of ranks] with t = x A^T, b all
/// Bs; all of y's dtype but b, of which `rounded` is then a copy in that dtype.
Tensor add_low_rank(const Tensor& y,
                    const Tensor& t,
                    const Tensor& b,
                    const Tensor& rounded,
                    const std::vector<LowRankModule>& modules);

/// What a layer does with them.
class LowRankAddition {
 public:
  /// `is_replicated`: every rank has all rows, of which it makes use on its own tokens.
  LowRankAddition(LowRankSpec spec,
                  LowRankParameters parameters,
                  const Precision& precision,
                  const TensorParallelLayout& layout,
                  bool is_replicated = false)
      : spec_(std::move(spec)),
        parameters_(parameters),
        precision_(precision),
        layout_(layout),
        is_replicated_(is_replicated) {}

  /// Whether product() can take the place of the layer's own product and of to_columns() or
  /// to_rows(): one rank has all rows and columns, kernels are fused, and there is neither exact
  /// mode nor dropout, magnitude or quantized weight.
  bool takes_product(const nn::Parameter& weight, bool training) const;
  /// x W^T + bias with what is added, in one op; bias may be null, `recompute_x` as in linear().
  Tensor product(const Tensor& x,
                 const nn::Parameter& weight,
                 const nn::Parameter* bias,
                 std::function<Tensor()> recompute_x = nullptr) const;

  /// y, the layer's product by `weight` without its bias if there are magnitudes, with what is
  /// added; x is the layer's input, before it is gathered.
  Tensor to_columns(const Tensor& y, const Tensor& x, const Tensor& weight, bool training) const;
  /// The same for a layer whose input features are divided: y is the sum over the ranks.
  /// `recompute_x` as in linear().
  Tensor to_rows(const Tensor& y,
                 const Tensor& x,
                 const Tensor& weight,
                 bool training,
                 std::function<Tensor()> recompute_x = nullptr) const;

  bool has_magnitudes() const { return parameters_.magnitude != nullptr; }
  /// Gives magnitudes their start values: the lengths of the rows of W. Nothing without. Where the
  /// rank has `weight` without some of its columns, a sum over the ranks.
  void start_magnitudes(const Tensor& weight, bool rows_are_whole) const;

  /// Shapes of the parameters of a specification.
  static Shape a_shape(const LowRankSpec& spec, int64_t input_size);
  static Shape b_shape(const LowRankSpec& spec);

 private:
  Tensor down(const Tensor& x,
              bool training,
              const std::function<Tensor()>& recompute_x,
              bool divides_inputs) const;
  Tensor exact_up(const Tensor& y, const Tensor& t, bool divides_rows) const;
  Tensor up(const Tensor& y, const Tensor& t) const;
  Tensor row_lengths(const Tensor& weight, bool rows_are_whole) const;
  Tensor scaled(const Tensor& y, const Tensor& weight, bool rows_are_whole) const;

  LowRankSpec spec_;
  LowRankParameters parameters_;
  Precision precision_;
  TensorParallelLayout layout_;
  bool is_replicated_;
};

}  // namespace tapestry
