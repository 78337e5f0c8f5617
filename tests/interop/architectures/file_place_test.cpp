#include "interop/architectures/file_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/architecture.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_families.h"
#include "tests/parallel_core/transformer/structures.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using testing::kModel;
using testing::kMoe;
using testing::kQkvBias;
using testing::kUntied;
using testing::llama;
using testing::Overrides;
using testing::qwen2_moe;
using testing::small_config;
using testing::State;

// A model, and the tensors of a file that holds its weights.
struct Made {
  explicit Made(const Overrides& overrides)
      : config(small_config(overrides)), model(get_model(config)) {
    testing::jitter(*model);
    logical = get_logical_state(*model);
    files = read_weights(
        write_checkpoint(*model, config.model_config, 1, {.directory = dir.file("made")}));
  }
  // The logical tensors of another model that has read a file with these.
  State loaded(const State& tensors) const {
    write_state(dir.file("tensors.safetensors"), tensors);
    const auto other = get_model(config);
    load_weights(*other, config.model_config, dir.file("tensors.safetensors"));
    return get_logical_state(*other);
  }

  data::TempDir dir;
  AllConfig config;
  std::unique_ptr<GPTModel> model;
  State logical;
  State files;
};

std::map<std::string, Shape> shapes(const State& state) {
  std::map<std::string, Shape> out;
  for (const auto& [name, tensor] : state) {
    out[name] = tensor.shape();
  }
  return out;
}

TEST(FileNames, OfALlama) {
  const Made made(llama({kUntied, kModel + "num_layers=1"}));
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(shapes(made.files), (std::map<std::string, Shape>{
                                    {"model.embed_tokens.weight", {31, 32}},
                                    {layer + "input_layernorm.weight", {32}},
                                    {layer + "self_attn.q_proj.weight", {32, 32}},
                                    {layer + "self_attn.k_proj.weight", {16, 32}},
                                    {layer + "self_attn.v_proj.weight", {16, 32}},
                                    {layer + "self_attn.o_proj.weight", {32, 32}},
                                    {layer + "post_attention_layernorm.weight", {32}},
                                    {layer + "mlp.gate_proj.weight", {48, 32}},
                                    {layer + "mlp.up_proj.weight", {48, 32}},
                                    {layer + "mlp.down_proj.weight", {32, 48}},
                                    {"model.norm.weight", {32}},
                                    {"lm_head.weight", {31, 32}},
                                }));
  const auto expect_same = [&](const std::string& file, const std::string& logical) {
    EXPECT_TRUE(testing::same_bits(made.files.at(file), made.logical.at(logical))) << file;
  };
  expect_same(layer + "self_attn.v_proj.weight", "layers.0.attention.wv.weight");
  expect_same(layer + "self_attn.o_proj.weight", "layers.0.attention.wo.weight");
  expect_same(layer + "mlp.gate_proj.weight", "layers.0.feed_forward.w_gate.weight");
  expect_same(layer + "mlp.up_proj.weight", "layers.0.feed_forward.w_up.weight");
  expect_same(layer + "post_attention_layernorm.weight", "layers.0.ffn_norm.weight");
}

TEST(FileNames, OfAQwen2) {
  const Made made(llama({kQkvBias}));
  for (const char* bias : {"q_proj", "k_proj", "v_proj"}) {
    EXPECT_TRUE(made.files.contains(std::string("model.layers.1.self_attn.") + bias + ".bias"));
  }
  EXPECT_FALSE(made.files.contains("model.layers.1.self_attn.o_proj.bias"));
  EXPECT_FALSE(made.files.contains("lm_head.weight"));
  EXPECT_EQ(made.files.size(), made.logical.size());
}

