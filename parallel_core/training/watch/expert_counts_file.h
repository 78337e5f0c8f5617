// tokens_per_expert.jsonl: the choices of routers, micro-batch by micro-batch.
#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "parallel_core/config/config.h"
#include "parallel_core/training/step/step_observer.h"

namespace tapestry {

/// Writes a line for each layer with experts after every save_tokens_per_expert_interval
/// micro-batches that a data-parallel rank has computed since the run began:
///
///   {"iter":8,"step":2,"micro_step":4,"block":"decoder","layer":3,"tpe":[[..],..]}
///
/// iter counts micro-batches and step counts steps, both from 1 over the whole run, micro_step
/// those of the step. tpe has a list for each data-parallel rank, in their order: how many tokens
/// of its micro-batch went to each expert, before anything is dropped. Layers count from 0;
/// "block":"mtp" are those that predict further tokens, with their own number from 0 as mtp_idx.
class ExpertCountsFile final : public StepObserver {
 public:
  /// On rank 0. Starts the file anew, or with `resume_step` goes on with it behind the lines of
  /// that step. IoError if it cannot be written. The configuration outlives the object.
  ExpertCountsFile(const AllConfig& config, std::optional<int64_t> resume_step);

  StepPhase phase() const override { return StepPhase::kRecord; }
  void after(FinishedStep& step) override;

  /// The file in an output folder.
  static std::string path_in(const std::string& output_dir);

 private:
  bool is_wanted(int64_t layer) const;

  const AllConfig& config_;
  std::string path_;
  std::ofstream file_;
};

}  // namespace tapestry
