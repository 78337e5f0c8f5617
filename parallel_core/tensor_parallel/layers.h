// Linear layers and embeddings whose weights are split over a tensor-parallel group. A rank holds
// its slice alone; in a group of one that is everything.
//
// Hidden states are [B, S, H] or [S, B, H]. With sequence parallelism (TensorParallelLayout), they
// are the rank's piece of the sequence outside of the layers: a column-parallel layer gathers its
// input, a row-parallel one scatters its output.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nn/module.h"
#include "nn/module_call.h"
#include "parallel_core/parameter_builder.h"
#include "parallel_core/precision.h"
#include "parallel_core/tensor_parallel/low_rank.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

/// What a linear layer of a parallel model is made of, on this rank: for weights that are built
/// from several logical tensors. The others are made from a name and global sizes.
struct ParallelLinearSpec {
  int64_t input_size = 0;
  int64_t output_size = 0;
  std::vector<LogicalInit> weight;  ///< pieces of the weight [output_size, input_size]
  std::vector<LogicalInit> bias;    ///< pieces of the bias [output_size]; empty: no bias
  /// Column: every rank has all rows, and multiplies its piece of the sequence, or all of it, by
  /// them.
  bool replicated = false;
  bool skip_bias_add = false;     ///< return the bias instead of adding it
  bool gather_output = false;     ///< column: see ColumnParallelLinearOptions
  bool input_is_parallel = true;  ///< row: see RowParallelLinearOptions
  Precision precision;            ///< of the product
  TensorParallelLayout layout;
  LowRankSpec low_rank = {};  ///< what adapters add; empty: nothing
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
/// `keeps_gathered` as in column_parallel_linear(); not fused, that is so anyway. In exact mode the
/// gradient of x is a tree over the rows of all ranks; if the weight is several logical tensors of
/// equal size, one below the other, `pieces` is their number.
Tensor project_columns(const Tensor& x,
                       const nn::Parameter& weight,
                       const nn::Parameter* bias,
                       const Precision& precision,
                       const TensorParallelLayout& layout,
                       bool keeps_gathered = false,
                       int64_t pieces = 1);

/// x W^T + b in exact mode by the columns of W that this rank has: x has the rank's features; the
/// result is the sum over the ranks, a tree over the features of all, replicated or a piece of the
/// sequence. `recompute_x` as in project().
Tensor project_rows(const Tensor& x,
                    const nn::Parameter& weight,
                    const nn::Parameter* bias,
                    const Precision& precision,
                    const TensorParallelLayout& layout,
                    std::function<Tensor()> recompute_x = nullptr);

struct ColumnParallelLinearOptions {
  bool bias = true;
  bool gather_output = false;  ///< every rank gets the features of all, and uses them alike
  bool skip_bias_add = false;  ///< return the bias, the rank's part of it, instead of adding it
  std::optional<InitMethod> init_method = {};  ///< of the weight; empty: weight_init
  std::optional<InitMethod> bias_init = {};    ///< empty: zeros
};

/// y = x W^T + b with the rows of W (the output features) split over the group. x [.., in] is
/// replicated or a piece of the sequence; y [.., out] has this rank's features.
class ColumnParallelLinear final : public nn::Module, public nn::Callable<ColumnParallelLinear> {
 public:
  explicit ColumnParallelLinear(const ParallelLinearSpec& spec);
  /// Global sizes; `name` is that of the logical tensors NAME.weight [out, in] and NAME.bias [out],
  /// which no layout changes and from which start values follow. Precision, layout and
  /// initialisation are the configuration's. ValueError, with the name, if the ranks cannot divide
  /// the output features, or to skip the addition of a bias to a gathered output.
  ColumnParallelLinear(const std::string& name,
                       int64_t input_size,
                       int64_t output_size,
                       const AllConfig& config,
                       const ColumnParallelLinearOptions& options = {});

