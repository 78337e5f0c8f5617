#include "diagnosis/verify/compared_training.h"

#include "parallel_core/config/batch_rampup.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/training.h"

namespace tapestry {

ComparedTraining::ComparedTraining(const AllConfig& config_,
                                   const VerifyOptions& options_,
                                   bool in_layout)
    : config(config_),
      options(options_),
      step_config(in_layout && options_.parts.step_config ? options_.parts.step_config(config_)
                                                          : config_),
      source(options.parts.data ? options.parts.data(config) : open_data(config).train) {
  if (in_layout && options.parts.model) {
    model = options.parts.model(config);
  } else if (options.model) {
    model = get_model(options.model, config);
  } else {
    model = get_model(config);
  }
}

void ComparedTraining::start(optim::Schedule::Position position) {
  data_parallel = get_data_parallel(step_config, *model);
  optimizer =
      options.param_groups
          ? get_optimizer(step_config, *model, options.param_groups(*model), data_parallel.get())
          : get_optimizer(step_config, *model, data_parallel.get());
  schedule = get_optimizer_param_scheduler(step_config, get_data_parallel_world_size());
  cell = std::make_unique<TrainOneStepCell>(*model, *optimizer, *schedule, step_config,
                                            data_parallel.get());
  cell->set_position(position);
}

std::vector<data::Batch> ComparedTraining::batches(int64_t step) const {
  const DatasetConfig& d = config.dataset_config;
  const int64_t ranks = get_data_parallel_world_size();
  const BatchSchedule schedule(config, ranks);
  const data::BatchPosition position{step, schedule.consumed_after(step)};
  const int64_t count = schedule.micro_batches_at(position.first_sample);
  std::vector<data::Batch> out;
  for (int64_t m = 0; m < count; ++m) {
    out.push_back(
        source->micro_batch(position, m, count, d.batch_size, get_data_parallel_rank(), ranks));
  }
  return out;
}

}  // namespace tapestry
