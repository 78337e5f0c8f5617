// rounding.csv: how far the tensors of a dump move when results are rounded otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tapestry::dump {

/// The largest movement of one tensor over the repetitions of a step.
struct RoundingRow {
  std::string op_name;  ///< as in the dump: with "Gradients/" in the backward pass
  bool input = false;
  int64_t slot = 0;
  std::string pass;
  int64_t iteration = 0;  ///< from 0
  /// In the units of dump distances: |difference| / |value|, largest elements in float32, Euclidean
  /// norms where the tensor is 16-bit. Finite, not negative.
  double distance = 0;
};

/// "rounding.csv" in the folder of a dump.
std::string rounding_path(const std::string& dump_folder);

/// A CSV file with the columns Op Name,IO,Slot,Pass,Iteration,Distance; IO is input or output. Rows
/// of the same tensor may repeat (ranks, samples): the largest counts. Appears whole or not at
/// all. IoError; ValueError for a distance that is negative or not finite.
void write_rounding(const std::string& path, const std::vector<RoundingRow>& rows);

/// IoError, with file and line, for what is no such file.
std::vector<RoundingRow> read_rounding(const std::string& path);

}  // namespace tapestry::dump
