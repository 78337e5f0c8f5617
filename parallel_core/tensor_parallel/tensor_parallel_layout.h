// How the current rank takes part in tensor and sequence parallelism.
#pragma once

#include <optional>

#include "autograd/kernels/machine/exact.h"
#include "nn/parameter.h"
#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// What a layer needs to know to hold and use its share.
struct TensorParallelLayout {
  ProcessGroup* group = nullptr;  ///< null where `size` is 1 and no groups were made
  int rank = 0;
  int size = 1;
  /// Axis of hidden states along which they are divided over the ranks outside the layers' matrix
  /// products (sequence parallelism): 1 for [B, S, H], 0 for [S, B, H]. Empty: they are replicated.
  std::optional<int64_t> sequence_axis;
  /// Of the sums that ranks divide in exact mode: a power of two up to kSumLeaves, which follows
  /// from the model, not from the ranks (sum_leaves). Ranks divide it.
  int64_t leaves = kSumLeaves;

  /// How gradients relate of a parameter that is used on hidden states: each rank sees only its
  /// piece of the sequence with sequence parallelism, all of it otherwise.
  nn::TensorParallel hidden_gradient() const {
    return sequence_axis ? nn::TensorParallel::kPartial : nn::TensorParallel::kReplicated;
  }
  /// How gradients relate of a parameter that every rank uses on its own heads.
  nn::TensorParallel head_gradient() const {
    return size > 1 ? nn::TensorParallel::kPartial : nn::TensorParallel::kReplicated;
  }
  /// Of a parameter of which each rank has its own part.
  nn::TensorParallel part_gradient() const {
    return size > 1 ? nn::TensorParallel::kSharded : nn::TensorParallel::kReplicated;
  }
  /// How many of `total` things each rank has. ValueError, naming them, unless divisible.
  int64_t share_of(int64_t total, const char* what) const;
};

/// The layout of the current rank; a group of one where initialize_model_parallel was not called.
TensorParallelLayout tensor_parallel_layout(const TransformerConfig& config, bool sequence_first);
/// The same with the configuration's data_layout.
TensorParallelLayout tensor_parallel_layout(const AllConfig& config);
/// The most tensor-parallel ranks that can have groups of keys and values of their own, as a power
/// of two up to kSumLeaves.
int64_t sum_leaves(const TransformerConfig& config);
/// Whether hidden states are [S, B, H]: data_layout SBH.
bool is_sequence_first(const AllConfig& config);

/// Rows of a vocabulary that a rank holds. Every rank has as many rows, so the last ones may have
/// padding behind the vocabulary's end: rows of zeros that no token names and no logit counts.
struct VocabularyShard {
  int64_t first = 0;  ///< row of the vocabulary that is row 0 here
  int64_t rows = 0;   ///< with padding
  int64_t valid = 0;  ///< without
};
VocabularyShard vocabulary_shard(int64_t vocabulary, int rank, int size);

}  // namespace tapestry
