#include "diagnosis/accuracy/replay_case.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/expand_path.h"

namespace tapestry {
namespace {

using Json = nlohmann::json;

// Only the reference program reads these: start values, integer type of its files, and which of
// several valid roundings it takes.
const std::set<std::string> kReferenceOnly = {"init_jitter", "data_int_dtype",
                                              "bf16_round_matmul_output", "bf16_round_weight_grad",
                                              "attention_scores_fp32"};

// Keys of experts, which say nothing of a model without: those of moe_config, and their number.
bool is_of_experts(const std::string& key) {
  return key == "num_moe_experts" || config::find_key("moe_config", key) != nullptr;
}

// Reference key -> our "section.key" where the name differs. The rest keep their names.
const std::map<std::string, std::string> kRenamed = {
    {"train_iters", "training_config.training_iters"},
    {"micro_batch_size", "dataset_config.batch_size"},
    {"lr", "optimizer_config.learning_rate"},
    {"adam_eps", "optimizer_config.eps"},
    {"rotary_base", "model_config.rotary_config.rotary_base"},
    {"rotary_percent", "model_config.rotary_config.rotary_percent"},
    {"num_moe_experts", "moe_config.num_experts"},
    {"seq_length", "model_config.seq_length"},  // dataset_config has one too
};

class Converter {
 public:
  explicit Converter(const Json& json) : json_(json) {}

  template <class T>
  T get(const std::string& key) {
    check<ValueError>(json_.contains(key), "config.json: the key '", key, "' is missing");
    try {
      return json_.at(key).get<T>();
    } catch (const Json::exception&) {
      throw ValueError(concat("config.json: ", key, ": unexpected value ", json_.at(key).dump()));
    }
  }
  template <class T>
  T get(const std::string& key, T otherwise) {
    return json_.contains(key) && !json_.at(key).is_null() ? get<T>(key) : otherwise;
  }

  void put(const std::string& path, const std::string& text) { lines_[path] = text; }

  // The reference's key of another name, or by its name wherever the schema has it.
  void carry_over(const std::string& key, const Json& value) {
    const auto renamed = kRenamed.find(key);
    if (renamed != kRenamed.end()) {
      put(renamed->second, yaml_text(key, value));
      return;
    }
    for (const config::Section& section : config::schema()) {
      if (config::find_key(section.name, key) != nullptr) {
        put(std::string(section.name) + "." + key, yaml_text(key, value));
        return;
      }
    }
    throw ValueError(
        concat("config.json: unknown key '", key, "': no configuration key has this meaning"));
  }

  std::string yaml() const {
    std::string text;
    for (const config::Section& section : config::schema()) {
      std::string body;
      std::string open;
      for (const auto& [path, value] : lines_) {
        if (!path.starts_with(std::string(section.name) + ".")) {
          continue;
        }
        const std::string key = path.substr(section.name.size() + 1);
        const size_t dot = key.find('.');
        if (dot == std::string::npos) {
          body += "  " + key + ": " + value + "\n";
        } else {
          if (open != key.substr(0, dot)) {
            open = key.substr(0, dot);
            body += "  " + open + ":\n";
          }
          body += "    " + key.substr(dot + 1) + ": " + value + "\n";
        }
      }
      if (!body.empty()) {
        text += std::string(section.name) + ":\n" + body;
      }
    }
    return text;
  }

 private:
  static std::string yaml_text(const std::string& key, const Json& value) {
    if (value.is_boolean()) {
      return value.get<bool>() ? "True" : "False";
    }
    if (value.is_string()) {
      return config::string_text(value.get<std::string>());
    }
    if (value.is_number_float()) {
      return config::number_text(value.get<double>());
    }
    check<ValueError>(!value.is_object(), "config.json: ", key, ": unexpected value ",
                      value.dump());
    return value.dump();  // null, integers and lists read the same in YAML
  }

  const Json& json_;
  std::map<std::string, std::string> lines_;
};

std::string join(const std::string& folder, const std::string& name) {
  return folder.empty() || folder.ends_with('/') ? folder + name : folder + "/" + name;
}

Json parse(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  check<ValueError>(json.is_object(), "config.json: not a JSON object");
  return json;
}

}  // namespace

std::string replay_case_yaml(const std::string& json_text,
                             const std::string& case_dir,
                             const std::string& output_dir,
                             int64_t data_parallel_size) {
  const Json json = parse(json_text);
  Converter convert(json);
  const bool experts = json.contains("num_moe_experts") && !json.at("num_moe_experts").is_null();
  const std::set<std::string> combined = {"global_batch_size", "data_parallel_size", "adam_beta1",
                                          "adam_beta2",        "add_bias_linear",    "add_qkv_bias",
                                          "dump_weight_steps"};
  for (const auto& [key, value] : json.items()) {
    if (!kReferenceOnly.contains(key) && !combined.contains(key) &&
        (experts || !is_of_experts(key))) {
      convert.carry_over(key, value);
    }
  }

  const auto iterations = convert.get<int64_t>("train_iters");
  const auto micro = convert.get<int64_t>("micro_batch_size");
  const auto global = convert.get<int64_t>("global_batch_size");
  check<ValueError>(micro > 0 && data_parallel_size > 0 && global > 0 &&
                        global % (micro * data_parallel_size) == 0,
                    "config.json: global_batch_size ", global, " is not a multiple of ",
                    "micro_batch_size ", micro, " times ", data_parallel_size, " rank(s)");
  convert.put("dataset_config.micro_batch_num",
              std::to_string(global / (micro * data_parallel_size)));
  convert.put("dataset_config.step_data_dir", config::path_text(join(case_dir, "data")));

  const bool biases = convert.get<bool>("add_bias_linear", false);
  const auto yaml_text = [](bool value) { return value ? "True" : "False"; };
  convert.put("model_config.qkv_has_bias",
              yaml_text(biases || convert.get<bool>("add_qkv_bias", false)));
  convert.put("model_config.out_proj_has_bias", yaml_text(biases));
  convert.put("model_config.mlp_has_bias", yaml_text(biases));

  convert.put("optimizer_config.optimizer_type", "AdamW");
  convert.put("optimizer_config.betas",
              concat("[", config::number_text(convert.get<double>("adam_beta1")), ", ",
                     config::number_text(convert.get<double>("adam_beta2")), "]"));
  // With experts and a weight the reference has a balance loss, whose kind later ones name.
  if (experts && convert.get<double>("moe_aux_loss_coeff", 0.0) > 0 &&
      !json.contains("moe_router_load_balancing_type")) {
    convert.put("moe_config.moe_router_load_balancing_type", "aux_loss");
  }

  auto dumps = convert.get<std::vector<int64_t>>("dump_weight_steps", {});
  if (std::find(dumps.begin(), dumps.end(), iterations) == dumps.end()) {
    dumps.push_back(iterations);  // to be compared with final.safetensors
  }
  convert.put("training_config.dump_weight_steps", Json(dumps).dump());
  convert.put("training_config.load_checkpoint",
              config::path_text(join(case_dir, "init.safetensors")));
  convert.put("training_config.output_dir", config::path_text(output_dir));
  convert.put("training_config.log_interval", "1");
  convert.put("training_config.log_param_grad_norms", "True");
  return convert.yaml();
}

}  // namespace tapestry
