#include "diagnosis/verify/faults/fault_verdicts.h"

#include <algorithm>
#include <cstdint>

#include "autograd/tensor/error.h"
#include "diagnosis/verify/faults/common_factor.h"
#include "diagnosis/verify/faults/known_models.h"
#include "diagnosis/verify/layout_findings.h"

namespace tapestry {

namespace {

// What would explain the difference: one factor of all, or another model.
std::string explanation_of(FaultSearch& search,
                           const ComparedQuantity& found,
                           const StepComparison& measured) {
  const Compared what = found.finding.what;
  const bool of_passes = what == Compared::kActivation || what == Compared::kLoss ||
                         what == Compared::kGradient || what == Compared::kGradNorm;
  if (!of_passes) {
    return {};
  }
  if (std::string factor = common_factor_text(search, found); !factor.empty()) {
    return ". In step " + std::to_string(found.finding.step) + " " + factor;
  }
  std::string text;
  for (const std::string& model : models_that_agree(search, found.finding.step, measured)) {
    text += (text.empty() ? ". The reference is " : ", or ") + model;
  }
  return text.empty() ? text
                      : text +
                            ": with that all that it has stored of values, loss and gradients "
                            "agrees so far";
}

}  // namespace

bool fail_number(FaultSearch& search,
                 const ComparedQuantity& found,
                 const StepComparison& measured,
                 const std::string& stage,
                 const std::vector<const ComparedQuantity*>& of_stage) {
  accuracy::FirstDifference first;
  first.step = found.finding.step;
  first.tensor = found.finding.name;
  if (!found.pass.empty()) {
    first.pass = found.pass;
  }
  if (!found.module.empty()) {
    first.module = found.module;
  }
  first.distance = found.finding.distance;
  first.bound = found.finding.bound;
  if (found.finding.what != Compared::kGradient) {
    return search.fail(
        stage, first,
        LayoutFindings::sentence(found.finding) + explanation_of(search, found, measured));
  }
  std::vector<const ComparedQuantity*> gradients;
  for (const ComparedQuantity* each : of_stage) {
    if (each->finding.what == Compared::kGradient && each->finding.step == found.finding.step) {
      gradients.push_back(each);
    }
  }
  const auto at = std::find(gradients.begin(), gradients.end(), &found);
  const BackwardPlace place =
      place_in_backward(gradients, static_cast<size_t>(at - gradients.begin()));
  first.module = place.module;
  Finding finding = found.finding;
  finding.made_by = "backward of " + search.own.described(place.module);
  finding.detail = place.detail;
  return search.fail(stage, first,
                     LayoutFindings::sentence(finding) + explanation_of(search, found, measured));
}

bool fail_optimizer(FaultSearch& search, const OptimizerFault& fault, const std::string& whose) {
  const std::string stage = fault.is_clipping        ? "clip"
                            : fault.is_learning_rate ? "schedule"
                                                     : "optimizer";
  accuracy::FirstDifference first;
  first.step = fault.step;
  first.tensor = fault.tensor;
  first.op = search.single.optimizer_config.optimizer_type;
  first.module = search.own.paths.at(fault.tensor);
  first.distance = fault.share;
  first.bound = 1;
  search.row(stage, std::ssize(search.own.tensors), fault.share, 1, false, fault.explanation);
  return search.fail(stage, first,
                     concat(whose, fault.step, " does not move ", fault.tensor,
                            " as its gradient, the learning rate and the settings say",
                            fault.explanation.empty() ? "" : ": it is " + fault.explanation, "."));
}

bool fail_stale(FaultSearch& search, const StaleWeight& stale) {
  accuracy::FirstDifference first;
  first.step = stale.step;
  first.tensor = stale.tensor;
  first.module = search.own.paths.at(stale.tensor);
  search.row("optimizer", std::ssize(search.own.tensors), 1, 0, false, "weights between steps");
  return search.fail("optimizer", first, stale.sentence);
}

}  // namespace tapestry
