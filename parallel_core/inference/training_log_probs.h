// The log-probabilities that training has of tokens, from logits that sampling has made.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// ln p(ids[i]) of each row of logits [N, V], contiguous, p = softmax(row / temperature) over the
/// whole vocabulary: the float32 that TokenScores has of the same logits, bit for bit. So each
/// tensor-parallel rank's part of the vocabulary is summed by itself, in every rank's process.
std::vector<double> training_log_probs(const Tensor& logits,
                                       std::span<const int64_t> ids,
                                       double temperature);

}  // namespace tapestry
