#include "parallel_core/training/watch/tensorboard_log.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "autograd/tensor/error.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/training/watch/tensor_histograms.h"

namespace tapestry {

namespace {

constexpr std::array<std::string_view, 7> kOverSamples = {
    "learning-rate", "batch-size",     "loss",      "loss-scale",
    "grad-norm",     "iteration-time", "throughput"};

constexpr const char* kHistogramObserver = "histograms";

std::string rank_folder(int rank) { return concat("rank_", rank); }

// A cell of a table in Markdown, whose column ends at a bar.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '|' ? "&#124;" : c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return escaped;
}

struct SectionText {
  std::string section;
  std::string table;
};

std::vector<SectionText> configuration_texts(const AllConfig& config) {
  std::vector<SectionText> texts;
  for (const ResolvedKey& key : resolved_keys(config)) {
    if (texts.empty() || texts.back().section != key.section) {
      texts.push_back({key.section, "| key | value | from |\n|---|---|---|\n"});
    }
    texts.back().table +=
        concat("| ", cell(key.key), " | ", cell(key.value), " | ", cell(key.origin), " |\n");
  }
  return texts;
}

// An earlier run's events in the folder of this rank.
std::string prepare_folder(const TensorBoardConfig& config, const TensorBoardRun& run) {
  const std::string& top = *config.tensorboard_dir;
  if (run.steps_done == 0) {
    return report::move_events_aside(top, rank_folder(run.rank));
  }
  report::cut_events(concat(top, "/", rank_folder(run.rank)), run.steps_done);
  return {};
}

// Losses on other data come at steps of their own.
bool is_of_evaluation(const std::string& tag) {
  return tag.starts_with("eval-") || tag.starts_with("test-");
}

}  // namespace

std::vector<report::Scalar> step_scalars(const StepRecord& record,
                                         const StepResult& result,
                                         const TensorBoardConfig& config,
                                         const TensorBoardRun& run) {
  constexpr double kDay = 86400;  // seconds
  constexpr double kBillion = 1e9;
  constexpr double kTera = 1e12;
  const double seconds = record.step_time_ms / 1000;
  const auto batch = static_cast<double>(result.sequences);
  const double throughput = batch / seconds / run.ranks;
  std::vector<report::Scalar> scalars;
  for (size_t i = 0; i < result.lr.size(); ++i) {
    if (i == 0 || result.lr[i] != result.lr[0]) {
      scalars.push_back(
          {i == 0 ? "learning-rate" : concat("learning-rate/group_", i), result.lr[i]});
    }
  }
  scalars.push_back({"batch-size", batch});
  scalars.push_back({"loss", result.loss});
  for (size_t depth = 1; depth <= result.mtp_losses.size(); ++depth) {
    scalars.push_back({concat("mtp-", depth, "-loss"), result.mtp_losses[depth - 1]});
  }
  for (const auto& [name, value] : result.task) {
    scalars.push_back({name, value});
  }
  if (config.log_loss_scale_to_tensorboard) {
    scalars.push_back({"loss-scale", result.loss_scale});
  }
  scalars.push_back({"grad-norm", result.grad_norm});
  if (config.log_timers_to_tensorboard) {
    scalars.push_back({"iteration-time", record.step_time_ms});
    scalars.push_back({"throughput", throughput});
  }
  if (run.model_flops > 0) {
    scalars.push_back({"model-flops-throughput-per-npu",
                       run.model_flops * batch / static_cast<double>(run.global_batch_size) /
                           seconds / run.ranks / kTera});
  }
  scalars.push_back({"B-samples-per-day", throughput * run.ranks * kDay / kBillion});
  for (const auto& [name, loss] :
       {std::pair{"eval", record.eval_loss}, std::pair{"test", record.test_loss}}) {
    if (loss) {
      scalars.push_back({concat(name, "-loss"), *loss});
      scalars.push_back({concat(name, "-perplexity"), std::exp(*loss)});
    }
  }
  for (const auto& [part, values] :
       {std::pair{"eval", &record.eval_values}, std::pair{"test", &record.test_values}}) {
    for (const auto& [name, value] : *values) {
      scalars.push_back({concat(part, "-", name), value});
    }
  }
  return scalars;
}

