// Knowledge distillation as the task of a run.
#pragma once

#include <memory>

#include "parallel_core/post_training/distil/teacher.h"
#include "parallel_core/post_training/example_task.h"

namespace tapestry::post_training {

/// From a model in the same process (post_training_config.teacher with data), or from what one has
/// said beforehand (teacher_log_probs).
class DistilTask final : public ExampleTask {
 public:
  RunData open_data(const AllConfig& config,
                    ProcessGroup& world,
                    DataUse use,
                    const DataState* resumed) override;
  void prepare(const AllConfig& config, const ModelBeforeTraining& model) override;
  std::unique_ptr<StepObjective> objective(const AllConfig& config,
                                           TrainOneStepCell& cell) override;

 private:
  ProcessGroup* world_ = nullptr;
  data::TokenizerIdentity tokenizer_;
  std::unique_ptr<Teacher> teacher_;
};

}  // namespace tapestry::post_training
