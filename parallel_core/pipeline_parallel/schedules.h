// Forward and backward passes of one step over the stages of a pipeline.
#pragma once

#include <functional>

#include "autograd/kernels/machine/exact.h"
#include "parallel_core/pipeline_parallel/p2p_communication.h"

namespace tapestry {

/// What one chunk's forward pass leaves.
struct StageOutput {
  Tensor value;     ///< hidden states for the next stage; of the last stage the loss
  Tensor gradient;  ///< of the last stage: where backward starts; not used on others
};

/// The work of one step on the calling rank. All ranks of a pipeline describe the same work.
struct PipelineWork {
  int64_t micro_batches = 1;
  int chunks = 1;
  /// Run no backward passes. The caller has switched recording off.
  bool forward_only = false;
  PipelineMessages messages;
  /// Runs a chunk on a micro-batch. `input` holds the previous stage's hidden states and wants a
  /// gradient; undefined on the first stage.
  std::function<StageOutput(int chunk, int64_t micro_batch, const Tensor& input)> forward;
  /// Called before each backward pass, in every chunk with the micro-batches in order; may be
  /// empty.
  std::function<void(int chunk, int64_t micro_batch)> before_backward;
  /// Which tokens a micro-batch's are, in exact mode: told to both of its passes. May be empty.
  std::function<ExactTokens(int64_t micro_batch)> exact_tokens;
};

/// How a step went on the calling rank.
struct PipelineReport {
  double seconds = 0;
  double waiting_seconds = 0;  ///< for messages
};

/// All micro-batches on the only stage, each forward and at once backward.
/// ValueError if the rank's pipeline has more than one stage.
PipelineReport forward_backward_no_pipelining(const PipelineWork& work);

/// 1F1B; evaluation with forward_only. ValueError for more than one chunk.
PipelineReport forward_backward_pipelining_without_interleaving(const PipelineWork& work);

/// Interleaved 1F1B with any number of micro-batches; evaluation with forward_only. ValueError for
/// fewer than two chunks.
PipelineReport forward_backward_pipelining_with_interleaving(const PipelineWork& work);

using ForwardBackwardFunc = PipelineReport (*)(const PipelineWork& work);

/// The one of the three for the calling rank's pipeline (pipeline_place) and its number of chunks.
///
/// All accumulate the gradients of a chunk in the order of the micro-batches, so they give the same
/// sums as one process. A micro-batch that is under way keeps its graph and its received input; the
/// memory of what was sent on goes as soon as it has arrived.
ForwardBackwardFunc get_forward_backward_func(int chunks = 1);

}  // namespace tapestry
