#include "parallel_core/dist_checkpointing/peft_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <utility>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/strict_json.h"
#include "autograd/tensor/error.h"
#include "text/util/regular_expression.h"

namespace tapestry {

namespace {

using PeftJson = nlohmann::ordered_json;

constexpr uint64_t kMaxConfigBytes = uint64_t{4} << 20U;
constexpr int64_t kMaxRank = int64_t{1} << 20U;
constexpr const char* kAllLinear = "all-linear";

bool says_nothing(const PeftJson& value) {
  return value.is_null() || value == false ||
         ((value.is_string() || value.is_array() || value.is_object()) && value.empty()) ||
         (value.is_string() && value.get_ref<const std::string&>().empty());
}

// Reads the members of the file and collects what is wrong with them.
class PeftKeys {
 public:
  PeftKeys(const PeftJson& object, std::string file) : object_(object), file_(std::move(file)) {}

  PeftConfig config() {
    PeftConfig c;
    only("peft_type", {PeftJson("LORA")}, "adapters of LORA alone can be read here");
    c.base = text("base_model_name_or_path");
    c.task_type = text("task_type");
    only("task_type",
         {PeftJson(), PeftJson("CAUSAL_LM"), PeftJson(""), PeftJson(kSequenceClassification)},
         "the models here are of the tasks CAUSAL_LM and SEQ_CLS");
    c.rank = integer("r", c.rank, 1, kMaxRank);
    c.alpha = number("lora_alpha", c.alpha);
    refuse_unless("lora_alpha", c.alpha > 0, "expected a number above 0");
    c.dropout = number("lora_dropout", c.dropout);
    refuse_unless("lora_dropout", c.dropout >= 0 && c.dropout < 1, "expected one in [0, 1)");
    c.use_rslora = flag("use_rslora");
    c.use_dora = flag("use_dora");
    only("bias", {PeftJson(), PeftJson("none"), PeftJson("lora_only")},
         "expected none, or lora_only for the biases of the modules that have an adapter; others "
         "can be trained by modules_to_save");
    c.trains_biases = text("bias") == "lora_only";
    c.fan_in_fan_out = flag("fan_in_fan_out");
    c.targets = names("target_modules");
    c.excluded = names("exclude_modules");
    c.parameters = strings("target_parameters");
    c.modules_to_save = strings("modules_to_save");
    c.ensure_weight_tying = flag("ensure_weight_tying");
    refuse_unless("target_modules",
                  !c.targets.empty() || !c.modules_to_save.empty() || !c.parameters.empty(),
                  "name the modules, as every adapter_config.json does that PEFT has written");
    read_patterns(c);
    c.layers = layers();
    c.layers_pattern = strings("layers_pattern", /*or_one=*/true);
    read_start_values();
    refuse_other_features();
    check<ValueError>(errors_.empty(), file_, ": cannot be used:", errors_);
    return c;
  }

 private:
  const PeftJson* find(const char* key) {
    seen_.emplace_back(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }
  template <class... Args>
  void add(const char* key, const PeftJson& value, const Args&... reason) {
    std::string shown = value.dump(-1, ' ', false, PeftJson::error_handler_t::replace);
    if (shown.size() > 200) {
      shown = shown.substr(0, 200) + "...";
    }
    errors_ += concat("\n  ", key, " is ", shown, "; ", reason...);
  }
  void refuse_unless(const char* key, bool holds, const char* reason) {
    if (!holds) {
      const auto found = object_.find(key);
      add(key, found == object_.end() ? PeftJson() : *found, reason);
    }
  }
  void only(const char* key, std::initializer_list<PeftJson> allowed, const char* reason) {
    const PeftJson* value = find(key);
    const PeftJson given = value == nullptr ? PeftJson() : *value;
    refuse_unless(key, std::find(allowed.begin(), allowed.end(), given) != allowed.end(), reason);
  }

  std::string text(const char* key) {
    const PeftJson* value = find(key);
    if (value == nullptr || value->is_null()) {
      return {};
    }
    if (!value->is_string()) {
      add(key, *value, "expected a text");
      return {};
    }
    return value->get<std::string>();
  }
  bool flag(const char* key) {
    const PeftJson* value = find(key);
    if (value == nullptr || value->is_null()) {
      return false;
    }
    refuse_unless(key, value->is_boolean(), "expected true or false");
    return value->is_boolean() && value->get<bool>();
  }
  double number(const char* key, double otherwise) {
    const PeftJson* value = find(key);
    if (value == nullptr) {
      return otherwise;
    }
    if (!value->is_number()) {
      add(key, *value, "expected a number");
      return otherwise;
    }
    return value->get<double>();
  }
  int64_t integer(const char* key, int64_t otherwise, int64_t least, int64_t most) {
    const PeftJson* value = find(key);
    if (value == nullptr) {
      return otherwise;
    }
    if (!is_integer(*value, least, most)) {
      add(key, *value, "expected a whole number of at least ", least, " and at most ", most);
      return otherwise;
    }
    return value->get<int64_t>();
  }
  static bool is_integer(const PeftJson& value, int64_t least, int64_t most) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX}) &&
           value.get<int64_t>() >= least && value.get<int64_t>() <= most;
  }

