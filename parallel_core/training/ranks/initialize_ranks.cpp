#include "parallel_core/training/ranks/initialize_ranks.h"

#include <numeric>
#include <optional>

#include "autograd/kernels/machine/team.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/batch_rampup.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/ranks/equal_configurations.h"

namespace tapestry {

void check_world_size(const ModelParallelConfig& config, int world_size) {
  const int64_t model = config.tensor_model_parallel_size * config.pipeline_model_parallel_size *
                        config.context_parallel_size;
  check<ValueError>(world_size % model == 0, "parallel_config: tensor_model_parallel_size ",
                    config.tensor_model_parallel_size, " x pipeline_model_parallel_size ",
                    config.pipeline_model_parallel_size, " x context_parallel_size ",
                    config.context_parallel_size, " need ", model,
                    " ranks, or a multiple of it; this job has ", world_size,
                    "; start it with mpirun -n ", model, " or RANKS=", model, " pretrain_gpt.sh");
  const int64_t data = world_size / model;
  const int64_t meant = config.data_parallel_size.value_or(data);
  check<ValueError>(data == meant, "parallel_config.data_parallel_size is ", meant,
                    ", but the ranks of this job, ", world_size, ", leave ", data,
                    " for data parallelism (ranks / tensor x pipeline x context parallel size); "
                    "start it with mpirun -n ",
                    meant * model, " or RANKS=", meant * model,
                    " pretrain_gpt.sh, or leave the key out");
}

void check_expert_ranks(const AllConfig& config, int world_size) {
  const ModelParallelConfig& p = config.parallel_config;
  const int64_t etp = expert_tensor_parallel_size(p);
  const int64_t ep = p.expert_model_parallel_size;
  const int64_t stage = world_size / p.pipeline_model_parallel_size;
  if (stage % (etp * ep) == 0) {
    return;
  }
  std::string place = "parallel_config";
  for (const char* key : {"expert_tensor_parallel_size", "expert_model_parallel_size"}) {
    const auto origin = config.origins.find(concat("parallel_config.", key));
    if (origin != config.origins.end() && !origin->second.place.empty()) {
      place = concat(origin->second.place, ": parallel_config.", key);
    }
  }
  const int64_t dense = p.tensor_model_parallel_size * p.context_parallel_size;
  const int64_t ranks = p.pipeline_model_parallel_size * std::lcm(etp * ep, dense);
  throw ConfigError(
      {concat(place, ": expert_model_parallel_size ", ep, " x expert_tensor_parallel_size ", etp,
              " does not divide the ", stage, stage == 1 ? " rank" : " ranks",
              " of a pipeline stage (tensor ", p.tensor_model_parallel_size, " x context ",
              p.context_parallel_size, " x data ", stage / dense,
              "); lower one of the two, or start a multiple of ", ranks, " ranks")});
}

ModelParallelSizes model_parallel_sizes(const ModelParallelConfig& config) {
  const int64_t chunks = config.virtual_pipeline_model_parallel_size.value_or(1);
  return {.tensor_model_parallel_size = static_cast<int>(config.tensor_model_parallel_size),
          .pipeline_model_parallel_size = static_cast<int>(config.pipeline_model_parallel_size),
          .virtual_pipeline_model_parallel_size =
              chunks > 1 ? std::optional(static_cast<int>(chunks)) : std::nullopt,
          .context_parallel_size = static_cast<int>(config.context_parallel_size),
          .expert_model_parallel_size = static_cast<int>(config.expert_model_parallel_size),
          .expert_tensor_parallel_size = static_cast<int>(expert_tensor_parallel_size(config))};
}

std::string layout_line(const ModelParallelConfig& config, int64_t data_parallel_size) {
  const auto& vpp = config.virtual_pipeline_model_parallel_size;
  return concat("dp ", data_parallel_size, " | pp ", config.pipeline_model_parallel_size, " | tp ",
                config.tensor_model_parallel_size, " | sp ",
                config.sequence_parallel ? "True" : "False", " | vpp ",
                vpp ? std::to_string(*vpp) : "None",
                config.context_parallel_size > 1 ? concat(" | cp ", config.context_parallel_size)
                                                 : std::string(),
                config.expert_model_parallel_size > 1 || config.expert_tensor_parallel_size
                    ? concat(" | ep ", config.expert_model_parallel_size, " | etp ",
                             expert_tensor_parallel_size(config))
                    : std::string());
}

void initialize_ranks(const AllConfig& config, const std::shared_ptr<ProcessGroup>& world) {
  check_equal_configurations(config, *world);
  require_supported(config);
  if (config.training_config.num_threads) {
    set_num_threads(static_cast<int>(*config.training_config.num_threads));
  }
  if (!model_parallel_is_initialized()) {
    const ModelParallelConfig& p = config.parallel_config;
    check_world_size(p, world->size());
    check_expert_ranks(config, world->size());
    initialize_model_parallel(model_parallel_sizes(p), world);
  }
  check_rampup(config, get_data_parallel_world_size());
}

}  // namespace tapestry