TEST(FileNames, OfAGpt2) {
  const Made made({kModel + "num_layers=1"});
  const std::string layer = "transformer.h.0.";
  EXPECT_EQ(shapes(made.files), (std::map<std::string, Shape>{
                                    {"transformer.wte.weight", {31, 32}},
                                    {"transformer.wpe.weight", {8, 32}},
                                    {layer + "ln_1.weight", {32}},
                                    {layer + "ln_1.bias", {32}},
                                    {layer + "attn.c_attn.weight", {32, 96}},
                                    {layer + "attn.c_attn.bias", {96}},
                                    {layer + "attn.c_proj.weight", {32, 32}},
                                    {layer + "attn.c_proj.bias", {32}},
                                    {layer + "ln_2.weight", {32}},
                                    {layer + "ln_2.bias", {32}},
                                    {layer + "mlp.c_fc.weight", {32, 48}},
                                    {layer + "mlp.c_fc.bias", {48}},
                                    {layer + "mlp.c_proj.weight", {48, 32}},
                                    {layer + "mlp.c_proj.bias", {32}},
                                    {"transformer.ln_f.weight", {32}},
                                    {"transformer.ln_f.bias", {32}},
                                }));
  // Matrices lie [in, out]; the square one too, where no shape would tell.
  const auto expect_turned = [&](const Tensor& file, const char* logical) {
    EXPECT_TRUE(testing::same_bits(file.t(), made.logical.at(logical))) << logical;
  };
  const Tensor qkv = made.files.at(layer + "attn.c_attn.weight");
  expect_turned(qkv.slice(1, 0, 32), "layers.0.attention.wq.weight");
  expect_turned(qkv.slice(1, 32, 64), "layers.0.attention.wk.weight");
  expect_turned(qkv.slice(1, 64, 96), "layers.0.attention.wv.weight");
  expect_turned(made.files.at(layer + "attn.c_proj.weight"), "layers.0.attention.wo.weight");
  expect_turned(made.files.at(layer + "mlp.c_fc.weight"), "layers.0.feed_forward.w_up.weight");
  expect_turned(made.files.at(layer + "mlp.c_proj.weight"), "layers.0.feed_forward.w_down.weight");
  EXPECT_TRUE(testing::same_bits(made.files.at(layer + "attn.c_attn.bias").slice(0, 32, 64),
                                 made.logical.at("layers.0.attention.wk.bias")));
}

// Four heads in two groups: of the shared matrix 32 rows are queries, 16 keys and 16 values.
TEST(FileNames, OfAPhi3) {
  const Made made(llama({kUntied, kModel + "num_layers=1", kModel + "hf_model_type=phi3"}));
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(shapes(made.files), (std::map<std::string, Shape>{
                                    {"model.embed_tokens.weight", {31, 32}},
                                    {layer + "input_layernorm.weight", {32}},
                                    {layer + "self_attn.qkv_proj.weight", {64, 32}},
                                    {layer + "self_attn.o_proj.weight", {32, 32}},
                                    {layer + "post_attention_layernorm.weight", {32}},
                                    {layer + "mlp.gate_up_proj.weight", {96, 32}},
                                    {layer + "mlp.down_proj.weight", {32, 48}},
                                    {"model.norm.weight", {32}},
                                    {"lm_head.weight", {31, 32}},
                                }));
  const auto expect_rows = [&](const char* file, int64_t first, int64_t last,
                               const std::string& logical) {
    EXPECT_TRUE(testing::same_bits(made.files.at(layer + file).slice(0, first, last),
                                   made.logical.at("layers.0." + logical)))
        << logical;
  };
  expect_rows("self_attn.qkv_proj.weight", 0, 32, "attention.wq.weight");
  expect_rows("self_attn.qkv_proj.weight", 32, 48, "attention.wk.weight");
  expect_rows("self_attn.qkv_proj.weight", 48, 64, "attention.wv.weight");
  expect_rows("mlp.gate_up_proj.weight", 0, 48, "feed_forward.w_gate.weight");
  expect_rows("mlp.gate_up_proj.weight", 48, 96, "feed_forward.w_up.weight");
}