  std::vector<std::string> strings(const char* key, bool or_one = false) {
    const PeftJson* value = find(key);
    std::vector<std::string> out;
    if (value == nullptr || value->is_null()) {
      return out;
    }
    if (or_one && value->is_string()) {
      return says_nothing(*value) ? out : std::vector{value->get<std::string>()};
    }
    if (!value->is_array() || !std::all_of(value->begin(), value->end(), [](const PeftJson& item) {
          return item.is_string() && !item.get_ref<const std::string&>().empty();
        })) {
      add(key, *value, "expected a list of names");
      return out;
    }
    for (const PeftJson& item : *value) {
      out.push_back(item.get<std::string>());
    }
    return out;
  }
  PeftNames names(const char* key) {
    const auto found = object_.find(key);
    PeftNames out;
    if (found == object_.end() || !found->is_string()) {
      out.names = strings(key);
      return out;
    }
    const std::string pattern = text(key);
    out.all_linear = pattern == kAllLinear;
    if (!out.all_linear && !pattern.empty()) {
      out.pattern = pattern;
    }
    return out;
  }

  const PeftJson* map(const char* key) {
    const PeftJson* value = find(key);
    if (value != nullptr && !value->is_null() && !value->is_object()) {
      add(key, *value, "expected a mapping from regular expressions to numbers");
    }
    return value != nullptr && value->is_object() ? value : nullptr;
  }
  void read_patterns(PeftConfig& c) {
    if (const PeftJson* ranks = map("rank_pattern")) {
      for (const auto& [pattern, rank] : ranks->items()) {
        if (!is_integer(rank, 1, kMaxRank)) {
          add("rank_pattern", rank, "expected ranks of at least 1 for ", pattern);
        } else {
          c.rank_pattern.emplace_back(pattern, rank.get<int64_t>());
        }
      }
    }
    if (const PeftJson* alphas = map("alpha_pattern")) {
      for (const auto& [pattern, alpha] : alphas->items()) {
        if (!alpha.is_number() || alpha.get<double>() <= 0) {
          add("alpha_pattern", alpha, "expected a number above 0 for ", pattern);
        } else {
          c.alpha_pattern.emplace_back(pattern, alpha.get<double>());
        }
      }
    }
  }
  std::optional<std::vector<int64_t>> layers() {
    constexpr const char* kKey = "layers_to_transform";
    const PeftJson* value = find(kKey);
    if (value == nullptr || says_nothing(*value)) {
      return std::nullopt;
    }
    const PeftJson list = value->is_array() ? *value : PeftJson::array({*value});
    std::vector<int64_t> out;
    for (const PeftJson& item : list) {
      if (!is_integer(item, 0, INT64_MAX)) {
        add(kKey, *value, "expected numbers of layers");
        return std::nullopt;
      }
      out.push_back(item.get<int64_t>());
    }
    return out;
  }

  void read_start_values() {
    const PeftJson* value = find("init_lora_weights");
    static const std::array<PeftJson, 5> kPlain = {PeftJson(true), PeftJson(false),
                                                   PeftJson("gaussian"), PeftJson("eva"),
                                                   PeftJson("orthogonal")};
    if (value != nullptr && !value->is_null() &&
        std::find(kPlain.begin(), kPlain.end(), *value) == kPlain.end()) {
      add("init_lora_weights", *value,
          "start values of this kind change the base's weights too, which are taken as they are; "
          "let PEFT convert the adapter (path_initial_model_for_weight_conversion)");
    }
  }

