// Runs a random program and compares every tensor with what PyTorch made of it.
#pragma once

#include <map>
#include <string>

#include "tests/random_programs/program_file.h"

namespace tapestry::random_programs {

enum class Outcome {
  kAgrees,
  kDiffers,
  kStricter,  ///< ends with a refusal that the headers state and PyTorch does not have
};

struct Report {
  Outcome outcome = Outcome::kAgrees;
  size_t statement = 0;  ///< the last one that was run
  std::string reason;    ///< what differs, or why the library is stricter
};

/// What a number of programs came to.
struct Totals {
  int64_t statements = 0;
  int64_t tensors = 0;  ///< compared
  int64_t zeros = 0;    ///< of these, gradients that are zeros in one library and none in the other
  int64_t refusals = 0;  ///< of PyTorch and the library alike
  std::map<std::string, int64_t> stricter;
  /// Largest distance from the expected value as a share of its bound, for each dtype.
  std::map<std::string, double> worst;
};

Report run_program(const Program& program, Totals& totals);

}  // namespace tapestry::random_programs
