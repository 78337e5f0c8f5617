#include "parallel_core/transformer/moe/experts.h"

#include <numeric>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/transformer/grouped_linear.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/init_method.h"
#include "parallel_core/parameter_ranks.h"

namespace tapestry {

namespace {

int64_t divided(int64_t total, int64_t ranks, const char* what, const char* key) {
  check<ValueError>(total % ranks == 0, "moe_config: ", total, " ", what,
                    " cannot be divided over ", ranks, " ranks; change ", key);
  return total / ranks;
}

// The expert of each row.
std::vector<int64_t> experts_of_rows(const std::vector<int64_t>& ends) {
  std::vector<int64_t> out;
  out.reserve(static_cast<size_t>(ends.empty() ? 0 : ends.back()));
  for (size_t e = 0; e < ends.size(); ++e) {
    out.resize(static_cast<size_t>(ends[e]), static_cast<int64_t>(e));
  }
  return out;
}

Tensor rows_of(const Tensor& table, const std::vector<int64_t>& rows) {
  return index_select(table, 0, tensor(rows, {std::ssize(rows)}));
}

}  // namespace

Experts::Experts(const TransformerConfig& config, int64_t layer_number)
    : activation_(get_act_func(config)),
      recomputes_(uses_fused_activation(config) && keeps_only_input(config)),
      precision_(precision_of(config)),
      hidden_(config.hidden_size),
      ffn_(moe_ffn_hidden_size(config)),
      slices_(slices_group(/*of_expert=*/true).size()),
      slice_(slices_group(/*of_expert=*/true).rank()),
      count_(divided(config.moe.num_experts,
                     experts_group().size(),
                     "experts",
                     "num_experts or expert_model_parallel_size")),
      first_(experts_group().rank() * count_) {
  const std::string prefix = concat("layers.", layer_number - 1, ".moe.experts.");
  const int64_t own = divided(ffn_, slices_, "channels of an expert",
                              "moe_ffn_hidden_size or expert_tensor_parallel_size");
  std::vector<Matrix> inner = {Matrix::kUp};
  if (has_gated_mlp(config)) {
    inner.insert(inner.begin(), Matrix::kGate);
  }
  const int64_t width = std::ssize(inner) * own;
  const auto sliced_flag =
      slices_ > 1 ? nn::TensorParallel::kSharded : nn::TensorParallel::kReplicated;
  w1_ = &add("w1", {count_, width, hidden_}, logical_tensors(config, prefix, inner, false),
             {.expert = true, .matmul = true, .tp = sliced_flag, .tp_axis = 1});
  w2_ = &add("w2", {count_, hidden_, own}, logical_tensors(config, prefix, {Matrix::kDown}, false),
             {.expert = true, .matmul = true, .tp = sliced_flag, .tp_axis = 2});
  if (config.mlp_has_bias) {
    w1_bias_ = &add("w1_bias", {count_, width}, logical_tensors(config, prefix, inner, true),
                    {.decay = false, .expert = true, .tp = sliced_flag, .tp_axis = 1});
    // Each rank adds it to the rows that it has of the sum.
    w2_bias_ =
        &add("w2_bias", {count_, hidden_}, logical_tensors(config, prefix, {Matrix::kDown}, true),
             {.decay = false,
              .expert = true,
              .tp = slices_ > 1 ? nn::TensorParallel::kPartial : nn::TensorParallel::kReplicated});
  }
}

std::string Experts::extra_repr() const {
  return concat("experts=", count_, ", in=", hidden_, ", ffn=", w2_->size(2),
                w1_bias_ != nullptr ? ", bias" : "");
}

// Of each of the rank's experts one after the other, and of each of these one matrix after the
// other, whose rows lie one below the other in the parameter.
std::vector<LogicalInit> Experts::logical_tensors(const TransformerConfig& config,
                                                  const std::string& prefix,
                                                  const std::vector<Matrix>& matrices,
                                                  bool biases) const {
  std::vector<LogicalInit> out;
  for (int64_t e = 0; e < count_; ++e) {
    for (const Matrix matrix : matrices) {
      const bool down = matrix == Matrix::kDown;
      nn::LogicalTensor logical;
      logical.name = concat(prefix, first_ + e, ".",
                            matrix == Matrix::kGate ? "w_gate"
                            : down                  ? "w_down"
                                                    : "w_up",
                            biases ? ".bias" : ".weight");
      logical.shape = down ? Shape{hidden_, ffn_} : Shape{ffn_, hidden_};
      if (biases) {
        logical.shape = {logical.shape[0]};
      }
      Shape local = logical.shape;
      const int64_t axis = down ? 1 : 0;  // along which slices divide it
      if (slices_ > 1 && axis < local.size()) {
        local[axis] = ffn_ / slices_;
        logical.slice_shape = local;
        logical.offset = Shape::filled(local.size(), 0);
        logical.offset[axis] = slice_ * local[axis];
      }
      logical.view_shape = local;
      logical.view_shape[0] *= count_ * std::ssize(matrices);
      logical.begin = std::ssize(out) * local[0];
      logical.end = logical.begin + local[0];
      out.push_back({std::move(logical), biases ? bias_init(config)
                                         : down ? output_weight_init(config)
                                                : weight_init(config)});
    }
  }
  return out;
}

nn::Parameter& Experts::add(const std::string& name,
                            const Shape& shape,
                            const std::vector<LogicalInit>& logical,
                            nn::ParameterFlags flags) {
  nn::Parameter& parameter = register_parameter(name, initial_value(shape, logical), flags);
  parameter.set_logical(logical_of(logical));
  return parameter;
}

// As project(), for groups of rows.
Tensor Experts::multiply(const Tensor& x,
                         const nn::Parameter& weight,
                         const nn::Parameter* bias,
                         const std::vector<int64_t>& ends) const {
  const DType compute = precision_.compute;
  if (precision_.fused) {
    return grouped_linear(x.to(compute), weight, ends, bias != nullptr ? Tensor(*bias) : Tensor(),
                          rounded_weight(weight, precision_));
  }
  const Tensor y =
      grouped_linear(x.to(compute), weight.to(compute), ends).to(precision_.activation);
  return bias != nullptr ? y + rows_of(*bias, experts_of_rows(ends)).to(precision_.activation) : y;
}

Tensor Experts::forward(const Tensor& x, const std::vector<int64_t>& ends, const LayerPass& pass) {
  const Tensor mapped = [&] {
    const RecomputeScope scope = pass.of(LayerOp::kMapping);
    return multiply(x, *w1_, w1_bias_, ends);
  }();
  // The widest value of the layer is made again from the one before it, which its own backward
  // keeps; unless something else makes it again.
  RecomputedValues again;
  const Tensor active = [&] {
    const RecomputeScope as_told = pass.of(LayerOp::kActivation);
    const bool own = recomputes_ && !pass.keeps(LayerOp::kActivation) && noted_values() == nullptr;
    const RecomputeScope scope(own ? &again : noted_values());
    return activation_(mapped, {});
  }();
  Tensor out;
  {
    const RecomputeScope scope = pass.of(LayerOp::kProjection);
    out = multiply(active, *w2_, slices_ == 1 ? w2_bias_ : nullptr, ends);
  }
  again.drop();
  return out;
}

Tensor Experts::add_output_bias(const Tensor& y, const std::vector<int64_t>& expert_of_row) const {
  return (y + rows_of(*w2_bias_, expert_of_row).to(y.dtype())).to(y.dtype());
}

}  // namespace tapestry
