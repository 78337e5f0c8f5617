#include "parallel_core/training/watch/evaluation.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <utility>

#include "autograd/kernels/machine/exact.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/training/step/exact_losses.h"
#include "parallel_core/training/step/forward_step.h"
#include "text/util/numbers.h"

namespace tapestry {

std::vector<data::Batch> step_batches(data::DataSource& source,
                                      const AllConfig& config,
                                      data::BatchPosition position,
                                      std::optional<int64_t> micro_batches) {
  const DatasetConfig& d = config.dataset_config;
  const int64_t count = micro_batches.value_or(d.micro_batch_num);
  std::vector<data::Batch> batches;
  for (int64_t m = 0; m < count; ++m) {
    const PhaseScope phase("fetch", m);
    batches.push_back(source.micro_batch(position, m, count, d.batch_size, get_data_parallel_rank(),
                                         get_data_parallel_world_size()));
  }
  return batches;
}

namespace {

// The sums of one metric over the micro-batches that this rank has seen; none but on the last
// stage.
class MetricSums {
 public:
  explicit MetricSums(const EvaluationMetric& metric) : metric_(metric) {}

  void add(const EvaluatedBatch& batch) {
    const std::vector<double> more = metric_.measure(batch);
    check<ValueError>(!more.empty() && (sums_.empty() || sums_.size() == more.size()),
                      "evaluation: the metric ", metric_.name, " has measured ", more.size(),
                      " numbers in a micro-batch",
                      sums_.empty() ? std::string(", expected at least one")
                                    : concat(" and ", sums_.size(), " in another"));
    sums_.resize(more.size());
    for (size_t i = 0; i < more.size(); ++i) {
      sums_[i] += more[i];
    }
  }

  // Collective.
  double value() const {
    std::array<double, 1> count = {static_cast<double>(sums_.size())};
    sum_over_pipeline(count);
    std::vector<double> sums = sums_;
    sums.resize(static_cast<size_t>(count[0]));
    sum_over_pipeline(sums);
    std::array<double, 2> counts = {count[0], count[0] * count[0]};
    sum_over(get_data_parallel_group(), counts);
    const auto ranks = static_cast<double>(get_data_parallel_world_size());
    check<ValueError>(counts[0] * counts[0] == counts[1] * ranks, "evaluation: the metric ",
                      metric_.name, " measures other numbers of values on other ranks");
    sum_over(get_data_parallel_group(), sums);
    if (metric_.value) {
      return metric_.value(sums);
    }
    check<ValueError>(sums.size() == 2, "evaluation: the metric ", metric_.name, " measures ",
                      sums.size(),
                      " numbers; without a function of the sums they have to be two, of which the "
                      "first is divided by the second");
    return sums[1] != 0 ? sums[0] / sums[1] : 0;
  }

 private:
  const EvaluationMetric& metric_;
  std::vector<double> sums_;
};

// An evaluation makes all logits of a micro-batch, which in training may exist in chunks alone. The
// room that activations have left lies between the gradients, where so large a block may not fit:
// it goes back to the system, and afterwards that of the logits does.
class EvaluationMemory {
 public:
  EvaluationMemory() { release(); }
  EvaluationMemory(const EvaluationMemory&) = delete;
  EvaluationMemory& operator=(const EvaluationMemory&) = delete;
  ~EvaluationMemory() { release(); }

