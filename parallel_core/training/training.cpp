#include "parallel_core/training/training.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <utility>

#include "autograd/ops/elementwise.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/random.h"
#include "parallel_core/training/checkpoint_saver.h"
#include "parallel_core/training/divergence.h"
#include "parallel_core/training/forward_step.h"
#include "parallel_core/training/logging.h"
#include "parallel_core/training/progress.h"
#include "parallel_core/training/start_summary.h"
#include "parallel_core/training/time_estimate.h"
#include "parallel_core/training/whole_activations.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

bool contains(const std::vector<int64_t>& steps, int64_t step) {
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

bool is_due(const std::optional<int64_t>& interval, int64_t step) {
  return interval && step % *interval == 0;
}

std::vector<data::Batch> step_batches(data::DataSource& source,
                                      const AllConfig& config,
                                      data::BatchPosition position) {
  const DatasetConfig& d = config.dataset_config;
  std::vector<data::Batch> batches;
  for (int64_t m = 0; m < d.micro_batch_num; ++m) {
    batches.push_back(source.micro_batch(position, m, d.micro_batch_num, d.batch_size,
                                         get_data_parallel_rank(), get_data_parallel_world_size()));
  }
  return batches;
}

// Puts the tensors of all stages into one file.
void write_gathered(const std::string& path, std::map<std::string, Tensor> tensors) {
  const std::map<std::string, Tensor> all = gather_over_pipeline(std::move(tensors));
  if (RankContext::current().rank() == 0) {
    write_state(path, all);
  }
}

std::string dump_path(const AllConfig& config, const char* what, int64_t step) {
  return config.training_config.output_dir + "/" + what + "_step_" + std::to_string(step) +
         ".safetensors";
}

// What the first steps say about the time of all: the mean of the second and third, which have
// memory and threads, or the first alone where it is long or there are no more.
class FirstSteps {
 public:
  /// True if the time is known now.
  bool update(const StepRecord& record, bool last) {
    constexpr double kLong = 10'000;  // milliseconds
    ++steps_;
    if (steps_ > kFirstSteps || known_) {
      return false;
    }
    mean_ms_ = steps_ == 1 ? record.step_time_ms
                           : (mean_ms_ * static_cast<double>(steps_ - 2) + record.step_time_ms) /
                                 static_cast<double>(steps_ - 1);
    known_ = steps_ == kFirstSteps || last || record.step_time_ms > kLong;
    return known_;
  }

  std::string text(int64_t total) const {
    const std::string which = steps_ == kFirstSteps ? "s 2 and 3" : concat(" ", steps_);
    return summary_row("time",
                       concat(format_pace(mean_ms_ / 1000, total), ", as measured on step", which));
  }

 private:
  int64_t steps_ = 0;
  double mean_ms_ = 0;
  bool known_ = false;
};

}  // namespace

double evaluate(ParallelModel& model,
                data::DataSource& source,
                const AllConfig& config,
                int64_t iterations) {
  const int64_t batch = global_batch_size(config, get_data_parallel_world_size());
  const int64_t available = std::min(iterations, source.size_in_samples() / batch);
  check<ValueError>(available > 0, "evaluation: the data hold ", source.size_in_samples(),
                    " samples, one global batch needs ", batch,
                    "; raise their share in dataset_config.split or lower the batch size");
  const NoGradGuard guard;
  model.eval();
  double loss = 0;
  double tokens = 0;
  for (int64_t i = 0; i < available; ++i) {
    const std::vector<data::Batch> micro_batches = step_batches(source, config, {i, i * batch});
    PipelineWork work =
        pipeline_work(model, micro_batches, [&](int64_t /*micro_batch*/, ModelOutput& output) {
          loss += output.loss.item() * output.token_count;
          tokens += output.token_count;
          return StageOutput{};
        });
    work.forward_only = true;
    work.messages.overlap = config.parallel_config.overlap_p2p_comm;
    get_forward_backward_func(work.chunks)(work);
  }
  model.train();
  std::array<double, 2> sums = {loss, tokens};  // known to the last stage
  sum_over_pipeline(sums);
  sum_over(get_data_parallel_group(), sums);
  return sums[0] / std::max(sums[1], 1.0);
}

std::string eval_log_line(const char* part, int64_t step, double loss) {
  char text[120];
  std::snprintf(text, sizeof(text), "%s: Step:%lld, Loss: %.6f, Perplexity: %.4f", part,
                static_cast<long long>(step), without_nan_sign(loss),
                without_nan_sign(std::exp(loss)));
  return text;
}

