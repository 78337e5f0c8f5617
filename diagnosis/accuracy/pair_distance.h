// How far the two tensors of a pair are apart.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "diagnosis/accuracy/tensor_pairs.h"
#include "diagnosis/dump/tensor_distance.h"

namespace tapestry::accuracy {

struct PairDistance {
  /// Why there is no distance; empty if there is one.
  std::string problem;
  double distance = 0;
  bool by_statistics = false;
  // Where the worst element is, if values were compared.
  std::optional<int64_t> sample;
  std::optional<int64_t> rank;         ///< of ours
  std::optional<int64_t> micro_batch;  ///< of ours
  std::string detail;                  ///< "0.5 instead of 0.25"; copies that are none
};

/// Values where both sides have them, else statistics. A tensor's rows of a sample may lie along
/// any axis, heads before or behind tokens, and several axes may be one: [n, S, D], [S, n, D] and
/// [S, n * D] are compared. IoError for files that cannot be read.
PairDistance pair_distance(const TensorPair& pair, dump::DistanceUnit unit);

}  // namespace tapestry::accuracy
