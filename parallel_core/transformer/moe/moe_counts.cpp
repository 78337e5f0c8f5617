#include "parallel_core/transformer/moe/moe_counts.h"

#include <algorithm>

namespace tapestry {

namespace {

void add_counts(const std::vector<int64_t>& more, std::vector<int64_t>& sum) {
  sum.resize(more.size(), 0);
  std::transform(more.begin(), more.end(), sum.begin(), sum.begin(), std::plus<>());
}

}  // namespace

void MoECounts::add(const Routing& routing) {
  add_counts(routing.tokens_per_expert, tokens_per_expert);
  if (keeps_passes) {
    of_passes.push_back(routing.tokens_per_expert);
  }
  add_counts(routing.dropped_per_expert, dropped_per_expert);
  add_counts(routing.balance_counts, balance_counts);
  if (routing.exact_sequences > 0) {
    ++passes;
    sequences += routing.exact_sequences;
    aux_loss += routing.exact_aux_loss;
  } else if (routing.aux_loss.defined()) {
    aux_loss += routing.aux_loss.detach().item();
  }
  smallest_router_gap = std::min(smallest_router_gap, routing.smallest_router_gap);
  smallest_group_gap = std::min(smallest_group_gap, routing.smallest_group_gap);
  smallest_capacity_gap = std::min(smallest_capacity_gap, routing.smallest_capacity_gap);
}

double MoECounts::sequences_of_pass() const {
  return sequences > 0 ? static_cast<double>(sequences) / static_cast<double>(passes) : 1;
}

}  // namespace tapestry