std::string train_log_line(const StepRecord& record, const StepResult& result) {
  char text[160];
  std::snprintf(text, sizeof(text), "train: Epoch:%lld, Step:%lld, Loss: %.6f, Finite_grads: %s, ",
                static_cast<long long>(record.epoch), static_cast<long long>(record.step),
                without_nan_sign(result.loss), result.finite ? "True" : "False");
  std::string line = text;
  // The scale is a power of two or a small number: shown as Python shows a float.
  std::snprintf(text, sizeof(text),
                result.loss_scale == std::floor(result.loss_scale) ? "%.1f" : "%.9g",
                result.loss_scale);
  line += "Loss_scale: " + std::string(text) + ", Learning_rate: (";
  for (const double lr : result.lr) {
    std::snprintf(text, sizeof(text), "%e,", lr);
    line += text;
  }
  std::snprintf(text, sizeof(text), "), Time: %.2f ms", record.step_time_ms);
  return line + text;
}

std::string train_log_line(const StepRecord& record, const StepResult& result, const Pace& pace) {
  char text[80];
  std::snprintf(text, sizeof(text), ", Tokens/s: %.0f, Mean_loss: %.6f", pace.tokens_per_second,
                without_nan_sign(pace.mean_loss));
  return concat(train_log_line(record, result), text, pace.seconds_left ? ", Remaining: " : "",
                pace.seconds_left ? format_duration(*pace.seconds_left) : std::string());
}

std::string checkpoint_plan(const TrainingConfig& config) {
  const std::string in = concat(" in ", config.output_dir, "/checkpoint");
  if (config.save_interval || config.save_interval_seconds) {
    return concat("checkpoints: every ",
                  config.save_interval ? concat(*config.save_interval, " steps")
                                       : format_duration(*config.save_interval_seconds),
                  config.save_last ? " and at the end," : ", none at the end (save_last: False),",
                  in,
                  config.keep_checkpoint_per_n_minutes > 0
                      ? concat("; one for every ", config.keep_checkpoint_per_n_minutes,
                               " minutes and the newest are kept")
                      : concat("; the newest ", config.keep_checkpoint_max, " are kept"));
  }
  return config.save_last
             ? concat("checkpoints: at the end alone,", in,
                      "; save_interval is null, so nothing is saved before")
             : "checkpoints: none, unless a signal stops the run; save_interval is null and "
               "save_last False";
}

std::string bubble_line(const PipelineBubble& bubble) {
  char text[120];
  std::snprintf(text, sizeof(text),
                "pipeline: stages waited for %.2f %% of the passes, theory %.2f %%",
                100 * bubble.measured, 100 * bubble.theoretical);
  return text;
}

