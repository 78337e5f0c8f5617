#include "parallel_core/post_training/distil_task.h"

#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/post_training/distil/distil_objective.h"
#include "parallel_core/post_training/teacher_data.h"

namespace tapestry::post_training {

RunData DistilTask::open_data(const AllConfig& config,
                              ProcessGroup& world,
                              DataUse use,
                              const DataState* resumed) {
  world_ = &world;
  const PostTrainingConfig& p = config.post_training_config;
  if (!p.teacher_log_probs) {
    RunData data = ExampleTask::open_data(config, world, use, resumed);
    tokenizer_ = data.opened.tokenizer;
    return data;
  }
  TeacherData data = open_teacher_data(config, use, resumed);
  teacher_ = std::make_unique<FileTeacher>(std::move(data.file), *p.beta);
  return std::move(data.run);
}

void DistilTask::prepare(const AllConfig& config, const ModelBeforeTraining& model) {
  if (config.post_training_config.teacher_log_probs) {
    return;
  }
  ExampleTask::prepare(config, model);
  teacher_ = std::make_unique<ModelTeacher>(open_teacher(config, tokenizer_, *world_));
}

std::unique_ptr<StepObjective> DistilTask::objective(const AllConfig& config,
                                                     TrainOneStepCell& /*cell*/) {
  const PostTrainingConfig& p = config.post_training_config;
  return std::make_unique<DistilObjective>(DistilOptions{.temperature = p.temperature,
                                                         .beta = *p.beta,
                                                         .add_tail = p.loss_add_tail,
                                                         .data_loss_weight = p.data_loss_weight},
                                           std::move(teacher_));
}

}  // namespace tapestry::post_training
