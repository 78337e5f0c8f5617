// Linear layers and embeddings whose weights can be split over a tensor-parallel group.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nn/module.h"
#include "parallel_core/transformer/parameter_builder.h"
#include "parallel_core/transformer/precision.h"

namespace tapestry {

/// What a linear layer of a parallel model is made of.
struct ParallelLinearSpec {
  int64_t input_size = 0;
  int64_t output_size = 0;
  std::vector<LogicalInit> weight;  ///< pieces of the weight [output_size, input_size]
  std::vector<LogicalInit> bias;    ///< pieces of the bias [output_size]; empty: no bias
  bool skip_bias_add = false;       ///< return the bias instead of adding it
  Precision precision;              ///< of the product
};

/// y = x W^T + b with the rows of W (the output features) split over the group. x [.., in];
/// y [.., out].
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
};

/// y = x W^T + b with the columns of W (the input features) split over the group; the bias, which
/// every rank holds whole, is added after the sum over the group.
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
};

/// Rows of a table [vocabulary, hidden], split over the group by rows. ids [B, S] -> [B, S,
/// hidden].
class VocabParallelEmbedding final : public nn::Module {
 public:
  VocabParallelEmbedding(int64_t num_embeddings, int64_t embedding_dim, const LogicalInit& weight);

  std::string type_name() const override { return "VocabParallelEmbedding"; }
  std::string extra_repr() const override;
  /// IndexError if an id lies outside the vocabulary.
  Tensor forward(const Tensor& ids) const;
  nn::Parameter& weight() const { return weight_; }

 private:
  nn::Parameter& weight_;
};

}  // namespace tapestry
