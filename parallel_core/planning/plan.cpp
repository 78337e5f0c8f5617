#include "parallel_core/planning/plan.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/config/batch_rampup.h"
#include "parallel_core/estimates/memory_estimate.h"
#include "parallel_core/estimates/recompute_estimate.h"
#include "parallel_core/training/ranks/initialize_ranks.h"

namespace tapestry::planning {

int64_t threads_of_rank(const AllConfig& config, const PlanOptions& options, int64_t ranks) {
  const int64_t on_host = (ranks + options.hosts - 1) / options.hosts;
  return config.training_config.num_threads.value_or(std::max<int64_t>(1, options.cores / on_host));
}

Hosts hosts_of(const AllConfig& config, const PlanOptions& options, int64_t ranks) {
  const auto threads = static_cast<double>(threads_of_rank(config, options, ranks));
  return {.count = options.hosts,
          .ranks = ranks,
          .cores = std::max(1.0, static_cast<double>(options.cores) / threads)};
}

namespace {

// All layouts of one number of ranks.
class LayoutSearch {
 public:
  LayoutSearch(const AllConfig& config,
               const PlanOptions& options,
               const TimesOf& times,
               const MessageCosts& messages,
               Plan& plan)
      : config_(config), options_(options), times_(times), messages_(messages), plan_(plan) {
    hosts_ = hosts_of(config, options, plan.ranks);
  }

  void run() {
    for (const LayoutChoice& choice :
         all_choices(config_, plan_.ranks, options_.hosts, plan_.batch)) {
      add(choice);
      if (choice.pipeline > 1 && choice.chunks == 1) {
        add_balanced(choice);
      }
    }
  }

 private:
  // Without anything that costs time, then with what spares more and more memory.
  void add(LayoutChoice choice) {
    const bool shares = choice.data * choice.context > 1;
    choice.overlap = shares && options_.hosts > 1;
    std::optional<RankedLayout> least;
    for (const bool recompute : {false, true}) {
      for (int level = 0; level <= (shares ? 3 : 0); ++level) {
        choice.recompute = recompute;
        choice.zero_level = level;
        std::optional<RankedLayout> made = make(choice);
        if (!made) {
          if (level == 1 || !shares) {
            return;
          }
          continue;
        }
        const bool fits = made->memory <= options_.memory;
        if (fits) {
          keep(std::move(*made));
        } else if (!least || made->memory < least->memory) {
          least = std::move(made);
        }
        // z1 may be as fast as none; what comes after it never is.
        if (fits && (level > 0 || !shares || recompute)) {
          return;
        }
      }
      if (!plan_.fitting.empty() && recompute) {
        return;
      }
    }
    if (least) {
      plan_.too_large.push_back(std::move(*least));
    }
  }

  void add_balanced(LayoutChoice choice) {
    const TransformerConfig& model = config_.model_config;
    const double layer = layer_flops(config_, 0);
    const auto tokens = static_cast<double>(config_.dataset_config.batch_size * model.seq_length);
    const double head = 2 * tokens * static_cast<double>(model.hidden_size * model.vocab_size) /
                        static_cast<double>(config_.parallel_config.tensor_model_parallel_size *
                                            config_.parallel_config.context_parallel_size);
    choice.layers =
        balanced_layers(model.num_layers, choice.pipeline, layer > 0 ? head / layer : 0);
    if (!choice.layers.empty()) {
      add(choice);
    }
  }

  std::optional<RankedLayout> make(const LayoutChoice& choice) {
    LayoutOrRefusal made = make_layout(config_, choice, plan_.batch);
    if (!made.refusal.empty()) {
      ++plan_.refused;
      if (plan_.refusals.size() < kMostRefusals &&
          std::find(plan_.refusals.begin(), plan_.refusals.end(), made.refusal) ==
              plan_.refusals.end()) {
        plan_.refusals.push_back(std::move(made.refusal));
      }
      return std::nullopt;
    }
    RankedLayout ranked{.layout = std::move(made.layout), .time = {}};
    ranked.memory = estimate_memory(ranked.layout.config, ranked.layout.data_parallel_size).peak();
    ranked.time = step_time(ranked.layout, times_(ranked.layout), messages_, hosts_);
    return ranked;
  }

  void keep(RankedLayout ranked) { plan_.fitting.push_back(std::move(ranked)); }

  static constexpr size_t kMostRefusals = 4;

