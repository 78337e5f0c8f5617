// One side of a checklist: what a file says of a run, whatever program it is for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "interop/architectures/read_hf_config.h"
#include "parallel_core/config/config.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::accuracy {

/// What the values were read from.
enum class SideKind : uint8_t { kConfiguration, kStatic, kReference, kHuggingFace, kMegatron };

/// "a configuration", "a static configuration of MindSpore Transformers", "a stored reference run",
/// "a Hugging Face config.json", "arguments of Megatron-LM".
std::string name_of(SideKind kind);

/// Which parameters weight decay leaves alone.
enum class DecayRule : uint8_t {
  kUnknown,
  kNotNormsAndBiases,  ///< nor anything else with one axis: here, Megatron, MindSpore Transformers
  kNotNormsAndBiasesButQkNorm,  ///< the norms of queries and keys do decay
};

struct ChecklistSide {
  SideKind kind = SideKind::kConfiguration;
  std::string file;
  /// By the key of an item (checklist_items.h). What is not there, the file does not say.
  std::map<std::string, config::Value> values;
  /// Learning rate of a step, from 1 on; none where the file does not say enough.
  std::function<double(int64_t step)> learning_rate;
  std::optional<int64_t> steps;  ///< of the run
  DecayRule decay_rule = DecayRule::kUnknown;
  TokenIds token_ids;
  std::optional<std::string> step_data;  ///< folder of recorded steps
  std::optional<AllConfig> config;       ///< where it is one of ours
  std::vector<std::string> notes;        ///< what was not understood, in words
};

/// Sequences of a step that more than one rank computes need their number, which no file says.
struct SideOptions {
  int64_t data_parallel_size = 1;
  std::string program = {};  ///< "Tapestry 0.9.0", of our configurations
};

/// Reads a configuration of pretrain_gpt. IoError, ConfigError.
ChecklistSide read_configuration(const std::string& path, const SideOptions& options);

/// Reads by content:
/// - JSON with model_type: Hugging Face's config.json;
/// - JSON with compute_dtype and train_iters: the reference's config.json (golden.h);
/// - other JSON with names of Megatron-LM's arguments, or a text with such options ("--num-layers
/// 2");
/// - YAML with `model: model_config:` or `lr_schedule:`: a static configuration;
/// - other YAML: a configuration of pretrain_gpt.
/// A folder stands for its config.json, or else its config.yaml. IoError for a file that cannot be
/// read or is none of these, ValueError or ConfigError for wrong values in it.
ChecklistSide read_other_side(const std::string& path, const SideOptions& options);

/// The readers of each kind, on the content; `file` stands for it in messages.
ChecklistSide side_of(const AllConfig& config, const std::string& file, const SideOptions& options);
ChecklistSide read_megatron_arguments(const std::string& text, const std::string& file);
ChecklistSide read_static_yaml(const std::string& text, const std::string& file);
/// Whether a text holds at least two options or names of Megatron-LM's.
bool looks_like_megatron(const std::string& text);
bool looks_like_static_yaml(const std::string& text);

}  // namespace tapestry::accuracy
