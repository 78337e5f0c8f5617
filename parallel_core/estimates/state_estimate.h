// What a rank keeps from step to step of its parameters, and what it holds at the start.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "parallel_core/config/model_matrices.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/estimates/trained_share.h"

namespace tapestry {

/// Sums and products of sizes are made in double, so that absurd configurations cannot overflow.
inline int64_t bytes_of(double size) {
  return size < 4.6e18 ? static_cast<int64_t>(size) : std::numeric_limits<int64_t>::max() / 16;
}

/// Elements of a rank's part of a model that are treated in other ways than those of most matrices.
struct SpecialElements {
  double looked_up = 0;  ///< of tables of which no product is made: without a 16-bit copy
  double tables = 0;     ///< those and a tied one, which are never split (store_param_remainders)
  double rows_and_columns = 0;  ///< of all matrices, of which some optimizers have statistics
  double of_layers = 0;         ///< of matrices in layers
};

/// Of `count` parameters: their bytes, those of gradients and optimizer, and what could be had for
/// less.
void estimate_states(const AllConfig& config,
                     double count,
                     const SpecialElements& special,
                     MemoryEstimate& estimate);

/// The same where adapters are trained beside a frozen base, `quantizable` of whose parameters may
/// be blocks, and of which `looked_up` are in tables that no product reads.
void estimate_adapter_states(const AllConfig& config,
                             double base,
                             double quantizable,
                             double looked_up,
                             const TrainedShare& share,
                             MemoryEstimate& estimate);

/// Elements of the matrices of layers that may be blocks (lora_config.base_dtype).
double quantizable_elements(const TransformerConfig& model,
                            const std::vector<AlikeLayers>& layers,
                            const ModelShares& shares);

/// What is left to one rank of what data-parallel ranks share out: experts over those that have the
/// same ones.
void share_out(const AllConfig& config,
               int64_t ranks,
               int64_t expert_ranks,
               MemoryEstimate& estimate);

/// What starting, loading and saving need.
void estimate_checkpoints(const AllConfig& config,
                          double count,
                          int64_t ranks,
                          MemoryEstimate& estimate);

}  // namespace tapestry
