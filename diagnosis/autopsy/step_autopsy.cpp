#include "diagnosis/autopsy/step_autopsy.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/rank_context.h"
#include "diagnosis/autopsy/capsule.h"
#include "diagnosis/report/verdict_report.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/log/logging.h"
#include "parallel_core/training/pretrain.h"
#include "parallel_core/training/step/metrics.h"
#include "parallel_core/training/step/trainer_state.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/row_text.h"
#include "text/tokenizers/tokenizer.h"
#include "text/util/numbers.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;
using autopsy::Fault;
using autopsy::FaultKind;
using Json = nlohmann::ordered_json;

// Bad steps in a row that are run again; more of them would say the same.
constexpr int64_t kMostInARow = 3;

std::string what_is_wrong(const std::string& anomaly, const StepResult& result) {
  if (anomaly == "nonfinite_loss") {
    return concat("the loss is ", without_nan_sign(result.loss));
  }
  if (anomaly == "nonfinite_gradient") {
    return concat("the loss is ", result.loss, ", the norm of the gradients ",
                  without_nan_sign(result.grad_norm));
  }
  if (anomaly == "loss_spike") {
    return concat("the loss ", result.loss, " is a spike");
  }
  if (anomaly == "norm_spike") {
    return concat("the norm of the gradients ", without_nan_sign(result.grad_norm), " is a spike");
  }
  return "there is nothing to learn from";
}

accuracy::VerdictReport report_of(const ComputedStep& step,
                                  const StepFindings& findings,
                                  const std::string& text) {
  const Fault& fault = findings.fault;
  accuracy::VerdictReport report;
  report.command = "autopsy";
  report.outcome = accuracy::Outcome::kDiffers;
  report.verdict = findings.transient ? "transient" : "deterministic";
  report.stage = fault.kind == FaultKind::kNoTokens  ? "data"
                 : fault.kind == FaultKind::kReduced ? "reduction"
                 : fault.in_backward                 ? "backward"
                                                     : "forward";
  accuracy::FirstDifference first;
  const auto set = [](auto& place, const auto& value, bool known) {
    if (known) {
      place = value;
    }
  };
  first.step = step.step;
  first.rank = fault.rank;
  set(first.micro_batch, fault.micro_batch, fault.micro_batch >= 0);
  set(first.sample, fault.sample, fault.sample >= 0);
  set(first.pass, fault.op.pass, !fault.op.pass.empty());
  set(first.module, fault.op.module, !fault.op.module.empty());
  set(first.op, fault.op.op, !fault.op.op.empty());
  set(first.tensor, fault.parameter, !fault.parameter.empty());
  set(first.source, fault.source, !fault.source.empty());
  set(first.distance, fault.growth, fault.kind == FaultKind::kGrew);
  report.first = first;
  report.findings = autopsy::op_findings(fault);
  report.title = concat("step ", step.step);
  report.lines = {text};
  return report;
}

std::string report_json_of(const accuracy::VerdictReport& report,
                           const std::string& anomaly,
                           const StepFindings& findings) {
  Json json = Json::parse(accuracy::report_json(report));
  const Fault& fault = findings.fault;
  Json details = autopsy::fault_json(fault);
  details.erase("before");
  details.erase("op");
  json["anomaly"] = anomaly;
  json["sentence"] = report.lines.front();
  json["fault"] = std::move(details);
  json["ranks"] = Json::array();
  for (size_t rank = 0; rank < findings.ranks.size(); ++rank) {
    const DissectedRank& one = findings.ranks[rank];
    json["ranks"].push_back({{"rank", rank},
                             {"host", one.machine.host},
                             {"cpu", one.machine.cpu},
                             {"processor", one.machine.processor},
                             {"threads", one.machine.threads},
                             {"cpu_level", one.machine.cpu_level},
                             {"changed_when_run_again", one.changed}});
  }
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

// Text around a token; nothing where the tokenizer of the data is not known.
std::function<std::string(const std::vector<int64_t>&)> text_maker(const AllConfig& config,
                                                                   const std::string& model) {
  const std::string& type = config.dataset_config.tokenizer_type;
  if (type != "byte" && model.empty()) {
    return {};
  }
  return [type, model](const std::vector<int64_t>& tokens) -> std::string {
    constexpr int64_t kMost = 200;
    try {
      return data::row_text(*data::make_tokenizer(type, model), tokens, kMost);
    } catch (const std::exception& error) {  // the file may be gone by now
      return concat("(no text: ", error.what(), ")");
    }
  };
}

// How many capsules lie beside this one.
int64_t capsules_beside(const fs::path& folder) {
  int64_t there = 0;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.parent_path(), none)) {
    const fs::path name = entry.path().filename();
    there += name.string().starts_with("step_") && name != folder.filename() ? 1 : 0;
  }
  return there;
}

}  // namespace