// As families have it whose matrix holds queries, key and value of each group of heads together.
TEST(FileNames, RowsByGroupOfHeads) {
  const architectures::TensorNames table = {
      .part = "model.",
      .layers = "layers.",
      .top = {},
      .layer = {{"attention.wq.", "qkv."}, {"attention.wk.", "qkv."}, {"attention.wv.", "qkv."}},
      .grouped = true};
  const FileNames names(NameScheme(&table), small_config(llama()).model_config);
  for (const Shape& rest : {Shape{}, Shape{32}}) {
    const auto place = [&](const char* part, int64_t rows) {
      const std::string end = rest.empty() ? ".bias" : ".weight";
      Shape shape = {rows};
      for (const int64_t size : rest) {
        shape = {rows, size};
      }
      return file_place(names, concat("layers.1.attention.", part, end), shape);
    };
    const FilePlace q = place("wq", 32);
    EXPECT_EQ(q.name, rest.empty() ? "model.layers.1.qkv.bias" : "model.layers.1.qkv.weight");
    EXPECT_EQ(q.shape[0], 64);
    const auto rows = [](const FilePlace& of, std::vector<int64_t> wanted) {
      std::vector<int64_t> out;
      for (const int64_t row : wanted) {
        out.push_back(of.row(row));
      }
      return out;
    };
    // Heads of 8 channels, two to a group: q0 q1 k0 v0, q2 q3 k1 v1.
    EXPECT_EQ(rows(q, {0, 15, 16, 31}), (std::vector<int64_t>{0, 15, 32, 47}));
    EXPECT_EQ(rows(place("wk", 16), {0, 7, 8}), (std::vector<int64_t>{16, 23, 48}));
    EXPECT_EQ(rows(place("wv", 16), {0, 7, 8}), (std::vector<int64_t>{24, 31, 56}));
  }
}

TEST(FileNames, AreOfTheTableThatKnowsTheMost) {
  const auto scheme = [](std::set<std::string> names) {
    names.insert("model.embed_tokens.weight");
    return name_scheme(names);
  };
  const std::string layer = "model.layers.10.";
  EXPECT_EQ(scheme({layer + "self_attn.qkv_proj.weight", layer + "mlp.gate_up_proj.weight"}),
            name_scheme_of("phi3"));
  EXPECT_EQ(scheme({layer + "self_attn.q_proj.weight", layer + "mlp.gate_up_proj.weight",
                    layer + "post_mlp_layernorm.weight"}),
            name_scheme_of("glm4"));
  EXPECT_EQ(scheme({layer + "self_attn.q_proj.weight", layer + "mlp.c_fc.bias"}),
            name_scheme_of("starcoder2"));
  EXPECT_EQ(scheme({layer + "mlp.gate.weight", layer + "mlp.gate.e_score_correction_bias",
                    layer + "mlp.experts.3.up_proj.weight"}),
            name_scheme_of("glm4_moe"));
}

TEST(FileNames, OfLayersThatPredictFurtherTokens) {
  const auto model = [](const Overrides& more) {
    return small_config(llama(testing::joined({"model_config.mtp_num_layers=1"}, more)))
        .model_config;
  };
  const FileNames glm(name_scheme_of("glm4_moe"), model({kUntied}));
  EXPECT_EQ(file_place(glm, "layers.2.mtp.eh_proj.weight", {32, 64}).name,
            "model.layers.2.eh_proj.weight");
  EXPECT_EQ(file_place(glm, "layers.2.mtp.final_norm.weight", {32}).name,
            "model.layers.2.shared_head.norm.weight");
  EXPECT_EQ(further_names(glm, "tok_embeddings.weight"),
            std::vector<std::string>{"model.layers.2.embed_tokens.weight"});
  EXPECT_EQ(further_names(glm, "lm_head.weight"),
            std::vector<std::string>{"model.layers.2.shared_head.head.weight"});
  EXPECT_TRUE(further_names(glm, "final_norm.weight").empty());
  const FileNames tied(name_scheme_of("glm4_moe"), model({}));
  EXPECT_EQ(further_names(tied, "tok_embeddings.weight"),
            (std::vector<std::string>{"model.layers.2.embed_tokens.weight",
                                      "model.layers.2.shared_head.head.weight"}));
  // Those that the model has are weights, but for the tables; any behind them are passed over.
  EXPECT_FALSE(is_constant(glm, "model.layers.2.eh_proj.weight"));
  EXPECT_TRUE(is_constant(glm, "model.layers.2.embed_tokens.weight"));
  EXPECT_TRUE(is_constant(glm, "model.layers.3.eh_proj.weight"));

  const FileNames modules(NameScheme::kModules, model({}));
  EXPECT_EQ(file_place(modules, "layers.2.mtp.hnorm.weight", {32}).name,
            "language_model.mtp.layers.0.hnorm.weight");
  EXPECT_EQ(file_place(modules, "layers.2.attention.wo.weight", {32, 32}).name,
            "language_model.mtp.layers.0.transformer_layer.attention.out_proj.weight");
  EXPECT_EQ(file_place(modules, "layers.1.attention.wo.weight", {32, 32}).name,
            "language_model.encoder.layers.1.attention.out_proj.weight");
}

