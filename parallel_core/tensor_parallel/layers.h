// Linear layers and embeddings whose weights are split over a tensor-parallel group. A rank holds
// its slice alone; in a group of one that is everything.
//
// Hidden states are [B, S, H] or [S, B, H]. With sequence parallelism (TensorParallelLayout), they
// are the rank's piece of the sequence outside of the layers: a column-parallel layer gathers its
// input, a row-parallel one scatters its output.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nn/module.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"
#include "parallel_core/parameter_builder.h"
#include "parallel_core/precision.h"

namespace tapestry {

/// What a linear layer of a parallel model is made of, on this rank.
struct ParallelLinearSpec {
  int64_t input_size = 0;
  int64_t output_size = 0;
  std::vector<LogicalInit> weight;  ///< pieces of the weight [output_size, input_size]
  std::vector<LogicalInit> bias;    ///< pieces of the bias [output_size]; empty: no bias
  bool skip_bias_add = false;       ///< return the bias instead of adding it
  Precision precision;              ///< of the product
  TensorParallelLayout layout;
};

/// The slice of a logical tensor that has `size` of its entries along an axis, from `first` on, and
/// fills a parameter alone; or the first of that parameter's entries, if it has `rows` of them.
LogicalInit sliced(std::string name,
                   const Shape& shape,
                   int64_t axis,
                   int64_t first,
                   int64_t size,
                   InitMethod init,
                   int64_t rows = -1);

/// x W^T + b by the rows of W that this rank has, in `precision`: x replicated, or a piece of the
/// sequence; the result has the rank's features and the whole sequence. bias may be null.
Tensor project_columns(const Tensor& x,
                       const nn::Parameter& weight,
                       const nn::Parameter* bias,
                       const Precision& precision,
                       const TensorParallelLayout& layout);

/// y = x W^T + b with the rows of W (the output features) split over the group. x [.., in] is
/// replicated or a piece of the sequence; y [.., out] has this rank's features.
class ColumnParallelLinear final : public nn::Module {
 public:
  explicit ColumnParallelLinear(const ParallelLinearSpec& spec);

  std::string type_name() const override { return "ColumnParallelLinear"; }
  std::string extra_repr() const override;
  OutputAndBias forward(const Tensor& x) const;

 private:
  nn::Parameter& weight_;
  nn::Parameter* bias_ = nullptr;
  bool skip_bias_add_;
  Precision precision_;
  TensorParallelLayout layout_;
};

/// y = x W^T + b with the columns of W (the input features) split over the group: x has this rank's
/// features, y is summed over the ranks and replicated, or a piece of the sequence. The bias, which
/// every rank holds whole, is added after the sum.
class RowParallelLinear final : public nn::Module {
 public:
  explicit RowParallelLinear(const ParallelLinearSpec& spec);

  std::string type_name() const override { return "RowParallelLinear"; }
  std::string extra_repr() const override;
  /// `recompute_x` as in linear().
  OutputAndBias forward(const Tensor& x, std::function<Tensor()> recompute_x = nullptr) const;

 private:
  nn::Parameter& weight_;
  nn::Parameter* bias_ = nullptr;
  bool skip_bias_add_;
  Precision precision_;
  TensorParallelLayout layout_;
};

/// Rows of a table [vocabulary, hidden], split over the group by rows. ids [B, S] -> [B, S,
/// hidden], or [S, B] -> [S, B, hidden]; with sequence parallelism the rank's piece of that.
class VocabParallelEmbedding final : public nn::Module {
 public:
  VocabParallelEmbedding(const std::string& logical_name,
                         int64_t num_embeddings,
                         int64_t embedding_dim,
                         InitMethod init,
                         const TensorParallelLayout& layout);

  std::string type_name() const override { return "VocabParallelEmbedding"; }
  std::string extra_repr() const override;
  /// IndexError if an id lies outside the vocabulary.
  Tensor forward(const Tensor& ids) const;
  nn::Parameter& weight() const { return weight_; }

 private:
  int64_t vocabulary_;
  TensorParallelLayout layout_;
  VocabularyShard shard_;
  nn::Parameter& weight_;
};

/// A matrix or table [vocabulary, hidden], this rank's rows of it.
LogicalInit vocabulary_rows(const std::string& logical_name,
                            int64_t vocabulary,
                            int64_t hidden,
                            InitMethod init,
                            const TensorParallelLayout& layout);

}  // namespace tapestry
