#include "interop/architectures/hf_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/hf_names.h"
#include "interop/architectures/read_hf_config.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "tests/message_of.h"
#include "tests/parallel_core/small_model.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using data::TempDir;
using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Overrides;
using testing::small_config;

const std::string kOf = "model_config.";

Overrides llama_with(const Overrides& more = {}) {
  return testing::joined({kOf + "position_embedding_type=rope", kOf + "normalization=RMSNorm",
                          kOf + "hidden_act=swiglu", kOf + "add_bias_linear=False",
                          kOf + "group_query_attention=True", kOf + "num_query_groups=2"},
                         more);
}

std::string text_of(const Overrides& overrides,
                    const HfSource& source = {},
                    DType stored = kFloat32) {
  const TransformerConfig config = small_config(overrides).model_config;
  return model_config_json(config, file_model_type(config), stored, source);
}
Json json_of(const Overrides& overrides, const HfSource& source = {}) {
  return Json::parse(text_of(overrides, source));
}

TEST(ModelConfigJson, Llama) {
  const Json json =
      json_of(llama_with({kOf + "untie_embeddings_and_output_weights=True", kOf + "kv_channels=12",
                          kOf + "rotary_config.rotary_base=5e5", kOf + "norm_epsilon=1e-6",
                          kOf + "max_position_embeddings=64", kOf + "attention_dropout=0.1"}),
              {.token_ids = {.bos = 1, .eos = {2}, .pad = {}}});
  const Json expected = {{"architectures", {"LlamaForCausalLM"}},
                         {"attention_bias", false},
                         {"attention_dropout", 0.1},
                         {"bos_token_id", 1},
                         {"eos_token_id", 2},
                         {"head_dim", 12},
                         {"hidden_act", "silu"},
                         {"hidden_size", 32},
                         {"initializer_range", 0.1},
                         {"intermediate_size", 48},
                         {"max_position_embeddings", 64},
                         {"mlp_bias", false},
                         {"model_type", "llama"},
                         {"num_attention_heads", 4},
                         {"num_hidden_layers", 2},
                         {"num_key_value_heads", 2},
                         {"pretraining_tp", 1},
                         {"rms_norm_eps", 1e-6},
                         {"rope_scaling", nullptr},
                         {"rope_theta", 5e5},
                         {"tie_word_embeddings", false},
                         {"torch_dtype", "float32"},
                         {"use_cache", true},
                         {"vocab_size", 31}};
  EXPECT_EQ(json, expected);
  const Json more = json_of(llama_with({kOf + "add_bias_linear=True",
                                        kOf + "rotary_config.seq_len_interpolation_factor=4"}),
                            {.token_ids = {.bos = {}, .eos = {2, 7}, .pad = 0}});
  EXPECT_EQ(more.at("attention_bias"), true);
  EXPECT_EQ(more.at("mlp_bias"), true);
  EXPECT_EQ(more.at("rope_scaling"), (Json{{"rope_type", "linear"}, {"factor", 4.0}}));
  EXPECT_EQ(json_of(llama_with({kOf + "rotary_config.rope_type=llama3",
                                kOf + "rotary_config.rope_scaling_factor=32"}))
                .at("rope_scaling"),
            (Json{{"rope_type", "llama3"},
                  {"factor", 32.0},
                  {"low_freq_factor", 1.0},
                  {"high_freq_factor", 4.0},
                  {"original_max_position_embeddings", 8192}}));
  EXPECT_EQ(more.at("bos_token_id"), nullptr);
  EXPECT_EQ(more.at("eos_token_id"), (Json{2, 7}));
  EXPECT_EQ(more.at("pad_token_id"), 0);
}

TEST(ModelConfigJson, Qwen2) {
  const Json json = json_of(llama_with({kOf + "qkv_has_bias=True"}));
  EXPECT_EQ(json.at("model_type"), "qwen2");
  EXPECT_EQ(json.at("architectures"), Json::array({"Qwen2ForCausalLM"}));
  EXPECT_EQ(json.at("tie_word_embeddings"), true);
  EXPECT_EQ(json.at("use_sliding_window"), false);
  EXPECT_EQ(json.at("sliding_window"), nullptr);
  EXPECT_EQ(json.at("eos_token_id"), nullptr);
  EXPECT_FALSE(json.contains("attention_bias"));
  const Json window = json_of(llama_with({kOf + "qkv_has_bias=True", kOf + "window_size=[3, 0]"}));
  EXPECT_EQ(window.at("use_sliding_window"), true);
  EXPECT_EQ(window.at("sliding_window"), 4);
  EXPECT_EQ(window.at("max_window_layers"), 0);
}

