// What a bad step came from, as one rank has found it, and which rank's finding counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "diagnosis/autopsy/step_trace.h"
#include "diagnosis/report/verdict_report.h"
#include "parallel_core/data/data_source.h"

namespace tapestry::autopsy {

/// How the values came up.
enum class FaultKind : uint8_t {
  kMade,       ///< an op made them out of finite ones
  kParameter,  ///< a parameter has them
  kReceived,   ///< they came from elsewhere, and no rank says from where
  kReduced,    ///< sums of gradients have them, the summands do not
  kGrew,       ///< they are finite, and larger than in the step before
  kNoTokens,   ///< no token of the step counts in the loss
  kUnknown,    ///< they did not come up again
};
/// "made", "parameter", ...
std::string_view name_of(FaultKind kind);

/// A run of an op, as a report shows it.
struct OpLine {
  int64_t micro_batch = 0;
  std::string pass;  ///< "forward", "backward", "again"
  std::string module;
  std::string op;
  double largest_input = 0;
  double largest_output = 0;
  bool finite_output = true;
};

/// A document that a row holds tokens of.
struct DocumentLine {
  int64_t document = 0;
  int64_t first = 0;
  int64_t count = 0;
  bool has_token = false;  ///< the one that the report is about
};

struct Fault {
  FaultKind kind = FaultKind::kUnknown;
  int64_t rank = 0;
  // When, as one process would come to it.
  int64_t micro_batch = -1;
  bool in_backward = false;
  int64_t stage_order = 0;  ///< chunks and stages in the order of the pass
  int64_t number = 0;       ///< of the op in its pass
  // What.
  OpLine op;
  std::string source;     ///< "FILE:LINE" of the op
  std::string value;      ///< "nan", "inf" or "-inf"
  std::string shape;      ///< of the tensor that has it
  int64_t element = 0;    ///< its number there
  std::string parameter;  ///< logical name; empty: none has to do with it
  int64_t parameter_row = -1;
  double parameter_largest = 0;
  bool parameter_is_suspect = false;  ///< it is what is wrong, not just what the op was given
  double growth = 0;                  ///< kGrew: times as large as in the step before
  // Where in the data.
  int64_t row = -1;
  int64_t position = -1;
  int64_t sample = -1;
  int64_t token = -1;
  std::vector<int64_t> samples;  ///< of the micro-batch
  std::string dataset;
  std::vector<DocumentLine> documents;
  std::string text;
  std::vector<OpLine> before;  ///< up to 20 ops, the last one last
};

/// How many ops before the fault are told of.
inline constexpr size_t kOpsBefore = 20;

/// True if `a` says more of where it began than `b`: sources before what was received, then what
/// one process would come to first.
bool comes_before(const Fault& a, const Fault& b);

/// A trace of the current rank, and what it is of.
struct TraceSide {
  const StepTrace& trace;
  const KnownParameters& parameters;
  const std::vector<data::Batch>& micro_batches;
  int64_t sequence_axis = 1;
  int stage = 0;  ///< of the pipeline
  int stages = 1;
};

/// What the trace says; nothing where all was finite.
std::optional<Fault> fault_of_bad_values(const TraceSide& side);

/// What has grown by less is not looked at.
inline constexpr double kLeastGrowth = 1.05;

/// The largest growth of an op's values, and the micro-batch in which it was; -1: nothing has grown
/// by more than kLeastGrowth.
struct GrowthPeak {
  double growth = kLeastGrowth;
  int64_t micro_batch = -1;
};
/// Those of the ranks' own ops in the forward passes and in the backward ones.
struct GrowthPeaks {
  GrowthPeak forward;
  GrowthPeak backward;
};

/// Of a step whose values are finite: by how much this rank's ops made larger ones than in
/// `reference`, a trace of other data with the same weights.
GrowthPeaks growth_peaks(const TraceSide& side, const StepTrace& reference);

/// The first op of this rank, in the passes of that direction and in the peak's micro-batch, whose
/// growth reaches the square root of the peak's. The peak is that of all stages of the pipeline, so
/// that they name what one process does. Nothing where none of the rank's ops does.
std::optional<Fault> fault_of_growth(const TraceSide& side,
                                     const StepTrace& reference,
                                     bool in_backward,
                                     const GrowthPeak& peak);

/// Fills in what the fault's row and position of its micro-batch, as far as they are known, say:
/// token, sample, documents.
void place_in_data(Fault& fault, const std::vector<data::Batch>& micro_batches);

/// The row of the micro-batch with the largest loss, where ops made one for each token; -1: not
/// known.
int64_t worst_row(const StepTrace& trace,
                  int64_t micro_batch,
                  int64_t batch,
                  int64_t sequence_axis);

nlohmann::ordered_json fault_json(const Fault& fault);
/// Of what fault_json has made.
Fault parse_fault(const nlohmann::ordered_json& json);

/// "op rms_norm of module ... made inf out of finite values (largest 3e+38) in the forward pass,
/// micro-batch 0, rank 2; ...".
std::string fault_sentence(const Fault& fault);

/// The rows of a report's table: the ops before and the op.
std::vector<accuracy::Finding> op_findings(const Fault& fault);

}  // namespace tapestry::autopsy