 private:
  static void release() { RankContext::current().allocator().release_cache(); }
};

// Global batches that are read; there is at least one.
int64_t whole_batches(const data::DataSource& source, int64_t batch, int64_t iterations) {
  const int64_t available = std::min(iterations, source.size_in_samples() / batch);
  check<ValueError>(available > 0, "evaluation: the data hold ", source.size_in_samples(),
                    " samples, one global batch needs ", batch,
                    "; raise their share in dataset_config.split or lower the batch size");
  return available;
}

// The logits of a micro-batch, [batch, seq, vocabulary]; undefined on all stages but the last.
Tensor whole_logits_of(ParallelModel& model, data::Batch batch) {
  batch.labels.clear();  // a model that sees labels computes the loss
  Tensor logits = pipeline_logits(model, batch);
  if (!logits.defined()) {
    return logits;
  }
  return dense((model.sequence_axis() == 0 ? transpose(logits, 0, 1) : logits).to(kFloat32));
}

// Of all data-parallel ranks; rows without sequences count themselves.
double sequences_in(const std::vector<data::Batch>& micro_batches) {
  double count = 0;
  for (const data::Batch& batch : micro_batches) {
    for (const auto& row : batch.sequences) {
      count += static_cast<double>(row.size());
    }
    count += batch.sequences.empty() ? static_cast<double>(batch.batch) : 0;
  }
  return sum_over(get_data_parallel_group(), count);
}

// Further passes, which make logits.
void add_to(std::vector<MetricSums>& sums,
            ParallelModel& model,
            const std::vector<data::Batch>& micro_batches) {
  for (size_t m = 0; m < micro_batches.size() && !sums.empty(); ++m) {
    const Tensor logits = whole_logits_of(model, micro_batches[m]);
    for (MetricSums& metric : sums) {
      if (logits.defined()) {
        metric.add({.batch = micro_batches[m], .logits = logits});
      }
    }
  }
}

}  // namespace

std::map<std::string, double> evaluate_with(ParallelModel& model,
                                            data::DataSource& source,
                                            const AllConfig& config,
                                            int64_t iterations,
                                            const std::vector<EvaluationMetric>& metrics) {
  const int64_t batch = global_batch_size(config, get_data_parallel_world_size());
  const int64_t available = whole_batches(source, batch, iterations);
  const PhaseScope phase("evaluation");
  const EvaluationMemory memory;
  const NoGradGuard guard;
  model.eval();
  const ExactScope exact(config.training_config.exact);
  ExactLosses exact_losses;
  double loss = 0;
  double tokens = 0;
  std::vector<MetricSums> sums(metrics.begin(), metrics.end());
  for (int64_t i = 0; i < available; ++i) {
    const std::vector<data::Batch> micro_batches = step_batches(source, config, {i, i * batch});
    PipelineWork work =
        pipeline_work(model, micro_batches, [&](int64_t /*micro_batch*/, ModelOutput& output) {
          if (in_exact()) {
            exact_losses.add(model, output);
          } else {
            loss += output.loss.item() * output.token_count;
          }
          tokens += output.token_count;
          return StageOutput{};
        });
    work.forward_only = true;
    work.messages.overlap = config.parallel_config.overlap_p2p_comm;
    get_forward_backward_func(work.chunks)(work);
    add_to(sums, model, micro_batches);
  }
  model.train();
  std::array<double, 2> all = {loss, tokens};  // known to the last stage
  sum_over_pipeline(all);
  sum_over(get_data_parallel_group(), all);
  if (in_exact()) {
    exact_losses.sum_over_ranks();
    all[0] = exact_losses.sum();
  }
  std::map<std::string, double> values = {{"loss", all[1] > 0 ? all[0] / all[1] : 0}};
  for (size_t i = 0; i < metrics.size(); ++i) {
    values.emplace(metrics[i].name, sums[i].value());
  }
  return values;
}

double evaluate(ParallelModel& model,
                data::DataSource& source,
                const AllConfig& config,
                int64_t iterations) {
  return evaluate_with(model, source, config, iterations, {}).at("loss");
}

std::map<std::string, double> evaluate_objective(ParallelModel& model,
                                                 StepObjective& objective,
                                                 data::DataSource& source,
                                                 const AllConfig& config,
                                                 int64_t iterations,
                                                 int64_t step,
                                                 const std::vector<EvaluationMetric>& metrics) {
  const int64_t batch = global_batch_size(config, get_data_parallel_world_size());
  // The last step has what is left.
  const int64_t available = std::min(iterations, (source.size_in_samples() + batch - 1) / batch);
  check<ValueError>(available > 0, "evaluation: the data hold no sample");
  const PhaseScope phase("evaluation");
  const NoGradGuard guard;
  model.eval();
  double loss = 0;
  double weights = 0;
  std::map<std::string, double> values;
  std::map<std::string, double> weights_of;  // a step need not measure everything
  std::vector<MetricSums> sums(metrics.begin(), metrics.end());
  for (int64_t i = 0; i < available; ++i) {
    const std::vector<data::Batch> micro_batches = step_batches(source, config, {i, i * batch});
    const double weight = sequences_in(micro_batches);
    weights += weight;
    objective.begin_step(model, step, micro_batches, /*training=*/false);
    PipelineWork work = pipeline_work(
        model, micro_batches,
        [&](int64_t micro_batch, ModelOutput& output) {
          const data::Batch& rows = micro_batches[static_cast<size_t>(micro_batch)];
          loss += weight * objective.part(micro_batch, rows, output).item();
          return StageOutput{};
        },
        objective.scores());
    work.forward_only = true;
    work.messages.overlap = config.parallel_config.overlap_p2p_comm;
    get_forward_backward_func(work.chunks)(work);
    for (const auto& [name, value] : objective.finish_step()) {
      values[name] += weight * value;
      weights_of[name] += weight;
    }
    add_to(sums, model, micro_batches);
  }
  model.train();
  std::array<double, 1> all = {loss};  // known to the last stage
  sum_over_pipeline(all);
  sum_over(get_data_parallel_group(), all);
  for (auto& [name, value] : values) {
    value /= weights_of[name];
  }
  values["loss"] = all[0] / weights;
  for (size_t i = 0; i < metrics.size(); ++i) {
    values[metrics[i].name] = sums[i].value();
  }
  const auto& wanted = config.training_config.eval_metric;
  if (wanted && !values.contains(*wanted)) {
    std::string names;
    for (const auto& [name, value] : values) {
      names += concat(names.empty() ? "" : ", ", name);
    }
    throw ValueError(concat("training_config.eval_metric is '", *wanted,
                            "', but evaluations of this task compute ", names,
                            "; name one of these"));
  }
  return values;
}

std::string eval_log_line(const char* part, int64_t step, double loss) {
  char text[120];
  std::snprintf(text, sizeof(text), "%s: Step:%lld, Loss: %.6f, Perplexity: %.4f", part,
                static_cast<long long>(step), without_nan_sign(loss),
                without_nan_sign(std::exp(loss)));
  return text;
}

std::string eval_log_line(const char* part,
                          int64_t step,
                          const std::optional<double>& loss,
                          const std::map<std::string, double>& values) {
  std::string line = loss ? eval_log_line(part, step, *loss) : concat(part, ": Step:", step);
  for (const auto& [name, value] : values) {
    char text[40];
    std::snprintf(text, sizeof(text), "%.6f", without_nan_sign(value));
    line += concat(", ", name, ": ", text);
  }
  return line;
}

StepEvaluation::StepEvaluation(ParallelModel& model,
                               const AllConfig& config,
                               const TrainOptions& options)
    : model_(model), config_(config), options_(options) {
  check_evaluation(config, options.evaluation_metrics,
                   options.evaluation != nullptr || options.objective != nullptr);
}

std::map<std::string, double> StepEvaluation::values_of(data::DataSource& source,
                                                        int64_t step,
                                                        bool of_test) {
  if (!options_.evaluation && options_.objective != nullptr) {
    return evaluate_objective(model_, *options_.objective, source, config_,
                              config_.training_config.eval_iters, step,
                              options_.evaluation_metrics);
  }
  if (!options_.evaluation) {
    return evaluate_with(model_, source, config_, config_.training_config.eval_iters,
                         options_.evaluation_metrics);
  }
  std::map<std::string, double> values;
  {
    const PhaseScope phase("evaluation");
    const NoGradGuard guard;
    model_.eval();
    values = options_.evaluation({.model = model_,
                                  .source = source,
                                  .config = config_,
                                  .metrics = options_.evaluation_metrics,
                                  .step = step,
                                  .of_test = of_test});
    model_.train();
  }
  std::string text;  // bits: a value that is not a number equals itself
  for (const auto& [name, value] : values) {
    text += concat(name, " ", std::bit_cast<uint64_t>(value), "\n");
  }
  for (const std::string& other : all_gather_text(get_world_group(), text)) {
    check<ValueError>(other == text,
                      "evaluation: the program's evaluation function has returned other values on "
                      "another rank; sum over ranks what they compute of their own batches "
                      "(sum_over)");
  }
  return values;
}

void StepEvaluation::after(FinishedStep& step) {
  const TrainingConfig& t = config_.training_config;
  const auto record = [&](data::DataSource& source, bool of_test, std::optional<double>& loss,
                          std::map<std::string, double>& others) {
    others = values_of(source, step.record.step, of_test);
    if (options_.objective != nullptr) {
      return;  // its loss has no perplexity, and is a value like the others
    }
    if (const auto found = others.extract("loss")) {
      loss = found.mapped();
    }
  };
  if (options_.validation != nullptr && t.eval_interval &&
      step.record.step % *t.eval_interval == 0) {
    record(*options_.validation, false, step.record.eval_loss, step.record.eval_values);
  }
  if (options_.test != nullptr && step.is_last) {
    record(*options_.test, true, step.record.test_loss, step.record.test_values);
  }
}

}  // namespace tapestry
