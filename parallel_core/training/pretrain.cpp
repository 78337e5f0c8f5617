#include "parallel_core/training/pretrain.h"

#include <string>

#include "autograd/kernels/machine/exact.h"
#include "autograd/tensor/error.h"
#include "parallel_core/estimates/time_estimate.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/program.h"
#include "parallel_core/training/starting_run.h"
#include "parallel_core/training/step/metrics.h"

namespace tapestry {

namespace {

// "finished after 12 steps, 4 of them in this start: loss 3.1 -> 2.9". A run that was stopped says
// how to go on.
std::string end_text(const TrainSummary& summary,
                     int64_t steps_of_run,
                     const PretrainOptions& options) {
  const bool ends = !summary.stopped_on_request || options.rehearsed_steps;
  const std::string go_on =
      ends ? std::string()
           : concat("; to go on: ", options.go_on.empty()
                                        ? std::string("training_config.resume_training: True")
                                        : options.go_on);
  const std::string start =
      concat(summary.stopped_on_request ? "stopped on request after " : "finished after ",
             steps_of_run, " steps");
  if (summary.steps == 0) {
    return concat(start, ", none of them in this start", go_on);
  }
  return concat(start,
                steps_of_run == summary.steps
                    ? std::string()
                    : concat(", ", summary.steps, " of them in this start"),
                ": loss ", without_nan_sign(summary.first_loss), " -> ",
                without_nan_sign(summary.last_loss), go_on);
}

}  // namespace

TrainSummary pretrain(const AllConfig& config, const PretrainOptions& options) {
  const ExactScope exact(config.training_config.exact);
  set_log_format(config.training_config.log_format);
  initialize_ranks(config, options.world);
  StartingRun run(config, options);
  check_before_start(run);
  open_output(run);
  log_settings(run);
  tidy_output(run);
  find_checkpoint(run);
  {
    const EndAtSignals before_training;
    choose_weights(run);
    open_run_data(run);
  }
  log_data(run);
  // Measured before the model takes memory. What a model of one's own computes is not known.
  const std::string time = options.model ? std::string()
                                         : expected_time(config, get_data_parallel_world_size(),
                                                         options.world->size(), run.available);
  make_run_model(run);
  if (!run.weights.in_pieces) {
    prepare_task(run);
  }
  log_summary(run, time);
  make_run_optimizer(run);
  if (run.weights.in_pieces) {
    prepare_task(run);
  }
  restore_state(run);
  begin_files(run);
  assemble_loop(run);
  const TrainSummary summary = train(*run.cell, *run.data.train, config, run.loop);
  tell_the_end(run, summary);
  log_info(end_text(summary, run.cell->position().seen, options));
  return summary;
}

}  // namespace tapestry