// For training on several tokens ahead, as in GLM-4.5's files.
TEST(FileNames, LayersBehindTheModelsAreNoWeights) {
  FileNames names(name_scheme_of("glm4_moe"), small_config(llama()).model_config);
  EXPECT_FALSE(is_constant(names, "model.layers.1.mlp.gate.weight"));
  EXPECT_TRUE(is_constant(names, "model.layers.2.eh_proj.weight"));
  EXPECT_TRUE(is_constant(names, "model.layers.12.mlp.gate.weight"));
  EXPECT_FALSE(is_constant(names, "model.layers.x.mlp.gate.weight"));
  names.layers = 0;
  EXPECT_FALSE(is_constant(names, "model.layers.2.eh_proj.weight"));
  EXPECT_FALSE(is_constant(FileNames(name_scheme_of("llama"), small_config(llama()).model_config),
                           "model.layers.2.eh_proj.weight"));
}

TEST(FileNames, OfOtherModelsAreLogical) {
  const Made made({kModel + "hidden_act=relu"});
  testing::expect_states_equal(made.files, made.logical);
}

TEST(FileNames, RoundTrip) {
  for (const Overrides& overrides :
       {Overrides{}, llama(), llama({kUntied}), llama({kQkvBias}), testing::gemma4(),
        testing::gemma4_moe(), Overrides{kModel + "num_layers=11"},
        llama({kModel + "num_layers=11"}), llama({kModel + "hf_model_type=phi3"}),
        llama({kQkvBias, kModel + "hf_model_type=glm4", kModel + "use_sandwich_norm=True",
               kModel + "rotary_config.rotary_interleaved=True"}),
        Overrides{kModel + "hidden_act=relu"}}) {
    const Made made(overrides);
    testing::expect_states_equal(made.loaded(made.files), made.logical);
    testing::expect_states_equal(made.loaded(made.logical), made.logical);
  }
}

CheckpointOptions as_ckpt(const std::string& directory) {
  CheckpointOptions options;
  options.directory = directory;
  options.ckpt_prefix = "mine";
  return options;
}

// Parameters of the modules, fused as they are: what MindFormers' parallel_core loads by name.
TEST(FileNames, OfMindsporeFilesAreThoseOfModules) {
  for (const testing::Structure& structure : testing::structures()) {
    SCOPED_TRACE(structure.name);
    const Made made(structure.overrides);
    const std::string folder =
        write_checkpoint(*made.model, made.config.model_config, 2, as_ckpt(made.dir.file("ckpt")));
    const State files = read_weights(folder + "/mine.ckpt");
    const nn::StateDict modules = made.model->state_dict();
    if (made.config.model_config.moe.num_experts == 1) {  // experts have their logical names
      testing::expect_states_equal(files, State(modules.begin(), modules.end()));
    }
    const auto other = get_model(made.config);
    load_weights(*other, made.config.model_config, folder);
    testing::expect_states_equal(get_logical_state(*other), made.logical);
  }
}

