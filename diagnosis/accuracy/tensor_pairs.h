// Which tensors of two dumps are the same.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diagnosis/accuracy/tensor_names.h"
#include "diagnosis/dump/logical_tensor.h"
#include "interop/architectures/file_place.h"

namespace tapestry::accuracy {

/// A tensor of one dump, or what of it is meant.
struct TensorSide {
  const dump::LogicalTensor* tensor = nullptr;
  Cut cut = Cut::kNone;
  int64_t part = 0;
  std::optional<FilePlace> place;  ///< of a parameter under another program's name
};

struct TensorPair {
  TensorSide ours;
  TensorSide expected;
};

struct TensorPairs {
  std::vector<TensorPair> pairs;  ///< in our order
  /// Tensors of one side that nothing on the other side is paired with, by op name.
  std::vector<std::string> only_ours;
  std::vector<std::string> only_expected;
  /// Of both sides, but not the same under their name: in a module where other ops run, and of no
  /// samples where steps are cut into other micro-batches.
  std::vector<std::string> other_ops;
  std::vector<std::string> other_split;
};

/// Pairs tensors of the same op type, op name, pass, IO and slot (and run, where ops run more than
/// once); then values and modules that mean the same (named_values), `map` applied to the names of
/// `expected` first; then parameters, their gradients and updates by file_place.
///
/// Ops of Tapestry are numbered within their module, so they are paired only where the same ops run
/// there on both sides; `chosen_ops`: a side was told to write some ops alone, so what only the
/// other has says nothing.
TensorPairs pair_tensors(const std::vector<dump::LogicalTensor>& ours,
                         const std::vector<dump::LogicalTensor>& expected,
                         const NameMap& map,
                         bool chosen_ops = false);

}  // namespace tapestry::accuracy
