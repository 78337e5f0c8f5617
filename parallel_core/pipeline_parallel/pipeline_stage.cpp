#include "parallel_core/pipeline_parallel/pipeline_stage.h"

#include "autograd/tensor/error.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

PipelineStage whole_model(const TransformerConfig& config) {
  return {.rank = 0, .size = 1, .chunks = {{0, config.num_layers}}};
}

PipelinePlace pipeline_place() {
  if (!model_parallel_is_initialized()) {
    return {};
  }
  return {get_pipeline_model_parallel_rank(), get_pipeline_model_parallel_world_size()};
}

PipelineStage get_pipeline_stage(const AllConfig& config) {
  if (!model_parallel_is_initialized()) {
    return whole_model(config.model_config);
  }
  const PipelinePlace place = pipeline_place();
  const int64_t configured = config.parallel_config.pipeline_model_parallel_size;
  check<RuntimeError>(place.size == configured, "pipeline: the groups are those of ", place.size,
                      " stages, the configuration has pipeline_model_parallel_size ", configured);
  PipelineStage stage{.rank = place.rank, .size = place.size, .chunks = {}};
  for (const auto& row : layer_ranges(config.model_config.num_layers, config.parallel_config)) {
    stage.chunks.push_back(row[static_cast<size_t>(place.rank)]);
  }
  return stage;
}

}  // namespace tapestry
