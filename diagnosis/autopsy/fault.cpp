#include "diagnosis/autopsy/fault.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <sstream>
#include <tuple>

#include "autograd/tape/registry.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/autopsy/token_place.h"

namespace tapestry::autopsy {

namespace {

constexpr std::array<std::string_view, 7> kKindNames = {"made", "parameter", "received", "reduced",
                                                        "grew", "no_tokens", "unknown"};

OpLine to_op_line(const TracedOp& op) {
  return {.micro_batch = op.micro_batch,
          .pass = std::string(op.pass == OpPass::kAgain ? "again"
                              : op.in_backward          ? "backward"
                                                        : "forward"),
          .module = std::string(op.module),
          .op = std::string(op.op),
          .largest_input = op.largest_input,
          .largest_output = op.largest_output,
          .finite_output = op.finite_outputs};
}

std::string source_of(std::string_view op) {
  const OpInfo* info = find_op(op);
  return info == nullptr || info->file.empty() ? std::string()
                                               : concat(info->file, ":", info->line);
}

void name_parameter(Fault& fault, const KnownParameters& parameters, int32_t index) {
  if (index < 0) {
    return;
  }
  const ParameterState& state = parameters.all()[static_cast<size_t>(index)];
  fault.parameter = state.place.logical;
  fault.parameter_row = state.place.row;
  fault.parameter_largest = state.values.largest;
  fault.parameter_is_suspect = state.is_suspect;
}

// The token that an element belongs to.
void locate(Fault& fault, const TraceSide& side, const Shape& shape, int64_t element) {
  if (fault.micro_batch < 0 || fault.micro_batch >= std::ssize(side.micro_batches)) {
    return;
  }
  const data::Batch& batch = side.micro_batches[static_cast<size_t>(fault.micro_batch)];
  const TokenPlace place = token_place(shape, element, batch.batch, batch.seq, side.sequence_axis);
  fault.row = place.row;
  fault.position = place.position;
  fault.element = element;
}

Fault fault_at(const TraceSide& side, size_t index) {
  const StepTrace& trace = side.trace;
  const KnownParameters& parameters = side.parameters;
  const TracedOp& op = trace.ops()[index];
  Fault fault;
  fault.rank = RankContext::current().rank();
  fault.micro_batch = op.micro_batch;
  fault.in_backward = op.in_backward;
  const int64_t order = op.chunk * side.stages + side.stage;
  fault.stage_order = op.in_backward ? -order : order;
  fault.number = op.number;
  fault.op = to_op_line(op);
  fault.source = source_of(op.op);
  const size_t first = index > kOpsBefore ? index - kOpsBefore : 0;
  for (size_t i = first; i < index; ++i) {
    fault.before.push_back(to_op_line(trace.ops()[i]));
  }
  // The last suspect that an op up to here was given; else what the op itself was given.
  int32_t parameter = op.parameter;
  for (size_t i = index + 1; i-- > 0 && trace.ops()[i].micro_batch == op.micro_batch;) {
    const int32_t given = trace.ops()[i].parameter;
    if (given >= 0 && parameters.all()[static_cast<size_t>(given)].is_suspect) {
      parameter = given;
      break;
    }
  }
  name_parameter(fault, parameters, parameter);
  return fault;
}

}  // namespace

std::string_view name_of(FaultKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

bool comes_before(const Fault& a, const Fault& b) {
  const auto strength = [](const Fault& fault) {
    switch (fault.kind) {
      case FaultKind::kMade:
      case FaultKind::kParameter:
      case FaultKind::kGrew:
        return 0;
      case FaultKind::kReduced:
        return 1;
      default:
        return 2;
    }
  };
  const auto key = [&](const Fault& fault) {
    return std::tuple(strength(fault), fault.micro_batch, fault.in_backward, fault.stage_order,
                      fault.number, fault.rank);
  };
  return key(a) < key(b);
}

std::optional<Fault> fault_of_bad_values(const TraceSide& side) {
  const BadValue* bad = side.trace.first_bad();
  if (bad == nullptr) {
    return std::nullopt;
  }
  Fault fault = fault_at(side, bad->op);
  switch (bad->origin) {
    case BadValue::Origin::kMade:
      fault.kind = FaultKind::kMade;
      break;
    case BadValue::Origin::kParameter:
      fault.kind = FaultKind::kParameter;
      name_parameter(fault, side.parameters, side.trace.ops()[bad->op].parameter);
      break;
    case BadValue::Origin::kReceived:
      fault.kind = FaultKind::kReceived;
      break;
  }
  std::ostringstream shape;
  shape << bad->shape;
  fault.shape = shape.str();
  fault.value = bad->value;
  locate(fault, side, bad->shape, bad->element);
  return fault;
}

namespace {

// How much larger an op's values are than in the same op of another step.
class Growths {
 public:
  explicit Growths(const StepTrace& reference) {
    // Micro-batches run the same ops: the largest of any of them is what is usual.
    for (const TracedOp& op : reference.ops()) {
      auto& [name, largest] = usual_[{op.in_backward, op.chunk, op.number}];
      name = op.op;
      largest = std::max(largest, op.largest_output);
    }
  }
  double of(const TracedOp& op) const {
    const auto found = usual_.find({op.in_backward, op.chunk, op.number});
    const bool known = found != usual_.end() && found->second.first == op.op &&
                       found->second.second > 0 && op.pass != OpPass::kAgain;
    return known ? op.largest_output / found->second.second : 0.0;
  }

 private:
  std::map<std::tuple<bool, int64_t, int64_t>, std::pair<std::string_view, double>> usual_;
};

}  // namespace

GrowthPeaks growth_peaks(const TraceSide& side, const StepTrace& reference) {
  const Growths growths(reference);
  GrowthPeaks peaks;
  for (const TracedOp& op : side.trace.ops()) {
    GrowthPeak& peak = op.in_backward ? peaks.backward : peaks.forward;
    if (const double growth = growths.of(op); growth > peak.growth) {
      peak = {.growth = growth, .micro_batch = op.micro_batch};
    }
  }
  return peaks;
}

std::optional<Fault> fault_of_growth(const TraceSide& side,
                                     const StepTrace& reference,
                                     bool in_backward,
                                     const GrowthPeak& peak) {
  const Growths growths(reference);
  const std::vector<TracedOp>& ops = side.trace.ops();
  for (size_t i = 0; i < ops.size() && peak.micro_batch >= 0; ++i) {
    const TracedOp& op = ops[i];
    if (op.in_backward == in_backward && op.micro_batch == peak.micro_batch &&
        growths.of(op) >= std::sqrt(peak.growth)) {
      Fault fault = fault_at(side, i);
      fault.kind = FaultKind::kGrew;
      fault.growth = growths.of(op);
      if (op.largest_at >= 0) {
        locate(fault, side, op.shape, op.largest_at);
      }
      return fault;
    }
  }
  return std::nullopt;
}

void place_in_data(Fault& fault, const std::vector<data::Batch>& micro_batches) {
  if (fault.micro_batch < 0 || fault.micro_batch >= std::ssize(micro_batches)) {
    return;
  }
  const data::Batch& batch = micro_batches[static_cast<size_t>(fault.micro_batch)];
  fault.samples = batch.sample_ids;
  if (fault.row < 0 && batch.batch == 1) {
    fault.row = 0;
  }
  if (fault.row < 0) {
    return;
  }
  if (fault.row < std::ssize(batch.sample_ids)) {
    fault.sample = batch.sample_ids[static_cast<size_t>(fault.row)];
  }
  if (fault.position >= 0) {
    fault.token = batch.tokens[static_cast<size_t>(fault.row * batch.seq + fault.position)];
  }
  if (batch.origin) {
    const data::RowOrigin origin = batch.origin(fault.row);
    fault.dataset = origin.dataset;
    int64_t begin = 0;
    for (const data::DocumentPart& part : origin.documents) {
      fault.documents.push_back(
          {.document = part.document,
           .first = part.first,
           .count = part.count,
           .has_token = fault.position >= begin && fault.position < begin + part.count});
      begin += part.count;
    }
  }
}

int64_t worst_row(const StepTrace& trace,
                  int64_t micro_batch,
                  int64_t batch,
                  int64_t sequence_axis) {
  for (const RowLosses& losses : trace.row_losses()) {
    const auto count = static_cast<int64_t>(losses.tokens.size());
    if (losses.micro_batch != micro_batch || batch <= 0 || count % batch != 0) {
      continue;
    }
    std::vector<double> rows(static_cast<size_t>(batch));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = sequence_axis == 0 ? i % batch : i / (count / batch);
      rows[static_cast<size_t>(row)] += losses.tokens[static_cast<size_t>(i)];
    }
    return std::max_element(rows.begin(), rows.end()) - rows.begin();
  }
  return -1;
}

namespace {

using Json = nlohmann::ordered_json;

// JSON has no infinities; what is not finite has been told of elsewhere.
Json json_of(double value) { return std::isfinite(value) ? Json(value) : Json(value_text(value)); }

double number_or_infinity(const Json& json) {
  return json.is_number() ? json.get<double>() : std::numeric_limits<double>::infinity();
}

Json json_of(const OpLine& line) {
  return {{"micro_batch", line.micro_batch},
          {"pass", line.pass},
          {"module", line.module},
          {"op", line.op},
          {"largest_input", json_of(line.largest_input)},
          {"largest_output", json_of(line.largest_output)},
          {"status", line.finite_output ? "finite" : "not finite"}};
}

OpLine parse_line(const Json& json) {
  return {.micro_batch = json.at("micro_batch"),
          .pass = json.at("pass"),
          .module = json.at("module"),
          .op = json.at("op"),
          .largest_input = number_or_infinity(json.at("largest_input")),
          .largest_output = number_or_infinity(json.at("largest_output")),
          .finite_output = json.at("status") == "finite"};
}

template <class T>
Json json_of(const T& value) {
  return value;
}

void read_member(const Json& json, OpLine& line) { line = parse_line(json); }
void read_member(const Json& json, double& value) { value = number_or_infinity(json); }
template <class T>
void read_member(const Json& json, T& value) {
  json.get_to(value);
}

// Calls field(name, member) for what a file has of a fault under the names of its members, in this
// order.
template <class AnyFault, class Field>
void each_fault_field(AnyFault& fault, const Field& field) {
  field("rank", fault.rank);
  field("micro_batch", fault.micro_batch);
  field("in_backward", fault.in_backward);
  field("stage_order", fault.stage_order);
  field("number", fault.number);
  field("op", fault.op);
  field("source", fault.source);
  field("value", fault.value);
  field("shape", fault.shape);
  field("element", fault.element);
  field("parameter", fault.parameter);
  field("parameter_row", fault.parameter_row);
  field("parameter_largest", fault.parameter_largest);
  field("parameter_is_suspect", fault.parameter_is_suspect);
  field("growth", fault.growth);
  field("row", fault.row);
  field("position", fault.position);
  field("sample", fault.sample);
  field("token", fault.token);
  field("samples", fault.samples);
  field("dataset", fault.dataset);
  field("text", fault.text);
}

}  // namespace

nlohmann::ordered_json fault_json(const Fault& fault) {
  Json json = {{"kind", name_of(fault.kind)}};
  each_fault_field(fault,
                   [&](const char* name, const auto& member) { json[name] = json_of(member); });
  json["documents"] = Json::array();
  json["before"] = Json::array();
  for (const DocumentLine& line : fault.documents) {
    json["documents"].push_back({{"id", line.document},
                                 {"first", line.first},
                                 {"count", line.count},
                                 {"has_token", line.has_token}});
  }
  for (const OpLine& line : fault.before) {
    json["before"].push_back(json_of(line));
  }
  return json;
}

Fault parse_fault(const nlohmann::ordered_json& json) {
  Fault fault;
  const auto kind =
      std::find(kKindNames.begin(), kKindNames.end(), json.at("kind").get<std::string>());
  check<ValueError>(kind != kKindNames.end(), "autopsy: ", json.at("kind").dump(),
                    " is no kind of fault");
  fault.kind = static_cast<FaultKind>(kind - kKindNames.begin());
  each_fault_field(fault,
                   [&](const char* name, auto& member) { read_member(json.at(name), member); });
  for (const Json& line : json.at("documents")) {
    fault.documents.push_back({.document = line.at("id"),
                               .first = line.at("first"),
                               .count = line.at("count"),
                               .has_token = line.at("has_token")});
  }
  for (const Json& line : json.at("before")) {
    fault.before.push_back(parse_line(line));
  }
  return fault;
}

namespace {

std::string what_happened(const Fault& fault) {
  const std::string op =
      concat("op ", fault.op.op,
             fault.op.module.empty() ? std::string() : concat(" of ", fault.op.module));
  const std::string pass = fault.op.pass == "again" ? "where it runs again for the backward pass"
                                                    : concat("in the ", fault.op.pass, " pass");
  switch (fault.kind) {
    case FaultKind::kMade:
      return concat(op, " made ", fault.value, " out of finite values (largest ",
                    value_text(fault.op.largest_input), ") ", pass);
    case FaultKind::kParameter:
      return concat("the weight ", fault.parameter, " is not finite: ", op, " read ", fault.value,
                    " ", pass);
    case FaultKind::kReceived:
      return concat(op, " was given ", fault.value, " ", pass, ", and no op made it");
    case FaultKind::kReduced:
      return concat("the gradient of ", fault.parameter,
                    " is not finite once it is summed over the ranks; each rank's own is");
    case FaultKind::kGrew:
      return concat(op, " made values ", value_text(fault.growth),
                    " times as large as in the step before (", value_text(fault.op.largest_output),
                    ") ", pass);
    case FaultKind::kNoTokens:
      return "no token of the step counts: the loss masks are 0 everywhere";
    case FaultKind::kUnknown:
      return "where it came up is not known";
  }
  return {};
}

}  // namespace

std::string fault_sentence(const Fault& fault) {
  std::string text = what_happened(fault);
  if (fault.kind == FaultKind::kNoTokens || fault.kind == FaultKind::kUnknown) {
    return text;
  }
  text += concat(", on rank ", fault.rank);
  if (fault.micro_batch >= 0) {
    text += concat(", micro-batch ", fault.micro_batch);
  }
  if (fault.sample >= 0) {
    text += concat(", sample ", fault.sample);
  }
  if (fault.position >= 0) {
    text += concat(", position ", fault.position, " (token ", fault.token, ")");
  }
  for (const DocumentLine& document : fault.documents) {
    if (document.has_token) {
      text += concat(", document ", document.document, " of ", fault.dataset);
    }
  }
  if (!fault.parameter.empty() && fault.kind != FaultKind::kReduced) {
    const std::string row =
        fault.parameter_row >= 0 ? concat(", row ", fault.parameter_row) : std::string();
    if (fault.kind == FaultKind::kParameter) {
      text += row;
    } else if (fault.parameter_is_suspect) {
      text += concat("; the weight ", fault.parameter, row, " is far larger than all others (",
                     value_text(fault.parameter_largest), ")");
    } else {
      text += concat("; its weight ", fault.parameter, " is at most ",
                     value_text(fault.parameter_largest));
    }
  }
  return text;
}

std::vector<accuracy::Finding> op_findings(const Fault& fault) {
  std::vector<accuracy::Finding> findings;
  for (const OpLine& line : fault.before) {
    findings.push_back(json_of(line));
  }
  if (!fault.op.op.empty()) {
    findings.push_back(json_of(fault.op));
  }
  return findings;
}

}  // namespace tapestry::autopsy
