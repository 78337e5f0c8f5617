// What tasks that learn from files of examples have in common.
#pragma once

#include <memory>
#include <optional>

#include "parallel_core/post_training/reference/log_prob_table.h"
#include "parallel_core/post_training/task_data.h"
#include "parallel_core/training/run_task.h"

namespace tapestry::post_training {

/// Opens the data and, for tasks that are held against a reference (dpo, kto), has its
/// log-probabilities before training begins. Tasks add their objective.
class ExampleTask : public RunTask {
 public:
  RunData open_data(const AllConfig& config,
                    ProcessGroup& world,
                    DataUse use,
                    const DataState* resumed) override;
  void prepare(const AllConfig& config, const ModelBeforeTraining& model) override;

 protected:
  /// After open_data(). Objectives share them, so that they live as long as these.
  const std::shared_ptr<const TaskExamples>& examples() const { return examples_; }
  /// After prepare(), of the examples' sequences; null without a reference.
  const std::shared_ptr<const LogProbTable>& reference() const { return reference_; }
  /// The same of TaskExamples::mismatched.
  const std::shared_ptr<const LogProbTable>& mismatched_reference() const {
    return mismatched_reference_;
  }
  /// How sequences are put into rows, for passes of the objective's own.
  const RowRoom& room() const { return room_; }

 private:
  std::shared_ptr<const TaskExamples> examples_;
  std::shared_ptr<const LogProbTable> reference_;
  std::shared_ptr<const LogProbTable> mismatched_reference_;
  RowRoom room_;
};

}  // namespace tapestry::post_training
