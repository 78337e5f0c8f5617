// Tensors of a dump as no layout changes them: put together from what ranks and micro-batches have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/dump/dump_reader.h"

namespace tapestry::dump {

/// A logical tensor's values.
struct JoinedTensor {
  /// Ascending; empty if the tensor belongs to no samples.
  std::vector<int64_t> samples;
  /// A tensor per sample, or the only one: contiguous, float32 or float64, bits as stored. A
  /// sample's has its rows along axis 0, wherever they lie in the file, and no such axis where it
  /// is one row: [S, H] of [B, S, H], of [S, B, H] and of [B * S, H].
  TensorList values;
  /// Largest difference between copies that should be equal, relative to the largest element.
  double copies_distance = 0;
  std::string copies;  ///< which ranks' differ most: "ranks 0 and 1"; empty if all are equal
};

/// Statistics per sample are not kept, so these are of the whole tensor.
struct JoinedStatistics {
  StatisticSet has;
  TensorStatistics statistics;
};

/// Values, or statistics, of all ranks and micro-batches under one name.
class LogicalTensor {
 public:
  explicit LogicalTensor(std::vector<StoredTensor> parts) : parts_(std::move(parts)) {}

  const std::vector<StoredTensor>& parts() const { return parts_; }
  /// Of the part that was made first; what all parts share stands for the tensor.
  const DumpRow& row() const { return parts_.front().row; }
  /// Ascending; empty if there are none.
  std::vector<int64_t> samples() const;
  /// True if there are files of all parts, with all of their elements.
  bool has_values() const;
  /// Why it cannot be put together; empty if it can. Elements that no rank has dumped; values that
  /// belong to no samples and differ among micro-batches or data-parallel ranks without being
  /// summands; ops and modules, which are named by their place in a rank's model, with different
  /// values on two ranks (of Values and Parameters these are copies that should be equal); ...
  std::string problem() const;

  /// Slices of ranks side by side, summands added (in float64, rank after rank), of copies the
  /// first. ValueError with problem(), where there is one, and if values are missing; IoError as
  /// StoredTensor::value.
  JoinedTensor load() const;
  /// What follows from the statistics of the parts; of summands nothing. MD5 only of a single part.
  JoinedStatistics statistics() const;

  /// The rank whose part has the element: `index` counts the elements of the sample's tensor (or of
  /// the only one) as load() gives it.
  int64_t rank_of(std::optional<int64_t> sample, int64_t index) const;
  /// The micro-batch of the sample, or of the first part.
  int64_t micro_batch_of(std::optional<int64_t> sample) const;

 private:
  std::vector<StoredTensor> parts_;
};

/// The logical tensors of an iteration in the order in which they came to be: forward pass,
/// backward pass, then the rest, each by time and place in the step. Tensors are the same if their
/// op's type and name, pass, IO and slot are; where an op runs several times in a micro-batch, the
/// first runs of all ranks and micro-batches belong together, the second, ...
std::vector<LogicalTensor> logical_tensors(const std::vector<StoredTensor>& tensors);

}  // namespace tapestry::dump