  // Keys that PEFT writes and that do not matter, then those that have to have no effect.
  void refuse_other_features() {
    for (const char* key : {"auto_mapping", "inference_mode", "revision", "peft_version",
                            "megatron_core", "qalora_group_size", "runtime_config",
                            // How start values were found, which init_lora_weights decides on.
                            "eva_config", "corda_config", "loftq_config", "lora_ga_config"}) {
      seen_.emplace_back(key);
    }
    constexpr std::array<std::pair<const char*, const char*>, 6> kFeatures = {
        {{"lora_bias", "an adapter's B has no bias here"},
         {"layer_replication", "layers are those of the base"},
         {"trainable_token_indices", "of a table of embeddings all rows are trained or none"},
         {"use_qalora", "there is no QALoRA here"},
         {"alora_invocation_tokens", "an adapter takes part in all tokens"},
         {"megatron_config", "the base is a model of Hugging Face's names"}}};
    for (const auto& [key, reason] : kFeatures) {
      if (const PeftJson* value = find(key); value != nullptr && !says_nothing(*value)) {
        add(key, *value, reason);
      }
    }
    for (const auto& [key, value] : object_.items()) {
      if (!says_nothing(value) && std::find(seen_.begin(), seen_.end(), key) == seen_.end()) {
        add(key.c_str(), value, "this key is not known, and what it asks for cannot be done");
      }
    }
  }

  const PeftJson& object_;
  std::string file_;
  std::vector<std::string> seen_;
  std::string errors_;
};

PeftConfig parse_object(const PeftJson& object, const std::string& file) {
  check<IoError>(object.is_object(), file, ": is not a JSON object");
  return PeftKeys(object, file).config();
}

template <class List>
PeftJson list_or_null(const List& list) {
  return list.empty() ? PeftJson() : PeftJson(list);
}

PeftJson names_json(const PeftNames& names) {
  return names.all_linear ? PeftJson(kAllLinear)
         : names.pattern  ? PeftJson(*names.pattern)
                          : list_or_null(names.names);
}

// As PEFT has it: a whole number without a point.
PeftJson number_json(double value) {
  const bool whole = std::nearbyint(value) == value && std::abs(value) < 1e15;
  return whole ? PeftJson(static_cast<int64_t>(value)) : PeftJson(value);
}

template <class Value>
PeftJson pattern_json(const std::vector<std::pair<std::string, Value>>& patterns) {
  PeftJson map = PeftJson::object();
  for (const auto& [pattern, value] : patterns) {
    map[pattern] = number_json(static_cast<double>(value));
  }
  return map;
}

// Every key that has a meaning here, sorted as PEFT sorts them.
PeftJson meaning_of(const PeftConfig& c) {
  PeftJson json = PeftJson::object();
  json["alpha_pattern"] = pattern_json(c.alpha_pattern);
  json["base_model_name_or_path"] = c.base.empty() ? PeftJson() : PeftJson(c.base);
  json["bias"] = c.trains_biases ? "lora_only" : "none";
  json["exclude_modules"] = names_json(c.excluded);
  json["fan_in_fan_out"] = c.fan_in_fan_out;
  json["inference_mode"] = true;
  json["init_lora_weights"] = true;
  json["layers_pattern"] = list_or_null(c.layers_pattern);
  json["layers_to_transform"] = c.layers ? PeftJson(*c.layers) : PeftJson();
  json["lora_alpha"] = number_json(c.alpha);
  json["lora_dropout"] = c.dropout;
  json["modules_to_save"] = list_or_null(c.modules_to_save);
  json["peft_type"] = "LORA";
  json["r"] = c.rank;
  json["rank_pattern"] = pattern_json(c.rank_pattern);
  json["revision"] = nullptr;
  json["target_modules"] = c.targets.empty() ? PeftJson::array() : names_json(c.targets);
  json["target_parameters"] = list_or_null(c.parameters);
  json["task_type"] = c.task_type.empty() ? PeftJson() : PeftJson(c.task_type);
  json["use_dora"] = c.use_dora;
  json["use_rslora"] = c.use_rslora;
  return json;
}

bool fits(const PeftNames& names,
          const std::optional<RegularExpression>& pattern,
          const std::string& path) {
  return pattern ? pattern->matches(path) : is_named(names.names, path);
}

}  // namespace

bool PeftConfig::same_values(const PeftConfig& o) const {
  return base == o.base && task_type == o.task_type && rank == o.rank && alpha == o.alpha &&
         dropout == o.dropout && use_rslora == o.use_rslora && use_dora == o.use_dora &&
         trains_biases == o.trains_biases && fan_in_fan_out == o.fan_in_fan_out &&
         targets == o.targets && excluded == o.excluded && parameters == o.parameters &&
         rank_pattern == o.rank_pattern && alpha_pattern == o.alpha_pattern && layers == o.layers &&
         layers_pattern == o.layers_pattern && modules_to_save == o.modules_to_save &&
         ensure_weight_tying == o.ensure_weight_tying;
}

PeftConfig read_peft_config(const std::string& folder) {
  const InputFile file((std::filesystem::path(folder) / kAdapterConfigFile).string());
  PeftConfig config =
      parse_object(read_strict_ordered_json(file, "adapter", kMaxConfigBytes), file.path());
  config.text.resize(file.size());
  file.read_at(0, config.text.data(), config.text.size(), "adapter");
  return config;
}

