#include "diagnosis/dump/run/kernel_search.h"

#include <algorithm>
#include <string>

#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/log/logging.h"

namespace tapestry {

void KernelSearch::see(std::string_view op_type, std::string_view op_name) {
  for (size_t i = 0; looks_ && i < found_.size(); ++i) {
    found_[i] = found_[i] || config_.kernels[i].matches(op_type, op_name);
  }
}

// Of a pipeline, or of experts, each rank sees its own.
void KernelSearch::end_step() {
  if (!looks_) {
    return;
  }
  looks_ = false;
  std::string own;
  for (const bool found : found_) {
    own += found ? '1' : '0';
  }
  const std::vector<std::string> ranks = all_gather_text(get_world_group(), own);
  if (RankContext::current().rank() != 0) {
    return;
  }
  for (size_t i = 0; i < own.size(); ++i) {
    const bool matches = std::any_of(ranks.begin(), ranks.end(),
                                     [i](const std::string& rank) { return rank[i] == '1'; });
    if (!matches) {
      log_warning(concat("dump: kernels: '", config_.kernels[i].text(),
                         "' matches no op, module, value or parameter of the step; ",
                         config_.only_kernels
                             ? "nothing is dumped for it. A dump with dump_mode 0 shows the names"
                             : "with dump_mode 0 all are dumped, whatever the list says"));
    }
  }
}

}  // namespace tapestry
