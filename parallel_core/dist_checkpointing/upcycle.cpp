#include "parallel_core/dist_checkpointing/upcycle.h"

#include <memory>
#include <string_view>

#include "autograd/io/tensor_source.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/hf_folder.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"

namespace tapestry {

UpcycledTensor upcycled_tensor(const std::string& logical) {
  using Start = UpcycledTensor::Start;
  constexpr std::string_view kMixture = ".moe.";
  constexpr std::string_view kExperts = "experts.";
  constexpr std::string_view kSharedOutput = "shared_expert.w_down.";
  const size_t at = logical.find(kMixture);
  if (at == std::string::npos) {
    return {.start = Start::kDense, .name = logical};
  }
  const std::string_view inside = std::string_view(logical).substr(at + kMixture.size());
  if (inside.starts_with(kExperts)) {
    const std::string_view matrix = inside.substr(inside.find('.', kExperts.size()) + 1);
    return {.start = Start::kDense,
            .name = concat(logical.substr(0, at), ".feed_forward.", matrix)};
  }
  return {.start = inside.starts_with(kSharedOutput) ? Start::kZeros : Start::kInitial, .name = {}};
}

TransformerConfig dense_model_of(const TransformerConfig& mixture) {
  TransformerConfig dense = mixture;
  dense.moe = {};
  return dense;
}

void check_dense_model(const TransformerConfig& mixture, const std::string& path) {
  for (const std::string& name : open_weights(path)->names()) {
    check<ValueError>(name.find(".experts.") == std::string::npos, path,
                      ": moe_config.upcycle_from makes experts of a dense model, but this is a "
                      "mixture of experts already, with the tensor ",
                      name, "; load it as it is with training_config.load_checkpoint");
  }
  check_hf_config(dense_model_of(mixture), path);
}

}  // namespace tapestry