StepAutopsy::StepAutopsy(TrainOneStepCell& cell, const AllConfig& config, AutopsyOptions options)
    : cell_(cell), config_(config), options_(std::move(options)) {
  const TrainingConfig& t = config.training_config;
  if (t.loss_spike_threshold) {
    loss_spikes_.emplace(NormSpikes::Options{.threshold = std::numeric_limits<double>::infinity(),
                                             .factor = t.loss_spike_threshold,
                                             .window = t.loss_spike_window});
  }
  cell_.set_examiner(this);
}

StepAutopsy::~StepAutopsy() { cell_.set_examiner(nullptr); }

bool StepAutopsy::suspects_loss(double loss) {
  return !std::isfinite(loss) || (loss_spikes_ && loss_spikes_->is_spike(loss));
}

std::string StepAutopsy::anomaly_of(const StepResult& result, bool forward_only) const {
  if (!std::isfinite(result.loss)) {
    return "nonfinite_loss";
  }
  if (!forward_only && !std::isfinite(result.grad_norm)) {
    const bool scale_comes_down = cell_.grad_scaler().is_dynamic() && result.loss_scale > 1;
    return scale_comes_down ? "" : "nonfinite_gradient";
  }
  if (result.loss_tokens == 0) {
    return "no_tokens";
  }
  if (loss_spikes_ && loss_spikes_->is_spike(result.loss)) {
    return "loss_spike";
  }
  const NormSpikes* norms = cell_.norm_spikes();
  return !forward_only && norms != nullptr && norms->is_spike(result.grad_norm) ? "norm_spike" : "";
}

bool StepAutopsy::is_nonfinite(const std::string& anomaly) const {
  return anomaly.starts_with("nonfinite");
}

std::string StepAutopsy::action_for(const std::string& anomaly) const {
  const bool nan_stops = config_.training_config.check_for_nan_in_grad ||
                         config_.monitor_config.check_for_nan_in_loss_and_grad;
  return is_nonfinite(anomaly) && nan_stops ? "stop" : config_.training_config.on_anomaly;
}

StepFindings StepAutopsy::look_into(ComputedStep& step, const std::string& anomaly) {
  if (anomaly == "no_tokens") {  // the data say it all
    StepFindings findings;
    findings.fault.kind = FaultKind::kNoTokens;
    findings.fault.samples = step.micro_batches.front().sample_ids;
    findings.again = step.result;
    findings.ranks.push_back({.machine = autopsy::this_machine(), .local_losses = {}});
    return findings;
  }
  DissectOptions options;
  options.is_spike = !is_nonfinite(anomaly);
  options.is_bad = [&](const StepResult& result) {
    return !anomaly_of(result, step.forward_only).empty();
  };
  if (options.is_spike && good_batches_.size() == step.micro_batches.size()) {
    options.reference = &good_batches_;
  }
  options.text = text_maker(config_, options_.tokenizer_model);
  return dissect_step(step, cell_.network(), options);
}

