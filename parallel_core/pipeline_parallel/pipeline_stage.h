// The part of the model that a rank of a pipeline holds.
#pragma once

#include <vector>

#include "parallel_core/config/layer_split.h"

namespace tapestry {

/// Chunk v of rank p is model stage v * size + p: the embeddings belong to the first chunk of the
/// first rank, the final norm, head and loss to the last chunk of the last one.
struct PipelineStage {
  int rank = 0;
  int size = 1;
  std::vector<LayerRange> chunks;

  int num_chunks() const { return static_cast<int>(chunks.size()); }
  bool is_first(int chunk) const { return rank == 0 && chunk == 0; }
  bool is_last(int chunk) const { return rank == size - 1 && chunk == num_chunks() - 1; }
  bool pre_process() const { return rank == 0; }
  bool post_process() const { return rank == size - 1; }
};

/// One stage that holds every layer.
PipelineStage whole_model(const TransformerConfig& config);

/// The calling rank's part; the whole model before initialize_model_parallel. ValueError for layers
/// that cannot be split as configured (layers_per_chunk), RuntimeError if the groups were made for
/// another pipeline than the configuration's.
PipelineStage get_pipeline_stage(const AllConfig& config);

/// The calling rank's place in the pipeline: rank 0 of 1 before initialize_model_parallel.
struct PipelinePlace {
  int rank = 0;
  int size = 1;
};
PipelinePlace pipeline_place();

}  // namespace tapestry
