#include "parallel_core/training/data/recorded_run_data.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/data/step_dataset.h"
#include "parallel_core/training/data/take_up_data.h"

namespace tapestry::internal {

namespace {

std::unique_ptr<data::StepDataSource> open_steps(const AllConfig& config) {
  const DatasetConfig& d = config.dataset_config;
  const ModelParallelConfig& layout = config.parallel_config;
  auto steps = std::make_unique<data::StepDataSource>(
      *d.step_data_dir,
      data::StepDataSource::Options{
          .vocab_size = config.model_config.vocab_size,
          .ranks = {.neighbours = layout.tensor_model_parallel_size * layout.context_parallel_size,
                    .stages = layout.pipeline_model_parallel_size},
          .batch = batches_of(config).batch_at(0),
          .repeats = true,
          .as_samples = d.step_data_as_samples});
  check<ValueError>(steps->seq_length() == config.model_config.seq_length,
                    "dataset_config.step_data_dir ", *d.step_data_dir, ": rows have ",
                    steps->seq_length(), " tokens, model_config.seq_length is ",
                    config.model_config.seq_length);
  return steps;
}

// Whether a run at `position` has read all of the first `steps` steps, and some of them again.
bool has_begun_again(const data::StepDataSource& source,
                     int64_t steps,
                     bool as_samples,
                     const data::BatchPosition& position) {
  return as_samples ? position.first_sample > source.rows_until(steps) : position.step > steps;
}

// What is not as in the recorded run.
void add_remarks(const AllConfig& config, const data::StepDataSource& steps, RunData& run) {
  const DatasetConfig& d = config.dataset_config;
  const BatchSchedule batches = batches_of(config);
  const std::string name = concat("dataset_config.step_data_dir ", *d.step_data_dir);
  const int64_t rows = steps.rows_until(steps.num_steps());
  if (steps.copies() > 1) {
    run.remarks.push_back(concat(name, ": each row is there ", steps.copies(),
                                 " times, as in folders of all ranks of a job, and counts once"));
  }
  if (d.step_data_as_samples) {
    run.remarks.push_back(
        concat(name, ": its ", rows, " rows are taken one after the other, ",
               batches.ramps() ? "as many as a step has" : concat(batches.full(), " a step"),
               " (step_data_as_samples)"));
  }
  const data::BatchPosition done = run.opened.in_run();
  const int64_t left = std::max<int64_t>(0, total_steps(config, done) - done.step);
  const int64_t drawn = batches.consumed_after(left, done.first_sample) - done.first_sample;
  const bool again = d.step_data_as_samples ? run.start.first_sample + drawn > rows
                                            : run.start.step + left > steps.num_steps();
  if (again || config.training_config.epochs.value_or(1) > 1) {
    run.remarks.push_back(
        concat(name, " holds ", steps.num_steps(), steps.num_steps() == 1 ? " step" : " steps",
               again ? concat(", the run has ", run.start.step + left) : std::string(),
               ": behind the last one the first one comes again, in a further "
               "epoch"));
  }
}

}  // namespace

RunData open_recorded(const AllConfig& config, const DataState* resumed) {
  RunData run;
  auto steps = open_steps(config);
  const bool as_samples = config.dataset_config.step_data_as_samples;
  // A recording to which steps have been added since is still the same.
  const int64_t known = resumed != nullptr && resumed->recorded
                            ? std::min(resumed->recorded->steps, steps->num_steps())
                            : steps->num_steps();
  run.opened.seq_length = steps->seq_length();
  run.opened.recorded = {*config.dataset_config.step_data_dir, steps->num_steps(),
                         steps->fingerprint(known), as_samples};
  take_up(config, resumed, DataUse::kTraining, run.opened, run);
  run.start = run.opened.position;
  if (known < steps->num_steps()) {
    if (has_begun_again(*steps, known, as_samples, run.start)) {
      run.remarks.push_back(
          concat("dataset_config.step_data_dir ", *config.dataset_config.step_data_dir, ": the ",
                 steps->num_steps() - known, " steps behind the first ", known,
                 " were added when the run had begun these again, and are not read"));
      steps->keep_first(known);
      run.opened.recorded->steps = known;
    } else {
      run.opened.recorded->crc64 = steps->fingerprint(steps->num_steps());
    }
  }
  add_remarks(config, *steps, run);
  run.description = concat(steps->num_steps(), " recorded steps");
  run.train = std::move(steps);
  return run;
}

}  // namespace tapestry::internal
