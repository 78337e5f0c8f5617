#include "parallel_core/estimates/attention_context.h"

#include <algorithm>

namespace tapestry {

double mean_context(const TransformerConfig& model, int64_t layer) {
  if (mixer_kind(model, layer) != MixerKind::kAttention) {
    return 0;
  }
  const double half = static_cast<double>(model.seq_length) / 2;
  const auto window = window_left(model, layer);
  return window ? std::min(static_cast<double>(*window + 1), half) : half;
}

}  // namespace tapestry
