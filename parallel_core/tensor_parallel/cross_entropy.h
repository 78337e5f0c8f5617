// Cross entropy over a vocabulary that is split over ranks.
#pragma once

#include <string>

#include "nn/module.h"
#include "nn/module_call.h"
#include "parallel_core/tensor_parallel/tensor_parallel_layout.h"

namespace tapestry {

/// Loss of every token, -log softmax(logits)[label], where each rank has the logits of its part of
/// the vocabulary (vocabulary_shard) and the same labels.
///
/// The ranks exchange one logarithm of a sum and one partial loss per token (with label smoothing
/// also one sum), never logits. Backward needs nothing from other ranks.
class VocabParallelCrossEntropy final : public nn::Module,
                                        public nn::Callable<VocabParallelCrossEntropy> {
 public:
  VocabParallelCrossEntropy(int64_t vocabulary, const TensorParallelLayout& layout)
      : vocabulary_(vocabulary), layout_(layout) {}
  explicit VocabParallelCrossEntropy(const AllConfig& config)
      : VocabParallelCrossEntropy(config.model_config.vocab_size, tensor_parallel_layout(config)) {}

  std::string type_name() const override { return "VocabParallelCrossEntropy"; }
  /// logits [.., rows of the shard] of any floating dtype, labels [..] int32 or int64 -> [..],
  /// float32 (float64 for float64 logits), the same on every rank. `label_smoothing` in [0, 1)
  /// spreads that share of the target evenly over the vocabulary. Saves logits, labels and one
  /// number per row. Where nobody else holds the logits when backward comes, their gradient takes
  /// their place. Errors as in cross_entropy(); ValueError for logits of another width.
  Tensor forward(const Tensor& logits, const Tensor& labels, double label_smoothing = 0) const;

 private:
  int64_t vocabulary_;
  TensorParallelLayout layout_;
};

/// log(sum(exp(logits))) over the whole vocabulary, of logits [.., rows of the shard] -> [..], the
/// same on every rank: for a loss of one's own, such as z-loss. Padding does not count. The ranks
/// exchange one number a row; backward needs nothing from other ranks.
Tensor vocab_parallel_logsumexp(const Tensor& logits,
                                int64_t vocabulary,
                                const TensorParallelLayout& layout);

}  // namespace tapestry
