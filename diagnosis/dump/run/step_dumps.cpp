#include "diagnosis/dump/run/step_dumps.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/dump/run/whole_activations.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/logical_state.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"
#include "parallel_core/pipeline_parallel/collect.h"

namespace tapestry {

namespace {

bool contains(const std::vector<int64_t>& steps, int64_t step) {
  return std::find(steps.begin(), steps.end(), step) != steps.end();
}

// Puts the tensors of all stages into one file.
void write_gathered(const std::string& path, std::map<std::string, Tensor> tensors) {
  const std::map<std::string, Tensor> all = gather_over_pipeline(std::move(tensors));
  if (RankContext::current().rank() == 0) {
    write_state(path, all);
  }
}

std::string dump_path(const AllConfig& config, const char* what, int64_t step) {
  return concat(config.training_config.output_dir, "/", what, "_step_", step, ".safetensors");
}

}  // namespace

StepDumps::StepDumps(TrainOneStepCell& cell, const AllConfig& config)
    : cell_(cell),
      config_(config),
      // Data- and context-parallel ranks have the same to write; the first one does.
      writes_(get_data_parallel_rank(/*with_context_parallel=*/true) == 0) {
  if (config.training_config.dump_grad_steps.empty()) {
    return;
  }
  cell_.set_gradient_observer(
      [this](int64_t step) {
        // Experts come from ranks that do not write, too.
        if (!writes_ && !has_experts(cell_.network())) {
          return;
        }
        std::map<std::string, Tensor> gradients = logical_gradients(cell_.network());
        if (writes_) {
          write_gathered(dump_path(config_, "grads", step), std::move(gradients));
        }
      },
      [this](int64_t step) { return contains(config_.training_config.dump_grad_steps, step); });
}

StepDumps::~StepDumps() {
  if (!config_.training_config.dump_grad_steps.empty()) {
    cell_.set_gradient_observer({});
  }
}

void StepDumps::before(int64_t step) {
  if (contains(config_.training_config.dump_activation_steps, step)) {
    activations_ = std::make_unique<ActivationRecorder>();
  }
}

void StepDumps::after(FinishedStep& step) {
  const int64_t number = step.record.step;
  if (activations_ != nullptr && get_data_parallel_rank() == 0) {
    const auto values = whole_activations(*activations_);
    if (writes_) {
      write_gathered(dump_path(config_, "acts", number), values);
    }
  }
  activations_.reset();
  if (contains(config_.training_config.dump_weight_steps, number)) {
    const LogicalState weights = get_logical_state(cell_.network(), &cell_.optimizer());
    if (writes_) {
      write_gathered(dump_path(config_, "weights", number), weights);
    }
  }
}

}  // namespace tapestry
