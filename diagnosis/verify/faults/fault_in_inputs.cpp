#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/checklist.h"
#include "diagnosis/accuracy/checklist_side.h"
#include "diagnosis/verify/faults/batch_difference.h"
#include "diagnosis/verify/faults/fault_stages.h"
#include "diagnosis/verify/layout_comparison.h"

namespace tapestry {

namespace {

// Why no checklist can be made with it; empty: one can.
std::string unknown_because(const std::string& config_file) {
  if (config_file.empty()) {
    return "the reference has no config.json";
  }
  try {
    accuracy::read_other_side(config_file, {});
    return {};
  } catch (const Error& error) {  // of another program, which owes us nothing
    return error.what();
  }
}

}  // namespace

bool config_stage(FaultSearch& search) {
  if (const std::string reason = unknown_because(search.reference.config_file()); !reason.empty()) {
    search.not_compared("config", reason);
    search.report.lines.push_back(
        concat("Configurations were not compared: ", reason,
               ". What is said below takes it that both sides were meant to be ours."));
    return true;
  }
  const accuracy::VerdictReport list =
      accuracy::run_checklist(accuracy::side_of(search.config, search.options.config_file,
                                                {.data_parallel_size = search.ranks}),
                              accuracy::read_other_side(search.reference.config_file(), {}));
  int64_t differing = 0;
  std::string keys;
  for (const accuracy::Finding& finding : list.findings) {
    if (finding.value("status", "") == "differs") {
      ++differing;
      keys += (keys.empty() ? "" : ", ") + finding.value("key", "");
    }
  }
  search.row("config", std::ssize(list.findings), static_cast<double>(differing), 0, differing == 0,
             keys);
  if (differing == 0) {
    return true;
  }
  accuracy::FirstDifference first;
  first.tensor = keys.substr(0, keys.find(','));
  return search.fail("config", first,
                     concat("The configurations differ in ", keys,
                            "; `accuracy checklist` says what each means. Make them equal first."));
}

bool weights_stage(FaultSearch& search) {
  LogicalState ours;
  {
    OwnTraining process(search.single, search.training);
    ours = process.start_weights();
  }
  LogicalShapes shapes;
  for (const auto& [name, value] : ours) {
    shapes.emplace(name, value.shape());
    search.elements += value.numel();
  }
  search.reference.set_tensors(std::move(shapes), search.single.model_config);
  LogicalState theirs;
  if (search.reference.config() && search.options.map.empty()) {
    OwnTraining process(search.theirs, search.plain);
    theirs = process.start_weights();
  } else {
    theirs = search.reference.start_weights();
  }
  search.start = theirs;
  std::string differing;
  std::string detail;
  double distance = 0;
  for (const auto& [name, value] : ours) {
    const auto found = theirs.find(name);
    if (found == theirs.end()) {
      differing = name;
      detail = "the reference has no such tensor";
      distance = std::numeric_limits<double>::infinity();
      break;
    }
    const Tensor expected = found->second.to(value.dtype());
    if (!equal_bits(value, expected)) {
      differing = name;
      distance = element_distance(value.to(kFloat64), expected.to(kFloat64),
                                  largest_element(expected.to(kFloat64)));
      break;
    }
  }
  if (differing.empty() && theirs.size() > ours.size()) {
    for (const auto& [name, value] : theirs) {
      if (!ours.contains(name)) {
        differing = name;
        detail = "our model has no such tensor";
        distance = std::numeric_limits<double>::infinity();
      }
    }
  }
  search.row("weights", std::ssize(ours), distance, 0, differing.empty(), detail);
  if (differing.empty()) {
    return true;
  }
  accuracy::FirstDifference first;
  first.tensor = differing;
  first.distance = distance;
  first.bound = 0;
  return search.fail(
      "weights", first,
      concat("Start weights differ, first in ", differing, detail.empty() ? "" : ": " + detail,
             ". Begin with the reference's: training_config.load_checkpoint names them, or "
             "--inject_weights."));
}

bool data_stage(FaultSearch& search) {
  const int64_t steps = search.compared_steps();
  std::vector<std::vector<data::Batch>> theirs;
  {
    OwnTraining process(search.theirs, search.plain);
    theirs = process.batches(steps);
  }
  OwnTraining process(search.single, search.training);
  const auto ours = process.batches(steps);
  int64_t compared = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    const auto& a = ours[static_cast<size_t>(step - 1)];
    const auto& b = theirs[static_cast<size_t>(step - 1)];
    for (size_t m = 0; m < std::max(a.size(), b.size()); ++m) {
      accuracy::FirstDifference first;
      first.step = step;
      first.micro_batch = static_cast<int64_t>(m);
      if (m >= a.size() || m >= b.size()) {
        search.row("data", compared, 1, 0, false, "numbers of micro-batches");
        return search.fail("data", first,
                           concat("Step ", step, " has ", a.size(), " micro-batches, ", b.size(),
                                  " in the reference."));
      }
      compared += 3;
      if (const auto found = first_difference(a[m], b[m])) {
        first.tensor = found->tensor;
        first.sample = found->sample;
        search.row("data", compared, 1, 0, false, found->detail);
        return search.fail("data", first,
                           concat("The data of step ", step, ", micro-batch ", m,
                                  " differ: ", found->detail, "."));
      }
    }
  }
  search.row("data", compared, 0, 0, true, concat(steps, " steps"));
  return true;
}

}  // namespace tapestry
