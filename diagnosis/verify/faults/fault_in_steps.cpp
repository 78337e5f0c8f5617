#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "diagnosis/verify/faults/fault_stages.h"
#include "diagnosis/verify/faults/fault_verdicts.h"
#include "diagnosis/verify/faults/observed_updates.h"
#include "diagnosis/verify/faults/reference_rule.h"
#include "diagnosis/verify/faults/step_comparison.h"

namespace tapestry {

namespace {

void add_row(FaultSearch& search,
             const std::string& stage,
             const std::vector<const ComparedQuantity*>& entries) {
  const ComparedQuantity* worst = nullptr;
  const auto share = [](const ComparedQuantity* c) {
    return c->finding.bound > 0  ? c->finding.distance / c->finding.bound
           : c->finding.agrees() ? 0.0
                                 : std::numeric_limits<double>::infinity();
  };
  bool agrees = true;
  for (const ComparedQuantity* each : entries) {
    agrees = agrees && each->finding.agrees();
    if (worst == nullptr || !(share(each) <= share(worst))) {
      worst = each;
    }
  }
  if (worst != nullptr) {
    search.row(stage, std::ssize(entries), worst->finding.distance, worst->finding.bound, agrees,
               concat(worst->finding.name, " of step ", worst->finding.step));
  } else {
    search.not_compared(stage, "the reference stores nothing of it");
  }
}

}  // namespace

bool numbers_stages(FaultSearch& search) {
  const int64_t steps = search.compared_steps();
  {
    OwnTraining process(search.single, search.training);
    search.own = process.train(steps);
  }
  StepComparison comparison(search.single, search.own, search.reference);
  for (int64_t k = 0; k < search.options.rounding_runs; ++k) {
    OwnTraining process(search.single, search.training);
    comparison.measure(process.train(steps, static_cast<uint64_t>(k)));
  }
  std::vector<ComparedQuantity> all;
  for (int64_t step = 1; step <= steps; ++step) {
    for (ComparedQuantity& each : comparison.compare(step)) {
      all.push_back(std::move(each));
    }
  }
  std::map<std::string, std::vector<const ComparedQuantity*>> by_stage;
  const ComparedQuantity* first = nullptr;
  for (const ComparedQuantity& each : all) {
    by_stage[each.stage].push_back(&each);
    if (first == nullptr && !each.finding.agrees()) {
      first = &each;
    }
  }
  for (const char* stage : {"forward", "loss", "backward", "reduction", "schedule", "optimizer"}) {
    add_row(search, stage, by_stage[stage]);
  }
  // A wrong update shows in the next step's numbers, too: it comes first, and so does a weight
  // that is not what the update has left.
  const auto comes_first = [&](int64_t step) {
    return first == nullptr || first->finding.step > step ||
           (first->finding.step == step && first->stage == "optimizer");
  };
  const std::vector<ObservedUpdate> updates = recorded_updates(search);
  const auto rule = followed_rule(search.single);
  const int64_t micro_batches = search.single.dataset_config.micro_batch_num;
  const auto optimizer =
      rule ? find_optimizer_fault(*rule, updates, schedules_of(search.single), micro_batches)
           : std::optional<OptimizerFault>();
  if (rule && !optimizer) {
    search.row("optimizer", std::ssize(search.own.tensors) * steps,
               largest_update_share(*rule, updates), 1, true,
               "updates follow from their gradients");
  }
  const auto stale = stale_weight(search.own);
  if (stale && comes_first(stale->step - 1) && (!optimizer || optimizer->step >= stale->step)) {
    return fail_stale(search, *stale);
  }
  if (optimizer && comes_first(optimizer->step)) {
    return fail_optimizer(search, *optimizer, "Step ");
  }
  const std::vector<ObservedUpdate> others = reference_updates(search);
  const auto other =
      rule && !optimizer && !others.empty()
          ? find_optimizer_fault(*rule, others, schedules_of(search.single), micro_batches)
          : std::optional<OptimizerFault>();
  if (other && comes_first(other->step)) {
    return fail_optimizer(search, *other, "Ours follows them. The reference's step ");
  }
  if (first == nullptr) {
    return true;
  }
  if (rule && is_behind_an_update(search, *first)) {
    return fail_update(search, *first, *rule, comparison);
  }
  // What comes after updates of which nothing is known may be their fault.
  const bool may_be_an_update = first->finding.step > 1 && !rule && first->stage != "schedule";
  return fail_number(search, *first, comparison, may_be_an_update ? "optimizer" : first->stage,
                     by_stage[first->stage]);
}

}  // namespace tapestry
