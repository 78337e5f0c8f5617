// Small folders of Hugging Face models, as the transformers library lays them out.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/ops/random.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry::hf_test {

using Json = nlohmann::json;

inline constexpr int64_t kVocab = 264;
inline constexpr int64_t kWidth = 16;
inline constexpr int64_t kInner = 24;
inline constexpr int64_t kLayers = 2;
inline constexpr int64_t kHeads = 4;
inline constexpr int64_t kGroups = 2;
inline constexpr int64_t kHead = 6;  // not kWidth / kHeads
inline constexpr int64_t kPositions = 32;
inline constexpr int64_t kExperts = 4;

// A run that changes nothing: its one update is less than the last place of any weight.
inline constexpr const char* kNothing =
    "training_config:\n"
    "  training_iters: 1\n"
    "  num_threads: 1\n"
    "dataset_config:\n"
    "  data_path: text_text_document\n"
    "  tokenizer_type: byte\n"
    "  batch_size: 2\n"
    "  split: 90,10,0\n"
    "model_config:\n"
    "  seq_length: 16\n"
    "optimizer_config:\n"
    "  learning_rate: 1e-30\n";

class HfTest : public ProgramTest {
 protected:
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(prepare_text()); }

  using Shapes = std::vector<std::pair<std::string, Shape>>;

  void write_folder(const std::string& folder, const Json& config, const Shapes& shapes) {
    dir_.write(folder + "/config.json", config.dump(2) + "\n");
    testing::State state;
    for (const auto& [name, shape] : shapes) {
      state[name] = normal(0, 0.2, shape, kFloat32, RandomKey{5, stream_of(name), 0});
    }
    write_state(dir_.file(folder) + "/model.safetensors", state);
  }

  // A folder's model goes through a run that trains nothing, and through what that has written,
  // with the same bits in weights and configuration; what is written needs none of the first
  // folder.
  void expect_same_after_a_run(const std::string& name) {
    ASSERT_EQ(pretrain("--config_path run.yaml --from_hf " + name +
                       " --set training_config.output_dir=out_" + name),
              0)
        << said();
    EXPECT_THAT(out_, ::testing::HasSubstr("loaded " + name));
    const std::string saved = "out_" + name + "/checkpoint/step_00000001";
    testing::expect_states_equal(tensors(saved), tensors(name));
    EXPECT_EQ(dir_.read(saved + "/config.json"), dir_.read(name + "/config.json"));
    std::filesystem::remove_all(dir_.file(name));
    ASSERT_EQ(pretrain("--config_path run.yaml --from_hf " + saved +
                       " --set training_config.output_dir=again_" + name),
              0)
        << said();
    const std::string again = "again_" + name + "/checkpoint/step_00000001";
    testing::expect_states_equal(tensors(again), tensors(saved));
    EXPECT_EQ(dir_.read(again + "/config.json"), dir_.read(saved + "/config.json"));
    ASSERT_EQ(pretrain("--config_path out_" + name +
                       "/config.yaml --set training_config.load_checkpoint=" + saved +
                       " --set training_config.output_dir=third_" + name),
              0)
        << said();
    EXPECT_EQ(metrics("third_" + name), metrics("again_" + name));
  }

  static Json llama_config(const std::string& type) {
    Json json = {{"architectures", {type == "llama" ? "LlamaForCausalLM" : "Qwen2ForCausalLM"}},
                 {"attention_dropout", 0.0},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", 256},
                 {"head_dim", kHead},
                 {"hidden_act", "silu"},
                 {"hidden_size", kWidth},
                 {"initializer_range", 0.02},
                 {"intermediate_size", kInner},
                 {"max_position_embeddings", kPositions},
                 {"model_type", type},
                 {"num_attention_heads", kHeads},
                 {"num_hidden_layers", kLayers},
                 {"num_key_value_heads", kGroups},
                 {"rms_norm_eps", 1e-5},
                 {"rope_scaling", nullptr},
                 {"rope_theta", 500000.0},
                 {"tie_word_embeddings", type == "qwen2"},
                 {"torch_dtype", "float32"},
                 {"transformers_version", "4.46.0"},
                 {"use_cache", true},
                 {"vocab_size", kVocab}};
    if (type == "llama") {
      json.update({{"attention_bias", false}, {"mlp_bias", false}, {"pretraining_tp", 1}});
    } else {
      json.update(
          {{"use_sliding_window", false}, {"sliding_window", nullptr}, {"max_window_layers", 28}});
    }
    return json;
  }
  // Everything but the feed-forward blocks.
  static Shapes llama_shapes(bool untied, bool qkv_bias) {
    Shapes shapes = {{"model.embed_tokens.weight", {kVocab, kWidth}},
                     {"model.norm.weight", {kWidth}}};
    if (untied) {
      shapes.push_back({"lm_head.weight", {kVocab, kWidth}});
    }
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = layer_name(i);
      const std::string attention = layer + "self_attn.";
      shapes.insert(shapes.end(), {{layer + "input_layernorm.weight", {kWidth}},
                                   {layer + "post_attention_layernorm.weight", {kWidth}},
                                   {attention + "q_proj.weight", {kHeads * kHead, kWidth}},
                                   {attention + "k_proj.weight", {kGroups * kHead, kWidth}},
                                   {attention + "v_proj.weight", {kGroups * kHead, kWidth}},
                                   {attention + "o_proj.weight", {kWidth, kHeads * kHead}}});
      if (qkv_bias) {
        shapes.insert(shapes.end(), {{attention + "q_proj.bias", {kHeads * kHead}},
                                     {attention + "k_proj.bias", {kGroups * kHead}},
                                     {attention + "v_proj.bias", {kGroups * kHead}}});
      }
    }
    return shapes;
  }
  static std::string layer_name(int64_t i) { return "model.layers." + std::to_string(i) + "."; }
  static void add_mlp(Shapes& shapes, const std::string& name, int64_t width) {
    shapes.insert(shapes.end(), {{name + ".gate_proj.weight", {width, kWidth}},
                                 {name + ".up_proj.weight", {width, kWidth}},
                                 {name + ".down_proj.weight", {kWidth, width}}});
  }
  void write_llama(const std::string& folder, const std::string& type) {
    Shapes shapes = llama_shapes(type == "llama", type == "qwen2");
    for (int64_t i = 0; i < kLayers; ++i) {
      add_mlp(shapes, layer_name(i) + "mlp", kInner);
    }
    write_folder(folder, llama_config(type), shapes);
  }

  void write_mixtral(const std::string& folder) {
    Json config = llama_config("llama");
    for (const char* name : {"attention_bias", "mlp_bias", "pretraining_tp"}) {
      config.erase(name);
    }
    config.update({{"architectures", {"MixtralForCausalLM"}},
                   {"model_type", "mixtral"},
                   {"num_local_experts", kExperts},
                   {"num_experts_per_tok", 2},
                   {"output_router_logits", false},
                   {"router_aux_loss_coef", 0.02},
                   {"router_jitter_noise", 0.0},
                   {"sliding_window", nullptr}});
    Shapes shapes = llama_shapes(/*untied=*/true, /*qkv_bias=*/false);
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string mixture = layer_name(i) + "block_sparse_moe.";
      shapes.push_back({mixture + "gate.weight", {kExperts, kWidth}});
      for (int64_t e = 0; e < kExperts; ++e) {
        const std::string expert = mixture + "experts." + std::to_string(e);
        shapes.insert(shapes.end(), {{expert + ".w1.weight", {kInner, kWidth}},
                                     {expert + ".w2.weight", {kWidth, kInner}},
                                     {expert + ".w3.weight", {kInner, kWidth}}});
      }
    }
    write_folder(folder, config, shapes);
  }
  // The first layer is dense.
  void write_qwen2_moe(const std::string& folder) {
    constexpr int64_t kExpertWidth = 12;
    constexpr int64_t kSharedWidth = 20;
    Json config = llama_config("qwen2");
    config.update({{"architectures", {"Qwen2MoeForCausalLM"}},
                   {"model_type", "qwen2_moe"},
                   {"decoder_sparse_step", 1},
                   {"mlp_only_layers", {0}},
                   {"moe_intermediate_size", kExpertWidth},
                   {"norm_topk_prob", false},
                   {"num_experts", kExperts},
                   {"num_experts_per_tok", 3},
                   {"output_router_logits", false},
                   {"router_aux_loss_coef", 0.001},
                   {"shared_expert_intermediate_size", kSharedWidth},
                   {"tie_word_embeddings", false}});
    Shapes shapes = llama_shapes(/*untied=*/true, /*qkv_bias=*/true);
    add_mlp(shapes, layer_name(0) + "mlp", kInner);
    for (int64_t i = 1; i < kLayers; ++i) {
      const std::string mixture = layer_name(i) + "mlp.";
      shapes.push_back({mixture + "gate.weight", {kExperts, kWidth}});
      shapes.push_back({mixture + "shared_expert_gate.weight", {1, kWidth}});
      add_mlp(shapes, mixture + "shared_expert", kSharedWidth);
      for (int64_t e = 0; e < kExperts; ++e) {
        add_mlp(shapes, mixture + "experts." + std::to_string(e), kExpertWidth);
      }
    }
    write_folder(folder, config, shapes);
  }
  void write_gpt2(const std::string& folder, const std::string& prefix = "transformer.") {
    const Json config = {{"activation_function", "gelu_new"},
                         {"architectures", {"GPT2LMHeadModel"}},
                         {"attn_pdrop", 0.0},
                         {"bos_token_id", nullptr},
                         {"embd_pdrop", 0.0},
                         {"eos_token_id", 256},
                         {"initializer_range", 0.02},
                         {"layer_norm_epsilon", 1e-5},
                         {"model_type", "gpt2"},
                         {"n_embd", kWidth},
                         {"n_head", kHeads},
                         {"n_inner", nullptr},
                         {"n_layer", kLayers},
                         {"n_positions", kPositions},
                         {"resid_pdrop", 0.0},
                         {"summary_type", "cls_index"},
                         {"torch_dtype", "float32"},
                         {"vocab_size", kVocab}};
    Shapes shapes = {{prefix + "wte.weight", {kVocab, kWidth}},
                     {prefix + "wpe.weight", {kPositions, kWidth}},
                     {prefix + "ln_f.weight", {kWidth}},
                     {prefix + "ln_f.bias", {kWidth}}};
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string layer = prefix + "h." + std::to_string(i) + ".";
      for (const char* norm : {"ln_1", "ln_2"}) {
        shapes.push_back({layer + norm + ".weight", {kWidth}});
        shapes.push_back({layer + norm + ".bias", {kWidth}});
      }
      const auto conv1d = [&](const char* name, int64_t in, int64_t out) {
        shapes.push_back({layer + name + ".weight", {in, out}});
        shapes.push_back({layer + name + ".bias", {out}});
      };
      conv1d("attn.c_attn", kWidth, 3 * kWidth);
      conv1d("attn.c_proj", kWidth, kWidth);
      conv1d("mlp.c_fc", kWidth, 4 * kWidth);
      conv1d("mlp.c_proj", 4 * kWidth, kWidth);
    }
    write_folder(folder, config, shapes);
  }
  testing::State tensors(const std::string& folder) const {
    return read_weights(dir_.file(folder) + "/model.safetensors");
  }
  Json json(const std::string& file) const { return Json::parse(dir_.read(file)); }
};

}  // namespace tapestry::hf_test
