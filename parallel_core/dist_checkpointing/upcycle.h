// A mixture of experts that starts as a dense model. Source: Komatsuzaki et al. 2022, "Sparse
// Upcycling", arXiv:2212.05055, section 3.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/config/config.h"

namespace tapestry {

/// What a logical tensor of the mixture starts from.
struct UpcycledTensor {
  enum class Start : uint8_t {
    kDense,    ///< the dense model's tensor `name`
    kInitial,  ///< start values as in a new model: the router, and what only a shared expert has
    kZeros,    ///< w_down of a shared expert, which therefore gives 0
  };
  Start start = Start::kDense;
  std::string name;
};

/// Of the logical tensor "layers.I.moe.experts.E.w_up.weight" that is the dense
/// "layers.I.feed_forward.w_up.weight", whichever the expert; what is not of a mixture is the dense
/// model's of the same name.
UpcycledTensor upcycled_tensor(const std::string& logical);

/// The dense model that the mixture of a configuration can be made of.
TransformerConfig dense_model_of(const TransformerConfig& mixture);

/// ValueError if the weights at `path`, as resolve_checkpoint gives it, are those of a mixture
/// themselves, or if config.json beside them is not that of dense_model_of(mixture)
/// (check_hf_config); IoError for files that are not what they should be.
void check_dense_model(const TransformerConfig& mixture, const std::string& path);

}  // namespace tapestry
