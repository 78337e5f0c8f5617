#include "parallel_core/tensor_parallel/column_linear.h"

#include "autograd/ops/linear_gradients.h"
#include "autograd/ops/matmul.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/error.h"
#include "parallel_core/tensor_parallel/axis_collectives.h"
#include "parallel_core/tensor_parallel/mappings.h"

namespace tapestry {

namespace {

struct ColumnLinear {
  static constexpr OpName name = "column_parallel_linear";
  ProcessGroup* group;
  std::optional<int64_t> sequence_axis;
  Tensor rounded;   // the weight in x's dtype, where that differs
  Tensor gathered;  // all of x, if it is kept
  LinearSums sums;
  SavedTensor x = {}, weight = {};
  Tensor leaf = {};  // the weight itself, whose main_grad may take the gradient
  Tensor bias_leaf = {};
  DType bias_dtype = kFloat32;

  void for_float64() { rounded = gathered = {}; }
  Tensor forward(const Tensor& x_, const Tensor& weight_, const Tensor& bias) {
    if (weight_.requires_grad()) {
      leaf = weight_;
      x.save(x_);
    }
    if (x_.requires_grad()) {
      weight.save(weight_);
    }
    if (weight_.dtype() != x_.dtype() && !rounded.defined()) {
      rounded = weight_.to(x_.dtype());
    }
    if (bias.defined()) {
      bias_dtype = bias.dtype();
      bias_leaf = bias.requires_grad() ? bias : Tensor();
    }
    const Tensor whole = gathered.defined() ? gathered
                         : sequence_axis    ? start_all_gather(x_, *sequence_axis, *group).wait()
                                            : x_;
    return linear(whole, weight_, bias, rounded);
  }

  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    std::array<Tensor, 3> out;
    if (needs[2]) {
      out[2] = linear_bias_gradient(dy, bias_leaf, bias_dtype);
    }
    const bool by_runs = sums_by_runs(sums.outputs, dy.dtype());
    if (grad_enabled()) {
      check<RuntimeError>(!by_runs, name,
                          ": exact mode has no derivatives of derivatives (create_graph)");
      if (needs[0]) {
        out[0] = summed(linear_input_gradient(dy, weight, rounded));
      }
      if (needs[1]) {
        out[1] = linear_weight_gradient(dy, whole_of(x), leaf);
      }
      return out;
    }
    PendingTensor whole;
    const bool gathers = sequence_axis && !gathered.defined();
    if (needs[1] && gathers) {
      whole = start_all_gather(x, *sequence_axis, *group);
    }
    PendingTensor total;
    if (needs[0]) {
      const Tensor partial = by_runs ? linear_input_gradient_part(dy, weight, rounded, sums.outputs)
                                     : linear_input_gradient(dy, weight, rounded);
      total = sequence_axis ? start_reduce_scatter(partial, *sequence_axis, *group)
                            : start_all_reduce(partial, *group);
    }
    if (needs[1]) {
      out[1] = linear_weight_gradient(
          dy, gathers ? whole.wait() : (gathered.defined() ? gathered : x.get()), leaf);
    }
    if (needs[0]) {
      out[0] = total.wait().to(dy.dtype());
    }
    return out;
  }

 private:
  // The same as recorded ops.
  Tensor whole_of(const Tensor& piece) const {
    return sequence_axis ? gather_from_sequence_parallel_region(piece, *sequence_axis, *group)
                         : copy_to_model_parallel_region(piece, *group);
  }
  Tensor summed(const Tensor& partial) const {
    return sequence_axis
               ? reduce_scatter_to_sequence_parallel_region(partial, *sequence_axis, *group)
               : reduce_from_model_parallel_region(partial, *group);
  }
};

}  // namespace

Tensor column_parallel_linear(const Tensor& x,
                              const Tensor& weight,
                              const Tensor& bias,
                              const Tensor& rounded,
                              const TensorParallelLayout& layout,
                              bool keeps_gathered,
                              const LinearSums& sums) {
  if (layout.size == 1) {
    return linear(x, weight, bias, rounded, nullptr, sums);
  }
  Tensor gathered;
  if (keeps_gathered && layout.sequence_axis) {
    const NoGradGuard guard;
    gathered = start_all_gather(x, *layout.sequence_axis, *layout.group).wait();
  }
  return apply_op(ColumnLinear{layout.group, layout.sequence_axis, rounded, gathered, sums}, x,
                  weight, bias);
}

}  // namespace tapestry
