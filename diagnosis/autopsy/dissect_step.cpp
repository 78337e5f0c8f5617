#include "diagnosis/autopsy/dissect_step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <memory>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/autopsy/capsule.h"
#include "diagnosis/autopsy/known_parameters.h"
#include "diagnosis/autopsy/step_trace.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

namespace {

using autopsy::Fault;
using autopsy::FaultKind;
using Json = nlohmann::ordered_json;

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](double x, double y) { return same_bits(x, y); });
}

// Sums of squares of this rank's gradients, in the order of the parameters.
std::vector<double> squares_of(const ComputedStep& step, const nn::Module& model) {
  std::vector<double> squares;
  if (step.gradient_squares) {
    for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
      squares.push_back(step.gradient_squares(entry));
    }
  }
  return squares;
}

// The parameter whose gradient is not finite and is the nearest to the loss.
std::string bad_gradient(const std::vector<double>& squares, const nn::Module& model) {
  std::string name;
  size_t i = 0;
  for (const nn::Module::NamedParameter& entry : model.trained_parameters()) {
    if (i < squares.size() && !std::isfinite(squares[i++])) {
      name =
          entry.parameter->logical().empty() ? entry.name : entry.parameter->logical().front().name;
    }
  }
  return name;
}

Json machine_json(const autopsy::Machine& m) {
  return {{"host", m.host},       {"cpu", m.cpu},         {"processor", m.processor},
          {"threads", m.threads}, {"level", m.cpu_level}, {"blas", m.blas}};
}

autopsy::Machine parse_machine(const Json& json) {
  return {.host = json.at("host"),
          .cpu = json.at("cpu"),
          .processor = json.at("processor"),
          .threads = json.at("threads"),
          .cpu_level = json.at("level"),
          .blas = json.at("blas")};
}

// What one rank tells the others.
struct Told {
  DissectedRank rank;
  bool changed_gradients = false;
  std::optional<Fault> fault;
  Fault first_time;  // what is left of it where it does not come up again
  std::string bad_gradient;
};