TEST(FileNames, OfALlamaInAMindsporeFile) {
  const Made made(llama({kUntied, kModel + "num_layers=1"}));
  const std::string folder =
      write_checkpoint(*made.model, made.config.model_config, 2, as_ckpt(made.dir.file("ckpt")));
  const State files = read_weights(folder);
  const std::string encoder = "language_model.encoder.";
  const std::string layer = encoder + "layers.0.";
  EXPECT_EQ(shapes(files), (std::map<std::string, Shape>{
                               {"language_model.embedding.word_embeddings.weight", {31, 32}},
                               {layer + "input_norm.weight", {32}},
                               {layer + "attention.qkv_proj.weight", {64, 32}},
                               {layer + "attention.out_proj.weight", {32, 32}},
                               {layer + "post_attention_norm.weight", {32}},
                               {layer + "mlp.mapping.weight", {96, 32}},
                               {layer + "mlp.projection.weight", {32, 48}},
                               {encoder + "final_norm.weight", {32}},
                               {"language_model.output_layer.weight", {31, 32}},
                           }));
  // Four heads of 8 in two groups: q0 q1 k0 v0, q2 q3 k1 v1; then the gate before the other half.
  const Tensor qkv = files.at(layer + "attention.qkv_proj.weight");
  const auto expect_rows = [&](const Tensor& fused, int64_t first, int64_t last,
                               const std::string& logical, int64_t of) {
    EXPECT_TRUE(
        testing::same_bits(fused.slice(0, first, last),
                           made.logical.at("layers.0." + logical).slice(0, of, of + last - first)))
        << logical << " " << first;
  };
  expect_rows(qkv, 0, 16, "attention.wq.weight", 0);
  expect_rows(qkv, 16, 24, "attention.wk.weight", 0);
  expect_rows(qkv, 24, 32, "attention.wv.weight", 0);
  expect_rows(qkv, 32, 48, "attention.wq.weight", 16);
  expect_rows(qkv, 48, 56, "attention.wk.weight", 8);
  expect_rows(qkv, 56, 64, "attention.wv.weight", 8);
  const Tensor mapping = files.at(layer + "mlp.mapping.weight");
  expect_rows(mapping, 0, 48, "feed_forward.w_gate.weight", 0);
  expect_rows(mapping, 48, 96, "feed_forward.w_up.weight", 0);

  // As MindFormers saves it: with the optimizer's states and counters, and a tied table twice.
  const Made tied(llama());
  State theirs = read_weights(
      write_checkpoint(*tied.model, tied.config.model_config, 2, as_ckpt(tied.dir.file("ckpt"))));
  theirs["language_model.output_layer.weight"] =
      theirs.at("language_model.embedding.word_embeddings.weight").clone();
  theirs["exp_avg.language_model.encoder.final_norm.weight"] = ones({32});
  theirs["language_model.encoder.set_hidden_states"] = ones({1});
  theirs["epoch_num"] = ones({});
  testing::expect_states_equal(tied.loaded(theirs), tied.logical);
  theirs["language_model.encoder.layers.0.attention.qkv_proj.bias"] = ones({64});
  EXPECT_ERROR(tied.loaded(theirs), ValueError, "unexpected: language_model.encoder.layers.0.");
}

TEST(FileNames, OfAMindFormersLlama) {
  const Made made(llama({kUntied}));
  const std::vector<std::pair<std::string, std::string>> words = {
      {"model.embed_tokens.weight", "model.tok_embeddings.embedding_weight"},
      {".self_attn.q_proj.", ".attention.wq."},
      {".self_attn.k_proj.", ".attention.wk."},
      {".self_attn.v_proj.", ".attention.wv."},
      {".self_attn.o_proj.", ".attention.wo."},
      {".mlp.gate_proj.", ".feed_forward.w1."},
      {".mlp.down_proj.", ".feed_forward.w2."},
      {".mlp.up_proj.", ".feed_forward.w3."},
      {".input_layernorm.", ".attention_norm."},
      {".post_attention_layernorm.", ".ffn_norm."},
      {"model.norm.", "model.norm_out."}};
  State theirs;
  for (const auto& [name, tensor] : made.files) {
    std::string renamed = name;
    for (const auto& [from, to] : words) {
      if (const size_t at = renamed.find(from); at != std::string::npos) {
        renamed.replace(at, from.size(), to);
      }
    }
    theirs[renamed] = tensor;
  }
  theirs["global_step"] = ones({1});
  testing::expect_states_equal(made.loaded(theirs), made.logical);
}

