#include "diagnosis/verify/faults/reference_rule.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/generator.h"
#include "diagnosis/verify/bit_checksum.h"
#include "diagnosis/verify/faults/explain_updates.h"
#include "diagnosis/verify/faults/fault_verdicts.h"
#include "diagnosis/verify/faults/observed_updates.h"

namespace tapestry {

namespace {

// What our training makes by a rule, held against what the reference has stored.
class Repetition {
 public:
  Repetition(FaultSearch& search, const StepComparison& measured)
      : search_(search), measured_(measured), process_(search.single, search.training) {}

  Trial operator()(const UpdateRule& rule, int64_t updates, bool whole) {
    const int64_t all = search_.compared_steps();
    const int64_t steps = std::min(updates + 1, all);
    Trial trial;
    trial.share = 0;
    const auto goes_on = [&](const OwnRun& run) {
      const StepComparison comparison(measured_, run);
      const int64_t step = std::ssize(run.steps);
      for (const ComparedQuantity& each : comparison.compare(step)) {
        const bool of_later_updates =
            each.finding.what == Compared::kWeights && step == steps && steps < all;
        // A schedule is what it says, not what it does.
        if (each.finding.what != Compared::kSchedule && !of_later_updates) {
          add(each, trial);
        }
      }
      return whole ? std::isfinite(run.steps.back().result.loss) : trial.share <= 1;
    };
    const OwnRun run = process_.train_by_rule(steps, rule, goes_on);
    for (const auto& [name, entry] : run.steps.back().update.entries) {
      trial.end = combine(trial.end, bit_checksum(entry.before));
    }
    return trial;
  }

 private:
  static void add(const ComparedQuantity& each, Trial& trial) {
    const Finding& f = each.finding;
    const double share = f.bound > 0  ? f.distance / f.bound
                         : f.agrees() ? 0.0
                                      : std::numeric_limits<double>::infinity();
    trial.share = std::isnan(share) || share > trial.share ? share : trial.share;
    if (f.bound > 0) {
      trial.residuals.push_back(each.excess / f.bound);
    }
  }

  FaultSearch& search_;
  const StepComparison& measured_;
  OwnTraining process_;
};

std::vector<Explanation> explanations(FaultSearch& search,
                                      const UpdateRule& rule,
                                      const StepComparison& measured) {
  const int64_t updates = search.compared_steps() - 1;
  std::vector<double> meant;
  const RateOfStep rate = rate_of_step(search.single);
  for (int64_t step = 1; step <= updates; ++step) {
    meant.push_back(rate(step));
  }
  Repetition repetition(search, measured);
  return explain_updates(rule,
                         {.updates = updates,
                          .rates = meant,
                          .schedules = schedules_of(search.single),
                          .micro_batches = search.single.dataset_config.micro_batch_num,
                          .tensors = search.own.tensors},
                         std::ref(repetition));
}

}  // namespace

bool is_behind_an_update(const FaultSearch& search, const ComparedQuantity& first) {
  return first.finding.step > 1 && first.stage != "schedule" && first.stage != "optimizer" &&
         first.finding.what != Compared::kTokens &&
         !search.reference.weights(first.finding.step - 1);
}

bool fail_update(FaultSearch& search,
                 const ComparedQuantity& found,
                 const UpdateRule& rule,
                 const StepComparison& comparison) {
  const int64_t step = found.finding.step - 1;
  const std::vector<Explanation> fitting = explanations(search, rule, comparison);
  const bool gradients = search.reference.gradients(step).has_value() ||
                         !search.reference.step(step).grad_norms.empty();
  const std::string compared =
      concat("Steps up to ", step, " agree in what the reference has stored of them, ",
             gradients                               ? "their gradients included"
             : search.reference.step(step).grad_norm ? "of gradients the norm of all alone"
                                                     : "gradients not among it",
             ", and our updates follow the settings. ");
  const std::string differs =
      concat("Step ", found.finding.step, "'s ", found.finding.name, " differs (",
             found.finding.detail.empty() ? concat("distance ", found.finding.distance)
                                          : found.finding.detail,
             "). ");
  accuracy::FirstDifference first;
  first.step = step;
  first.op = search.single.optimizer_config.optimizer_type;
  first.distance = found.finding.distance;
  first.bound = found.finding.bound;
  if (fitting.empty()) {
    // A rate of 0 on both sides moves nothing.
    if (!an_update_has_moved(search.own, step) && !search.reference.step(step).lr.empty()) {
      return fail_number(search, found, comparison, found.stage, {&found});
    }
    const std::string unknown =
        concat(gradients ? "" : "gradients or ", "the update of step ", step,
               ": the reference has no weights of it, and no known rule makes the later numbers");
    search.row("optimizer", 0, found.finding.distance, found.finding.bound, false, unknown);
    return search.fail(
        "optimizer", first,
        concat(compared, differs, "What lies between is ", unknown, "; store weights_step_", step,
               ".safetensors there to see which tensor moves otherwise. If it moves as "
               "ours, the forward pass on the data of step ",
               found.finding.step, " is left."));
  }
  const std::string texts = explanations_text(fitting);
  const KnownRule& best = fitting.front().known;
  const std::string stage = best.is_clipping        ? "clip"
                            : best.is_learning_rate ? "schedule"
                                                    : "optimizer";
  search.row(stage, search.compared_steps(), found.finding.distance, found.finding.bound, false,
             texts);
  return search.fail(
      stage, first,
      concat(compared, differs, "The reference is updated ", texts,
             ": trained so, all that it has stored of steps 1 to ", search.compared_steps(),
             " agrees", fitting.size() > 1 ? "; what is stored does not tell these apart." : "."));
}

}  // namespace tapestry
