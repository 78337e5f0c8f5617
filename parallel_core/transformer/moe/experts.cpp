#include "parallel_core/transformer/moe/experts.h"

#include <numeric>
#include <utility>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/transformer/grouped_linear.h"
#include "autograd/ops/transformer/grouped_linear_quantized.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/init_method.h"
#include "parallel_core/lora/adapter_plan.h"
#include "parallel_core/lora/low_rank_spec.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/tensor_parallel/low_rank.h"

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
  inner_matrices_ = std::ssize(inner);
  const int64_t width = std::ssize(inner) * own;
  const auto sliced_flag =
      slices_ > 1 ? nn::TensorParallel::kSharded : nn::TensorParallel::kReplicated;
  w1_ = &add("w1", {count_, width, hidden_}, logical_tensors(config, prefix, inner, false),
             {.expert = true, .matmul = true, .tp = sliced_flag, .tp_axis = 1});
  w2_ = &add("w2", {count_, hidden_, own}, logical_tensors(config, prefix, {Matrix::kDown}, false),
             {.expert = true, .matmul = true, .tp = sliced_flag, .tp_axis = 2});
  w1_adapter_ = add_adapter(config, prefix, inner, "1");
  w2_adapter_ = add_adapter(config, prefix, {Matrix::kDown}, "2");
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

const char* Experts::name_of(Matrix matrix) {
  return matrix == Matrix::kGate ? "w_gate" : matrix == Matrix::kUp ? "w_up" : "w_down";
}

// Number `place` of the logical tensors of one shape that lie one below the other in a parameter;
// slices divide it along `divided`.
LogicalInit Experts::part_of(std::string name,
                             Shape shape,
                             std::optional<int64_t> divided,
                             int64_t place,
                             int64_t places,
                             InitMethod init) const {
  nn::LogicalTensor logical;
  logical.name = std::move(name);
  logical.shape = shape;
  Shape& local = shape;
  if (slices_ > 1 && divided) {
    local[*divided] /= slices_;
    logical.slice_shape = local;
    logical.offset = Shape::filled(local.size(), 0);
    logical.offset[*divided] = slice_ * local[*divided];
  }
  logical.view_shape = local;
  logical.view_shape[0] *= places;
  logical.begin = place * local[0];
  logical.end = logical.begin + local[0];
  return {std::move(logical), init};
}

// Of each of the rank's experts one after the other, and of each of these one matrix after the
// other, whose rows lie one below the other in the parameter.
std::vector<LogicalInit> Experts::logical_tensors(const TransformerConfig& config,
                                                  const std::string& prefix,
                                                  const std::vector<Matrix>& matrices,
                                                  bool biases) const {
  const int64_t places = count_ * std::ssize(matrices);
  std::vector<LogicalInit> out;
  for (int64_t e = 0; e < count_; ++e) {
    for (const Matrix matrix : matrices) {
      const bool down = matrix == Matrix::kDown;
      Shape shape = down ? Shape{hidden_, ffn_} : Shape{ffn_, hidden_};
      if (biases) {
        shape = {shape[0]};
      }
      const bool divides = !down || !biases;
      out.push_back(part_of(
          concat(prefix, first_ + e, ".", name_of(matrix), biases ? ".bias" : ".weight"), shape,
          divides ? std::optional<int64_t>(down ? 1 : 0) : std::nullopt, std::ssize(out), places,
          biases ? bias_init(config)
          : down ? output_weight_init(config)
                 : weight_init(config)));
    }
  }
  return out;
}

