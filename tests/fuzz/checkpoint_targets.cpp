// Files of a checkpoint beside its tensors.
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "interop/architectures/read_hf_config.h"
#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/manifest.h"
#include "parallel_core/dist_checkpointing/peft_config.h"
#include "parallel_core/dist_checkpointing/training_state_file.h"
#include "parallel_core/optimizer/schedule_state.h"
#include "parallel_core/training/data/data_state.h"
#include "parallel_core/training/step/trainer_state.h"
#include "tests/fuzz/targets.h"

namespace tapestry::fuzz {

namespace {

void read_manifest_of(const InputFolder& folder) {
  const std::optional<Manifest> manifest = read_manifest(folder.path());
  const std::string fault = fault_of_checkpoint(folder.path(), /*checksums=*/true);
  must_hold(fault.empty() || fault.find(folder.path()) != std::string::npos,
            "a fault does not name the file");
  if (manifest) {
    must_hold(manifest->step >= 0, "a step is negative");
    // Every file whose size and checksum are right, and no other, makes a checkpoint whole.
    verify_checkpoint(folder.path(), /*checksums=*/true, *single_process_group());
    must_hold(fault.empty(), "the two ways of checking disagree");
  }
}

void check_schedule(const std::string& state, const std::string& source) {
  const std::unique_ptr<optim::Schedule> schedule = schedule_from_state(state, source);
  for (const int64_t step : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{1} << 40U}) {
    const optim::Schedule::Position position{.applied = step, .seen = step};
    (void)schedule->learning_rate(position);
    (void)schedule->weight_decay(position);
  }
}

void read_state(const InputFolder& folder) {
  const std::string source = folder.file(kTrainingStateFile);
  const TrainerState trainer = parse_trainer_state(read_training_state(folder.path()), source);
  must_hold(std::isfinite(trainer.scaler.scale), "a loss scale is not finite");
  const std::string written = trainer_state_json(trainer);
  must_hold(trainer_state_json(parse_trainer_state(written, source)) == written,
            "a state changes by being written");
  if (!trainer.data.empty()) {
    const DataState data = parse_data_state(trainer.data, source);
    must_hold(data.in_run().step >= 0 && data.in_run().first_sample >= 0, "a place is negative");
    const std::string again = data_state_json(data);
    must_hold(data_state_json(parse_data_state(again, source)) == again,
              "a state of the data changes by being written");
    must_hold(data_differences(data, data).empty(), "a state differs from itself");
  }
  check_schedule(trainer.schedule, source);
}

void read_config(const InputFolder& folder) {
  const HfConfig file = read_hf_config(folder.path());
  (void)differences(TransformerConfig{}, file);
}

// In the place of the input, which clear() removes.
void write_adapter_config(const InputFolder& folder, const std::string& text) {
  std::ofstream(folder.file(kAdapterConfigFile), std::ios::binary | std::ios::trunc) << text;
}

void read_adapter(const InputFolder& folder) {
  const PeftConfig config = read_peft_config(folder.path());
  must_hold(peft_config_text(config) == config.text, "a file changes by being written");
  PeftConfig made = config;
  made.text.clear();
  write_adapter_config(folder, peft_config_text(made));
  must_hold(read_peft_config(folder.path()).same_values(config),
            "an adapter changes by being written");
  PeftConfig renamed = config;
  renamed.base = "another";
  write_adapter_config(folder, peft_config_text(renamed));
  must_hold(read_peft_config(folder.path()).same_values(renamed),
            "an adapter changes by being given another base");
  const PeftModules modules(config, folder.file(kAdapterConfigFile));
  for (const char* path : {"lm_head", "model.layers.0.self_attn.q_proj",
                           "transformer.h.11.mlp.c_fc", "model.layers.3.mlp.experts.5.w1", ""}) {
    (void)modules.targets(path);
    (void)modules.saves(path);
    must_hold(modules.rank(path) > 0 && std::isfinite(modules.scale(path)),
              "a rank or a scale is no number");
  }
}

}  // namespace

std::span<const Target> checkpoint_targets() {
  static constexpr std::array targets = {
      Target{"manifest",
             [](InputFolder& folder, std::string_view input) { folder.put_bundle(input); },
             read_manifest_of},
      Target{"training_state",
             [](InputFolder& folder, std::string_view input) {
               folder.put(kTrainingStateFile, input);
             },
             read_state},
      Target{"hf_config",
             [](InputFolder& folder, std::string_view input) { folder.put("config.json", input); },
             read_config},
      Target{"adapter_config",
             [](InputFolder& folder, std::string_view input) {
               folder.put(kAdapterConfigFile, input);
             },
             read_adapter}};
  return targets;
}

}  // namespace tapestry::fuzz
