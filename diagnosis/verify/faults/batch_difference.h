// Where two micro-batches differ first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "parallel_core/data/data_source.h"

namespace tapestry {

struct BatchDifference {
  std::string tensor;             ///< "tokens", "labels", "loss_mask", "position_ids", ...
  std::optional<int64_t> sample;  ///< of our run, where it is known
  std::string detail;             ///< "labels of row 1, position 7: 12 against 4"
};

/// Compares sizes, tokens, labels, loss masks, positions, documents and attention masks, in this
/// order; empty if all are equal.
std::optional<BatchDifference> first_difference(const data::Batch& ours, const data::Batch& theirs);

}  // namespace tapestry