// `matrices` are those of one parameter of the base, of which a file has one tensor, and so one A.
Experts::Adapter Experts::add_adapter(const TransformerConfig& config,
                                      const std::string& prefix,
                                      const std::vector<Matrix>& matrices,
                                      const std::string& number) {
  const std::vector<AdaptedModule> modules =
      adapted_modules(config, concat(prefix, "0.", name_of(matrices.front()), ".weight"));
  if (modules.empty()) {
    return {};
  }
  check<RuntimeError>(modules.size() == 1, "experts: ", modules.size(),
                      " adapters beside one parameter");
  const AdaptedModule& module = modules.front();
  const bool down = matrices.front() == Matrix::kDown;
  const int64_t in = down ? ffn_ : hidden_;
  std::vector<LogicalInit> a;
  std::vector<LogicalInit> b;
  for (int64_t e = 0; e < count_; ++e) {
    a.push_back(part_of(lora_a_name(module, first_ + e), {module.rank, in},
                        down ? std::optional<int64_t>(1) : std::nullopt, e, count_,
                        start_of_lora_a(config.lora)));
    for (const Matrix matrix : matrices) {
      b.push_back(part_of(lora_b_name(concat(prefix, first_ + e, ".", name_of(matrix), ".weight")),
                          {down ? hidden_ : ffn_, module.rank},
                          down ? std::nullopt : std::optional<int64_t>(0), std::ssize(b),
                          count_ * std::ssize(matrices), start_of_lora_b(config.lora)));
    }
  }
  // One of the two has all of its numbers on each slice, and there a part of its gradient.
  const auto flags = [&](bool divided, int axis) {
    return nn::ParameterFlags{.expert = true,
                              .matmul = true,
                              .adapter = true,
                              .tp = slices_ == 1 ? nn::TensorParallel::kReplicated
                                    : divided    ? nn::TensorParallel::kSharded
                                                 : nn::TensorParallel::kPartial,
                              .tp_axis = axis};
  };
  const int64_t own = ffn_ / slices_;
  const int64_t rows = down ? hidden_ : own * std::ssize(matrices);
  return {.a = &add("lora_a" + number, {count_, module.rank, down ? own : hidden_}, a,
                    flags(/*divided=*/down, 2)),
          .b = &add("lora_b" + number, {count_, rows, module.rank}, b, flags(/*divided=*/!down, 1)),
          .scale = module.scale};
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
  const Tensor operand = x.to(compute);
  if (precision_.fused) {
    const Tensor added = bias != nullptr ? Tensor(*bias) : Tensor();
    return weight.is_quantized()
               ? grouped_linear_quantized(operand, weight.quantized(), ends, added)
               : grouped_linear(operand, weight, ends, added, rounded_weight(weight, precision_));
  }
  const Tensor y =
      (weight.is_quantized() ? grouped_linear_quantized(operand, weight.quantized(), ends)
                             : grouped_linear(operand, weight.to(compute), ends))
          .to(precision_.activation);
  return bias != nullptr ? y + rows_of(*bias, experts_of_rows(ends)).to(precision_.activation) : y;
}

// y + s B A x; without an adapter, or while adapters are off, y.
Tensor Experts::with_adapter(const Tensor& y,
                             const Tensor& x,
                             const Adapter& adapter,
                             const std::vector<int64_t>& ends) const {
  if (adapter.a == nullptr || adapters_are_off()) {
    return y;
  }
  const Tensor t = multiply(x, *adapter.a, nullptr, ends) * adapter.scale;
  return y + multiply(t, *adapter.b, nullptr, ends);
}

// As multiply(), in exact mode.
Tensor Experts::exactly(const Tensor& x,
                        const nn::Parameter& weight,
                        const nn::Parameter* bias,
                        const ExpertRows& rows,
                        ExpertSums sums) const {
  check<ValueError>(!weight.is_quantized(), "exact mode has no products with quantized experts");
  sums.compute = precision_.compute;
  Tensor y = expert_product(x, weight, rows, sums, rounded_weight(weight, precision_));
  if (!sums.parts) {
    y = y.to(precision_.activation);
  }
  return bias != nullptr ? add_expert_bias(y, *bias, experts_of_rows(rows.ends)) : y;
}

// w1[e] x + b1[e]; the sum over channels of x's gradient is divided among slices.
Tensor Experts::inner(const Tensor& x, const ExpertRows& rows) const {
  const Tensor y =
      in_exact() ? exactly(x, *w1_, w1_bias_, rows,
                           {.out_leaves = kSumLeaves / slices_, .out_pieces = inner_matrices_})
                 : multiply(x, *w1_, w1_bias_, rows.ends);
  return with_adapter(y, x, w1_adapter_, rows.ends);
}

// w2[e] x, with the bias if no other slice has a part of the sum.
Tensor Experts::outer(const Tensor& x, const ExpertRows& rows) const {
  const Tensor y = in_exact() ? exactly(x, *w2_, nullptr, rows,
                                        {.in_leaves = kSumLeaves / slices_, .parts = slices_ > 1})
                              : multiply(x, *w2_, slices_ == 1 ? w2_bias_ : nullptr, rows.ends);
  return with_adapter(y, x, w2_adapter_, rows.ends);
}

Tensor Experts::forward(const Tensor& x, const ExpertRows& rows, const LayerPass& pass) {
  const Tensor mapped = [&] {
    const RecomputeScope scope = pass.of(LayerOp::kMapping);
    return inner(x, rows);
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
    out = outer(active, rows);
  }
  again.drop();
  return out;
}

bool Experts::lacks_output_bias() const {
  return w2_bias_ != nullptr && (slices_ > 1 || in_exact());
}

bool Experts::wants_wide_rows() const { return slices_ > 1 && in_exact(); }

Tensor Experts::finished(const Tensor& y, const std::vector<int64_t>& expert_of_row) const {
  if (in_exact()) {
    const Tensor sum = y.to(precision_.compute).to(precision_.activation);
    return lacks_output_bias() ? add_expert_bias(sum, *w2_bias_, expert_of_row) : sum;
  }
  return lacks_output_bias() ? (y + rows_of(*w2_bias_, expert_of_row).to(y.dtype())).to(y.dtype())
                             : y;
}

}  // namespace tapestry