TEST(ModelConfigJson, Gpt2) {
  const Json json = json_of({kOf + "max_position_embeddings=64", kOf + "hidden_dropout=0.1",
                             kOf + "attention_dropout=0.2"});
  const Json expected = {{"activation_function", "gelu"},
                         {"architectures", {"GPT2LMHeadModel"}},
                         {"attn_pdrop", 0.2},
                         {"bos_token_id", nullptr},
                         {"embd_pdrop", 0.1},
                         {"eos_token_id", nullptr},
                         {"initializer_range", 0.1},
                         {"layer_norm_epsilon", 1e-5},
                         {"model_type", "gpt2"},
                         {"n_embd", 32},
                         {"n_head", 4},
                         {"n_inner", 48},
                         {"n_layer", 2},
                         {"n_positions", 64},
                         {"reorder_and_upcast_attn", false},
                         {"resid_pdrop", 0.1},
                         {"scale_attn_by_inverse_layer_idx", false},
                         {"scale_attn_weights", true},
                         {"tie_word_embeddings", true},
                         {"torch_dtype", "float32"},
                         {"use_cache", true},
                         {"vocab_size", 31}};
  EXPECT_EQ(json, expected);
  EXPECT_EQ(json_of({kOf + "hidden_act=fast_gelu"}).at("activation_function"), "gelu_new");
}

TEST(ModelConfigJson, SaysTheDtypeThatIsStored) {
  EXPECT_EQ(Json::parse(text_of({}, {}, kBFloat16)).at("torch_dtype"), "bfloat16");
}

TEST(ModelConfigJson, Mixtral) {
  const Overrides experts =
      llama_with({"moe_config.num_experts=4", "moe_config.moe_ffn_hidden_size=16",
                  "moe_config.aux_loss_factor=0.05", "moe_config.moe_input_jitter_eps=0.01"});
  const Json json = json_of(experts);
  EXPECT_EQ(json.at("model_type"), "mixtral");
  EXPECT_EQ(json.at("architectures"), Json::array({"MixtralForCausalLM"}));
  EXPECT_EQ(json.at("num_local_experts"), 4);
  EXPECT_EQ(json.at("num_experts_per_tok"), 2);
  EXPECT_EQ(json.at("intermediate_size"), 16);
  EXPECT_EQ(json.at("router_jitter_noise"), 0.01);
  // transformers averages the two layers, and its shares of the two choices add up to two.
  EXPECT_EQ(json.at("router_aux_loss_coef"), 0.05);
  EXPECT_EQ(json.at("output_router_logits"), false);
  EXPECT_EQ(json.at("sliding_window"), nullptr);
  EXPECT_FALSE(json.contains("attention_bias") || json.contains("moe_config"));
  EXPECT_EQ(json_of(testing::joined(experts, {kOf + "window_size=[3, 0]"})).at("sliding_window"),
            4);
}

TEST(ModelConfigJson, Qwen2Moe) {
  const Overrides experts = llama_with(
      {kOf + "qkv_has_bias=True", "moe_config.num_experts=4", "moe_config.moe_ffn_hidden_size=16",
       "moe_config.moe_shared_expert_intermediate_size=24", "moe_config.moe_layer_freq=[0, 1]",
       "moe_config.use_shared_expert_gating=True", "moe_config.moe_router_pre_softmax=True"});
  const Json json = json_of(experts);
  EXPECT_EQ(json.at("model_type"), "qwen2_moe");
  EXPECT_EQ(json.at("architectures"), Json::array({"Qwen2MoeForCausalLM"}));
  EXPECT_EQ(json.at("num_experts"), 4);
  EXPECT_EQ(json.at("num_experts_per_tok"), 2);
  EXPECT_EQ(json.at("intermediate_size"), 48);
  EXPECT_EQ(json.at("moe_intermediate_size"), 16);
  EXPECT_EQ(json.at("shared_expert_intermediate_size"), 24);
  EXPECT_EQ(json.at("norm_topk_prob"), false);
  EXPECT_EQ(json.at("decoder_sparse_step"), 1);
  EXPECT_EQ(json.at("mlp_only_layers"), Json::array({0}));
  EXPECT_EQ(json.at("use_sliding_window"), false);
}

