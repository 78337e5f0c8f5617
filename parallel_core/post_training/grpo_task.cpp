#include "parallel_core/post_training/grpo_task.h"

#include <algorithm>
#include <string>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/post_training/grpo/grpo_objective.h"
#include "parallel_core/post_training/grpo/stored_rollouts.h"
#include "parallel_core/post_training/task_data.h"
#include "parallel_core/training/data/own_run_data.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/watch/evaluation.h"
#include "text/tokenizers/kinds/make_tokenizer.h"

namespace tapestry::post_training {

namespace {

// The run's tokenizer; null where it has none, as completions may be ids.
std::unique_ptr<data::Tokenizer> tokenizer_of(const DatasetConfig& d) {
  const std::string model = d.tokenizer_model.value_or("");
  return d.tokenizer_type == "byte" || !model.empty()
             ? data::make_tokenizer(d.tokenizer_type, model)
             : nullptr;
}

}  // namespace

SupplierFactory stored_rollouts() {
  return [](const AllConfig& config, const GenerationPlan& plan, const RowRoom& room,
            ProcessGroup& /*world*/) -> std::unique_ptr<RolloutSupplier> {
    const DatasetConfig& d = config.dataset_config;
    const std::unique_ptr<data::Tokenizer> tokenizer = tokenizer_of(d);
    auto stored = std::make_unique<StoredRollouts>(
        config, plan, room,
        RolloutFileOptions{
            .num_generations = config.post_training_config.num_generations,
            .vocab_size = config.model_config.vocab_size,
            .max_tokens = room.seq_length,
            .skip_bad_lines = d.skip_bad_lines,
            .tokenizer = tokenizer.get(),
            .end_id = d.eos_token_id.value_or(tokenizer ? tokenizer->eod_id() : -1),
            .pad_id = d.pad_token_id.value_or(tokenizer ? tokenizer->pad_id() : -1)});
    if (const std::string remark = stored->remark(); !remark.empty()) {
      log_warning("data: " + remark);
    }
    return stored;
  };
}

RunData GrpoTask::open_data(const AllConfig& config,
                            ProcessGroup& world,
                            DataUse /*use*/,
                            const DataState* resumed) {
  plan_ = GenerationPlan::of(config, get_data_parallel_world_size());
  const DatasetConfig& d = config.dataset_config;
  const RowRoom room = row_room(config, std::max<int64_t>(d.pad_token_id.value_or(0), 0));
  supplier_ = make_supplier_(config, plan_, room, world);
  RunData run = open_own_data(
      config,
      [&](const AllConfig& /*config*/, const DataRank& /*rank*/) {
        auto source = std::make_unique<RolloutSource>(*supplier_, plan_, room);
        source_ = source.get();
        return OwnData{.train = std::move(source),
                       .fingerprint = supplier_->fingerprint(),
                       .description = supplier_->description(),
                       .tokenizer_model = d.tokenizer_model.value_or("")};
      },
      world, resumed);
  return run;
}

void GrpoTask::prepare(const AllConfig& config, const ModelBeforeTraining& model) {
  supplier_->set_model(model.model);
  supplier_->prepare(config, model);
}

std::unique_ptr<StepObjective> GrpoTask::objective(const AllConfig& config,
                                                   TrainOneStepCell& /*cell*/) {
  const auto rows_of_step = [this, &config](int64_t step) {
    return step_batches(*source_, config, {.step = step});
  };
  return std::make_unique<GrpoObjective>(config, plan_, source_->drawn(), rows_of_step);
}

std::vector<std::unique_ptr<StepObserver>> GrpoTask::observers(const AllConfig& config,
                                                               TrainOneStepCell& cell) {
  return supplier_->observers(config, cell);
}

}  // namespace tapestry::post_training
