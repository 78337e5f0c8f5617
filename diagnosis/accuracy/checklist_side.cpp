#include "diagnosis/accuracy/checklist_side.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/checklist_items.h"
#include "diagnosis/accuracy/replay_case.h"
#include "diagnosis/accuracy/template_text.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/optimizer/get_optimizer.h"

namespace tapestry::accuracy {
namespace {

namespace fs = std::filesystem;
using config::Value;
using PlainJson = nlohmann::json;

constexpr uintmax_t kMostBytes = uintmax_t{1} << 24U;

// A folder's configuration.
std::string file_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return path;
  }
  for (const char* name : {"config.json", "config.yaml"}) {
    const fs::path file = fs::path(path) / name;
    if (fs::exists(file, error)) {
      return file.string();
    }
  }
  throw IoError(concat(path, ": is a folder with neither config.json nor config.yaml"));
}

// The part of "section.key" before the first dot, and the rest.
std::pair<std::string, std::string> split_path(std::string_view path) {
  const size_t dot = path.find('.');
  return dot == std::string_view::npos
             ? std::pair{std::string(), std::string(path)}
             : std::pair{std::string(path.substr(0, dot)), std::string(path.substr(dot + 1))};
}

Value value_in(const AllConfig& config, const ChecklistItem& item, const SideOptions& options) {
  if (item.of != nullptr) {
    return item.of(config, options);
  }
  const auto [section, key] = split_path(item.key);
  const config::Key* found = config::find_key(section, key);
  check<RuntimeError>(found != nullptr, "checklist: there is no key ", item.key);
  return found->field.get(config);
}

bool holds(const PlainJson& json, std::initializer_list<const char*> keys) {
  return std::all_of(keys.begin(), keys.end(), [&](const char* key) { return json.contains(key); });
}

ChecklistSide read_reference(const std::string& text, const std::string& file) {
  const std::string folder = fs::path(file).parent_path().string();
  std::string yaml;
  try {
    yaml = replay_case_yaml(text, folder, "output");
  } catch (const ValueError& error) {
    throw ValueError(concat(file, ": ", error.what()));
  }
  // All ranks' batches are one step's here.
  const AllConfig config = init_configs_from_text(yaml, file);
  ChecklistSide side = side_of(config, file, {});
  side.kind = SideKind::kReference;
  side.config.reset();
  const PlainJson json = PlainJson::parse(text);
  int64_t ranks = 1;
  if (json.contains("data_parallel_size")) {
    const PlainJson& given = json.at("data_parallel_size");
    check<ValueError>(given.is_number_integer() && given.get<int64_t>() > 0, file,
                      ": data_parallel_size is ", given.dump(), "; expected a number from 1 on");
    ranks = given.get<int64_t>();
  }
  side.values["data_parallel_size"] = Value(ranks);
  side.values["global_batch_size"] = Value(json.at("global_batch_size").get<int64_t>());
  side.values["micro_batches"] = Value(config.dataset_config.micro_batch_num / ranks);
  // Of these its file says nothing; the converted configuration has our defaults.
  for (const char* key :
       {"fused_qkv", "fused_attention", "model_config.use_fused_kernels", "zero_level",
        "parallel_config.deterministic_mode", "overflow_mode", "graph_fusion", "gradient_dtype",
        "product_sums_dtype", "program_version", "chat_template", "routing_policy",
        "use_fused_ops_topkrouter", "dataset_config.eod_mask_loss",
        "dataset_config.reset_attention_mask", "dataset_config.reset_position_ids"}) {
    side.values.erase(key);
  }
  std::error_code error;
  if (!fs::is_directory(*side.step_data, error)) {
    side.step_data.reset();
  }
  return side;
}

// Several members together say which layers have experts.
void add_expert_layers(const HfConfig& hf, ChecklistSide& side) {
  AllConfig all;
  for (const HfSetting& setting : hf.settings) {
    config::find_key(setting.section, setting.key)->field.set(all, setting.value);
  }
  all.model_config.moe = all.moe_config;
  if (all.moe_config.num_experts > 1) {
    for (const ChecklistItem& item : checklist_items()) {
      if (item.key == "moe_layers") {
        side.values[std::string(item.key)] = item.of(all, {});
      }
    }
  }
}

