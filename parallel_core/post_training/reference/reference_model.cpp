#include "parallel_core/post_training/reference/reference_model.h"

#include <filesystem>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/post_training/reference/score_sequences.h"
#include "parallel_core/tensor_parallel/low_rank.h"
#include "parallel_core/training/log/logging.h"
#include "text/util/checksum.h"
#include "text/util/file.h"
#include "text/util/numbers.h"

namespace tapestry::post_training {

namespace {

namespace fs = std::filesystem;

// A model that a run can be held against.
struct ChosenReference {
  std::string name;          // for the log
  std::string path;          // of its weights; empty: none are loaded for it
  bool is_start = false;     // as it was at the start: path is then where that was
  bool needs_load = false;   // the run's own model is not it
  bool has_adapter = false;  // adapters take part
};

ChosenReference chosen_reference(const AllConfig& config, bool goes_on) {
  const std::string reference = config.post_training_config.reference.value_or("");
  const LoraConfig& lora = config.lora_config;
  if (reference == "adapter_off") {
    check<ValueError>(lora.use_lora,
                      "post_training_config.reference adapter_off: the run has no adapter; name a "
                      "folder, or leave it out for the model as it was at the start");
    return {.name = "the model with its adapter off", .path = start_weights(config).path};
  }
  if (!reference.empty()) {
    const std::string path = resolve_checkpoint(reference);
    return {.name = path, .path = path, .needs_load = true, .has_adapter = holds_adapter(path)};
  }
  const std::string start = start_weights(config).path;
  // A new adapter adds nothing yet.
  const bool is_base = lora.use_lora && !lora.adapter && lora.lora_b_std == 0 &&
                       lora.modules_to_save.empty() && lora.bias == "none";
  return {.name = "the model as it was at the start",
          .path = start,
          .is_start = true,
          .needs_load = goes_on && !is_base,
          .has_adapter = lora.use_lora && !is_base};
}

// A text that differs where weights do.
std::string weights_text(const AllConfig& config, const ChosenReference& chosen) {
  std::string text = config.lora_config.use_lora
                         ? (chosen.has_adapter ? "with an adapter, " : "without its adapter, ")
                         : std::string();
  const auto of_adapter = [&](const std::string& folder) {
    return concat(" and adapter ",
                  data::crc64(data::read_file((fs::path(folder) / kAdapterWeightsFile).string())));
  };
  if (chosen.path.empty()) {
    return text + concat("start values of seed ", config.training_config.seed);
  }
  const std::string path = resolve_checkpoint(chosen.path);
  if (holds_adapter(path)) {
    const AdapterBase base =
        find_adapter_base(path, config.model_config.from_hf.value_or(std::string()));
    text += concat("weights ", base.path.empty() ? "none" : weights_fingerprint(base.path));
    return chosen.has_adapter ? text + of_adapter(path) : text;
  }
  text += concat("weights ", weights_fingerprint(path));
  const auto& adapter = config.lora_config.adapter;
  return chosen.is_start && chosen.has_adapter && adapter
             ? text + of_adapter(resolve_checkpoint(*adapter))
             : text;
}

// The same on every rank; empty where the weights are gone, or where the start of a run that goes
// on is not known any more.
std::string model_text(const AllConfig& config,
                       const ChosenReference& chosen,
                       const std::string& checkpoint,
                       ProcessGroup& world) {
  std::string text;
  all_or_none(world, [&] {
    if (world.rank() != 0) {
      return;
    }
    try {
      const bool is_known = checkpoint.empty() || !chosen.is_start || chosen.path.empty() ||
                            resolve_checkpoint(chosen.path) != checkpoint;
      text = is_known ? weights_text(config, chosen) : std::string();
    } catch (const IoError&) {
      if (checkpoint.empty()) {
        throw;
      }
    }
  });
  text = all_gather_text(world, text).front();
  return text.empty() ? text
                      : concat(text, ", computed in ", name_of(config.model_config.compute_dtype));
}

void score_all(ParallelModel& model,
               const SequenceSet& set,
               const ScoringOptions& options,
               LogProbTable& table) {
  std::vector<int64_t> numbers(static_cast<size_t>(set.size()));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  score_shared(model, set, numbers, options, table);
}

}  // namespace

bool needs_reference_log_probs(const AllConfig& config) {
  const std::string& task = *config.post_training_config.task;
  return task == "dpo" || task == "kto";
}

ReferenceLogProbs reference_log_probs(const AllConfig& config,
                                      const TaskExamples& examples,
                                      const RowRoom& room,
                                      const ModelBeforeTraining& before,
                                      ProcessGroup& world) {
  const ChosenReference chosen = chosen_reference(config, !before.checkpoint.empty());
  const ReferenceIdentity identity =
      identity_of(model_text(config, chosen, before.checkpoint, world), examples);
  const fs::path own =
      fs::absolute(fs::path(config.training_config.output_dir) / kReferenceFile).lexically_normal();
  std::vector<std::string> places = {own.string()};
  if (!before.checkpoint.empty()) {  // RUN/checkpoint/step_NNNNNNNN
    const fs::path beside =
        fs::absolute(before.checkpoint).lexically_normal().parent_path().parent_path();
    const std::string place = (beside / kReferenceFile).string();
    if (place != own.string()) {
      places.insert(places.begin(), place);
    }
  }
  for (const std::string& place : places) {
    std::string remark;
    if (auto found = read_reference_file(place, identity, examples, world, remark)) {
      log_info(concat("reference: log-probabilities of ", chosen.name, " are those of ", place));
      if (place != own.string()) {
        write_reference_file(own.string(), identity, *found, world);
      }
      return *std::move(found);
    }
    if (!remark.empty()) {
      log_info(concat("reference: ", remark, "; log-probabilities are computed anew"));
    }
  }
  if (chosen.needs_load) {
    before.load(chosen.is_start ? std::string() : chosen.path);
  }
  log_info(concat("reference: computing log-probabilities of ", chosen.name, " for ",
                  with_thousands(examples.sequences.size()), " sequences"));
  const ScoringOptions options = {.room = room,
                                  .rows = config.dataset_config.batch_size,
                                  .overlap_p2p = config.parallel_config.overlap_p2p_comm};
  ReferenceLogProbs values{.sequences = LogProbTable(examples.sequences),
                           .mismatched = LogProbTable(examples.mismatched)};
  {
    std::optional<AdaptersOff> off;
    if (!chosen.has_adapter) {
      off.emplace();
    }
    score_all(before.model, examples.sequences, options, values.sequences);
    score_all(before.model, examples.mismatched, options, values.mismatched);
  }
  write_reference_file(own.string(), identity, values, world);
  return values;
}

}  // namespace tapestry::post_training
