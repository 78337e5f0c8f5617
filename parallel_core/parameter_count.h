// How many parameters a configuration means, without a model.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel_core/config/model_matrices.h"

namespace tapestry {

/// Parameters of the model, exactly; a tied output matrix counts once. With several ranks those
/// that one of them holds, the vocabulary's padding included. ValueError if the number does not fit
/// 53 bits.
int64_t parameter_count(const TransformerConfig& model, const ModelShares& shares = {});
/// Of these the ones that a token meets: of the experts of a layer those that it is sent to.
int64_t active_parameter_count(const TransformerConfig& model);

/// A part of the model: its layers, with or without what comes before and after them, which are
/// also the layers that predict further tokens (mtp_num_layers). An end without the beginning has a
/// copy of the table of embeddings if it is tied, or if there are such layers.
struct ModelPart {
  std::vector<AlikeLayers> layers;
  bool pre_process = true;
  bool post_process = true;
};

/// In double, so that absurd sizes do no harm.
struct ParameterCounts {
  double dense = 0;
  double experts = 0;  ///< of routed experts

  double all() const { return dense + experts; }
};

/// Of one rank's share of a part, with `experts` of each mixture.
ParameterCounts count_parameters(const TransformerConfig& model,
                                 const ModelPart& part,
                                 const ModelShares& shares,
                                 int64_t experts);

/// Elements of the largest parameter in memory, which the matrices of a module are fused into; with
/// one tensor-parallel rank.
double largest_parameter(const TransformerConfig& model);

}  // namespace tapestry
