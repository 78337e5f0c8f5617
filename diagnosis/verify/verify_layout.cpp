#include "diagnosis/verify/verify_layout.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "autograd/kernels/machine/team.h"
#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/dump/run/rounding_noise.h"
#include "diagnosis/verify/compared_training.h"
#include "diagnosis/verify/expert_choices.h"
#include "diagnosis/verify/layout_comparison.h"
#include "diagnosis/verify/layout_trace.h"
#include "diagnosis/verify/rounding_spread.h"
#include "diagnosis/verify/sample_recorder.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/random.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {

namespace {

// What no rank of the layout has computed.
class Coverage {
 public:
  void add(const std::vector<ActivationKey>& keys, int64_t step) {
    const std::scoped_lock lock(mutex_);
    for (const ActivationKey& key : keys) {
      seen_.emplace(step, key);
    }
  }
  void report_missing(const LayoutTrace& trace, LayoutFindings& findings) const {
    for (size_t i = 0; i < trace.steps.size(); ++i) {
      const auto step = static_cast<int64_t>(i + 1);
      const std::vector<ActivationKey>& order = trace.steps[i].order;
      for (size_t k = 0; k < order.size(); ++k) {
        if (!seen_.contains({step, order[k]})) {
          findings.add({.what = Compared::kActivation,
                        .step = step,
                        .order = k,
                        .name = order[k].first,
                        .made_by = maker_of_activation(order[k].first),
                        .distance = std::numeric_limits<double>::infinity(),
                        .detail = concat("no rank computed it for sample ", order[k].second)});
        }
      }
    }
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<int64_t, ActivationKey>> seen_;
};

uint64_t checksum(uint64_t start, const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t out = start;
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, p + i, std::min(sizeof(word), bytes - i));
    out = combine(out, word);
  }
  return out;
}

// A training on one rank, from `start` if it is given, else from the weights of one process.
uint64_t train_rank(const AllConfig& config,
                    const VerifyOptions& options,
                    const LayoutTrace& trace,
                    const LogicalState* start,
                    RankComparison& comparison,
                    Coverage* coverage,
                    std::atomic<int64_t>* imposed) {
  const LayoutParts& parts = options.parts;
  ComparedTraining training(config, options, true);
  comparison.describe_modules(*training.model);
  comparison.weights_before(*training.model, trace.initial, 0);
  if (const std::string& path = config.training_config.load_checkpoint; !path.empty()) {
    load_weights(*training.model, config.model_config, path);
  } else {
    set_logical_state(*training.model, trace.start, "verify_layout");
  }
  comparison.weights_before(*training.model, trace.start, 1);
  if (start != nullptr) {
    set_logical_state(*training.model, *start, "verify_layout");
  }
  if (parts.started) {
    parts.started(*training.model);
  }
  training.start(trace.position);
  const std::unique_ptr<Observer> observer = parts.observer ? parts.observer() : nullptr;
  uint64_t sum = 0;
  const auto steps = static_cast<int64_t>(trace.steps.size());
  for (int64_t step = 1; step <= steps; ++step) {
    ImposedChoices choices(trace.choices, [&](const ChoiceDifference& difference) {
      comparison.choice(step, difference);
    });
    if (parts.before_step) {
      parts.before_step(*training.model, step);
    }
    const std::vector<data::Batch> batches = training.batches(step - 1);
    std::optional<SampleRecorder> recorder;
    if (is_looked_at(options, step)) {
      recorder.emplace(watched_samples(batches, 1));
    }
    training.cell->set_gradient_observer(
        [&](int64_t /*step*/) { comparison.gradients(step, *training.model); },
        [&](int64_t /*step*/) { return is_looked_at(options, step); });
    const StepResult result = [&] {
      std::optional<ObserverScope> scope;
      if (observer != nullptr) {
        scope.emplace(*observer);
      }
      return (*training.cell)(batches);
    }();
    comparison.choices_compared(choices.equal());
    training.cell->set_gradient_observer({});
    if (recorder) {
      comparison.activations(step, *recorder);
      if (coverage != nullptr) {
        coverage->add(recorder->order(), step);
      }
    }
    if (imposed != nullptr) {
      *imposed += choices.count();
    }
    comparison.step_result(step, result);
    sum = checksum(sum, &result.loss, sizeof(result.loss));
    sum = checksum(sum, &result.grad_norm, sizeof(result.grad_norm));
    if (options.every_step || step == steps) {
      comparison.weights(step, *training.model, *training.optimizer);
    }
  }
  const NoGradGuard guard;
  for (const nn::Module::NamedParameter& entry : training.model->named_parameters()) {
    const Tensor values = dense(*entry.parameter);
    sum =
        checksum(sum, values.raw(), static_cast<size_t>(values.numel() * size_of(values.dtype())));
  }
  return sum;
}

// Which draws a measurement of rounding makes.
struct Draws {
  int64_t first = 0;
  int64_t of_weights = 0;  ///< trainings from start weights that are moved by a rounding
  int64_t of_ops = 1;      ///< trainings with results that are: what rounds inside, not only before
};

