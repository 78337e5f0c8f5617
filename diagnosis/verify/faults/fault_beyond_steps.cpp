#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/compare_curves.h"
#include "diagnosis/verify/faults/fault_stages.h"
#include "diagnosis/verify/faults/step_comparison.h"
#include "diagnosis/verify/layout_comparison.h"
#include "diagnosis/verify/layout_text.h"

namespace tapestry {

namespace {

uint64_t bits_of(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

std::string stage_of(Compared what, const std::string& layout) {
  switch (what) {
    case Compared::kInitialWeights:
      return "weights";
    case Compared::kTokens:
      return "data";
    case Compared::kChoice:
    case Compared::kActivation:
    case Compared::kExpertCounts:
      return "forward";
    case Compared::kLoss:
      return "loss";
    case Compared::kGradient:
      return layout.find("dp=") != std::string::npos ? "reduction" : "backward";
    case Compared::kGradNorm:
      return "reduction";
    case Compared::kSchedule:
      return "schedule";
    case Compared::kWeights:
      return "optimizer";
  }
  return "none";
}

}  // namespace

bool determinism_stage(FaultSearch& search) {
  OwnTraining process(search.single, search.training);
  const OwnRun again = process.train(std::ssize(search.own.steps));
  for (size_t i = 0; i < search.own.steps.size(); ++i) {
    const OwnStep& a = search.own.steps[i];
    const OwnStep& b = again.steps[i];
    accuracy::FirstDifference first;
    first.step = static_cast<int64_t>(i) + 1;
    first.distance = 0;
    std::string what;
    for (const auto& [name, order] : search.own.value_order) {
      if (what.empty() && a.values.contains(name) &&
          !equal_bits(a.values.at(name), b.values.at(name))) {
        what = name;
        first.module = module_of_value(search.own, name);
      }
    }
    for (const auto& [name, gradient] : a.gradients) {
      if (what.empty() && !equal_bits(gradient, b.gradients.at(name))) {
        what = "the gradient of " + name;
        first.module = search.own.paths.at(name);
      }
    }
    if (what.empty() && bits_of(a.result.loss) != bits_of(b.result.loss)) {
      what = "loss";
    }
    if (!what.empty()) {
      first.tensor = what;
      search.row("determinism", 2, 1, 0, false, what);
      return search.fail("determinism", first,
                         concat("The same steps again do not have the same bits: ", what,
                                " of step ", i + 1, "."));
    }
  }
  search.row("determinism", std::ssize(search.own.steps), 0, 0, true, "the same bits twice");
  return true;
}

bool expand_stage(FaultSearch& search) {
  for (const std::string& layout : search.options.expand) {
    const LayoutPair pair = load_layout_pair(layout, search.load);
    VerifyOptions verify = search.training;
    verify.steps = search.compared_steps();
    const LayoutReport found = compare_layout(pair, verify);
    const auto first = found.findings->first();
    search.row("layout " + layout, found.steps, first ? first->distance : 0,
               first ? first->bound : 0, !first, first ? first->name : "agrees with one process");
    if (first) {
      accuracy::FirstDifference difference;
      difference.step = first->step;
      difference.tensor = first->name;
      difference.module = first->made_by;
      difference.pass = first->what == Compared::kGradient ? "backward" : "forward";
      difference.distance = first->distance;
      difference.bound = first->bound;
      return search.fail(stage_of(first->what, layout), difference,
                         concat("In the layout ", layout, ", ", LayoutFindings::sentence(*first)));
    }
  }
  return true;
}

bool long_run_stage(FaultSearch& search) {
  const int64_t steps = search.reference.steps();
  if (steps <= search.compared_steps()) {
    return true;
  }
  OwnRun all;
  {
    OwnTraining process(search.single, search.training);
    all = process.train(steps);
  }
  const auto add_point = [](accuracy::CurveRun& curve, int64_t at, double loss, double norm) {
    curve.steps.push_back(at);
    curve.loss.push_back(loss);
    curve.grad_norm.push_back(norm);
  };
  accuracy::CurveRun ours{.name = "ours"};
  accuracy::CurveRun theirs{.name = search.reference.folder()};
  for (int64_t step = 1; step <= steps; ++step) {
    const StepResult& result = all.steps[static_cast<size_t>(step - 1)].result;
    add_point(ours, step, result.loss, result.grad_norm);
    const ReferenceStep& other = search.reference.step(step);
    if (other.loss) {
      add_point(theirs, step, *other.loss,
                other.grad_norm.value_or(std::numeric_limits<double>::quiet_NaN()));
    }
  }
  const accuracy::CurveComparison curves = accuracy::compare_curves(ours, {theirs}, {});
  const bool agrees = curves.report.outcome == accuracy::Outcome::kAgrees;
  search.row("long_run", steps, 0, 0, agrees, curves.report.verdict_name());
  if (agrees) {
    return true;
  }
  return search.fail(
      "long_run", curves.report.first.value_or(accuracy::FirstDifference{}),
      curves.report.lines.empty() ? curves.report.verdict_name() : curves.report.lines.front());
}

}  // namespace tapestry
