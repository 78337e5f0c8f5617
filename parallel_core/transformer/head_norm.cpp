#include "parallel_core/transformer/head_norm.h"

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/math.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "parallel_core/parameter_builder.h"
#include "parallel_core/precision.h"
#include "parallel_core/tensor_parallel/layers.h"
#include "parallel_core/tensor_parallel/mappings.h"
#include "parallel_core/transformer/norm.h"

namespace tapestry {

namespace {

int64_t channels_of(const TransformerConfig& config, const HeadRange& heads) {
  return heads.channels > 0 ? heads.channels : config.kv_channels.value();
}

class EachHeadNorm final : public nn::UnaryModule {
 public:
  EachHeadNorm(const TransformerConfig& config,
               const HeadRange& heads,
               const std::string& name,
               const TensorParallelLayout& layout)
      : heads_(heads),
        is_rms_(config.normalization != "LayerNorm"),
        eps_(config.norm_epsilon),
        activation_(precision_of(config).activation) {
    // Every rank has the gains of all heads, so that the files of a model do not depend on layouts.
    const int64_t size = channels_of(config, heads);
    std::vector<LogicalInit> parts;
    for (int64_t head = 0; head < heads.total; ++head) {
      LogicalInit part = whole(concat(name, ".", head, ".weight"), {size}, InitMethod::constant(1));
      part.logical.view_shape = {heads.total, size};
      part.logical.begin = head;
      part.logical.end = head + 1;
      parts.push_back(std::move(part));
    }
    weight_ = &register_parameter("weight", initial_value({heads.total, size}, parts),
                                  {.decay = false, .tp = layout.head_gradient()});
    weight_->set_logical(logical_of(parts));
  }

  std::string type_name() const override { return is_rms_ ? "RMSNorm" : "LayerNorm"; }
  std::string extra_repr() const override {
    return concat(heads_.count, " heads of ", weight_->size(1), ", eps=", eps_);
  }

  Tensor forward(const Tensor& x) override {
    const Tensor normed =
        is_rms_ ? rms_norm(x, {}, eps_, kFloat32) : layer_norm(x, {}, {}, eps_, kFloat32);
    const Tensor own = weight_->slice(0, heads_.first, heads_.first + heads_.count);
    return (normed * own.to(kFloat32).unsqueeze(1)).to(activation_);
  }

 private:
  HeadRange heads_;
  bool is_rms_;
  double eps_;
  DType activation_;
  nn::Parameter* weight_;
};

class ProjectionNorm final : public nn::UnaryModule {
 public:
  ProjectionNorm(const TransformerConfig& config,
                 const HeadRange& heads,
                 const std::string& name,
                 const TensorParallelLayout& layout)
      : heads_(heads),
        head_dim_(channels_of(config, heads)),
        eps_(config.norm_epsilon),
        precision_(precision_of(config)),
        layout_(layout) {
    LogicalInit init =
        sliced(name + ".weight", {heads.total * head_dim_}, 0, heads.first * head_dim_,
               heads.count * head_dim_, InitMethod::constant(1));
    init.logical.copies = heads.copies;
    weight_ = &register_parameter("weight", initial_value({heads.count * head_dim_}, {init}),
                                  {.decay = false, .tp = layout.part_gradient(), .tp_axis = 0});
    weight_->set_logical({init.logical});
  }

  std::string type_name() const override { return "RMSNorm"; }
  std::string extra_repr() const override {
    return concat(weight_->numel(), " of ", heads_.total * head_dim_, ", eps=", eps_);
  }

  Tensor forward(const Tensor& x) override {
    // [B, n, S, D] -> [B, S, n D], which is how the projection gives it: a view
    const Shape joined = {x.size(0), x.size(2), heads_.count * head_dim_};
    const Tensor rows = x.permute({0, 2, 1, 3}).reshape(joined);
    return normalize(rows)
        .view({x.size(0), x.size(2), heads_.count, head_dim_})
        .permute({0, 2, 1, 3});
  }

 private:
  Tensor normalize(const Tensor& rows) const {
    if (layout_.size == 1) {
      const auto norm = precision_.fused ? rms_norm : composed_rms_norm;
      return norm(rows, *weight_, eps_, precision_.activation);
    }
    check<ValueError>(
        !in_exact(),
        "exact mode: norms of whole projections (qk_layernorm_scope: projection) need "
        "tensor_model_parallel_size 1");
    const Tensor wide = rows.to(kFloat32);
    // Every rank uses the whole sum, and each knows its own part of the sum's gradient alone.
    const Tensor squares = copy_to_model_parallel_region(
        reduce_from_model_parallel_region(sum(mul(wide, wide), {-1}, true), *layout_.group),
        *layout_.group);
    const double count = static_cast<double>(heads_.total * head_dim_ * heads_.copies);
    const Tensor normed = wide * rsqrt(squares / count + eps_);
    return (normed * weight_->to(kFloat32)).to(precision_.activation);
  }

  HeadRange heads_;
  int64_t head_dim_;
  double eps_;
  Precision precision_;
  TensorParallelLayout layout_;
  nn::Parameter* weight_;
};

}  // namespace

std::unique_ptr<nn::UnaryModule> get_head_norm(const TransformerConfig& config,
                                               const HeadRange& heads,
                                               const std::string& logical_name,
                                               const TensorParallelLayout& layout) {
  if (config.qk_layernorm_scope == "each_head") {
    return std::make_unique<EachHeadNorm>(config, heads, logical_name, layout);
  }
  if (config.qk_layernorm_scope == "projection") {
    return std::make_unique<ProjectionNorm>(config, heads, logical_name, layout);
  }
  return get_norm(config, channels_of(config, heads), logical_name, layout.head_gradient());
}

}  // namespace tapestry
