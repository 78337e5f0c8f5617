// What an optimizer must know that looks at more than one element of a tensor at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "autograd/tensor/tensor.h"
#include "nn/parameter.h"

namespace tapestry::optim {

/// Ranks that update the same tensors. Every one of them makes the same calls in the same order.
class RankGroup {
 public:
  RankGroup() = default;
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  virtual ~RankGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Replaces the tensor on every rank by the sum over all of them; the same bits on each.
  virtual void sum(const Tensor& values) const = 0;
  /// Sends input_counts[r] elements to rank r, one piece after the other, and receives
  /// output_counts[r] from it.
  virtual void all_to_all(const Tensor& output,
                          const Tensor& input,
                          const std::vector<int64_t>& output_counts,
                          const std::vector<int64_t>& input_counts) const = 0;
};

/// Which logical tensors the parameters are made of, and who else holds parts of these.
class ParameterLayout {
 public:
  ParameterLayout() = default;
  ParameterLayout(const ParameterLayout&) = delete;
  ParameterLayout& operator=(const ParameterLayout&) = delete;
  virtual ~ParameterLayout() = default;

  /// The logical tensors of a parameter; empty: it is one.
  virtual std::vector<nn::LogicalTensor> logical(const std::string& parameter_name) const = 0;
  /// The ranks that hold slices of the logical tensors, or the same slices (nn::LogicalTensor);
  /// null where this rank holds all of them.
  virtual const RankGroup* slices() const = 0;
  /// The ranks that hold the same slices as this one, whole or cut in pieces (ParameterShards);
  /// null where there is no other.
  virtual const RankGroup* copies() const = 0;
  /// The same of one parameter, where not all have the same ranks: experts of a mixture.
  virtual const RankGroup* slices_of(const std::string& /*parameter_name*/) const {
    return slices();
  }
  virtual const RankGroup* copies_of(const std::string& /*parameter_name*/) const {
    return copies();
  }
};

/// True if of the ranks that hold this rank's slice of a logical tensor, of those in slices(), this
/// is the first: the one that counts in sums over them.
bool counts_slice(const nn::LogicalTensor& logical, const RankGroup* slices);

}  // namespace tapestry::optim
