// Notices bad steps before they change anything, says what they came from, and decides what becomes
// of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/autopsy/dissect_step.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/step/norm_spikes.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

namespace autopsy {
struct CapsuleRecord;
}

struct AutopsyOptions {
  std::string folder;           ///< of capsules: OUTPUT/capsule; empty: none are written
  std::string resolved_config;  ///< content of config.yaml
  std::string tokenizer_model;  ///< of the data; a file, or empty
  std::string adapter_config;   ///< as CheckpointOptions has them
  std::string base_model;
};

/// Examines every step of a run (training_config.autopsy). Bad are: a loss that is NaN or infinite;
/// such gradients, unless a dynamic loss scale above 1 answers them; a step without a token that
/// counts; a loss that is a spike (loss_spike_threshold); a norm that is one, where
/// monitor_config looks for them.
///
/// A good step costs comparisons of numbers that are there, and a copy of its rows where spikes are
/// looked for.
class StepAutopsy final : public StepExaminer, public StepObserver {
 public:
  /// Becomes the cell's examiner while it lives. The arguments outlive the object.
  StepAutopsy(TrainOneStepCell& cell, const AllConfig& config, AutopsyOptions options);
  ~StepAutopsy() override;

  bool suspects_loss(double loss) override;
  bool examine(ComputedStep& step) override;
  StepPhase phase() const override { return StepPhase::kAutopsy; }
  void after(FinishedStep& step) override;
  void save_past(TrainerState& state) const override;
  void load_past(const TrainerState& state) override;

  /// "nonfinite_loss", "nonfinite_gradient", "no_tokens", "loss_spike", "norm_spike", or empty.
  std::string anomaly_of(const StepResult& result, bool forward_only) const;
  /// Of the last bad step that was looked into; null before there was one.
  const StepFindings* findings() const { return findings_ ? &*findings_ : nullptr; }
  int64_t anomalies() const { return anomalies_; }  ///< bad steps so far

 private:
  struct Verdict {
    std::string sentence;  ///< of the whole step
    bool stops = false;
  };

  bool is_nonfinite(const std::string& anomaly) const;
  std::string action_for(const std::string& anomaly) const;
  StepFindings look_into(ComputedStep& step, const std::string& anomaly);
  std::string sentence(const ComputedStep& step,
                       const std::string& anomaly,
                       const StepFindings& findings) const;
  /// `generators`: the state of each rank's, as JSON.
  autopsy::CapsuleRecord capsule_record(const ComputedStep& step,
                                        const std::string& anomaly,
                                        const StepFindings& findings,
                                        const std::vector<std::string>& generators) const;
  std::string write_capsule(const ComputedStep& step,
                            const std::string& anomaly,
                            const StepFindings& findings,
                            const std::string& text);

  TrainOneStepCell& cell_;
  const AllConfig& config_;
  AutopsyOptions options_;
  std::optional<NormSpikes> loss_spikes_;
  std::vector<data::Batch> good_batches_;  // of the last good step
  int64_t anomalies_ = 0;
  int64_t in_a_row_ = 0;
  int64_t last_bad_step_ = 0;
  std::string failure_;
  std::optional<StepFindings> findings_;
};

}  // namespace tapestry
