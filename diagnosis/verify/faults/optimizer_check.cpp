#include "diagnosis/verify/faults/optimizer_check.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/verify/faults/explain_updates.h"

namespace tapestry {

namespace {

struct Deviation {
  int64_t step = 0;
  std::string tensor;
  double share = 0;  // of what is allowed
};

// What float32 can tell of a weight of that size, twice: it is read and written.
double told_of(double weight) { return 0x1p-22 * std::abs(weight); }

// Not std::max: a NaN has to stay.
double larger(double a, double b) { return std::isnan(a) || a >= b ? a : b; }

struct Deviations {
  std::optional<Deviation> first;  // the largest of the first update that does not follow the rule
  std::set<std::string> tensors;   // of all updates
  double largest_share = 0;        // of what is allowed
  std::vector<double> residuals;   // as shares of what is allowed, of some elements of each tensor
};

// Where updates do not follow the rule; of `tensors` alone, unless there are none.
Deviations deviations(const UpdateRule& rule,
                      std::span<const NumericUpdate> updates,
                      const std::set<std::string>& tensors = {}) {
  constexpr size_t kMostResiduals = 4096;  // of a tensor
  StatesByRule states(rule);
  Deviations found;
  for (const NumericUpdate& update : updates) {
    states.next(update);
    std::optional<Deviation> worst;
    for (const auto& [name, entry] : update.entries) {
      if (!tensors.empty() && !tensors.contains(name)) {
        continue;
      }
      double share = 0;
      const size_t stride = 1 + entry.gradient.size() / kMostResiduals;
      states.for_elements(name, entry, [&](size_t i, double due, double allowed) {
        const double difference = entry.after[i] - entry.before[i] - due;
        const double told = told_of(entry.before[i]) + told_of(entry.after[i]);
        const double part = difference == 0 ? 0 : difference / (allowed + told);
        share = larger(share, std::abs(part));
        if (i % stride == 0) {
          found.residuals.push_back(part);
        }
      });
      found.largest_share = larger(found.largest_share, share);
      if (!(share <= 1)) {
        found.tensors.insert(name);
        if (!worst || share > worst->share) {
          worst = {update.step, name, share};
        }
      }
    }
    if (worst && !found.first) {
      found.first = worst;
    }
  }
  return found;
}

// "a, b and 3 more"
std::string list_of(const std::set<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string out;
  size_t shown = 0;
  for (const std::string& name : names) {
    if (shown == kShown) {
      return out + concat(" and ", names.size() - shown, " more");
    }
    out += (shown++ == 0 ? "" : ", ") + name;
  }
  return out;
}

std::vector<NumericUpdate> all_numbers_of(const std::vector<ObservedUpdate>& updates) {
  std::vector<NumericUpdate> out;
  for (const ObservedUpdate& update : updates) {
    out.push_back(numbers_of(update));
  }
  return out;
}

// Meant learning rates of the updates, by what most of their tensors say.
std::vector<double> rates_of(const std::vector<NumericUpdate>& updates) {
  std::vector<double> rates;
  for (const NumericUpdate& update : updates) {
    std::map<double, size_t> counts;
    for (const auto& [name, entry] : update.entries) {
      ++counts[entry.lr];
    }
    const auto most =
        std::max_element(counts.begin(), counts.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    rates.push_back(most == counts.end() ? 0 : most->first);
  }
  return rates;
}

}  // namespace

double largest_update_share(const UpdateRule& rule, const std::vector<ObservedUpdate>& updates) {
  return deviations(rule, all_numbers_of(updates)).largest_share;
}

std::optional<OptimizerFault> find_optimizer_fault(const UpdateRule& rule,
                                                   const std::vector<ObservedUpdate>& updates,
                                                   const SchedulesNear& schedules,
                                                   int64_t micro_batches) {
  const std::vector<NumericUpdate> numbers = all_numbers_of(updates);
  const Deviations found = deviations(rule, numbers);
  if (!found.first) {
    return std::nullopt;
  }
  OptimizerFault fault{
      .step = found.first->step, .tensor = found.first->tensor, .share = found.first->share};
  for (const bool all : {true, false}) {
    const std::set<std::string> tensors = all ? std::set<std::string>() : found.tensors;
    if (!all && tensors.size() == numbers.front().entries.size()) {
      continue;  // these are all
    }
    const std::vector<Explanation> explanations =
        explain_updates(rule,
                        {.updates = std::ssize(numbers),
                         .rates = rates_of(numbers),
                         .schedules = schedules,
                         .micro_batches = micro_batches,
                         .first_only = true},
                        [&](const UpdateRule& other, int64_t count, bool /*whole*/) {
                          Deviations made = deviations(
                              other, std::span(numbers).first(static_cast<size_t>(count)), tensors);
                          Trial trial;
                          trial.share = made.largest_share;
                          trial.residuals = std::move(made.residuals);
                          return trial;
                        });
    if (!explanations.empty()) {
      const KnownRule& known = explanations.front().known;
      fault.explanation = explanations_text(explanations);
      if (!all) {
        fault.explanation += ", of " + list_of(found.tensors) + " alone";
      }
      fault.is_clipping = known.is_clipping;
      fault.is_learning_rate = known.is_learning_rate;
      return fault;
    }
  }
  return fault;
}

}  // namespace tapestry
