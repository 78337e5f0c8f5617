// A mixture of experts that starts as a dense model. Source: Komatsuzaki et al. 2022, "Sparse
// Upcycling", arXiv:2212.05055, section 3.
#pragma once

#include <cstdint>
#include <string>

#include "optim/optimizer.h"
#include "parallel_core/config/config.h"
#include "parallel_core/pipeline_parallel/parallel_model.h"

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

/// Loads the weights of a dense model (paths and naming schemes as load_weights) into one whose
/// layers are mixtures, in part or all: each tensor starts from what upcycled_tensor() says, where
/// start values are those that it has. With gates that add up to 1 the model then computes what the
/// dense one does. The files are read piece by piece, a matrix as many times as it has copies here.
///
/// With an optimizer, which holds what this rank updates, through that, as load_own_weights.
/// ValueError with the full report if the dense weights do not fit: experts must be as wide as the
/// MLPs; also for what check_dense_model() refuses, and for names of modules.
void load_upcycled(ParallelModel& model,
                   const TransformerConfig& config,
                   const std::string& path,
                   optim::Optimizer* optimizer = nullptr);

}  // namespace tapestry
