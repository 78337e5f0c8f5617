// What is in memory at once in the course of a training step, from what each of its passes keeps.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/pipeline_parallel/pipeline_order.h"

namespace tapestry {

/// Bytes of a layer on one rank, for one micro-batch.
struct LayerMemory {
  double kept = 0;       ///< from its forward to the end of its backward pass
  double transient = 0;  ///< beside these while it runs: what is made again
  double workspace = 0;  ///< temporaries of its backward pass
  double gradients = 0;  ///< of its parameters
};

/// The layers that a rank runs in one pass, and what the rank has at their ends.
struct ChunkMemory {
  std::vector<LayerMemory> layers;
  double kept = 0;             ///< beside what layers keep
  double first_gradients = 0;  ///< of embeddings in front of the layers, made last
  double first_workspace = 0;  ///< while they are made
};

/// Output layer and loss of the last chunk.
struct HeadMemory {
  double kept = 0;       ///< until its backward pass, beside the gradient of its weight
  double forward = 0;    ///< beside that while the loss is made
  double backward = 0;   ///< and while its backward pass runs
  double reduction = 0;  ///< then, without what was kept: while its gradient is summed over ranks
  double gradient = 0;   ///< of its weight
  double less = 0;       ///< that this takes where it is the sum of gradients
  bool in_forward = false;  ///< that gradient is made in the forward pass
  bool is_given = false;    ///< and becomes the sum of gradients, where there was none
};

/// Where gradients are: how many bytes of them are there when.
enum class GradientPlaces : uint8_t {
  kStay,      ///< all of them, or what a rank has of them, the whole step
  kOnDemand,  ///< from the first contribution on
  kOneByOne,  ///< each until its parameter is updated, in the backward pass
};

struct StepMemory {
  PipelineShape pipeline;
  int stage = 0;
  std::vector<ChunkMemory> chunks;
  HeadMemory head;
  bool has_head = false;
  bool head_is_first = false;  ///< its weight is the table of embeddings, whose gradient is
                               ///< complete at the end of the backward pass
  GradientPlaces places = GradientPlaces::kOnDemand;
  double gradients = 0;   ///< all that the rank has at the end of the step
  double reduction = 0;   ///< messages of sums over ranks after the last backward pass
  double update = 0;      ///< temporaries of the update
  double saving = 0;      ///< and of a checkpoint that is written then
  double evaluation = 0;  ///< of a forward pass for an evaluation; 0: there is none
};

/// The most bytes at any time of the step, beside what stays from step to step, and the most passes
/// that have run forward and not yet backward.
struct StepPeak {
  double bytes = 0;
  int64_t passes = 0;
};

StepPeak most_at_once(const StepMemory& step);

}  // namespace tapestry
