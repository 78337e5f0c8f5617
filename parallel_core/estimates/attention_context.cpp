#include "parallel_core/estimates/attention_context.h"

#include <algorithm>

namespace tapestry {

double mean_context(const TransformerConfig& model) {
  const double half = static_cast<double>(model.seq_length) / 2;
  double sum = 0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const auto window = window_left(model, layer);
    sum += window ? std::min(static_cast<double>(*window + 1), half) : half;
  }
  return sum / static_cast<double>(std::max<int64_t>(model.num_layers, 1));
}

}  // namespace tapestry
