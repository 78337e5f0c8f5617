// The order in which each rank of a pipeline runs its forward and backward passes.
#pragma once

#include <cstdint>
#include <vector>

namespace tapestry {

/// A pipeline and the work of one step.
struct PipelineShape {
  int stages = 1;  ///< ranks
  int chunks = 1;  ///< of each rank, interleaved
  int64_t micro_batches = 1;
  bool forward_only = false;
};

/// One pass of one chunk over one micro-batch.
struct PipelinePass {
  bool backward = false;
  int chunk = 0;
  int64_t micro_batch = 0;
  bool operator==(const PipelinePass&) const = default;
};

/// The passes of `rank` in order: 1F1B with one chunk (Narayanan et al. 2019, PipeDream;
/// arXiv:2006.09503), interleaved 1F1B with more (Narayanan et al. 2021, arXiv:2104.04473).
///
/// Forward passes go through groups of `stages` micro-batches: the first chunk for all of the
/// group, then the second, and so on. Backward passes take the same groups with the last chunk
/// first. A rank first runs min(stages - 1 - rank, m) forward passes, with c > 1 chunks
/// min(2 (stages - 1 - rank) + (c - 1) stages, m c), then alternates a forward and a backward pass,
/// then runs what is left backward.
///
/// Interleaved micro-batches that do not divide by the stages are run in the order that the next
/// multiple would have, without the passes of those that are not there: simply a smaller last group
/// would let ranks wait for each other in a circle, while what is left of an order in which nobody
/// does has no such circle either.
///
/// ValueError for sizes below one, or a rank outside the pipeline.
std::vector<PipelinePass> pipeline_order(const PipelineShape& shape, int rank);

/// The most passes of `rank` that have run forward and not yet backward at any time.
int64_t max_in_flight(const PipelineShape& shape, int rank);

/// The share of a step in which a rank waits, averaged over the ranks, if all chunks take the same
/// time, a backward pass takes twice that of a forward pass, and messages take none. Where the
/// micro-batches divide by the stages (or there is one chunk) it is (p - 1) / (m c + p - 1).
double theoretical_bubble(const PipelineShape& shape);

}  // namespace tapestry
