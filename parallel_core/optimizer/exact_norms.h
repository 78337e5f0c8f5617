// Norms that have the same bits however what they are of is spread over ranks.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// Several Euclidean norms, each of all elements that any rank adds to it
/// (kernels/exact_squares.h). Two passes over these, with the ranks brought together after each of
/// them.
class ExactNorms {
 public:
  explicit ExactNorms(size_t count) : parts_(count) {}

  /// Elements, float32, of any strides, that count: each once, on one rank. They are read in
  /// result().
  void add(size_t norm, const Tensor& elements) { parts_[norm].push_back({elements, false}); }
  /// Elements among those added that do not.
  void take_away(size_t norm, const Tensor& elements) { parts_[norm].push_back({elements, true}); }

  /// Replaces values by their maxima or sums over the ranks that have parts. There are equally many
  /// values of each norm, those of the first norm first.
  using Reduce = std::function<void(std::span<double> values, ReduceOp op)>;
  /// The norms. NaN where an element is, else infinity where one is. Collective as `reduce` is.
  std::vector<double> result(const Reduce& reduce) const;

 private:
  struct Part {
    Tensor elements;
    bool is_taken_away;
  };
  std::vector<std::vector<Part>> parts_;
};

/// Replaces values by their maxima or sums over the ranks of a group. Collective.
void reduce_over(ProcessGroup& group, std::span<double> values, ReduceOp op);

}  // namespace tapestry
