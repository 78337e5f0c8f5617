// The activations of single sequences, which layouts can be compared by.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/transformer/activation_recorder.h"

namespace tapestry {

/// What a rank has of a value of one sequence, [1, ...] with the batch first, and where that lies.
struct RecordedRow {
  Tensor value;
  ValuePlacement placement;
};

/// A value of one sequence.
using ActivationKey = std::pair<std::string, int64_t>;  // name, sample

/// Records the rows of some samples, of every one the first value. As with every
/// ActivationRecorder, of what the current rank computes while the object lives.
class SampleRecorder final : public ActivationRecorder {
 public:
  explicit SampleRecorder(std::set<int64_t> samples) : samples_(std::move(samples)) {}

  void value_made(const ObservedValue& value) override;

  /// What was recorded, in its order.
  const std::vector<ActivationKey>& order() const { return order_; }
  std::map<ActivationKey, RecordedRow>& rows() { return rows_; }

 private:
  std::set<int64_t> samples_;
  std::map<ActivationKey, RecordedRow> rows_;
  std::vector<ActivationKey> order_;
};

/// The first sequence of the first and the last micro-batch. `parts` sets of micro-batches lie
/// among each other, as those of data-parallel ranks do in one process.
std::set<int64_t> watched_samples(const std::vector<data::Batch>& batches, size_t parts);

}  // namespace tapestry