  std::string type_name() const override { return "ColumnParallelLinear"; }
  std::string extra_repr() const override;
  OutputAndBias forward(const Tensor& x, bool keeps_gathered = false) const;
  nn::Parameter& weight() const { return weight_; }
  nn::Parameter* bias() const { return bias_; }  ///< null without one
  /// Null without adapters.
  const LowRankAddition* low_rank() const { return low_rank_ ? &*low_rank_ : nullptr; }
  /// What forward() multiplies by, on this rank: the weight in the dtype of products, with what
  /// adapters add. Without a graph. Where sequences are divided over ranks that is a collective.
  Tensor effective_weight() const;
  /// Magnitudes of adapters become the lengths of the weight's rows, as long as these have not been
  /// trained; see LowRankAddition.
  void start_magnitudes() const;

 private:
  nn::Parameter& weight_;
  nn::Parameter* bias_ = nullptr;
  bool skip_bias_add_;
  bool gather_output_;
  bool replicated_;
  int64_t pieces_;  // of its rows: logical tensors one below the other
  Precision precision_;
  TensorParallelLayout layout_;
  std::optional<LowRankAddition> low_rank_;
};

struct RowParallelLinearOptions {
  bool bias = true;
  bool input_is_parallel =
      true;                    ///< x has the rank's features; else all, of which it takes its own
  bool skip_bias_add = false;  ///< return the bias instead of adding it
  std::optional<InitMethod> init_method = {};  ///< of the weight; empty: output_weight_init
  std::optional<InitMethod> bias_init = {};    ///< empty: zeros
};

/// y = x W^T + b with the columns of W (the input features) split over the group: x has this rank's
/// features, y is summed over the ranks and replicated, or a piece of the sequence. The bias, which
/// every rank holds whole, is added after the sum.
class RowParallelLinear final : public nn::Module, public nn::Callable<RowParallelLinear> {
 public:
  explicit RowParallelLinear(const ParallelLinearSpec& spec);
  /// As for ColumnParallelLinear, but it is the input features that are divided. ValueError too for
  /// an input that is not parallel with sequence parallelism, where it is a piece of the sequence.
  RowParallelLinear(const std::string& name,
                    int64_t input_size,
                    int64_t output_size,
                    const AllConfig& config,
                    const RowParallelLinearOptions& options = {});

  std::string type_name() const override { return "RowParallelLinear"; }
  std::string extra_repr() const override;
  /// `recompute_x` as in linear().
  OutputAndBias forward(const Tensor& x, std::function<Tensor()> recompute_x = nullptr) const;
  nn::Parameter& weight() const { return weight_; }
  /// As for ColumnParallelLinear.
  const LowRankAddition* low_rank() const { return low_rank_ ? &*low_rank_ : nullptr; }
  void start_magnitudes() const;

 private:
  OutputAndBias exact_forward(const Tensor& x,
                              const LowRankAddition* added,
                              std::function<Tensor()> recompute_x) const;

  nn::Parameter& weight_;
  nn::Parameter* bias_ = nullptr;
  bool skip_bias_add_;
  bool input_is_parallel_;
  Precision precision_;
  TensorParallelLayout layout_;
  std::optional<LowRankAddition> low_rank_;
};

/// Rows of a table [vocabulary, hidden], split over the group by rows. ids [B, S] -> [B, S,
/// hidden], or [S, B] -> [S, B, hidden]; with sequence parallelism the rank's piece of that.
class VocabParallelEmbedding final : public nn::Module,
                                     public nn::Callable<VocabParallelEmbedding> {
 public:
  VocabParallelEmbedding(const std::string& logical_name,
                         int64_t num_embeddings,
                         int64_t embedding_dim,
                         InitMethod init,
                         const TensorParallelLayout& layout);
  /// The logical tensor is NAME.weight [num_embeddings, embedding_dim]; weight_init unless `init`
  /// says otherwise.
  VocabParallelEmbedding(const std::string& name,
                         int64_t num_embeddings,
                         int64_t embedding_dim,
                         const AllConfig& config,
                         std::optional<InitMethod> init = {});

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

/// All logits [.., vocabulary], without padding, of those that each rank has of its part of the
/// vocabulary; every rank makes the same use of them.
Tensor gather_vocabulary(const Tensor& own, int64_t vocabulary, const TensorParallelLayout& layout);

/// A matrix or table [vocabulary, hidden], this rank's rows of it.
LogicalInit vocabulary_rows(const std::string& logical_name,
                            int64_t vocabulary,
                            int64_t hidden,
                            InitMethod init,
                            const TensorParallelLayout& layout);

}  // namespace tapestry
