// The layouts that a run could have on so many ranks, best first.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/planning/layouts/layout.h"
#include "parallel_core/planning/time/step_time.h"

namespace tapestry::planning {

struct PlanOptions {
  int64_t ranks = 1;               ///< that there are
  int64_t hosts = 1;               ///< machines that they run on
  int64_t cores = 1;               ///< of a machine
  int64_t data_parallel_size = 1;  ///< whose batch of a step is kept, as the run is configured
  int64_t memory = 0;              ///< bytes that one rank may take
};

/// A layout with what it costs.
struct RankedLayout {
  Layout layout;
  StepTime time;
  int64_t memory = 0;  ///< bytes of the rank that needs the most
};

struct Plan {
  PlanOptions asked;
  KeptBatch batch;
  int64_t ranks = 1;  ///< that it uses: as asked, or fewer where the batch has no layout for these
  int64_t threads = 1;      ///< of a rank
  int64_t micro_batch = 1;  ///< sequences, as the run is configured
  /// Fastest first; but where others take at most 2 % more, the one of them comes first that
  /// changes least: micro-batches as configured, a low zero_level.
  std::vector<RankedLayout> fitting;
  std::vector<RankedLayout> too_large;  ///< least memory first
  int64_t refused = 0;                  ///< layouts that a run would not start with
  std::vector<std::string> refusals;    ///< some of the reasons, in its own words
};

/// Threads that a rank has: training_config.num_threads, or its share of the machine's cores.
int64_t threads_of_rank(const AllConfig& config, const PlanOptions& options, int64_t ranks);

/// Where so many ranks run, and how many of them compute at once.
Hosts hosts_of(const AllConfig& config, const PlanOptions& options, int64_t ranks);

/// Times of a layout.
using TimesOf = std::function<ModelTimes(const Layout&)>;
/// Better ones; empty where there are none.
using BetterTimesOf = std::function<std::optional<ModelTimes>(const Layout&)>;

/// Every layout of `ranks` ranks that a run accepts, predicted; recomputed, and shared out further
/// (zero_level), where it does not fit otherwise. If none is possible, those of fewer ranks.
/// ValueError, with the reasons, if there is none at all; none of `fitting` if none fits.
Plan make_plan(const AllConfig& config,
               const PlanOptions& options,
               const TimesOf& times,
               const MessageCosts& messages);

/// The same of the configuration's own layout alone, which is on as many ranks. ConfigError and
/// ValueError where a run refuses it.
Plan plan_as_configured(const AllConfig& config,
                        const PlanOptions& options,
                        const TimesOf& times,
                        const MessageCosts& messages);

/// Predicts the layouts that may be the best ones anew: those that take less than `factor` times
/// the first. Those that have no better times are scaled as the others have changed on average.
void refine(Plan& plan, double factor, const BetterTimesOf& times, const MessageCosts& messages);

/// The table, at most `most` layouts that fit: times, memory, and why each loses against the first.
std::string plan_table(const Plan& plan, size_t most);

/// The keys whose values the best layout changes, as YAML sections.
std::string plan_sections(const Plan& plan, const AllConfig& config);

/// A whole configuration that starts the best layout.
std::string plan_file(const Plan& plan);

/// Every layout as a line of comma-separated values below their names: whether it fits, its text,
/// times in ms, bytes, and the settings that make it of the configuration, separated by spaces.
std::string plan_csv(const Plan& plan, const AllConfig& config);

/// "plan: ranks=3", the last line of the output.
std::string ranks_line(const Plan& plan);

}  // namespace tapestry::planning
