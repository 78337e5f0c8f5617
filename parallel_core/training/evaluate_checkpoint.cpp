#include "parallel_core/training/evaluate_checkpoint.h"

#include <cmath>
#include <cstdio>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/training/get_model.h"
#include "parallel_core/training/logging.h"
#include "parallel_core/training/metrics.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/resume.h"

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

}  // namespace

EvaluationSummary evaluate_checkpoint(const AllConfig& config,
                                      const std::string& checkpoint,
                                      const std::shared_ptr<ProcessGroup>& world) {
  initialize_ranks(config, world);
  const RunData data = open_data(config, *world, DataUse::kEvaluation);
  check<ValueError>(data.validation != nullptr || data.test != nullptr,
                    "evaluation: the data have neither a validation nor a test part; give one a "
                    "share of dataset_config.split, or name dataset_config.valid_data_path");
  const std::string resolved = resolve_checkpoint(checkpoint);
  verify_weights(resolved, config.training_config.crc_check, *world);
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