  const AllConfig& config_;
  const PlanOptions& options_;
  const TimesOf& times_;
  const MessageCosts& messages_;
  Plan& plan_;
  Hosts hosts_;
};

// How far a layout is from the run as it is configured: of layouts that take the same, the nearest
// is best.
int64_t distance_of(const RankedLayout& ranked, int64_t micro_batch) {
  const AllConfig& config = ranked.layout.config;
  const auto& vpp = config.parallel_config.virtual_pipeline_model_parallel_size;
  return 8 * (config.dataset_config.batch_size == micro_batch ? 0 : 1) + 4 * zero_level(config) +
         (vpp.value_or(1) > 1 ? 2 : 0) + (config.parallel_config.num_layer_list ? 1 : 0);
}

// Fastest first; but where some are as fast as the first, the nearest of them.
void sort_by_time(std::vector<RankedLayout>& layouts, int64_t micro_batch) {
  constexpr double kAsFast = 1.02;
  std::stable_sort(
      layouts.begin(), layouts.end(),
      [](const RankedLayout& a, const RankedLayout& b) { return a.time.seconds < b.time.seconds; });
  if (layouts.empty()) {
    return;
  }
  auto nearest = layouts.begin();
  for (auto at = layouts.begin(); at != layouts.end(); ++at) {
    if (at->time.seconds <= kAsFast * layouts.front().time.seconds &&
        distance_of(*at, micro_batch) < distance_of(*nearest, micro_batch)) {
      nearest = at;
    }
  }
  std::rotate(layouts.begin(), nearest, nearest + 1);
}

}  // namespace

Plan make_plan(const AllConfig& config,
               const PlanOptions& options,
               const TimesOf& times,
               const MessageCosts& messages) {
  Plan plan;
  plan.asked = options;
  plan.batch = kept_batch(config, options.data_parallel_size);
  for (plan.ranks = options.ranks; plan.ranks >= 1; --plan.ranks) {
    LayoutSearch(config, options, times, messages, plan).run();
    if (!plan.fitting.empty() || !plan.too_large.empty()) {
      break;
    }
  }
  if (plan.ranks < 1) {
    std::string reasons;
    for (const std::string& reason : plan.refusals) {
      reasons += "\n  " + reason;
    }
    throw ValueError(concat("no layout of up to ", options.ranks, " ranks has the run's batch of ",
                            plan.batch.sequences, " sequences a step and is one that a run accepts",
                            reasons));
  }
  plan.threads = threads_of_rank(config, options, plan.ranks);
  plan.micro_batch = config.dataset_config.batch_size;
  sort_by_time(plan.fitting, plan.micro_batch);
  std::stable_sort(
      plan.too_large.begin(), plan.too_large.end(),
      [](const RankedLayout& a, const RankedLayout& b) { return a.memory < b.memory; });
  return plan;
}

Plan plan_as_configured(const AllConfig& config,
                        const PlanOptions& options,
                        const TimesOf& times,
                        const MessageCosts& messages) {
  Plan plan;
  plan.asked = options;
  plan.ranks = options.ranks;
  plan.batch = kept_batch(config, options.data_parallel_size);
  plan.threads = threads_of_rank(config, options, plan.ranks);
  RankedLayout ranked{.layout = {config, options.data_parallel_size}, .time = {}};
  check<ValueError>(ranked.layout.ranks() == options.ranks, "the configuration's own layout, ",
                    ranked.layout.text(), ", is one of ", ranked.layout.ranks(), " ranks, not of ",
                    options.ranks);
  check_expert_ranks(config, static_cast<int>(options.ranks));
  check_rampup(config, options.data_parallel_size);
  ranked.memory = estimate_memory(config, options.data_parallel_size).peak();
  ranked.time = step_time(ranked.layout, times(ranked.layout), messages,
                          hosts_of(config, options, plan.ranks));
  (ranked.memory <= options.memory ? plan.fitting : plan.too_large).push_back(std::move(ranked));
  return plan;
}

void refine(Plan& plan, double factor, const BetterTimesOf& times, const MessageCosts& messages) {
  if (plan.fitting.empty()) {
    return;
  }
  const double limit = factor * plan.fitting.front().time.seconds;
  std::vector<RankedLayout*> same;
  double before = 0;
  double after = 0;
  for (RankedLayout& ranked : plan.fitting) {
    const AllConfig& config = ranked.layout.config;
    std::optional<ModelTimes> better;
    if (ranked.time.seconds <= limit) {
      better = times(ranked.layout);
    }
    if (!better) {
      same.push_back(&ranked);
      continue;
    }
    before += ranked.time.seconds;
    ranked.time =
        step_time(ranked.layout, *better, messages, hosts_of(config, plan.asked, plan.ranks));
    after += ranked.time.seconds;
  }
  const double scale = before > 0 ? after / before : 1;
  for (RankedLayout* ranked : same) {
    ranked->time.seconds *= scale;
    ranked->time.computing *= scale;
    ranked->time.communication *= scale;
    ranked->time.waiting *= scale;
  }
  sort_by_time(plan.fitting, plan.micro_batch);
}

}  // namespace tapestry::planning
