// How exact ops are: run again in float64 from the inputs that they had.
#pragma once

#include <cstdint>
#include <string>

#include "diagnosis/report/verdict_report.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {

struct OpErrorOptions {
  /// A regular expression, searched for in the type of an op, "matmul", and in its name with the
  /// module in front, "decoder/layers/0/attention/matmul".
  std::string names;
  int64_t steps = 1;    ///< that are measured, from the first one on
  double multiple = 8;  ///< of what half-ulp inputs do that an op may be off by
};

/// Trains `steps` steps, without evaluating or saving, and measures each run of an op whose name
/// matches, forward and backward:
///   error      of what it gave against the op in float64 from the same inputs
///   half_ulp   what the float64 op moves by when each floating input moves by half a unit in its
///              last place, up or down by chance (the larger of two draws), and its result to the
///              nearest number of the result's type
/// in the units of dump/tensor_distance.h; of several results the worst. An op is as exact as its
/// inputs let it be where the two are of a size.
///
/// Views, which compute nothing, are left out. In backward what an op gives a weight is measured
/// where it is the first contribution. Ops that communicate, that run functions of others, or that
/// do not take float64 inputs beside what they hold themselves are listed as not measured. Costs
/// memory for the inputs of those that match, until backward. Every rank makes the call and gets
/// the report of all.
///
/// Verdicts: agree; differ if an error is more than `multiple` times half_ulp; not_comparable if no
/// op was measured. Findings, the worst first: {op, pass, runs, error, half_ulp, ratio, module,
/// step, micro_batch, rank, status, detail}. ValueError for an expression that is none, less than
/// one step, and a multiple below 1.
accuracy::VerdictReport measure_op_errors(const AllConfig& config,
                                          const PretrainOptions& options,
                                          const OpErrorOptions& measured);

}  // namespace tapestry
