// The tasks of post_training_config, for programs to hand to pretrain().
#pragma once

#include <memory>

#include "parallel_core/config/config.h"
#include "parallel_core/training/run_task.h"

namespace tapestry::post_training {

/// The task of a configuration; null without post_training_config.task. ValueError for a
/// configuration that the task cannot run.
std::unique_ptr<RunTask> run_task(const AllConfig& config);

}  // namespace tapestry::post_training
