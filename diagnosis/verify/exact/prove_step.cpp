#include "diagnosis/verify/exact/prove_step.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/effect_of_keys.h"
#include "diagnosis/accuracy/run_hashes.h"
#include "diagnosis/verify/exact/rerun_step.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/training/files/resumed_run.h"
#include "text/util/checksum.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

// What a checkpoint says of the data, but for how far they have been read: sizes and checksums of
// files, seed, split. Empty for data without a state.
std::string data_fingerprint(const std::string& checkpoint) {
  const auto state = nlohmann::json::parse(read_training_state(checkpoint), nullptr, false);
  if (state.is_discarded() || !state.contains("data") || !state["data"].is_object()) {
    return {};
  }
  nlohmann::json data = state["data"];
  data.erase("begun");
  data.erase("position");
  return data::crc64(data.dump());
}

std::string row(const char* label, const std::string& value) {
  constexpr size_t kWidth = 16;
  std::string out = label;
  out.resize(std::max(kWidth, out.size() + 1), ' ');
  return out + value;
}

}  // namespace

std::string configuration_fingerprint(const AllConfig& config) {
  std::string text;
  for (const ResolvedKey& key : resolved_keys(config)) {
    // How a run begins is said by its checkpoint.
    const bool starts = key.key == "load_checkpoint" || key.key == "resume_training";
    if (!starts && accuracy::changes_bits(key.section, key.key)) {
      text += concat(key.section, ".", key.key, "=", key.value, "\n");
    }
  }
  return data::crc64(text);
}

accuracy::VerdictReport prove_step(const ProofRequest& request, const ConfigLoader& load) {
  const std::string run =
      request.config_file.empty()
          ? fs::path(resumed_run(request.checkpoint).config_path).parent_path().string()
          : run_of_config(request.config_file);
  const AllConfig config = load(overrides_of_place(run));
  const accuracy::RunHashes recorded = accuracy::read_run_hashes(run);
  const auto found = recorded.steps.find(request.step);
  check<ValueError>(
      found != recorded.steps.end(), run, ": has recorded no hash of step ", request.step,
      recorded.steps.empty() ? ": it was not trained with training_config.exact: True" : "");
  const accuracy::StepRerun rerun = rerun_steps(
      config,
      {.training = request.training, .checkpoint = request.checkpoint, .step = request.step});
  const std::string& here = rerun.hashes.at(request.step);
  const bool returns = here == found->second;

  accuracy::VerdictReport report{.command = "prove"};
  report.outcome = returns ? accuracy::Outcome::kAgrees : accuracy::Outcome::kDiffers;
  report.verdict = returns ? "proved" : "differs";
  report.title = concat("step ", request.step, " of ", run);
  std::optional<int64_t> first;
  for (const auto& [step, hash] : rerun.hashes) {
    const auto then = recorded.steps.find(step);
    if (then == recorded.steps.end()) {
      continue;
    }
    const bool same = then->second == hash;
    first = same || first ? first : std::optional(step);
    report.findings.push_back({{"step", step},
                               {"recorded", then->second},
                               {"here", hash},
                               {"status", same ? "same" : "differs"}});
  }
  const std::string data = data_fingerprint(request.checkpoint);
  report.lines = {
      row("step", concat(request.step, ", from step ", rerun.first_step - 1, " (",
                         request.checkpoint, ")")),
      row("class", accuracy::class_of_hash(found->second)),
      row("recorded hash", found->second),
      row("hash here", here),
      row("program", request.program),
      row("configuration", configuration_fingerprint(config)),
      row("data", data.empty() ? "not known" : data),
      returns ? concat("The recorded hash returns: the steps ", rerun.first_step, " to ",
                       request.step, " of this run come to these losses and weights.")
              : concat("The recorded hash does not return; the first step that differs is ", *first,
                       ". Configuration, data or program are others, or the run had a fault.")};
  if (!returns) {
    report.first = accuracy::FirstDifference{.step = first};
    const accuracy::StepHashes then = accuracy::read_step_hashes(run, request.step);
    if (*first == request.step && then.known() && rerun.of_step.known()) {
      const accuracy::HashDifference difference = accuracy::difference_of(then, rerun.of_step);
      report.lines.push_back(
          concat("In step ", request.step, " these differ: ", difference.text()));
      if (const std::string tensor = difference.tensor(); !tensor.empty()) {
        report.first->tensor = tensor;
      }
    }
  }
  return report;
}

}  // namespace tapestry
