#include "parallel_core/training/watch/expert_log.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

std::vector<std::string> expert_lines(const MoEStepStatistics& step) {
  std::vector<std::string> lines;
  for (const auto& [layer, statistics] : step.layers) {
    char text[80];
    std::snprintf(text, sizeof(text), "drop_rate: %.5f", statistics.drop_rate());
    lines.push_back(concat("layer: ", layer, ", ", text));
    std::snprintf(text, sizeof(text), "expert_load: max %.3f, min %.3f", statistics.largest_load(),
                  statistics.smallest_load());
    lines.push_back(concat("layer: ", layer, ", ", text));
  }
  return lines;
}

void ExpertLog::after(FinishedStep& step) {
  if (!step.result.moe || RankContext::current().rank() != 0) {
    return;
  }
  if (config_.moe_config.callback_moe_droprate) {
    const std::vector<std::string> lines = expert_lines(*step.result.moe);
    step.lines.insert(step.lines.end(), lines.begin(), lines.end());
  }
  if (!config_.tensorboard.log_expert_load_to_tensorboard) {
    return;
  }
  for (const auto& [layer, statistics] : step.result.moe->layers) {
    const std::vector<int64_t>& counts = statistics.tokens_per_expert;
    const auto all =
        std::max<int64_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}), 1);
    for (size_t e = 0; e < counts.size(); ++e) {
      step.record.scalars[concat("expert_load/", layer, "/ep_", e)] =
          static_cast<double>(counts[e]) / static_cast<double>(all);
    }
  }
}

}  // namespace tapestry
