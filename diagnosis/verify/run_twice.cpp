#include "diagnosis/verify/run_twice.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tape/registry.h"
#include "autograd/tensor/error.h"
#include "diagnosis/verify/op_trace.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

namespace {

constexpr const char* kObserverName = "twice";

OpTrace trace_of(const AllConfig& config,
                 PretrainOptions options,
                 int64_t steps,
                 const char* name) {
  AllConfig own = config;
  own.training_config.output_dir += concat("/twice/", name);
  auto trace = std::make_shared<OpTrace>();
  options.rehearsed_steps = steps;
  options.overwrite = true;
  options.replace = false;
  // Behind those that change what is computed.
  options.observers.push_back([trace](TrainOneStepCell& cell) -> std::unique_ptr<StepObserver> {
    return std::make_unique<OpTracer>(cell, trace, TraceOptions{.name = kObserverName});
  });
  pretrain(own, options);
  return std::move(*trace);
}

/// What one rank has found: counts by step and kind, and the first difference.
nlohmann::json comparison_of(const OpTrace& first, const OpTrace& second) {
  std::map<std::pair<int64_t, std::string>, std::pair<int64_t, int64_t>> counts;
  std::optional<nlohmann::json> earliest;
  const size_t size = std::max(first.size(), second.size());
  for (size_t i = 0; i < size; ++i) {
    const bool both = i < first.size() && i < second.size();
    const ComputedThing& thing = i < second.size() ? second[i] : first[i];
    const bool same_thing = both && first[i].is_same_thing(second[i]);
    auto& [compared, differ] = counts[{thing.step, thing.what}];
    ++compared;
    if (same_thing && first[i].checksum == second[i].checksum) {
      continue;
    }
    ++differ;
    if (!earliest) {
      earliest = {{"step", thing.step},    {"micro_batch", thing.micro_batch},
                  {"pass", thing.pass},    {"module", thing.module},
                  {"name", thing.name},    {"what", thing.what},
                  {"another", !same_thing}};
    }
    if (!same_thing) {
      break;  // from here on the two are not about the same things
    }
  }
  nlohmann::json out = {{"counts", nlohmann::json::array()},
                        {"first", earliest ? *earliest : nlohmann::json()}};
  for (const auto& [key, count] : counts) {
    out["counts"].push_back({key.first, key.second, count.first, count.second});
  }
  return out;
}

accuracy::FirstDifference first_difference(const nlohmann::json& first, int64_t rank) {
  accuracy::FirstDifference out;
  out.step = first["step"].get<int64_t>();
  out.rank = rank;
  if (first["micro_batch"].get<int64_t>() >= 0) {
    out.micro_batch = first["micro_batch"].get<int64_t>();
  }
  const auto text = [&](const char* key) -> std::optional<std::string> {
    const auto value = first[key].get<std::string>();
    return value.empty() ? std::nullopt : std::optional(value);
  };
  out.pass = text("pass");
  out.module = text("module");
  if (first["what"].get<std::string>() == kOpResults) {
    out.op = text("name");
    if (const OpInfo* info = find_op(*out.op); info != nullptr) {
      out.source = concat(info->file, ":", info->line);
    }
  } else {
    out.tensor = text("name");
  }
  return out;
}

}  // namespace

accuracy::VerdictReport run_twice(const AllConfig& config,
                                  const PretrainOptions& options,
                                  int64_t steps) {
  check<ValueError>(steps >= 1, "twice: ", steps, " steps; at least one is needed");
  check<ValueError>(!config.training_config.resume_training.on,
                    "twice: training_config.resume_training goes on with a checkpoint; both runs "
                    "are to begin anew: set it to False, and load_checkpoint to the checkpoint");
  const OpTrace first = trace_of(config, options, steps, "first");
  const OpTrace second = trace_of(config, options, steps, "second");

  accuracy::VerdictReport report{.command = "twice"};
  report.title = concat(steps, steps == 1 ? " step" : " steps", " trained twice");
  std::map<std::pair<int64_t, std::string>, std::pair<int64_t, int64_t>> counts;
  int64_t rank = 0;
  bool another = false;
  for (const std::string& text :
       all_gather_text(*options.world, comparison_of(first, second).dump())) {
    const nlohmann::json own = nlohmann::json::parse(text);
    for (const nlohmann::json& row : own["counts"]) {
      auto& [compared, differ] = counts[{row[0].get<int64_t>(), row[1].get<std::string>()}];
      compared += row[2].get<int64_t>();
      differ += row[3].get<int64_t>();
    }
    const nlohmann::json& earliest = own["first"];
    if (!earliest.is_null() &&
        (!report.first || earliest["step"].get<int64_t>() < *report.first->step)) {
      report.first = first_difference(earliest, rank);
      another = earliest["another"].get<bool>();
    }
    ++rank;
  }
  for (const auto& [key, count] : counts) {
    report.findings.push_back({{"step", key.first},
                               {"what", key.second},
                               {"compared", count.first},
                               {"differ", count.second},
                               {"status", count.second == 0 ? "same" : "differs"}});
  }
  report.outcome = report.first ? accuracy::Outcome::kDiffers : accuracy::Outcome::kAgrees;
  report.lines.push_back(
      report.first
          ? concat(another ? "The second run computes something else from the place named on."
                           : "The place named is the first whose result has other bits in the "
                             "second run; what comes before it has the same.")
          : concat("All results have the same bits in both runs."));
  return report;
}

}  // namespace tapestry