// Trains one process again, once for each draw.
void measure_rounding(const LayoutPair& pair,
                      const VerifyOptions& options,
                      const LayoutTrace& trace,
                      const Draws& draws,
                      RoundingSpread& spread) {
  RankContext context;
  const RankContextGuard guard(context);
  initialize_model_parallel();
  const LayoutPair alone = {pair.single, pair.single, 1};
  VerifyOptions sound = options;
  sound.parts.model = {};
  sound.parts.started = {};
  sound.parts.before_step = {};
  sound.parts.observer = {};
  sound.parts.step_config = {};
  for (int64_t i = 0; i < draws.of_weights; ++i) {
    const LogicalState start =
        moved_by_rounding(trace.start, pair.single.model_config.compute_dtype,
                          static_cast<uint64_t>(draws.first + i));
    RankComparison comparison(alone, trace, spread);
    train_rank(pair.single, sound, trace, &start, comparison, nullptr, nullptr);
  }
  for (int64_t i = 0; i < draws.of_ops; ++i) {
    sound.parts.observer = [draw = static_cast<uint64_t>(draws.first + i)] {
      return std::make_unique<RoundingNoise>(draw);
    };
    RankComparison comparison(alone, trace, spread);
    train_rank(pair.single, sound, trace, nullptr, comparison, nullptr, nullptr);
  }
  destroy_model_parallel();
}

// The layout's ranks against one process.
LayoutReport compare_ranks(const LayoutPair& pair,
                           const VerifyOptions& options,
                           const LayoutTrace& trace,
                           const RoundingSpread& spread) {
  LayoutReport report;
  report.steps = static_cast<int64_t>(trace.steps.size());
  report.findings = std::make_shared<LayoutFindings>();
  const auto ranks =
      static_cast<int>(world_size(pair.layout.parallel_config, pair.data_parallel_size));
  report.checksums.resize(static_cast<size_t>(ranks));
  Coverage coverage;
  std::atomic<int64_t> imposed = 0;
  run_thread_ranks(
      ranks,
      [&](const std::shared_ptr<ProcessGroup>& own_world) {
        initialize_model_parallel(model_parallel_sizes(pair.layout.parallel_config),
                                  options.parts.world ? options.parts.world(own_world) : own_world);
        RankComparison comparison(pair, trace, spread, *report.findings);
        report.checksums[static_cast<size_t>(own_world->rank())] =
            train_rank(pair.layout, options, trace, nullptr, comparison, &coverage, &imposed);
        destroy_model_parallel();
      },
      {.timeout_seconds = options.timeout_seconds});
  coverage.report_missing(trace, *report.findings);
  report.imposed_choices = imposed;
  return report;
}

// A layout is one draw of a distribution with long tails, as optimizers make whole steps of
// rounding where a gradient is next to nothing. What is so little above its bound is measured with
// more draws before it is called a difference; a fault is hardly ever that small.
constexpr double kTail = 32;
constexpr int64_t kMoreDraws = 8;

}  // namespace

LayoutReport compare_layout(const LayoutPair& pair, const VerifyOptions& options) {
  require_supported(pair.single);
  require_supported(pair.layout);
  check<ValueError>(options.steps >= 1, "verify_layout: ", options.steps,
                    " steps; at least one is needed");
  if (const auto& threads = pair.single.training_config.num_threads) {
    set_num_threads(static_cast<int>(*threads));  // of the one process; a thread rank has one
  }
  const int64_t configured = total_training_iters(pair.single);
  const int64_t steps = configured > 0 ? std::min(options.steps, configured) : options.steps;
  LayoutTrace trace;
  {
    RankContext context;
    const RankContextGuard guard(context);
    initialize_model_parallel();
    trace = trace_single_process(pair, options, steps);
    destroy_model_parallel();
  }
  RoundingSpread spread;
  if (pair.layout.training_config.exact) {  // rounds alike everywhere: bits are compared
    return compare_ranks(pair, options, trace, spread);
  }
  measure_rounding(pair, options, trace, {.of_weights = options.rounding_runs}, spread);
  LayoutReport report = compare_ranks(pair, options, trace, spread);
  if (!report.agrees() && report.findings->agree_within(kTail)) {
    measure_rounding(
        pair, options, trace,
        {.first = options.rounding_runs + 1, .of_weights = kMoreDraws, .of_ops = kMoreDraws},
        spread);
    report = compare_ranks(pair, options, trace, spread);
  }
  return report;
}

LayoutPair load_layout_pair(const std::string& layout, const ConfigLoader& load) {
  const LayoutText text = parse_layout(layout);
  LayoutPair pair;
  pair.data_parallel_size = text.data_parallel_size;
  pair.layout = load(text.overrides);
  check_expert_ranks(pair.layout, static_cast<int>(world_size(pair.layout.parallel_config,
                                                              pair.data_parallel_size)));
  std::vector<std::string> single = text.overrides;
  for (std::string& override : single_process_overrides(pair.layout, pair.data_parallel_size)) {
    single.push_back(std::move(override));
  }
  pair.single = load(single);
  return pair;
}

std::string report_text(const LayoutReport& report, const LayoutPair& pair) {
  std::string out = concat(
      "verify_layout: ", layout_text(pair.layout, pair.data_parallel_size), " on ",
      world_size(pair.layout.parallel_config, pair.data_parallel_size),
      " ranks against one process, ", report.steps, " steps\n\n", report.findings->table(),
      report.imposed_choices > 0 ? concat(report.imposed_choices,
                                          " choices of experts that rounding would have made "
                                          "otherwise were taken from one process\n")
                                 : std::string(),
      "\n");
  const std::optional<Finding> first = report.findings->first();
  const bool exact = pair.layout.training_config.exact;
  if (exact) {
    out += "exact mode: bits are compared, without bounds\n";
  }
  return out +
         (first   ? "first difference: " + LayoutFindings::sentence(*first)
          : exact ? "all bits are equal: losses, gradients and weights of all steps"
                  : "no difference above its bound") +
         "\n";
}

}  // namespace tapestry