bool is_over_samples(const std::string& tag) {
  return std::find(kOverSamples.begin(), kOverSamples.end(), tag) != kOverSamples.end();
}

TensorBoardLog::TensorBoardLog(const AllConfig& config, const TensorBoardRun& run)
    : config_(config),
      run_(run),
      samples_(run.samples_done),
      moved_to_(prepare_folder(config.tensorboard, run)),
      writer_(concat(*config.tensorboard.tensorboard_dir, "/", rank_folder(run.rank)),
              config.tensorboard.tensorboard_queue_size) {}

// Readers drop what they have from the step of a start on, over samples as over steps: so it has
// the larger of the two. What is later has been cut off. A run's first start drops nothing, but
// without it the second one would be taken for the first.
void TensorBoardLog::begin() {
  if (begun_) {
    return;
  }
  begun_ = true;
  writer_.start(std::max(run_.steps_done, run_.samples_done) + 1);
  if (run_.rank == 0) {
    for (const SectionText& text : configuration_texts(config_)) {
      writer_.text(run_.steps_done, text.section + "/text_summary", text.table);
    }
  }
}

void TensorBoardLog::scalars(int64_t step, const std::vector<report::Scalar>& values) {
  begin();
  writer_.scalars(step, values);
}

void TensorBoardLog::after(FinishedStep& step) {
  std::vector<report::Scalar> values;
  if (run_.rank == 0) {
    values = step_scalars(step.record, step.result, config_.tensorboard, run_);
  }
  for (const auto& [tag, value] : step.record.scalars) {
    values.push_back({tag, value});
  }
  if (step.record.step % config_.tensorboard.tensorboard_log_interval != 0) {
    std::erase_if(values, [](const report::Scalar& value) { return !is_of_evaluation(value.tag); });
  }
  if (!values.empty()) {
    scalars(step.record.step, values);
  }
  samples_ += step.result.sequences;
  if (run_.rank != 0) {
    return;
  }
  std::vector<report::Scalar> over_samples;
  for (const report::Scalar& value : values) {
    if (is_over_samples(value.tag)) {
      over_samples.push_back({value.tag + std::string(report::kOverSamples), value.value});
    }
  }
  if (!over_samples.empty()) {
    writer_.scalars(samples_, over_samples);
  }
}

void TensorBoardLog::histograms(int64_t step,
                                const std::string& kind,
                                const std::map<std::string, report::Histogram>& histograms) {
  if (run_.rank != 0) {
    return;
  }
  begin();
  for (const auto& [name, histogram] : histograms) {
    writer_.histogram(step, concat(kind, "/", name), histogram);
  }
}

HistogramLog::HistogramLog(TrainOneStepCell& cell, int64_t interval, TensorBoardLog& log)
    : cell_(cell), interval_(interval), log_(log) {
  cell_.set_gradient_observer(
      [this](int64_t step) {
        log_.histograms(step, "gradients",
                        logical_histograms(cell_.network(), HistogramOf::kGradients));
      },
      [this](int64_t step) { return is_due(step); }, kHistogramObserver);
}

HistogramLog::~HistogramLog() { cell_.set_gradient_observer({}, {}, kHistogramObserver); }

void HistogramLog::after(FinishedStep& step) {
  if (is_due(step.record.step)) {
    log_.histograms(step.record.step, "weights",
                    logical_histograms(cell_.network(), HistogramOf::kWeights));
  }
}

std::unique_ptr<TensorBoardLog> make_tensorboard_log(const AllConfig& config,
                                                     const TensorBoardRun& run) {
  return config.tensorboard.tensorboard_dir ? std::make_unique<TensorBoardLog>(config, run)
                                            : nullptr;
}

}  // namespace tapestry
