#include "diagnosis/verify/faults/fault_search.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "diagnosis/verify/layout_text.h"
#include "parallel_core/dist_checkpointing/named_state.h"

namespace tapestry {

FaultSearch::FaultSearch(const ConfigLoader& load_,
                         const std::string& reference_folder,
                         const FindFaultOptions& options_)
    : reference(reference_folder, options_.map),
      options(options_),
      load(load_),
      training(options_.training),
      config(load_({})) {
  check<ValueError>(!config.training_config.rampup_batch_size,
                    "training_config.rampup_batch_size: steps are compared that all have the "
                    "global batch; leave the key out while looking for a fault");
  // A layout's data-parallel ranks are known by the sequences of the reference's steps alone.
  const int64_t theirs_in_step =
      reference.config() ? global_batch_size(*reference.config(), 1) : reference.rows_of_step();
  const int64_t ours_in_step = global_batch_size(config, 1);
  ranks = ours_in_step > 0 && theirs_in_step % ours_in_step == 0
              ? std::max<int64_t>(1, theirs_in_step / ours_in_step)
              : 1;
  std::vector<std::string> overrides = single_process_overrides(config, ranks);
  single = load(overrides);
  require_supported(single);
  if (reference.config()) {
    theirs = *reference.config();
  } else {
    overrides.push_back(reference.data_override());
    theirs = load(overrides);
  }
  if (options.start_weights) {
    training.start_weights = [this](const ParallelModel& model) {
      return in_logical_names(options.start_weights(), logical_shapes(model), single.model_config);
    };
  }
  report.command = "find_fault";
  report.title = concat("our training and ", reference_folder);
}

int64_t FaultSearch::compared_steps() const {
  // Of each step and of each that is repeated, gradients and weights before and after are kept.
  constexpr int64_t kSmall = 4'000'000;
  const int64_t steps = options.steps.value_or(elements <= kSmall ? 5 : 3);
  return std::min(steps, reference.steps());
}

void FaultSearch::row(const std::string& stage,
                      int64_t compared,
                      double worst,
                      double bound,
                      bool agrees,
                      const std::string& detail) {
  report.findings.push_back({{"stage", stage},
                             {"compared", compared},
                             {"worst", worst},
                             {"bound", bound},
                             {"status", agrees ? "agrees" : "differs"},
                             {"detail", detail}});
}

void FaultSearch::not_compared(const std::string& stage, const std::string& detail) {
  row(stage, 0, 0, 0, true, detail);
  report.findings.back()["status"] = "not_compared";
}

bool FaultSearch::fail(const std::string& stage,
                       accuracy::FirstDifference first,
                       const std::string& sentence) {
  report.outcome = accuracy::Outcome::kDiffers;
  report.stage = stage;
  report.first = std::move(first);
  report.lines.push_back(sentence);
  return false;
}

}  // namespace tapestry