// Every model, through its file, to the same model.
TEST(ModelConfigJson, ReadsBackAsTheSameModel) {
  const TempDir dir;
  for (const Overrides& overrides :
       {Overrides{}, llama_with(), llama_with({kOf + "untie_embeddings_and_output_weights=True"}),
        llama_with({kOf + "kv_channels=12", kOf + "num_query_groups=1"}),
        llama_with({kOf + "add_bias_linear=True"}), llama_with({kOf + "qkv_has_bias=True"}),
        llama_with({kOf + "rotary_config.seq_len_interpolation_factor=4"}),
        llama_with(
            {kOf + "rotary_config.rope_type=llama3", kOf + "rotary_config.low_freq_factor=0.5"}),
        llama_with({kOf + "qkv_has_bias=True", kOf + "window_size=[3, 0]"}),
        Overrides{kOf + "hidden_act=fast_gelu", kOf + "max_position_embeddings=99"},
        llama_with({"moe_config.num_experts=4"}),
        llama_with({"moe_config.num_experts=4", kOf + "window_size=[3, 0]"}),
        llama_with({kOf + "qkv_has_bias=True", "moe_config.num_experts=4",
                    "moe_config.moe_ffn_hidden_size=16", "moe_config.moe_layer_freq=[0, 1]",
                    "moe_config.shared_expert_num=2", "moe_config.use_shared_expert_gating=True",
                    "moe_config.norm_topk_prob=False"}),
        // tapestry
        llama_with({"moe_config.num_experts=4", "moe_config.first_k_dense_replace=1",
                    "moe_config.use_gating_sigmoid=True", "moe_config.topk_method=noaux_tc",
                    "moe_config.n_group=2", "moe_config.topk_group=1",
                    "moe_config.routed_scaling_factor=2.5", "moe_config.balance_via_topk_bias=True",
                    "moe_config.capacity_factor=1.25", "moe_config.enable_sdrop=True"}),
        Overrides{"moe_config.num_experts=4", "moe_config.moe_router_topk=3",
                  "moe_config.aux_loss_types=[expert, seq_aux_loss]",
                  "moe_config.aux_loss_factors=[0.1, 0.2]", "moe_config.moe_z_loss_coeff=0.1"},
        llama_with({kOf + "window_size=[3, 0]"}), llama_with({kOf + "qk_layernorm=True"}),
        Overrides{kOf + "hidden_act=relu", kOf + "untie_embeddings_and_output_weights=True"},
        Overrides{kOf + "position_embedding_type=none", kOf + "use_final_norm=False"},
        Overrides{kOf + "position_embedding_type=rope", kOf + "rotary_percent=0.5",
                  kOf + "rotary_config.rotary_interleaved=True", kOf + "use_sandwich_norm=True"},
        Overrides{kOf + "apply_residual_connection_post_norm=True", kOf + "mlp_has_bias=False",
                  kOf + "hidden_dropout=0.2", kOf + "attention_dropout=0.3"}}) {
    const AllConfig config = small_config(overrides);
    dir.write("config.json", text_of(overrides));
    const AllConfig read = init_configs_from_text(
        "training_config: {training_iters: 1}\nmodel_config: {from_hf: " + dir.path() +
            ", seq_length: 8}\n",
        "f.yaml");
    TransformerConfig expected = config.model_config;
    expected.from_hf = dir.path();
    expected.hf_model_type = read.model_config.hf_model_type;  // from_hf gives it
    if (expected.add_bias_linear) {
      expected.add_bias_linear.reset();  // the three that it stands for are there
    }
    EXPECT_TRUE(read.model_config == expected) << text_of(overrides);
    EXPECT_THAT(differences(config.model_config, read_hf_config(dir.path())), IsEmpty());
  }
}

TEST(ModelConfigJson, AModelThatDescribesNothing) {
  const std::string text = own_model_config_json(small_config().model_config, kFloat32, {});
  const HfConfig read = parse_hf_config(text, "config.json");
  EXPECT_EQ(read.model_type, "tapestry");
  EXPECT_FALSE(read.complete);
  EXPECT_EQ(Json::parse(text).at("hidden_size"), 32);
}

TEST(ModelConfigJson, OfTheSourceStaysAsItIs) {
  // Another writer's spellings, and keys that say nothing of the model.
  Json json = json_of({kOf + "ffn_hidden_size=128"});
  json["n_inner"] = nullptr;
  json["transformers_version"] = "4.46.0";
  json["summary_type"] = "cls_index";
  json["eos_token_id"] = 7;
  json["bos_token_id"] = 5;
  HfSource source{.token_ids = {.bos = 5, .eos = {7}, .pad = {}},
                  .config_json = json.dump(4),
                  .generation_config = "",
                  .files = {}};
  const Overrides wide = {kOf + "ffn_hidden_size=128"};
  EXPECT_EQ(text_of(wide, source), json.dump(4));
  Json half = json;
  half["torch_dtype"] = "bfloat16";
  EXPECT_EQ(Json::parse(text_of(wide, source, kBFloat16)), half);
  // What is not so any more is written anew.
  EXPECT_EQ(json_of({}, source).at("n_inner"), 48);
  EXPECT_EQ(json_of(testing::joined(wide, {kOf + "hidden_dropout=0.1"}), source).at("resid_pdrop"),
            0.1);
  source.token_ids.eos = {8};
  EXPECT_EQ(json_of(wide, source).at("eos_token_id"), 8);
  EXPECT_FALSE(json_of(wide, source).contains("summary_type"));
}

