#include "parallel_core/transformer/max_logits.h"

#include <algorithm>

#include "autograd/tensor/factory.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

namespace {

// The largest of each number over ranks with other tokens, and those of all heads behind each
// other: [tensor-parallel ranks, numbers].
Tensor over_ranks(const Tensor& own) {
  if (!model_parallel_is_initialized()) {
    return own;
  }
  get_data_parallel_group(/*with_context_parallel=*/true).all_reduce(own, ReduceOp::kMax);
  ProcessGroup& heads = get_tensor_model_parallel_group();
  const Tensor all = empty({heads.size() * own.numel()}, own.dtype());
  heads.all_gather(all, own);
  return all;
}

}  // namespace

MaxLogits::MaxLogits(nn::Module& model) {
  for (const nn::Module::NamedModule& entry : model.named_modules()) {
    auto* mixer = dynamic_cast<TokenMixer*>(entry.module);
    if (mixer != nullptr && mixer->core_attention() != nullptr) {
      layers_.push_back(mixer);
    }
  }
}

void MaxLogits::start_step(bool measured) {
  if (!measured && !measured_) {
    return;
  }
  measured_ = measured;
  for (TokenMixer* layer : layers_) {
    layer->core_attention()->measure_logits(measured);
  }
}

HeadMaxima MaxLogits::finish_step() {
  if (!measured_ || layers_.empty()) {
    return {};
  }
  std::vector<float> own;
  for (TokenMixer* layer : layers_) {
    const std::vector<float> heads = layer->core_attention()->max_logits().to_vector<float>();
    own.insert(own.end(), heads.begin(), heads.end());
  }
  const auto numbers = std::ssize(own);
  const std::vector<float> all = over_ranks(tensor(own, {numbers})).to_vector<float>();
  HeadMaxima maxima;
  int64_t at = 0;
  for (TokenMixer* layer : layers_) {
    const int64_t heads = layer->core_attention()->max_logits().numel();
    std::vector<float>& found = maxima[layer->core_attention()->layer()];
    for (auto rank = all.begin(); rank != all.end(); rank += numbers) {
      found.insert(found.end(), rank + at, rank + at + heads);
    }
    at += heads;
  }
  start_step(false);
  return maxima;
}

}  // namespace tapestry