// Each tensor under its name, as it is.
void expect_names(NameScheme scheme, const std::map<std::string, std::string>& names) {
  for (const auto& [logical, file] : names) {
    const FilePlace place = file_place(scheme, logical, {4, 3});
    EXPECT_EQ(place.name, file);
    EXPECT_EQ(place.shape, (Shape{4, 3}));
    EXPECT_TRUE(!place.transposed && place.first == 0 && place.block == 0) << logical;
  }
}

TEST(FileNames, OfAMixtral) {
  const std::string layer = "model.layers.11.";
  expect_names(
      name_scheme_of("mixtral"),
      {{"tok_embeddings.weight", "model.embed_tokens.weight"},
       {"layers.11.attention.wq.weight", layer + "self_attn.q_proj.weight"},
       {"layers.11.ffn_norm.weight", layer + "post_attention_layernorm.weight"},
       {"layers.11.moe.router.weight", layer + "block_sparse_moe.gate.weight"},
       {"layers.11.moe.experts.0.w_gate.weight", layer + "block_sparse_moe.experts.0.w1.weight"},
       {"layers.11.moe.experts.7.w_down.weight", layer + "block_sparse_moe.experts.7.w2.weight"},
       {"layers.11.moe.experts.12.w_up.weight", layer + "block_sparse_moe.experts.12.w3.weight"},
       {"lm_head.weight", "lm_head.weight"}});
}

TEST(FileNames, OfAQwen2Moe) {
  const std::string layer = "model.layers.3.";
  expect_names(
      name_scheme_of("qwen2_moe"),
      {{"layers.3.attention.wk.bias", layer + "self_attn.k_proj.bias"},
       {"layers.3.feed_forward.w_up.weight", layer + "mlp.up_proj.weight"},  // of a dense layer
       {"layers.3.moe.router.weight", layer + "mlp.gate.weight"},
       {"layers.3.moe.experts.0.w_gate.weight", layer + "mlp.experts.0.gate_proj.weight"},
       {"layers.3.moe.experts.10.w_up.weight", layer + "mlp.experts.10.up_proj.weight"},
       {"layers.3.moe.experts.1.w_down.weight", layer + "mlp.experts.1.down_proj.weight"},
       {"layers.3.moe.shared_expert.w_gate.weight", layer + "mlp.shared_expert.gate_proj.weight"},
       {"layers.3.moe.shared_expert.w_up.weight", layer + "mlp.shared_expert.up_proj.weight"},
       {"layers.3.moe.shared_expert.w_down.weight", layer + "mlp.shared_expert.down_proj.weight"},
       {"layers.3.moe.shared_expert_gate.weight", layer + "mlp.shared_expert_gate.weight"},
       {"final_norm.weight", "model.norm.weight"}});
}

TEST(FileNames, OfExpertsAreKnownByThoseInAFile) {
  const auto scheme = [](std::set<std::string> names) {
    names.insert("model.embed_tokens.weight");
    return name_scheme(names);
  };
  EXPECT_EQ(scheme({"model.layers.1.block_sparse_moe.experts.0.w1.weight"}),
            name_scheme_of("mixtral"));
  EXPECT_EQ(scheme({"model.layers.0.mlp.gate_proj.weight",
                    "model.layers.1.mlp.experts.0.gate_proj.weight"}),
            name_scheme_of("qwen2_moe"));
  EXPECT_EQ(scheme({"model.layers.0.mlp.gate_proj.weight"}), name_scheme_of("llama"));
  EXPECT_EQ(name_scheme(std::set<std::string>{"layers.0.moe.experts.0.w_gate.weight"}),
            NameScheme::kLogical);
  EXPECT_EQ(name_scheme(small_config(testing::mixtral()).model_config), name_scheme_of("mixtral"));
  EXPECT_EQ(name_scheme(small_config(testing::qwen2_moe()).model_config),
            name_scheme_of("qwen2_moe"));
}