TrainSummary train(TrainOneStepCell& cell,
                   data::DataSource& source,
                   const AllConfig& config,
                   const TrainOptions& options) {
  const TrainingConfig& t = config.training_config;
  const int64_t batch = global_batch_size(config, get_data_parallel_world_size());
  const int64_t total =
      options.total_steps.value_or(total_training_iters(config, get_data_parallel_world_size()));
  check<ValueError>(total > 0 || t.epochs,
                    "training: nothing to do; set training_config.training_iters, "
                    "training_config.epochs or dataset_config.train_samples");
  const int64_t last_step = total > 0 ? total : std::numeric_limits<int64_t>::max();

  // Data- and context-parallel ranks have the same to write; the first one does.
  const bool writes = get_data_parallel_rank(/*with_context_parallel=*/true) == 0;
  cell.set_gradient_observer(
      [&](int64_t step) {
        if (writes) {
          write_gathered(dump_path(config, "grads", step), logical_gradients(cell.network()));
        }
      },
      [&](int64_t step) { return contains(t.dump_grad_steps, step); });

  TrainSummary summary;
  Progress progress(total);
  FirstSteps time_row;
  DivergenceWatch watch(config);
  CheckpointSaver saver(cell.network(), cell.optimizer(), config, options.checkpoint);
  TrainerState trainer = options.trainer.value_or(TrainerState{});
  saver.set_best(trainer.best);
  const auto save = [&](int64_t step, data::BatchPosition position, bool last) {
    if (!watch.loss_is_finite()) {
      log_warning(concat("step ", step, " is not saved: its loss is not finite"));
      return;
    }
    if (options.metrics != nullptr) {
      options.metrics->sync();  // a checkpoint never knows of steps that the file has lost
    }
    std::string state;
    if (options.trainer) {
      trainer.position = cell.position();
      trainer.scaler = cell.grad_scaler().state();
      trainer.generator = RankContext::current().default_generator().state();
      trainer.best = saver.best();
      trainer.data = options.data_state ? options.data_state(position) : std::string();
      state = trainer_state_json(trainer);
    }
    saver.save(step, state, last);
  };
  const auto fail = [&] {
    end_progress();
    saver.finish();
    const std::string text = concat("training: ", watch.report(), saver.set_unproven_aside());
    throw RuntimeError(concat(
        text, saver.proven_step()
                  ? concat("\nThe last good checkpoint is that of step ", *saver.proven_step(), ".")
                  : std::string("\nThis run has saved no good checkpoint.")));
  };

  RankContext::current().allocator().reset_peak();  // what is told is training's
  int64_t step = cell.position().seen;
  data::BatchPosition position =
      options.start.value_or(data::BatchPosition{.step = step, .first_sample = step * batch});
  while (step < last_step) {
    const int64_t epoch = source.epoch(position.first_sample);
    if (t.epochs && epoch >= *t.epochs) {
      break;
    }
    const auto start = Clock::now();
    std::optional<ActivationRecorder> activations;
    if (contains(t.dump_activation_steps, step + 1)) {
      activations.emplace();
    }
    const StepResult result = cell(step_batches(source, config, position));
    ++step;
    ++position.step;
    position.first_sample += batch;
    watch.observe(step, result);
    saver.poll();
    if (watch.loss_is_finite()) {
      saver.accept();
    }
    trainer.tokens += result.tokens;
    if (activations && get_data_parallel_rank() == 0) {
      const auto values = whole_activations(activations->values(), config);
      if (writes) {
        write_gathered(dump_path(config, "acts", step), values);
      }
    }
    StepRecord record{.step = step,
                      .epoch = epoch,
                      .step_time_ms = milliseconds_since(start),
                      .memory = memory_stats()};
    trainer.train_seconds += record.step_time_ms / 1000;
    summary.steps += 1;
    summary.last_loss = result.loss;
    if (summary.steps == 1) {
      summary.first_loss = result.loss;
    }

    if (options.validation != nullptr && is_due(t.eval_interval, step)) {
      record.eval_loss = evaluate(cell.network(), *options.validation, config, t.eval_iters);
    }
    const bool is_last =
        step >= last_step || (t.epochs && source.epoch(position.first_sample) >= *t.epochs);
    if (options.test != nullptr && is_last) {
      record.test_loss = evaluate(cell.network(), *options.test, config, t.eval_iters);
      summary.test_loss = record.test_loss;
    }
    if (options.metrics != nullptr) {
      options.metrics->write(record, result);
    }
    progress.update(record, result);
    if (time_row.update(record, step == last_step)) {
      log_info(time_row.text(total));
    }
    if (is_due(t.log_interval, step) || (t.log_interval && step == last_step)) {
      log_info(train_log_line(record, result, progress.take_pace()));
      if (result.bubble) {
        log_info(bubble_line(*result.bubble));
      }
    }
    if (summary.steps == 1) {
      log_detail(memory_line(record.memory));
    }
    if (!result.finite) {
      log_warning(concat("step ", step, ": the gradients are not finite, the update was skipped"));
    }
    if (record.eval_loss) {
      log_info(eval_log_line("eval", step, *record.eval_loss));
    }
    if (record.test_loss) {
      log_info(eval_log_line("test", step, *record.test_loss));
    }
    if (contains(t.dump_weight_steps, step)) {
      const LogicalState weights = get_logical_state(cell.network(), &cell.optimizer());
      if (writes) {
        write_gathered(dump_path(config, "weights", step), weights);
      }
    }
    if (watch.has_diverged()) {
      fail();
    }
    bool is_best = false;
    if (record.eval_loss && t.best_metric_comparison && watch.loss_is_finite()) {
      const bool by_loss = t.eval_metric.value_or("loss") == "loss";
      const double value = by_loss ? *record.eval_loss : std::exp(*record.eval_loss);
      is_best = is_better(t, value, saver.best());
      if (is_best) {
        saver.set_best(BestEvaluation{
            .metric = by_loss ? "loss" : "perplexity", .value = value, .step = step});
      }
    }
    if (saver.is_due(step) || is_best) {
      save(step, position, /*last=*/false);
    }
    if (options.stop_requested && options.stop_requested()) {
      summary.stopped_on_request = true;
      break;
    }
  }
  end_progress();
  if (summary.steps > 1) {
    log_info(memory_line(memory_stats()));
  }
  if (summary.steps > 0 && watch.ends_badly()) {
    fail();
  }
  saver.finish();
  if (summary.steps > 0 && (summary.stopped_on_request || t.save_last || saver.has_failed())) {
    save(step, position, /*last=*/true);
    saver.accept();
  }
  return summary;
}

}  // namespace tapestry
