#include "parallel_core/tensor_parallel/layers.h"

#include "autograd/ops/embedding.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

using nn::ParameterFlags;
using nn::TensorParallel;

std::string describe_linear(const nn::Parameter& weight, bool bias) {
  return concat("in=", weight.size(1), ", out=", weight.size(0), bias ? ", bias" : "");
}

OutputAndBias run(const Tensor& x,
                  const nn::Parameter& weight,
                  const nn::Parameter* bias,
                  bool skip_bias_add,
                  const Precision& precision,
                  std::function<Tensor()> recompute_x = nullptr) {
  if (bias != nullptr && skip_bias_add) {
    return {project(x, weight, nullptr, precision, std::move(recompute_x)), *bias};
  }
  return {project(x, weight, bias, precision, std::move(recompute_x)), {}};
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(const ParallelLinearSpec& spec)
    : weight_(register_parameter("weight",
                                 initial_value({spec.output_size, spec.input_size}, spec.weight),
                                 {.matmul = true, .tp = TensorParallel::kSharded, .tp_axis = 0})),
      skip_bias_add_(spec.skip_bias_add),
      precision_(spec.precision) {
  weight_.set_logical(logical_of(spec.weight));
  if (!spec.bias.empty()) {
    bias_ = &register_parameter("bias", initial_value({spec.output_size}, spec.bias),
                                {.decay = false, .tp = TensorParallel::kSharded, .tp_axis = 0});
    bias_->set_logical(logical_of(spec.bias));
  }
}

std::string ColumnParallelLinear::extra_repr() const {
  return describe_linear(weight_, bias_ != nullptr);
}

OutputAndBias ColumnParallelLinear::forward(const Tensor& x) const {
  return run(x, weight_, bias_, skip_bias_add_, precision_);
}

RowParallelLinear::RowParallelLinear(const ParallelLinearSpec& spec)
    : weight_(register_parameter("weight",
                                 initial_value({spec.output_size, spec.input_size}, spec.weight),
                                 {.matmul = true, .tp = TensorParallel::kSharded, .tp_axis = 1})),
      skip_bias_add_(spec.skip_bias_add),
      precision_(spec.precision) {
  weight_.set_logical(logical_of(spec.weight));
  if (!spec.bias.empty()) {
    bias_ =
        &register_parameter("bias", initial_value({spec.output_size}, spec.bias), {.decay = false});
    bias_->set_logical(logical_of(spec.bias));
  }
}

std::string RowParallelLinear::extra_repr() const {
  return describe_linear(weight_, bias_ != nullptr);
}

OutputAndBias RowParallelLinear::forward(const Tensor& x,
                                         std::function<Tensor()> recompute_x) const {
  return run(x, weight_, bias_, skip_bias_add_, precision_, std::move(recompute_x));
}

VocabParallelEmbedding::VocabParallelEmbedding(int64_t num_embeddings,
                                               int64_t embedding_dim,
                                               const LogicalInit& weight)
    : weight_(register_parameter("weight",
                                 initial_value({num_embeddings, embedding_dim}, {weight}),
                                 {.tp = TensorParallel::kSharded, .tp_axis = 0})) {
  weight_.set_logical({weight.logical});
}

std::string VocabParallelEmbedding::extra_repr() const {
  return concat("vocabulary=", weight_.size(0), ", hidden=", weight_.size(1));
}

Tensor VocabParallelEmbedding::forward(const Tensor& ids) const { return embedding(weight_, ids); }

}  // namespace tapestry
