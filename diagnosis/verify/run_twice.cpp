#include "diagnosis/verify/run_twice.h"

#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tape/observer.h"
#include "autograd/tape/registry.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/verify/bit_checksum.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

namespace {

constexpr const char* kObserverName = "twice";
constexpr const char* kOps = "op results";
constexpr const char* kGradients = "gradients";

/// Something that was computed, in the order of a rank's computing.
struct Computed {
  const char* what = "";
  int64_t step = 0;
  int64_t micro_batch = -1;
  std::string pass;
  std::string module;
  std::string name;  ///< of the op or tensor
  uint64_t checksum = 0;

  bool is_same_thing(const Computed& other) const {
    return std::string_view(what) == other.what && step == other.step &&
           micro_batch == other.micro_batch && pass == other.pass && module == other.module &&
           name == other.name;
  }
};
using Trace = std::vector<Computed>;

/// Adds what the steps of a run compute to a trace.
class TraceOfRun final : public StepObserver, private Observer {
 public:
  TraceOfRun(TrainOneStepCell& cell, std::shared_ptr<Trace> trace)
      : cell_(cell), trace_(std::move(trace)) {
    cell_.set_gradient_observer([this](int64_t /*step*/) { add_gradients(); }, {}, kObserverName);
  }
  ~TraceOfRun() override { cell_.set_gradient_observer({}, {}, kObserverName); }

  void before(int64_t step) override {
    step_ = step;
    micro_batch_ = -1;
    scope_ = std::make_unique<ObserverScope>(static_cast<Observer&>(*this));
  }

  void after(FinishedStep& step) override {
    scope_.reset();
    micro_batch_ = -1;
    add("loss", {}, {}, "loss", std::bit_cast<uint64_t>(step.result.loss));
    add("grad_norm", {}, {}, "grad_norm", std::bit_cast<uint64_t>(step.result.grad_norm));
    for (const nn::Module::NamedParameter& entry : cell_.network().named_parameters()) {
      add("weights", {}, {}, entry.name,
          bit_checksum(cell_.optimizer().own_main_param(entry.name)));
    }
  }

 private:
  void phase_begins(const PhaseRun& phase) override {
    if (phase.micro_batch >= 0) {
      micro_batch_ = phase.micro_batch;
    }
  }

  void op_ended(const OpRun& run) override {
    uint64_t sum = 0;
    for (const Tensor& result : run.outputs) {
      sum = std::rotl(sum, 1) ^ bit_checksum(result);
    }
    add(kOps, name_of(run.pass), run.module, run.op, sum);
  }

  void add_gradients() {
    for (const nn::Module::NamedParameter& entry : cell_.network().named_parameters()) {
      add(kGradients, "backward", {}, entry.name, bit_checksum(entry.parameter->grad()));
    }
  }

  void add(const char* what,
           std::string_view pass,
           std::string_view module,
           std::string_view name,
           uint64_t checksum) {
    trace_->push_back({.what = what,
                       .step = step_,
                       .micro_batch = micro_batch_,
                       .pass = std::string(pass),
                       .module = std::string(module),
                       .name = std::string(name),
                       .checksum = checksum});
  }

  TrainOneStepCell& cell_;
  std::shared_ptr<Trace> trace_;
  std::unique_ptr<ObserverScope> scope_;
  int64_t step_ = 0;
  int64_t micro_batch_ = -1;
};

Trace trace_of(const AllConfig& config, PretrainOptions options, int64_t steps, const char* name) {
  AllConfig own = config;
  own.training_config.output_dir += concat("/twice/", name);
  auto trace = std::make_shared<Trace>();
  options.rehearsed_steps = steps;
  options.overwrite = true;
  options.replace = false;
  // Behind those that change what is computed.
  options.observers.push_back([trace](TrainOneStepCell& cell) -> std::unique_ptr<StepObserver> {
    return std::make_unique<TraceOfRun>(cell, trace);
  });
  pretrain(own, options);
  return std::move(*trace);
}

/// What one rank has found: counts by step and kind, and the first difference.
nlohmann::json comparison_of(const Trace& first, const Trace& second) {
  std::map<std::pair<int64_t, std::string>, std::pair<int64_t, int64_t>> counts;
  std::optional<nlohmann::json> earliest;
  const size_t size = std::max(first.size(), second.size());
  for (size_t i = 0; i < size; ++i) {
    const bool both = i < first.size() && i < second.size();
    const Computed& thing = i < second.size() ? second[i] : first[i];
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
  if (first["what"].get<std::string>() == kOps) {
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
  const Trace first = trace_of(config, options, steps, "first");
  const Trace second = trace_of(config, options, steps, "second");

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