TEST(GenerationConfigJson, HoldsTheIds) {
  HfSource source{.token_ids = {.bos = 1, .eos = {2}, .pad = {}},
                  .config_json = "",
                  .generation_config = "",
                  .files = {}};
  EXPECT_EQ(Json::parse(generation_config_json(source)), (Json{{"_from_model_config", true},
                                                               {"bos_token_id", 1},
                                                               {"eos_token_id", 2},
                                                               {"pad_token_id", nullptr}}));
  source.generation_config = "{\"temperature\": 0.6, \"bos_token_id\": 1,\n \"eos_token_id\": 2}";
  EXPECT_EQ(generation_config_json(source), source.generation_config);
  source.token_ids.eos = {2, 3};
  EXPECT_EQ(Json::parse(generation_config_json(source)).at("eos_token_id"), (Json{2, 3}));
}

class HfFolder : public ::testing::Test {
 protected:
  HfFolder() : config_(small_config()), model_(get_model(config_)) { testing::jitter(*model_); }
  std::string save(const HfSource& source = {}) {
    return save_checkpoint(*model_, config_.model_config, 1,
                           {.directory = dir_.file("checkpoint"), .source = source});
  }
  void load(const std::string& path, const Overrides& overrides = {}) const {
    const AllConfig config = small_config(overrides);
    load_weights(*get_model(config), config.model_config, path);
  }

  TempDir dir_;
  AllConfig config_;
  std::unique_ptr<GPTModel> model_;
};

TEST_F(HfFolder, AContradictionNamesBothAndWhatHelps) {
  const std::string folder = save();
  load(folder);
  const Overrides others = {kOf + "norm_epsilon=1e-6", kOf + "hidden_act=fast_gelu",
                            kOf + "num_attention_heads=2", kOf + "hidden_dropout=0.3"};
  const std::string message = message_of<ValueError>([&] { load(folder, others); });
  EXPECT_THAT(message, ::testing::StartsWith(folder + ": the weights are of another model"));
  EXPECT_THAT(message, HasSubstr("model_config.norm_epsilon is 1e-06, but layer_norm_epsilon of " +
                                 folder + "/config.json is 1e-05"));
  EXPECT_THAT(message, HasSubstr("model_config.hidden_act is fast_gelu, but activation_function"));
  EXPECT_THAT(message, HasSubstr("model_config.num_attention_heads is 2, but n_head"));
  EXPECT_THAT(message, HasSubstr("model_config.from_hf"));
  EXPECT_THAT(message, ::testing::Not(HasSubstr("hidden_dropout")));
  // The file of the weights alone says nothing of them.
  load(folder + "/model.safetensors", others);
}

TEST_F(HfFolder, AConfigJsonThatCannotBeReadIsAnError) {
  const std::string folder = save();
  dir_.write("checkpoint/step_00000001/config.json", "{");
  EXPECT_THAT(message_of<IoError>([&] { load(folder); }), HasSubstr("config.json: is no JSON"));
  dir_.write("checkpoint/step_00000001/config.json", "{\"model_type\": \"mamba2\"}");
  EXPECT_THAT(message_of<ValueError>([&] { load(folder); }), HasSubstr("mamba2"));
  fs::remove(folder + "/config.json");
  load(folder);
}

TEST_F(HfFolder, FilesOfTokenizersAreCopied) {
  dir_.write("hf/tokenizer.json", "{\"a\": 1}");
  dir_.write("hf/merges.txt", "a b\n");
  dir_.write("hf/README.md", "text");
  HfSource source;
  for (const std::string& path : tokenizer_files_in(dir_.file("hf"))) {
    source.files[fs::path(path).filename().string()] = read_file(path);
  }
  EXPECT_EQ(source.files.size(), 2U);
  save(source);
  EXPECT_EQ(dir_.read("checkpoint/step_00000001/tokenizer.json"), "{\"a\": 1}");
  EXPECT_EQ(dir_.read("checkpoint/step_00000001/merges.txt"), "a b\n");
}

}  // namespace
}  // namespace tapestry