std::string told_text(const Told& told) {
  Json losses = Json::array();
  for (const double loss : told.rank.local_losses) {
    losses.push_back(autopsy::bits_text(loss));
  }
  const Json json = {{"machine", machine_json(told.rank.machine)},
                     {"changed", told.rank.changed},
                     {"changed_gradients", told.changed_gradients},
                     {"local_losses", losses},
                     {"bad_gradient", told.bad_gradient},
                     {"first_time", autopsy::fault_json(told.first_time)},
                     {"fault", told.fault ? autopsy::fault_json(*told.fault) : Json(nullptr)}};
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

Told parse_told(const std::string& text) {
  const Json json = Json::parse(text);
  Told told{.rank = {.machine = parse_machine(json.at("machine")),
                     .local_losses = {},
                     .changed = json.at("changed")},
            .changed_gradients = json.at("changed_gradients"),
            .fault = {},
            .first_time = autopsy::parse_fault(json.at("first_time")),
            .bad_gradient = json.at("bad_gradient")};
  for (const Json& loss : json.at("local_losses")) {
    told.rank.local_losses.push_back(autopsy::value_of_bits(loss));
  }
  if (!json.at("fault").is_null()) {
    told.fault = autopsy::parse_fault(json.at("fault"));
  }
  return told;
}

void add_text(Fault& fault, const ComputedStep& step, const DissectOptions& options) {
  if (!options.text || fault.row < 0) {
    return;
  }
  // Around the token, or where that is not known, the beginning.
  constexpr int64_t kBefore = 16;
  constexpr int64_t kCount = 32;
  const data::Batch& batch = step.micro_batches[static_cast<size_t>(fault.micro_batch)];
  const int64_t first = std::max<int64_t>(0, fault.position - kBefore);
  const int64_t count = std::min(kCount, batch.seq - first);
  const auto begin = batch.tokens.begin() + fault.row * batch.seq + first;
  fault.text = options.text({begin, begin + count});
}

// A table's row that is far too large stands in the data as a token.
void place_by_token(Fault& fault, const ComputedStep& step) {
  const bool is_table = fault.parameter == "tok_embeddings.weight";
  if (fault.row >= 0 || fault.micro_batch < 0 || !is_table || !fault.parameter_is_suspect) {
    return;
  }
  const data::Batch& batch = step.micro_batches[static_cast<size_t>(fault.micro_batch)];
  const auto found = std::find(batch.tokens.begin(), batch.tokens.end(), fault.parameter_row);
  if (found != batch.tokens.end()) {
    fault.row = (found - batch.tokens.begin()) / batch.seq;
    fault.position = (found - batch.tokens.begin()) % batch.seq;
  }
}

// Of finite values: the row with the largest loss, where that is known, is the one that spikes.
void place_spike(Fault& fault,
                 const autopsy::StepTrace& trace,
                 const ComputedStep& step,
                 const ParallelModel& model) {
  const data::Batch& batch = step.micro_batches[static_cast<size_t>(fault.micro_batch)];
  const int64_t row =
      autopsy::worst_row(trace, fault.micro_batch, batch.batch, model.sequence_axis());
  if (row >= 0 && row != fault.row) {
    fault.row = row;
    fault.position = -1;
  }
}

// The largest growth on any rank of the job, in the forward passes or if those have not grown in
// the backward ones, decides the micro-batch and the bound. Micro-batches of other data-parallel
// ranks are others. Collective over the job.
std::optional<Fault> fault_of_growth(const autopsy::TraceSide& side,
                                     const autopsy::StepTrace& reference) {
  const int64_t own_data_rank =
      model_parallel_is_initialized() ? get_data_parallel_rank() : int64_t{0};
  const autopsy::GrowthPeaks own = autopsy::growth_peaks(side, reference);
  const Json told = {own_data_rank, own.forward.growth, own.forward.micro_batch,
                     own.backward.growth, own.backward.micro_batch};
  autopsy::GrowthPeak peaks[2];
  int64_t data_ranks[2] = {0, 0};
  for (const std::string& text : all_gather_text(all_ranks_of_job(), told.dump())) {
    const Json rank = Json::parse(text);
    for (const size_t backward : {0, 1}) {
      const autopsy::GrowthPeak peak{.growth = rank.at(1 + 2 * backward),
                                     .micro_batch = rank.at(2 + 2 * backward)};
      if (peak.micro_batch >= 0 && peak.growth > peaks[backward].growth) {
        peaks[backward] = peak;
        data_ranks[backward] = rank.at(0);
      }
    }
  }
  const bool in_backward = peaks[0].micro_batch < 0;
  const size_t chosen = in_backward ? 1 : 0;
  return data_ranks[chosen] == own_data_rank
             ? autopsy::fault_of_growth(side, reference, in_backward, peaks[chosen])
             : std::nullopt;
}

std::optional<Fault> own_fault(const autopsy::StepTrace& trace,
                               const autopsy::StepTrace* reference,
                               const autopsy::KnownParameters& parameters,
                               const ComputedStep& step,
                               const ParallelModel& model,
                               const DissectOptions& options) {
  const PipelineStage& stage = model.stage();
  const autopsy::TraceSide side = {.trace = trace,
                                   .parameters = parameters,
                                   .micro_batches = step.micro_batches,
                                   .sequence_axis = model.sequence_axis(),
                                   .stage = stage.rank,
                                   .stages = stage.size};
  std::optional<Fault> fault;
  if (!options.is_spike) {
    fault = autopsy::fault_of_bad_values(side);
  } else if (reference != nullptr) {
    fault = fault_of_growth(side, *reference);
    if (fault) {
      place_spike(*fault, trace, step, model);
    }
  }
  if (fault) {
    place_by_token(*fault, step);
    autopsy::place_in_data(*fault, step.micro_batches);
    add_text(*fault, step, options);
  }
  return fault;
}

// The first of the ranks' faults; where there is none, what else the ranks have seen.
Fault first_fault(const std::vector<Told>& all, bool transient) {
  std::optional<Fault> first;
  for (const Told& told : all) {
    if (told.fault && (!first || comes_before(*told.fault, *first))) {
      first = told.fault;
    }
  }
  if (transient) {
    first.reset();
  }
  for (size_t rank = 0; rank < all.size() && !transient; ++rank) {
    const bool is_weak = !first || first->kind == FaultKind::kReceived;
    if (is_weak && !all[rank].bad_gradient.empty() && (!first || first->in_backward)) {
      first = Fault{.kind = FaultKind::kReduced,
                    .rank = static_cast<int64_t>(rank),
                    .parameter = all[rank].bad_gradient};
    }
  }
  if (first) {
    return *first;
  }
  const auto changed =
      std::find_if(all.begin(), all.end(), [](const Told& told) { return told.rank.changed; });
  return changed == all.end() ? Fault{} : changed->first_time;
}

// What this rank knows of its fault without having seen it: the micro-batch whose loss was bad.
Fault first_time(const ComputedStep& step, const std::string& bad_gradient) {
  const std::vector<double>& losses = step.result.local_losses;
  const auto bad =
      std::find_if(losses.begin(), losses.end(), [](double loss) { return !std::isfinite(loss); });
  Fault fault{.rank = RankContext::current().rank(),
              .micro_batch = bad == losses.end() ? -1 : bad - losses.begin(),
              .parameter = bad_gradient};
  autopsy::place_in_data(fault, step.micro_batches);
  return fault;
}

}  // namespace

