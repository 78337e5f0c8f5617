// Mistakes in single ops of a training, made by an observer that changes what they give.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "autograd/tape/observer.h"
#include "diagnosis/verify/faults/find_fault.h"

namespace tapestry::testing {

/// Which runs of ops go wrong.
struct FaultyOp {
  std::string op;
  std::string module;  ///< how the path of the calling module ends; empty: any
  OpPass pass = OpPass::kForward;
};

/// What goes wrong when it has run; its results may be changed in place.
using OpMistake = std::function<void(const OpRun&)>;

/// A mistake of an op, on each rank of a training.
std::function<void(FindFaultOptions&)> mistake_in(FaultyOp where, OpMistake mistake);
/// The same before the op runs: `mistake` may change its inputs.
std::function<void(FindFaultOptions&)> mistake_before(FaultyOp where, OpMistake mistake);

/// Mistakes: result number `index` times a factor; rounded to bfloat16; row by row, those with an
/// even number halved.
OpMistake result_times(size_t index, double factor);
OpMistake result_rounded_to_bfloat16(size_t index);
OpMistake even_rows_of_result_halved(size_t index);
/// Each element by `change`, which is given the element and its number in the last axis.
OpMistake result_changed(size_t index, std::function<double(double, int64_t)> change);

void change_values(const Tensor& x, const std::function<double(double, int64_t)>& change);

}  // namespace tapestry::testing