TEST(FileNames, OfSeveralStreamsAreLogical) {
  const std::string streams = kModel + "enable_hyper_connections=True";
  EXPECT_EQ(name_scheme(small_config(llama()).model_config), name_scheme_of("llama"));
  EXPECT_EQ(name_scheme(small_config(llama({streams})).model_config), NameScheme::kLogical);
  // A number that says nothing makes no other model.
  EXPECT_EQ(name_scheme(small_config(llama({kModel + "num_residual_streams=2"})).model_config),
            name_scheme_of("llama"));
  TransformerConfig named = small_config(llama({streams})).model_config;
  named.hf_model_type = "llama";
  EXPECT_ERROR(name_scheme(named), ValueError, "enable_hyper_connections");
}

// Of a model without its output layer, which is not the part "model" of anything.
TEST(FileNames, WithoutTheNameOfThePart) {
  const auto scheme = [](std::set<std::string> names) {
    names.insert("embed_tokens.weight");
    return name_scheme(names);
  };
  EXPECT_EQ(scheme({"layers.0.mlp.gate_proj.weight"}),
            NameScheme(name_scheme_of("llama").table(), true));
  EXPECT_EQ(scheme({"layers.1.block_sparse_moe.experts.0.w1.weight"}),
            NameScheme(name_scheme_of("mixtral").table(), true));
  EXPECT_EQ(scheme({"layers.1.mlp.experts.0.gate_proj.weight"}),
            NameScheme(name_scheme_of("qwen2_moe").table(), true));
  expect_names(NameScheme(name_scheme_of("llama").table(), true),
               {{"tok_embeddings.weight", "embed_tokens.weight"},
                {"final_norm.weight", "norm.weight"},
                {"lm_head.weight", "lm_head.weight"},
                {"layers.3.attention.wk.bias", "layers.3.self_attn.k_proj.bias"}});
  expect_names(
      NameScheme(name_scheme_of("mixtral").table(), true),
      {{"layers.0.moe.experts.2.w_up.weight", "layers.0.block_sparse_moe.experts.2.w3.weight"}});
}

// Two tensors for all experts of a layer, as newer writers may store them.
TEST(FileNames, PackedExpertsLieInTwoTensors) {
  const TransformerConfig config =
      small_config(qwen2_moe({kMoe + "moe_ffn_hidden_size=16"})).model_config;
  for (const std::string ending : {"", ".weight"}) {
    const std::string stem = "model.layers.0.mlp.experts.";
    const NameScheme scheme =
        name_scheme({"model.embed_tokens.weight", "model.layers.0.mlp.gate.weight",
                     stem + "gate_up_proj" + ending, stem + "down_proj" + ending});
    const FileNames names(scheme, config);
    const int64_t width = config.hidden_size;
    const FilePlace gate = file_place(names, "layers.0.moe.experts.2.w_gate.weight", {16, width});
    EXPECT_EQ(gate.name, stem + "gate_up_proj" + ending);
    EXPECT_EQ(gate.shape, (Shape{4, 32, width}));
    ASSERT_TRUE(gate.strides.has_value());
    EXPECT_EQ(gate.strides->offset, 2 * 32 * width);
    const FilePlace up = file_place(names, "layers.0.moe.experts.2.w_up.weight", {16, width});
    EXPECT_EQ(up.strides.value().offset, (2 * 32 + 16) * width);
    EXPECT_EQ(up.strides.value().row, width);
    const FilePlace down = file_place(names, "layers.0.moe.experts.3.w_down.weight", {width, 16});
    EXPECT_EQ(down.name, stem + "down_proj" + ending);
    EXPECT_EQ(down.shape, (Shape{4, width, 16}));
    EXPECT_EQ(down.strides.value().offset, 3 * width * 16);
  }
}

