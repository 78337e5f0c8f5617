#include "parallel_core/tensor_parallel/layers.h"

#include <utility>

#include "autograd/ops/embedding.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/tensor_parallel/column_linear.h"
#include "parallel_core/tensor_parallel/mappings.h"

namespace tapestry {

namespace {

using nn::ParameterFlags;
using nn::TensorParallel;

std::string describe_linear(const nn::Parameter& weight, bool bias) {
  return concat("in=", weight.size(1), ", out=", weight.size(0), bias ? ", bias" : "");
}

// The sum over the group of what each rank has of hidden states: whole, or a piece of the sequence.
Tensor reduced(const Tensor& partial, const TensorParallelLayout& layout) {
  if (layout.size == 1) {
    return partial;
  }
  return layout.sequence_axis ? reduce_scatter_to_sequence_parallel_region(
                                    partial, *layout.sequence_axis, *layout.group)
                              : reduce_from_model_parallel_region(partial, *layout.group);
}

}  // namespace

LogicalInit sliced(std::string name,
                   const Shape& shape,
                   int64_t axis,
                   int64_t first,
                   int64_t size,
                   InitMethod init,
                   int64_t rows) {
  LogicalInit out = whole(std::move(name), shape, init);
  nn::LogicalTensor& logical = out.logical;
  logical.offset = Shape::filled(shape.size(), 0);
  logical.offset[axis] = first;
  logical.slice_shape = shape;
  logical.slice_shape[axis] = size;
  logical.view_shape = logical.slice_shape;
  if (rows >= 0) {
    logical.view_shape[axis] = rows;
  }
  logical.axis = axis;
  logical.begin = 0;
  logical.end = size;
  return out;
}

LogicalInit vocabulary_rows(const std::string& logical_name,
                            int64_t vocabulary,
                            int64_t hidden,
                            InitMethod init,
                            const TensorParallelLayout& layout) {
  const VocabularyShard shard = vocabulary_shard(vocabulary, layout.rank, layout.size);
  return sliced(logical_name, {vocabulary, hidden}, 0, shard.first, shard.valid, init, shard.rows);
}

Tensor project_columns(const Tensor& x,
                       const nn::Parameter& weight,
                       const nn::Parameter* bias,
                       const Precision& precision,
                       const TensorParallelLayout& layout) {
  if (layout.size == 1) {
    return project(x, weight, bias, precision);
  }
  if (precision.fused) {
    return column_parallel_linear(x.to(precision.compute), weight,
                                  bias != nullptr ? Tensor(*bias) : Tensor(),
                                  rounded_weight(weight, precision), layout);
  }
  const Tensor whole = layout.sequence_axis ? gather_from_sequence_parallel_region(
                                                  x, *layout.sequence_axis, *layout.group)
                                            : copy_to_model_parallel_region(x, *layout.group);
  return project(whole, weight, bias, precision);
}

ColumnParallelLinear::ColumnParallelLinear(const ParallelLinearSpec& spec)
    : weight_(register_parameter("weight",
                                 initial_value({spec.output_size, spec.input_size}, spec.weight),
                                 {.matmul = true, .tp = TensorParallel::kSharded, .tp_axis = 0})),
      skip_bias_add_(spec.skip_bias_add),
      precision_(spec.precision),
      layout_(spec.layout) {
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
  if (bias_ != nullptr && skip_bias_add_) {
    return {project_columns(x, weight_, nullptr, precision_, layout_), *bias_};
  }
  return {project_columns(x, weight_, bias_, precision_, layout_), {}};
}

RowParallelLinear::RowParallelLinear(const ParallelLinearSpec& spec)
    : weight_(register_parameter("weight",
                                 initial_value({spec.output_size, spec.input_size}, spec.weight),
                                 {.matmul = true, .tp = TensorParallel::kSharded, .tp_axis = 1})),
      skip_bias_add_(spec.skip_bias_add),
      precision_(spec.precision),
      layout_(spec.layout) {
  weight_.set_logical(logical_of(spec.weight));
  if (!spec.bias.empty()) {
    bias_ = &register_parameter("bias", initial_value({spec.output_size}, spec.bias),
                                {.decay = false, .tp = spec.layout.hidden_gradient()});
    bias_->set_logical(logical_of(spec.bias));
  }
}

std::string RowParallelLinear::extra_repr() const {
  return describe_linear(weight_, bias_ != nullptr);
}

OutputAndBias RowParallelLinear::forward(const Tensor& x,
                                         std::function<Tensor()> recompute_x) const {
  if (layout_.size == 1 && !skip_bias_add_) {
    return {project(x, weight_, bias_, precision_, std::move(recompute_x)), {}};
  }
  const Tensor sum =
      reduced(project(x, weight_, nullptr, precision_, std::move(recompute_x)), layout_);
  const Tensor bias = bias_ != nullptr ? Tensor(*bias_) : Tensor();
  return skip_bias_add_ ? OutputAndBias{sum, bias} : OutputAndBias{add_bias(sum, bias), {}};
}

VocabParallelEmbedding::VocabParallelEmbedding(const std::string& logical_name,
                                               int64_t num_embeddings,
                                               int64_t embedding_dim,
                                               InitMethod init,
                                               const TensorParallelLayout& layout)
    : vocabulary_(num_embeddings),
      layout_(layout),
      shard_(vocabulary_shard(num_embeddings, layout.rank, layout.size)),
      weight_(register_parameter(
          "weight",
          initial_value(
              {shard_.rows, embedding_dim},
              {vocabulary_rows(logical_name, num_embeddings, embedding_dim, init, layout)}),
          {.tp = TensorParallel::kSharded, .tp_axis = 0})) {
  weight_.set_logical(
      {vocabulary_rows(logical_name, num_embeddings, embedding_dim, init, layout).logical});
}

std::string VocabParallelEmbedding::extra_repr() const {
  return concat("vocabulary=", vocabulary_, ", hidden=", weight_.size(1));
}

Tensor VocabParallelEmbedding::forward(const Tensor& ids) const {
  if (layout_.size == 1) {
    return embedding(weight_, ids);
  }
  // The rows of the tokens that this rank has; the others are added by their owners.
  const Tensor all = dense(ids.to(kInt64));
  const auto* id = all.data<int64_t>();
  std::vector<int64_t> places;
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < all.numel(); ++i) {
    check<IndexError>(id[i] >= 0 && id[i] < vocabulary_, "embedding: id ", id[i], " at position ",
                      position_in(ids.shape(), i), " is outside [0, ", vocabulary_,
                      "); check tokenizer and vocabulary size");
    if (id[i] >= shard_.first && id[i] < shard_.first + shard_.valid) {
      places.push_back(i);
      rows.push_back(id[i] - shard_.first);
    }
  }
  const Shape count = {static_cast<int64_t>(rows.size())};
  const Tensor own = embedding(weight_, tensor(rows, count));
  const Tensor partial =
      index_add(zeros({all.numel(), weight_.size(1)}, own.dtype()), 0, tensor(places, count), own);
  Shape shape = ids.shape();
  shape.push_back(weight_.size(1));
  return reduced(partial.view(shape), layout_);
}

}  // namespace tapestry