std::string StepAutopsy::sentence(const ComputedStep& step,
                                  const std::string& anomaly,
                                  const StepFindings& findings) const {
  std::string text = concat("step ", step.step, ": ", what_is_wrong(anomaly, step.result), ": ");
  if (findings.transient) {
    text += "run again, the step is good: transient, not of the data or the weights.";
    for (size_t rank = 0; rank < findings.ranks.size(); ++rank) {
      const autopsy::Machine& machine = findings.ranks[rank].machine;
      if (findings.ranks[rank].changed) {
        text += concat(
            " Rank ", rank, " computed something else the first time: host ", machine.host,
            ", CPU ", machine.cpu,
            machine.processor.empty() ? std::string() : concat(" (", machine.processor, ")"), ".");
      }
    }
    return text;
  }
  text += autopsy::fault_sentence(findings.fault) + ".";
  if (findings.reference_loss) {
    const bool weights = is_nonfinite(anomaly) || !std::isfinite(*findings.reference_loss) ||
                         (loss_spikes_ && loss_spikes_->is_spike(*findings.reference_loss));
    text += concat(" With the same weights the data of the step before have loss ",
                   without_nan_sign(*findings.reference_loss),
                   weights ? ": it is the weights." : ": it is the data.");
  }
  return text + (anomaly == "no_tokens" ? "" : " It is the same when run again.");
}

bool StepAutopsy::examine(ComputedStep& step) {
  const std::string anomaly = anomaly_of(step.result, step.forward_only);
  if (anomaly.empty()) {
    if (std::isfinite(step.result.grad_norm) && (loss_spikes_ || cell_.norm_spikes() != nullptr)) {
      good_batches_ = step.micro_batches;
    }
    return true;
  }
  ++anomalies_;
  in_a_row_ = last_bad_step_ == step.step - 1 ? in_a_row_ + 1 : 1;
  last_bad_step_ = step.step;
  const std::string action = action_for(anomaly);
  std::string text;
  bool transient = false;
  if (in_a_row_ > kMostInARow) {
    text = concat("step ", step.step, ": ", what_is_wrong(anomaly, step.result), "; this is the ",
                  in_a_row_, "th bad step in a row, it is not looked into");
  } else {
    const StepFindings& findings = findings_.emplace(look_into(step, anomaly));
    transient = findings.transient;
    text = sentence(step, anomaly, findings);
    text += write_capsule(step, anomaly, findings, text);
    if (transient && action == "continue") {
      step.result = findings.again;
    }
  }
  if (action == "skip") {
    text += " The update is left out.";
  } else if (transient && action == "continue") {
    text += " The step goes on with what it computed when it was run again.";
  }
  if (action == "stop") {
    failure_ = text;  // which is what ends the run
  } else {
    log_warning("autopsy: " + text);
  }
  return action == "continue";
}

void StepAutopsy::after(FinishedStep& step) {
  if (!failure_.empty()) {
    step.failure += step.failure.empty() ? failure_ : "\n" + failure_;
    failure_.clear();
  }
  if (loss_spikes_) {
    loss_spikes_->observe(step.result.loss);
  }
}

void StepAutopsy::save_past(TrainerState& state) const {
  state.autopsy =
      PastOfAutopsy{.losses = loss_spikes_ ? std::optional(loss_spikes_->state()) : std::nullopt,
                    .bad_in_a_row = in_a_row_,
                    .last_bad_step = last_bad_step_};
}

void StepAutopsy::load_past(const TrainerState& state) {
  if (!state.autopsy) {
    return;
  }
  in_a_row_ = state.autopsy->bad_in_a_row;
  last_bad_step_ = state.autopsy->last_bad_step;
  if (loss_spikes_ && state.autopsy->losses) {
    loss_spikes_->set_state(*state.autopsy->losses);
  }
}