TEST(FileNames, PackedExpertsAreThoseOfFilesWithEachByItself) {
  const Made made(qwen2_moe({kMoe + "moe_ffn_hidden_size=16"}));
  State files;
  std::map<std::string, TensorList> parts;
  for (const auto& [name, tensor] : made.files) {
    const size_t at = name.find(".experts.");
    if (at == std::string::npos) {
      files[name] = tensor;
      continue;
    }
    const std::string rest = name.substr(name.find('.', at + 9) + 1);
    parts[name.substr(0, at + 9) + rest].push_back(tensor);  // in the order of the experts
  }
  for (auto& [name, tensors] : parts) {
    const std::string stem = name.substr(0, name.find(".experts.") + 9);
    if (name.ends_with("gate_proj.weight")) {
      files[stem + "gate_up_proj"] =
          cat({stack(tensors, 0), stack(parts.at(stem + "up_proj.weight"), 0)}, 1);
    } else if (name.ends_with("down_proj.weight")) {
      files[stem + "down_proj"] = stack(tensors, 0);
    }
  }
  const State loaded = made.loaded(files);
  ASSERT_EQ(loaded.size(), made.logical.size());
  for (const auto& [name, tensor] : made.logical) {
    EXPECT_TRUE(testing::same_bits(loaded.at(name), tensor)) << name;
  }
}

TEST(FileNames, Gpt2WithoutPrefixAndWithMaskBuffers) {
  const Made made({});
  State old;
  for (const auto& [name, tensor] : made.files) {
    old[name.substr(std::string("transformer.").size())] = tensor;
  }
  old["h.0.attn.bias"] = ones({1, 1, 8, 8});
  old["h.1.attn.masked_bias"] = scalar(-1e4);
  old["lm_head.weight"] = old.at("wte.weight");
  testing::expect_states_equal(made.loaded(old), made.logical);
}

TEST(FileNames, LlamaWithFrequenciesAndRepeatedHead) {
  const Made made(llama());
  State files = made.files;
  files["model.layers.0.self_attn.rotary_emb.inv_freq"] = ones({4});
  files["lm_head.weight"] = files.at("model.embed_tokens.weight").clone();
  testing::expect_states_equal(made.loaded(files), made.logical);
}

TEST(FileNames, AHeadOfItsOwnDoesNotFitATiedModel) {
  const Made untied(llama({kUntied}));
  const Made tied(llama());
  EXPECT_ERROR(tied.loaded(untied.files), ValueError, "unexpected: lm_head.weight");
}

TEST(FileNames, WhatIsNotKnownIsReported) {
  const Made made(llama());
  State files = made.files;
  files["model.layers.0.self_attn.q_norm.weight"] = ones({8});
  files["model.something"] = ones({2});
  files["model.layers.0.mlp.up_proj.weight"] = ones({32, 48});
  for (const char* finding : {"model.layers.0.self_attn.q_norm.weight", "model.something",
                              "model.layers.0.mlp.up_proj.weight"}) {
    EXPECT_ERROR(made.loaded(files), ValueError, finding);
  }
  // A fused matrix that cannot be cut in three.
  const Made gpt2({});
  State odd = gpt2.files;
  odd["transformer.h.0.attn.c_attn.weight"] = ones({32, 95});
  EXPECT_ERROR(gpt2.loaded(odd), ValueError, "transformer.h.0.attn.c_attn.weight");
  odd.erase("transformer.h.0.attn.c_attn.weight");
  EXPECT_ERROR(gpt2.loaded(odd), ValueError, "missing: layers.0.attention.wq.weight");
}

}  // namespace
}  // namespace tapestry
