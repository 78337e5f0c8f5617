#include "parallel_core/tensor_parallel/row_linear.h"

#include <array>
#include <utility>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/linear_gradients.h"
#include "autograd/ops/matmul.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/tensor_parallel/axis_collectives.h"

namespace tapestry {

namespace {

struct ExactRowLinear {
  static constexpr OpName name = "row_parallel_linear";
  static constexpr bool communicates = true;
  ProcessGroup* group;
  std::optional<int64_t> sequence_axis;
  Tensor rounded;  // the weight in x's dtype, where that differs
  LinearSums sums;
  std::function<Tensor()> recompute_x;  // in place of a saved x
  SavedTensor x = {}, weight = {};
  Tensor leaf = {};  // the weight itself, whose main_grad takes the gradient
  Tensor bias_leaf = {};
  DType bias_dtype = kFloat32;

  Tensor forward(const Tensor& x_, const Tensor& weight_, const Tensor& bias) {
    if (weight_.requires_grad()) {
      leaf = weight_;
      if (recompute_x == nullptr) {
        x.save(x_);
      }
    }
    if (x_.requires_grad()) {
      weight.save(weight_);
    }
    if (weight_.dtype() != x_.dtype() && !rounded.defined()) {
      rounded = weight_.to(x_.dtype());
    }
    Shape shape = x_.shape();
    shape.back() = weight_.size(0);
    Tensor total = empty(shape, kFloat32);
    tree_product(x_, (rounded.defined() ? rounded : weight_).t(), sums.inputs, total);
    total = (sequence_axis ? start_reduce_scatter(total, *sequence_axis, *group)
                           : start_all_reduce(total, *group))
                .wait();
    if (bias.defined()) {
      bias_dtype = bias.dtype();
      bias_leaf = bias.requires_grad() ? bias : Tensor();
      total = total + bias.to(x_.dtype()).to(kFloat32);
    }
    return total.to(x_.dtype());
  }

  std::array<Tensor, 3> backward(const Tensor& dy, NeedsGrad needs) const {
    check<RuntimeError>(!grad_enabled(), name,
                        ": exact mode has no derivatives of derivatives (create_graph)");
    std::array<Tensor, 3> out;
    if (needs[2]) {
      out[2] = linear_bias_gradient(dy, bias_leaf, bias_dtype);
    }
    if (!needs[0] && !needs[1]) {
      return out;
    }
    const Tensor whole = sequence_axis ? start_all_gather(dy, *sequence_axis, *group).wait() : dy;
    if (needs[0]) {
      out[0] = linear_input_gradient(whole, weight, rounded, sums.outputs);
    }
    if (needs[1]) {
      out[1] = linear_weight_gradient(whole, recompute_x ? recompute_x() : x.get(), leaf,
                                      sums.tokens_apart);
    }
    return out;
  }
};

}  // namespace

std::vector<kernels::SumRun> divided_runs(int64_t own,
                                          const TensorParallelLayout& layout,
                                          int64_t pieces) {
  check<ValueError>(layout.leaves % layout.size == 0, "exact mode: ", layout.size,
                    " tensor-parallel ranks cannot divide a sum of ", layout.leaves,
                    " leaves, which the groups of keys and values allow; take a power of two up to "
                    "that");
  return tree_runs_of_pieces(own, pieces, layout.leaves / layout.size);
}

Tensor exact_row_linear(const Tensor& x,
                        const Tensor& weight,
                        const Tensor& bias,
                        const Tensor& rounded,
                        const TensorParallelLayout& layout,
                        const LinearSums& sums,
                        std::function<Tensor()> recompute_x) {
  if (layout.size == 1) {
    return linear(x, weight, bias, rounded, std::move(recompute_x), sums);
  }
  return apply_op(
      ExactRowLinear{layout.group, layout.sequence_axis, rounded, sums, std::move(recompute_x)}, x,
      weight, bias);
}

}  // namespace tapestry
