// Small models of all families whose GGUF form is known, with a tokenizer, as folders.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/io/safetensors.h"
#include "autograd/ops/map.h"
#include "autograd/ops/ops.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/factory.h"
#include "interop/architectures/hf_folder.h"
#include "interop/architectures/read_hf_config.h"
#include "interop/export/export_source.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/training/step/forward_step.h"
#include "parallel_core/training/step/get_model.h"

namespace tapestry::testing {

namespace fs = std::filesystem;

/// Models that the transformers library has made, of each family at least one.
inline const nlohmann::json& family_configs() {
  static const nlohmann::json cases =
      nlohmann::json::parse(std::ifstream("tests/data/hf_families/families.json"));
  return cases;
}

/// The config.json of one of them, with what its GGUF form cannot say changed to what it can.
inline nlohmann::json config_for_gguf(const std::string& name) {
  nlohmann::json config = family_configs().at(name).at("config");
  config["vocab_size"] = 288;  // of the tokenizer beside it
  if (config.contains("query_pre_attn_scalar")) {
    config["query_pre_attn_scalar"] = config.at("head_dim");
  }
  if (name == "exaone4") {
    config["sliding_window"] = nullptr;
    config["layer_types"] = std::vector<std::string>(5, "full_attention");
    config.erase("sliding_window_pattern");
  }
  for (const char* without : {"starcoder2", "mistral", "phi4_mini"}) {
    if (name == without) {
      config["sliding_window"] = nullptr;
    }
  }
  if (name == "ernie4_5") {
    config["use_bias"] = false;
  }
  if (name == "phi3_longrope") {  // numbers that a float32 tells from their neighbours
    config["rope_parameters"]["long_factor"] = {1.5, 1.9, 2.3, 2.7, 3.1, 3.5, 3.9, 4.3};
  }
  if (name == "olmoe") {
    config["num_key_value_heads"] = config.at("num_attention_heads");
    config["clip_qkv"] = nullptr;
  }
  if (name == "qwen3_moe") {
    config["mlp_only_layers"] = nlohmann::json::array();
  }
  if (name == "deepseek_v2") {
    config["q_lora_rank"] = 28;
  }
  if (name == "stablelm_parallel") {
    config["qk_layernorm"] = false;
  }
  return config;
}

/// A folder with that config.json, random weights and a tokenizer of 288 tokens.
inline void make_folder_for_gguf(const nlohmann::json& config, const std::string& folder) {
  const NoGradGuard guard;
  const std::string start = folder + ".start";
  fs::create_directories(start);
  std::ofstream(start + "/config.json") << config.dump();
  write_safetensors(start + "/model.safetensors", {});  // which makes it a model
  const AllConfig all = open_export_source(start).config;
  const auto model = get_model(all);
  uint64_t number = 0;
  for (const auto& entry : model->named_parameters()) {
    const Tensor values = entry.parameter->detach();
    const bool gain = values.shape().size() == 1;
    const RandomKey key{7, ++number, 0};
    const Tensor random = normal(0, gain ? 0.2 : 0.15, values.shape(), kFloat32, key);
    copy_values(gain ? random + values : random, values);
  }
  const std::string saved = save_checkpoint(
      *model, all.model_config, 1,
      {.directory = folder + ".run",
       .source = {.token_ids = read_hf_config(start).token_ids, .config_json = config.dump()}});
  fs::rename(saved, folder);
  fs::remove(folder + "/config.yaml");
  fs::copy("tests/data/golden_gguf/llama/hf/tokenizer.json", folder + "/tokenizer.json");
  fs::remove_all(start);
  fs::remove_all(folder + ".run");
}

/// Logits of a few tokens by the model of a folder, or of a file that stands for one.
inline std::vector<float> logits_of(const std::string& path) {
  const NoGradGuard guard;
  const AllConfig config = open_export_source(path).config;
  const auto model = get_model(config);
  load_weights(*model, config.model_config, path);
  model->eval();
  data::Batch batch;
  batch.batch = 1;
  batch.seq = 24;
  for (int32_t i = 0; i < batch.seq; ++i) {
    batch.tokens.push_back((i * 37 + 11) % 288);
  }
  return pipeline_logits(*model, batch).to_vector<float>();
}

}  // namespace tapestry::testing
