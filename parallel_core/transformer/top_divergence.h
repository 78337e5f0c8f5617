// Divergence between two distributions of which one is known by its likeliest tokens alone.
#pragma once

#include <cstdint>
#include <span>

namespace tapestry {

struct TopDivergenceOptions {
  double beta = 0;  ///< as in kernels/row_divergence.h
  /// The rest of the vocabulary is one more entry, ln(1 - sum exp), the sum's logarithm held at
  /// most -1e-7. False: both distributions are those among the known tokens.
  bool add_tail = true;
  int64_t vocabulary = 0;  ///< where all of it is known there is no rest
};

/// The divergence of `own` from `teacher`, both log-probabilities of the same tokens in the whole
/// vocabulary; entries whose `teacher` is -infinity are left out. Writes its gradient for `own`,
/// from which that of the logits z (of a temperature 1) is gradient_j at the tokens and
/// -p_v sum gradient everywhere: with p the own probability of token v.
///
/// Of beta 0 this is what TRL calls the forward loss of a teacher's top k, of others its
/// generalised Jensen-Shannon divergence over the same entries.
double top_divergence(std::span<const double> own,
                      std::span<const float> teacher,
                      const TopDivergenceOptions& options,
                      std::span<float> gradient);

}  // namespace tapestry
