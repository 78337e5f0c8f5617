#include "parallel_core/training/evaluate_checkpoint.h"

#include <cmath>
#include <cstdio>
#include <optional>

#include "autograd/kernels/machine/exact.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/training/checkpoints/resume.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/step/get_model.h"
#include "parallel_core/training/step/metrics.h"
#include "parallel_core/training/step/trainer_state.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

void log_loss(const char* part, double loss) {
  char text[120];
  std::snprintf(text, sizeof(text), "%s: Loss: %.6f, Perplexity: %.4f", part,
                without_nan_sign(loss), without_nan_sign(std::exp(loss)));
  if (RankContext::current().rank() == 0) {
    log_info(text);
  }
}

// What the checkpoint's run had read of its data; none beside weights alone.
std::optional<DataState> data_state_of(const std::string& checkpoint) {
  if (!has_training_state(checkpoint)) {
    return std::nullopt;
  }
  const std::string source = concat(checkpoint, "/", kTrainingStateFile);
  const TrainerState state = parse_trainer_state(read_training_state(checkpoint), source);
  return state.data.empty() ? std::nullopt : std::optional(parse_data_state(state.data, source));
}

}  // namespace

EvaluationSummary evaluate_checkpoint(const AllConfig& trained,
                                      const std::string& checkpoint,
                                      const std::shared_ptr<ProcessGroup>& world) {
  AllConfig config = trained;
  config.model_config.mtp_num_layers = 0;  // for training alone
  const ExactScope exact(config.training_config.exact);
  initialize_ranks(config, world);
  const std::string resolved = resolve_checkpoint(checkpoint);
  verify_weights(resolved, config.training_config.crc_check, *world);
  const std::optional<DataState> state = data_state_of(resolved);
  const RunData data = open_data(config, *world, DataUse::kEvaluation, state ? &*state : nullptr);
  check<ValueError>(data.validation != nullptr || data.test != nullptr,
                    "evaluation: the data have neither a validation nor a test part; give one a "
                    "share of dataset_config.split, or name dataset_config.valid_data_path");
  const auto model = get_model(config);
  load_weights(*model, config.model_config, resolved);
  if (RankContext::current().rank() == 0) {
    log_info("data: " + data.description);
    for (const std::string& remark : data.remarks) {
      log_info("data: " + remark);
    }
    log_info("evaluating " + resolved);
    const std::string remark = other_tokenizer_remark(config, data, resolved);
    if (!remark.empty()) {
      log_warning(remark);
    }
  }
  const int64_t iterations = config.training_config.eval_iters;
  EvaluationSummary summary;
  if (data.validation) {
    summary.validation_loss = evaluate(*model, *data.validation, config, iterations);
    log_loss("eval", *summary.validation_loss);
  }
  if (data.test) {
    summary.test_loss = evaluate(*model, *data.test, config, iterations);
    log_loss("test", *summary.test_loss);
  }
  return summary;
}

}  // namespace tapestry