std::string peft_config_text(const PeftConfig& config) {
  const PeftJson meaning = meaning_of(config);
  if (config.text.empty()) {
    return meaning.dump(2);
  }
  PeftJson file = PeftJson::parse(config.text);
  const PeftConfig as_it_came = parse_object(file, "adapter_config.json");
  if (as_it_came.same_values(config)) {
    return config.text;
  }
  const PeftJson before = meaning_of(as_it_came);
  for (const auto& [key, value] : meaning.items()) {
    if (before[key] != value) {
      file[key] = value;
    }
  }
  return file.dump(2);
}

struct PeftModules::Patterns {
  std::optional<RegularExpression> targets;
  std::optional<RegularExpression> excluded;
  std::vector<RegularExpression> ranks;
  std::vector<RegularExpression> alphas;
  std::vector<RegularExpression> layers;
};

PeftModules::PeftModules(PeftConfig config, const std::string& source)
    : config_(std::move(config)), patterns_(std::make_unique<Patterns>()) {
  const auto named = [&](const char* key) { return concat(source, ": ", key); };
  if (config_.targets.pattern) {
    patterns_->targets.emplace(*config_.targets.pattern, named("target_modules"));
  }
  if (config_.excluded.pattern) {
    patterns_->excluded.emplace(*config_.excluded.pattern, named("exclude_modules"));
  }
  for (const auto& [pattern, rank] : config_.rank_pattern) {
    patterns_->ranks.emplace_back(concat("(.*\\.)?(", pattern, ")"), named("rank_pattern"));
  }
  for (const auto& [pattern, alpha] : config_.alpha_pattern) {
    patterns_->alphas.emplace_back(concat("(.*\\.)?(", pattern, ")"), named("alpha_pattern"));
  }
  for (const std::string& pattern : config_.layers_pattern) {
    patterns_->layers.emplace_back(concat(".*\\.", pattern, "\\.(\\d+)\\."),
                                   named("layers_pattern"));
  }
  if (patterns_->layers.empty()) {
    patterns_->layers.emplace_back(".*\\.[^.]*\\.(\\d+)\\.", named("layers_to_transform"));
  }
}

PeftModules::PeftModules(PeftModules&&) noexcept = default;
PeftModules& PeftModules::operator=(PeftModules&&) noexcept = default;
PeftModules::~PeftModules() = default;

// The layer is the number behind the last ".NAME." of the path that the expressions find.
bool PeftModules::in_layers(const std::string& path) const {
  for (const RegularExpression& pattern : patterns_->layers) {
    const std::vector<std::string> groups = pattern.groups_at_start(path);
    if (groups.size() > 1) {
      return std::any_of(config_.layers->begin(), config_.layers->end(),
                         [&](int64_t layer) { return std::to_string(layer) == groups.back(); });
    }
  }
  return false;
}

bool PeftModules::targets(const std::string& path) const {
  if (fits(config_.excluded, patterns_->excluded, path)) {
    return false;
  }
  if (config_.targets.all_linear) {
    return path != "lm_head" && !path.ends_with(".lm_head");
  }
  if (!fits(config_.targets, patterns_->targets, path)) {
    return false;
  }
  // A path that is named as a whole is meant whatever its layer. An expression with layers is what
  // newer versions of PEFT refuse; here both hold.
  const std::vector<std::string>& names = config_.targets.names;
  return !config_.layers || std::find(names.begin(), names.end(), path) != names.end() ||
         in_layers(path);
}

bool PeftModules::saves(const std::string& path) const {
  const std::vector<std::string>& names = config_.modules_to_save;
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return path.ends_with(name); });
}

int64_t PeftModules::rank(const std::string& path) const {
  for (size_t i = 0; i < patterns_->ranks.size(); ++i) {
    if (patterns_->ranks[i].matches(path)) {
      return config_.rank_pattern[i].second;
    }
  }
  return config_.rank;
}

double PeftModules::alpha(const std::string& path) const {
  for (size_t i = 0; i < patterns_->alphas.size(); ++i) {
    if (patterns_->alphas[i].matches(path)) {
      return config_.alpha_pattern[i].second;
    }
  }
  return config_.alpha;
}

double PeftModules::scale(const std::string& path) const {
  const auto r = static_cast<double>(rank(path));
  return alpha(path) / (config_.use_rslora ? std::sqrt(r) : r);
}

bool is_named(const std::vector<std::string>& names, std::string_view path) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return path == name || (path.size() > name.size() + 1 && path.ends_with(name) &&
                            path[path.size() - name.size() - 1] == '.');
  });
}

}  // namespace tapestry