autopsy::CapsuleRecord StepAutopsy::capsule_record(
    const ComputedStep& step,
    const std::string& anomaly,
    const StepFindings& findings,
    const std::vector<std::string>& generators) const {
  const int64_t data_parallel =
      model_parallel_is_initialized() ? get_data_parallel_world_size() : 1;
  autopsy::CapsuleRecord record{
      .step = step.step,
      .applied = cell_.position().applied,
      .skipped = cell_.position().skipped,
      .seed = config_.training_config.seed,
      .loss_scale = cell_.grad_scaler().state().scale,
      .scale_good_steps = cell_.grad_scaler().state().good_steps,
      .data_parallel_size = data_parallel,
      .forward_only = step.forward_only,
      .anomaly = anomaly,
      .verdict = findings.transient ? "transient" : "deterministic",
      .layout = layout_line(config_.parallel_config, data_parallel),
      .loss = step.result.loss,
      .grad_norm = step.result.grad_norm,
      .place = findings.transient ? std::string() : fault_place(findings.fault)};
  for (size_t rank = 0; rank < generators.size(); ++rank) {
    const Json state = Json::parse(generators[rank]);
    autopsy::CapsuleRank& one = record.ranks.emplace_back();
    const DissectedRank& known = findings.ranks[std::min(rank, findings.ranks.size() - 1)];
    one.machine = known.machine;
    one.local_losses = known.local_losses;
    one.generator = {.seed = state.at("seed"), .offset = state.at("offset")};
  }
  return record;
}

std::string StepAutopsy::write_capsule(const ComputedStep& step,
                                       const std::string& anomaly,
                                       const StepFindings& findings,
                                       const std::string& text) {
  if (options_.folder.empty()) {
    return {};
  }
  if (cell_.objective() != nullptr) {
    return concat(" It is not kept: a capsule holds rows and weights, from which what task ",
                  config_.post_training_config.task.value_or(""), " minimises cannot be replayed.");
  }
  ProcessGroup& world = all_ranks_of_job();
  const bool first = world.rank() == 0;
  const fs::path folder = fs::path(options_.folder) / concat("step_", step.step);
  const fs::path temporary = fs::path(options_.folder) / concat(".step_", step.step, ".tmp");
  const bool split = model_parallel_is_initialized();
  try {
    const std::string random =
        Json{{"seed", RankContext::current().default_generator().state().seed},
             {"offset", RankContext::current().default_generator().state().offset}}
            .dump();
    const std::vector<std::string> generators = all_gather_text(world, random);
    bool wanted = false;
    all_or_none(world, [&] {
      if (!first) {
        return;
      }
      wanted = capsules_beside(folder) < config_.training_config.max_capsules;
      if (wanted) {
        fs::remove_all(temporary);
        fs::create_directories(temporary);
      }
    });
    if (all_gather_text(world, wanted ? "wanted" : "").front().empty()) {
      return concat(" ", options_.folder, " holds max_capsules ",
                    config_.training_config.max_capsules, " already; this step is not kept.");
    }
    CheckpointOptions weights{.directory = temporary.string(),
                              .resolved_config = options_.resolved_config,
                              .adapter_config = options_.adapter_config,
                              .base_model = options_.base_model,
                              .allow_nonfinite = true,
                              .with_states = false};
    const std::string written = write_checkpoint(cell_.network(), config_.model_config,
                                                 step.step - 1, weights, &cell_.optimizer());
    all_or_none(world, [&] {
      const bool has_rows =
          !split || (get_tensor_model_parallel_rank() == 0 &&
                     get_pipeline_model_parallel_rank() == 0 && get_context_parallel_rank() == 0);
      if (has_rows) {
        autopsy::write_capsule_batches(temporary.string(), split ? get_data_parallel_rank() : 0,
                                       step.micro_batches);
      }
    });
    all_or_none(world, [&] {
      if (!first) {
        return;
      }
      fs::rename(written, temporary / "weights");
      write_file_atomically((temporary / "config.yaml").string(), options_.resolved_config);
      autopsy::write_capsule_record(temporary.string(),
                                    capsule_record(step, anomaly, findings, generators));
      const accuracy::VerdictReport report = report_of(step, findings, text);
      write_file_atomically((temporary / "report.json").string(),
                            report_json_of(report, anomaly, findings));
      write_file_atomically((temporary / "report.txt").string(), accuracy::report_text(report));
      fs::remove_all(folder);
      fs::rename(temporary, folder);
      sync_directory(options_.folder);
    });
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {  // a full disk, say: the run has done nothing wrong
    if (first) {
      std::error_code ignored;
      fs::remove_all(temporary, ignored);
    }
    return concat(" It could not be kept: ", error.what());
  }
  return concat(" It is kept in ", folder.string(), ".");
}

}  // namespace tapestry
