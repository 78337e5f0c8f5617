#include "parallel_core/training/watch/expert_counts_file.h"

#include <algorithm>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/training/step/metrics.h"

namespace tapestry {

std::string ExpertCountsFile::path_in(const std::string& output_dir) {
  return output_dir + "/tokens_per_expert.jsonl";
}

ExpertCountsFile::ExpertCountsFile(const AllConfig& config, std::optional<int64_t> resume_step)
    : config_(config), path_(path_in(config.training_config.output_dir)) {
  if (resume_step) {
    keep_steps_until(path_, *resume_step);
  }
  file_.open(path_, resume_step ? std::ios::app : std::ios::trunc);
  check<IoError>(file_.is_open(), path_, ": cannot be written; is it a folder, or the output ",
                 "folder read-only?");
}

// One number means that many first layers of the model's own, several are layers themselves.
bool ExpertCountsFile::is_wanted(int64_t layer) const {
  const auto& layers = config_.monitor_config.tokens_per_expert_layers;
  if (!layers) {
    return true;
  }
  return layers->size() == 1 ? layer < std::min(layers->front(), config_.model_config.num_layers)
                             : std::find(layers->begin(), layers->end(), layer) != layers->end();
}

void ExpertCountsFile::after(FinishedStep& step) {
  if (!step.result.moe) {
    return;
  }
  const int64_t interval = config_.monitor_config.save_tokens_per_expert_interval.value();
  const int64_t own_layers = config_.model_config.num_layers;
  const int64_t micro_batches = step.result.moe->micro_batches;
  for (int64_t i = 0; i < micro_batches; ++i) {
    const int64_t iteration = (step.record.step - 1) * micro_batches + i + 1;
    if (iteration % interval != 0) {
      continue;
    }
    for (const auto& [layer, statistics] : step.result.moe->layers) {
      if (!is_wanted(layer)) {
        continue;
      }
      nlohmann::ordered_json line;
      line["iter"] = iteration;
      line["step"] = step.record.step;
      line["micro_step"] = i + 1;
      line["block"] = layer < own_layers ? "decoder" : "mtp";
      if (layer >= own_layers) {
        line["mtp_idx"] = layer - own_layers;
      }
      line["layer"] = layer;
      line["tpe"] = statistics.of_micro_batches.at(static_cast<size_t>(i));
      file_ << line.dump() << '\n';
    }
  }
  file_.flush();
  check<IoError>(file_.good(), path_, ": cannot be written; is the disk full?");
}

}  // namespace tapestry
