#include "parallel_core/verification/reference_rule.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/verification/fault_verdicts.h"
#include "parallel_core/verification/observed_updates.h"

namespace tapestry {

namespace {

// A rule by which the reference's numbers can be had.
struct Fitting {
  KnownRule known;
  double share = 0;  // of the bounds, the largest
  LogicalState end;
};

std::vector<Fitting> fitting_rules(FaultSearch& search,
                                   const AdamRule& rule,
                                   const StepComparison& measured) {
  std::vector<Fitting> fitting;
  const int64_t steps = search.compared_steps();
  for (const KnownRule& known : known_rules(rule, rates(search.single), steps)) {
    double share = 0;
    bool fits = true;
    const auto goes_on = [&](const OwnRun& run) {
      const StepComparison comparison(measured, run);
      for (const ComparedQuantity& each : comparison.compare(std::ssize(run.steps))) {
        if (each.finding.what == Compared::kSchedule) {
          continue;  // what it says, not what it does
        }
        fits = fits && each.finding.agrees();
        if (each.finding.bound > 0) {
          share = std::max(share, each.finding.distance / each.finding.bound);
        }
      }
      return fits;
    };
    OwnTraining process(search.single, search.training);
    const OwnRun run = process.train_by_rule(steps, known.rule, goes_on);
    if (!fits) {
      continue;
    }
    // Two rules may be one for this model: where only norms do not decay, say.
    LogicalState end;
    for (const auto& [name, entry] : run.steps.back().update.entries) {
      end.emplace(name, entry.after);
    }
    const bool is_known = std::any_of(fitting.begin(), fitting.end(), [&](const Fitting& other) {
      return std::all_of(end.begin(), end.end(), [&](const auto& entry) {
        return equal_bits(entry.second, other.end.at(entry.first));
      });
    });
    if (!is_known) {
      fitting.push_back({known, share, std::move(end)});
    }
  }
  std::stable_sort(fitting.begin(), fitting.end(),
                   [](const Fitting& a, const Fitting& b) { return a.share < b.share; });
  return fitting;
}

}  // namespace

bool is_behind_an_update(const FaultSearch& search, const ComparedQuantity& first) {
  return first.finding.step > 1 && first.stage != "schedule" && first.stage != "optimizer" &&
         first.finding.what != Compared::kTokens &&
         !search.reference.weights(first.finding.step - 1);
}

bool fail_update(FaultSearch& search,
                 const ComparedQuantity& found,
                 const AdamRule& rule,
                 const StepComparison& comparison) {
  const int64_t step = found.finding.step - 1;
  const std::vector<Fitting> fitting = fitting_rules(search, rule, comparison);
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
      return fail_number(search, found, found.stage, {&found});
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
  std::string texts = fitting.front().known.text;
  constexpr size_t kShown = 3;
  for (size_t i = 1; i < std::min(fitting.size(), kShown); ++i) {
    texts += ", or " + fitting[i].known.text;
  }
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
