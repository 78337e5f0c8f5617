#include "diagnosis/verify/zero_learning_rate.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/verify/bit_checksum.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

namespace {

struct Changes {
  int64_t steps = 0;
  int64_t tensors = 0;
  std::map<std::string, int64_t> first;  ///< step in which the bits of a tensor first changed
};

class WatchedWeights final : public StepObserver {
 public:
  WatchedWeights(TrainOneStepCell& cell, std::shared_ptr<Changes> changes)
      : cell_(cell), changes_(std::move(changes)) {}

  void before(int64_t /*step*/) override {
    if (start_.empty()) {
      start_ = checksums();
      changes_->tensors = std::ssize(start_);
    }
  }
  void after(FinishedStep& step) override {
    ++changes_->steps;
    for (const auto& [name, checksum] : checksums()) {
      if (checksum != start_.at(name)) {
        changes_->first.try_emplace(name, step.record.step);
      }
    }
  }

 private:
  // What this rank updates, and what it computes with where it has that in the same memory.
  std::map<std::string, uint64_t> checksums() const {
    std::map<std::string, uint64_t> out;
    for (const nn::Module::NamedParameter& entry : cell_.network().named_parameters()) {
      out[entry.name] = bit_checksum(cell_.optimizer().own_main_param(entry.name));
    }
    return out;
  }

  TrainOneStepCell& cell_;
  std::shared_ptr<Changes> changes_;
  std::map<std::string, uint64_t> start_;
};

}  // namespace

accuracy::VerdictReport run_with_zero_learning_rate(const AllConfig& config,
                                                    const PretrainOptions& options,
                                                    int64_t steps) {
  check<ValueError>(steps >= 1, "lr_zero: ", steps, " steps; at least one is needed");
  auto changes = std::make_shared<Changes>();
  PretrainOptions own = options;
  own.rehearsed_steps = steps;
  own.zero_learning_rate = true;
  own.observers.push_back([changes](TrainOneStepCell& cell) -> std::unique_ptr<StepObserver> {
    return std::make_unique<WatchedWeights>(cell, changes);
  });
  const TrainSummary summary = pretrain(config, own);

  accuracy::VerdictReport report{.command = "lr_zero"};
  report.title = concat(steps, steps == 1 ? " step" : " steps", " with learning rate 0");
  int64_t rank = 0;
  for (const std::string& text :
       all_gather_text(*options.world, nlohmann::json(changes->first).dump())) {
    for (const auto& [name, first] :
         nlohmann::json::parse(text).get<std::map<std::string, int64_t>>()) {
      report.findings.push_back(
          {{"tensor", name}, {"step", first}, {"rank", rank}, {"status", "differs"}});
      if (!report.first || first < *report.first->step) {
        report.first.emplace();
        report.first->step = first;
        report.first->rank = rank;
        report.first->tensor = name;
      }
    }
    ++rank;
  }
  report.outcome = report.first ? accuracy::Outcome::kDiffers : accuracy::Outcome::kAgrees;
  report.lines.push_back(concat("Losses and norms of ", summary.steps,
                                summary.steps == 1 ? " step" : " steps", " are in ",
                                config.training_config.output_dir, "/metrics.jsonl."));
  report.lines.push_back(report.first ? "Weights have changed although the learning rate is 0."
                                      : concat("The ", changes->tensors,
                                               " tensors of the first rank have the bits that they "
                                               "started with, and so have those of all others."));
  return report;
}

}  // namespace tapestry
