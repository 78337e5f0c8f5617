// How far the tensors of a dump move between repetitions of its steps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "diagnosis/dump/logical_tensor.h"
#include "diagnosis/dump/rounding_file.h"

namespace tapestry::dump {

/// The largest distance of each floating tensor over all repetitions. Those that overflow now and
/// then, and those that cannot be put together, are left out.
class Movements {
 public:
  /// Dumps of the same steps by the same program in the same layout: RuntimeError if they have
  /// other tensors. IoError for dumps that cannot be read.
  void add(const std::string& run_folder, const std::string& repetition_folder);

  /// What rounding.csv says.
  std::vector<RoundingRow> rows() const;

 private:
  // Iteration, pass, name, whether it is an input, slot.
  using Key = std::tuple<int64_t, std::string, std::string, bool, int64_t>;

  void add(int64_t iteration, const LogicalTensor& expected, const LogicalTensor& moved);

  std::map<Key, double> largest_;
};

}  // namespace tapestry::dump
