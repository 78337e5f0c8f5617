// adapter_config.json: what PEFT writes of a LoRA adapter, and reads again.
//
// Source of keys, defaults and of the rules by which names fit: LoraConfig and the tuners of the
// peft library. What an adapter of it may be and ours are not (other kinds than LORA, start values
// that change the base, ...) is refused with key and value.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tapestry {

/// PeftConfig::task_type of an adapter of a reward model, which has a score head.
inline constexpr const char* kSequenceClassification = "SEQ_CLS";

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";

/// Names of modules, as PEFT takes them: a path, or its end after a dot; or one regular expression
/// for whole paths.
struct PeftNames {
  std::vector<std::string> names;
  std::optional<std::string> pattern;
  bool all_linear = false;  ///< "all-linear": every linear module but the output layer

  bool empty() const { return names.empty() && !pattern && !all_linear; }
  bool operator==(const PeftNames&) const = default;
};

struct PeftConfig {
  std::string base;       ///< base_model_name_or_path; empty: null
  std::string task_type;  ///< empty: null
  int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;
  bool use_rslora = false;
  bool use_dora = false;
  bool trains_biases = false;   ///< bias: lora_only, those of the modules that have an adapter
  bool fan_in_fan_out = false;  ///< the base's files hold [in, out]
  PeftNames targets;
  PeftNames excluded;
  /// target_parameters: matrices that are parameters and no modules, those of stacked experts.
  std::vector<std::string> parameters;
  /// Regular expressions for the end of a path, of which the first that fits counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::optional<std::vector<int64_t>> layers;  ///< layers_to_transform
  std::vector<std::string> layers_pattern;
  std::vector<std::string> modules_to_save;
  /// Of a table that is the output layer too, to save one of the two is to save both (PEFT 0.18).
  bool ensure_weight_tying = false;
  /// The file as it came, for keys that say nothing here; empty for one that is made.
  std::string text;

  /// The same adapter; the file that it came in does not count.
  bool same_values(const PeftConfig& other) const;
};

/// Reads FOLDER/adapter_config.json. IoError if it is missing or no JSON (duplicate keys included);
/// ValueError, with all findings, each with its key and value, for what we cannot do and for values
/// of a wrong type. Keys that are not known are kept as long as they say nothing: null, False, or
/// empty.
PeftConfig read_peft_config(const std::string& folder);

/// Content of the file. What came in a file stays as it came, byte for byte if nothing in it has
/// changed; one that is made has the keys that PEFT writes, in its order.
std::string peft_config_text(const PeftConfig& config);

/// Whether a path is one that a list of names means: one of them, or ends with one after a dot.
bool is_named(const std::vector<std::string>& names, std::string_view path);

/// Which modules an adapter_config.json means, by the paths that they have in the Hugging Face
/// model ("model.layers.0.self_attn.q_proj").
class PeftModules {
 public:
  /// `source` names the file in messages. ValueError for an expression that is none.
  PeftModules(PeftConfig config, const std::string& source);
  PeftModules(PeftModules&&) noexcept;
  PeftModules& operator=(PeftModules&&) noexcept;
  PeftModules(const PeftModules&) = delete;
  PeftModules& operator=(const PeftModules&) = delete;
  ~PeftModules();

  const PeftConfig& config() const { return config_; }

  /// Whether a linear module has an adapter. All of these are a ValueError where an expression of
  /// the file takes too long to answer.
  bool targets(const std::string& path) const;
  /// Whether a parameter of stacked experts ("model.layers.0.mlp.experts.down_proj") has one.
  bool targets_parameter(const std::string& path) const {
    return is_named(config_.parameters, path);
  }
  /// Whether it is trained and saved whole: a name of modules_to_save ends its path.
  bool saves(const std::string& path) const;
  int64_t rank(const std::string& path) const;
  double alpha(const std::string& path) const;
  /// alpha / rank, or alpha / sqrt(rank).
  double scale(const std::string& path) const;

 private:
  struct Patterns;
  bool in_layers(const std::string& path) const;

  PeftConfig config_;
  std::unique_ptr<Patterns> patterns_;
};

}  // namespace tapestry
