#include "diagnosis/verify/layout_trace.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/tape/grad_mode.h"
#include "diagnosis/verify/compared_training.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/random.h"

namespace tapestry {

size_t LayoutTrace::index_of(const std::string& tensor) const {
  return static_cast<size_t>(std::find(tensors.begin(), tensors.end(), tensor) - tensors.begin());
}

namespace {

// Where the schedule has its largest learning rate first.
optim::Schedule::Position strongest_update(const optim::Schedule& schedule, int64_t steps) {
  optim::Schedule::Position best;
  for (int64_t n = 0; n < steps; ++n) {
    if (schedule.learning_rate({n, n}) > schedule.learning_rate(best)) {
      best = {n, n};
    }
  }
  return best;
}

LogicalState jittered(const LogicalState& state, double size, uint64_t seed) {
  const NoGradGuard guard;
  LogicalState out;
  for (const auto& [name, value] : state) {
    const Tensor noise = normal(0, size, value.shape(), kFloat32,
                                RandomKey{seed, stream_of("verify_layout." + name), 0});
    out.emplace(name, value.to(kFloat32) + noise);
  }
  return out;
}

}  // namespace

LayoutTrace trace_single_process(const LayoutPair& pair,
                                 const VerifyOptions& options,
                                 int64_t steps) {
  const AllConfig& config = pair.single;
  ComparedTraining training(config, options, false);
  LayoutTrace trace;
  for (const nn::Module::NamedParameter& entry : training.model->named_parameters()) {
    for (const nn::LogicalTensor& logical : entry.parameter->logical()) {
      trace.tensors.push_back(logical.name);
    }
  }
  trace.initial = get_logical_state(*training.model);
  if (const std::string& path = config.training_config.load_checkpoint; !path.empty()) {
    load_weights(*training.model, config.model_config, path);
    trace.start = get_logical_state(*training.model);
  } else {
    trace.start =
        jittered(trace.initial, options.jitter, static_cast<uint64_t>(config.training_config.seed));
    set_logical_state(*training.model, trace.start, "verify_layout");
  }
  trace.position = strongest_update(*get_optimizer_param_scheduler(config, 1),
                                    std::max<int64_t>(total_training_iters(config), 1));
  training.start(trace.position);
  for (int64_t step = 1; step <= steps; ++step) {
    StepTrace now;
    const std::vector<data::Batch> batches = training.batches(step - 1);
    std::optional<SampleRecorder> recorder;
    if (is_looked_at(options, step)) {
      recorder.emplace(watched_samples(batches, static_cast<size_t>(pair.data_parallel_size)));
    }
    training.cell->set_gradient_observer(
        [&](int64_t /*step*/) { now.gradients = logical_gradients(*training.model); },
        [&](int64_t /*step*/) { return is_looked_at(options, step); });
    {
      const RecordedChoices choices(trace.choices);
      now.result = (*training.cell)(batches);
    }
    training.cell->set_gradient_observer({});
    if (recorder) {
      now.order = recorder->order();
      for (auto& [key, row] : recorder->rows()) {
        now.activations.emplace(key, std::move(row.value));  // of one rank: whole
      }
    }
    if (options.every_step || step == steps) {
      now.weights = get_logical_state(*training.model, training.optimizer.get());
    }
    trace.steps.push_back(std::move(now));
  }
  return trace;
}

}  // namespace tapestry