ChecklistSide read_hugging_face(const std::string& text, const std::string& file) {
  const HfConfig hf = parse_hf_config(text, file);
  ChecklistSide side{.kind = SideKind::kHuggingFace, .file = file};
  side.token_ids = hf.token_ids;
  for (const HfSetting& setting : hf.settings) {
    const std::string key = setting.section + "." + setting.key;
    if (key == "model_config.window_size") {
      side.values["attention_pattern"] =
          setting.value.is_null()
              ? Value(std::string("causal"))
              : Value(concat("window of ",
                             setting.value.as<Value::List>().front().as<int64_t>() + 1, " tokens"));
    } else {
      side.values[key] = setting.value.is_null() ? Value(std::string("none")) : setting.value;
    }
  }
  add_expert_layers(hf, side);
  const std::string mark = folder_template(fs::path(file).parent_path().string());
  side.values["chat_template"] = Value(mark.empty() ? std::string("none") : mark);
  const PlainJson json = PlainJson::parse(text);
  if (const auto version = json.find("transformers_version");
      version != json.end() && version->is_string()) {
    side.values["program_version"] = Value("transformers " + version->get<std::string>());
  }
  if (!side.values.contains("attention_pattern")) {
    side.values["attention_pattern"] = Value(std::string("causal"));
  }
  // Of experts a file of a dense model has nothing to say but that.
  const auto experts = side.values.find("moe_config.num_experts");
  if (experts == side.values.end()) {
    side.values["moe_config.num_experts"] = Value(int64_t{1});
  }
  for (const std::string& undecided : hf.undecided) {
    side.notes.push_back(undecided);
  }
  return side;
}

}  // namespace

std::string name_of(SideKind kind) {
  switch (kind) {
    case SideKind::kConfiguration:
      return "a configuration";
    case SideKind::kStatic:
      return "a static configuration of MindSpore Transformers";
    case SideKind::kReference:
      return "a stored reference run";
    case SideKind::kHuggingFace:
      return "a Hugging Face config.json";
    case SideKind::kMegatron:
      break;
  }
  return "arguments of Megatron-LM";
}

ChecklistSide side_of(const AllConfig& config,
                      const std::string& file,
                      const SideOptions& options) {
  ChecklistSide side{.file = file, .decay_rule = DecayRule::kNotNormsAndBiases};
  for (const ChecklistItem& item : checklist_items()) {
    Value value = value_in(config, item, options);
    // Nothing is a value too: no shared expert, no capacity.
    side.values[std::string(item.key)] =
        value.is_null() ? Value(std::string("none")) : std::move(value);
  }
  const int64_t steps = total_training_iters(config, options.data_parallel_size);
  if (steps > 0) {
    side.steps = steps;
  }
  const std::shared_ptr<const optim::Schedule> schedule =
      get_optimizer_param_scheduler(config, options.data_parallel_size);
  side.learning_rate = [schedule](int64_t step) {
    return schedule->learning_rate({.applied = step - 1, .seen = step - 1});
  };
  if (config.dataset_config.eos_token_id) {
    side.token_ids.eos = {*config.dataset_config.eos_token_id};
  }
  side.token_ids.pad = config.dataset_config.pad_token_id;
  side.step_data = config.dataset_config.step_data_dir;
  side.config = config;
  return side;
}

ChecklistSide read_configuration(const std::string& path, const SideOptions& options) {
  const std::string file = file_of(path);
  return side_of(init_configs_from_yaml(file), file, options);
}

ChecklistSide read_other_side(const std::string& path, const SideOptions& options) {
  const std::string file = file_of(path);
  const std::string text = read_file(file, kMostBytes, "expected a configuration file");
  const PlainJson json = PlainJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) {
    if (json.contains("model_type") || json.contains("architectures")) {
      return read_hugging_face(text, file);
    }
    if (holds(json, {"compute_dtype", "train_iters", "micro_batch_size"})) {
      return read_reference(text, file);
    }
  }
  if (looks_like_megatron(text)) {
    return read_megatron_arguments(text, file);
  }
  check<IoError>(json.is_discarded() || file.ends_with(".yaml") || file.ends_with(".yml"), file,
                 ": is JSON, but neither a Hugging Face config.json (no model_type), nor a stored "
                 "reference's config.json (no compute_dtype), nor arguments of Megatron-LM");
  if (looks_like_static_yaml(text)) {
    return read_static_yaml(text, file);
  }
  check<IoError>(
      text.find(':') != std::string::npos, file,
      ": is none of a configuration in YAML, a Hugging Face or reference config.json, and "
      "arguments of Megatron-LM, in which options begin with --");
  return side_of(init_configs_from_text(text, file), file, options);
}

}  // namespace tapestry::accuracy