ProcessGroup& all_ranks_of_job() {
  static const std::shared_ptr<ProcessGroup> alone = single_process_group();
  return model_parallel_is_initialized() ? get_world_group() : *alone;
}

std::string fault_place(const Fault& fault) {
  if (fault.op.op.empty()) {
    return {};
  }
  return concat(fault.op.pass, " ", fault.micro_batch, " rank ", fault.rank, " ", fault.op.module,
                " ", fault.op.op, " ", fault.number, " ", fault.value, " ", fault.element);
}

StepFindings dissect_step(ComputedStep& step, ParallelModel& model, const DissectOptions& options) {
  StepFindings findings;
  Told own;
  const std::vector<double> squares = squares_of(step, model);
  const autopsy::KnownParameters parameters(model);
  std::unique_ptr<autopsy::StepTrace> reference;
  if (options.reference != nullptr) {
    reference = std::make_unique<autopsy::StepTrace>(parameters);
    findings.reference_loss = step.rerun(*options.reference).loss;
    reference->stop();
  }
  autopsy::StepTrace trace(parameters, options.is_spike);
  findings.again = step.rerun(step.micro_batches);
  trace.stop();
  findings.transient = !options.is_bad(findings.again);
  own.fault = own_fault(trace, reference.get(), parameters, step, model, options);
  own.bad_gradient = bad_gradient(squares, model);
  own.first_time = first_time(step, own.bad_gradient);
  own.rank = {.machine = autopsy::this_machine(),
              .local_losses = step.result.local_losses,
              .changed = !same_bits(step.result.local_losses, findings.again.local_losses)};
  own.changed_gradients = !same_bits(squares, squares_of(step, model));
  std::vector<Told> all;
  for (const std::string& text : all_gather_text(all_ranks_of_job(), told_text(own))) {
    all.push_back(parse_told(text));
  }
  // Losses are a rank's own; gradients are summed, so that all show what one computed.
  const bool losses_tell =
      std::any_of(all.begin(), all.end(), [](const Told& told) { return told.rank.changed; });
  for (Told& told : all) {
    told.rank.changed = losses_tell ? told.rank.changed : told.changed_gradients;
    findings.ranks.push_back(told.rank);
  }
  findings.fault = first_fault(all, findings.transient);
  return findings;
}

}  // namespace tapestry
