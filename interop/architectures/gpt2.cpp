// GPT-2. Sources: GPT2Config and its model in transformers; llama.cpp's architecture `gpt2`.
#include <algorithm>

#include "autograd/tensor/error.h"
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture gpt2();

namespace {

// Heads divide the width, and the inner width follows from it unless it is given.
class Gpt2Sizes final : public Rule {
 public:
  void read(hf::Fields& file) const override {
    const hf::Found<int64_t> width = file.size("n_embd", 768);
    const hf::Found<int64_t> heads = file.size("n_head", 12);
    file.set("hidden_size", width, "n_embd");
    file.set("num_layers", file.size("n_layer", 12), "n_layer");
    file.set("num_attention_heads", heads, "n_head");
    file.set_value("group_query_attention", Value(false), "n_head", heads.text, heads.written);
    file.set("num_query_groups", heads, "n_head");
    if (width.value % heads.value != 0) {
      file.finding("n_head", concat(heads.text, " does not divide n_embd ", width.text));
    }
    file.set_value("kv_channels", Value(std::max<int64_t>(1, width.value / heads.value)), "n_head",
                   heads.text, heads.written);
    file.set("ffn_hidden_size",
             file.find("n_inner") != nullptr
                 ? file.size("n_inner", 1)
                 : hf::Found<int64_t>{4 * width.value, "null", file.has("n_inner")},
             "n_inner");
  }
  void write(const AllConfig& config, hf::Json& json) const override {
    const TransformerConfig& c = config.model_config;
    json["n_embd"] = c.hidden_size;
    json["n_layer"] = c.num_layers;
    json["n_head"] = c.num_attention_heads;
    json["n_inner"] = c.ffn_hidden_size;
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    object_unless(config, "num_query_groups", Value(c.num_attention_heads), out);
    if (c.kv_channels.value_or(0) * c.num_attention_heads != c.hidden_size) {
      out.push_back({"model_config.kv_channels", concat(c.kv_channels.value_or(0)),
                     "leave it out: heads divide hidden_size"});
    }
  }
};

}  // namespace

Architecture gpt2() {
  static const TensorNames kNames = {
      .part = "transformer.",
      .layers = "h.",
      .top = {{"tok_embeddings.", "wte."}, {"pos_embeddings.", "wpe."}, {"final_norm.", "ln_f."}},
      .layer = {{"attention_norm.", "ln_1."},
                {"attention.wq.", "attn.c_attn."},
                {"attention.wk.", "attn.c_attn."},
                {"attention.wv.", "attn.c_attn."},
                {"attention.wo.", "attn.c_proj."},
                {"ffn_norm.", "ln_2."},
                {"feed_forward.w_up.", "mlp.c_fc."},
                {"feed_forward.w_down.", "mlp.c_proj."}},
      .transposed = true,
      .constants = {".attn.bias", ".attn.masked_bias"},
  };
  std::vector<GgufKey> keys = common_gguf_keys();
  keys.push_back({"attention.layer_norm_epsilon", "norm_epsilon"});
  return {
      .model_type = "gpt2",
      .title = "GPT-2",
      .implied = true,
      .classes = {"GPT2LMHeadModel", "GPT2Model"},
      .score_class = "GPT2ForSequenceClassification",
      .token_ids = {.bos = 50256, .eos = {50256}, .pad = {}},
      .tied = true,
      .rules = joined(
          size("vocab_size", "vocab_size", 50257), std::make_shared<Gpt2Sizes>(),
          size("n_positions", "max_position_embeddings", 1024),
          fixed("position_embedding_type", "learned_absolute"), fixed("normalization", "LayerNorm"),
          number("layer_norm_epsilon", "norm_epsilon", 1e-5),
          activation("activation_function", "gelu_new",
                     {{"gelu_new", "fast_gelu"},
                      {"gelu_pytorch_tanh", "fast_gelu"},
                      {"gelu", "gelu"},
                      {"relu", "relu", /*writes=*/false},
                      {"silu", "silu", /*writes=*/false},
                      {"swish", "silu", /*writes=*/false}}),
          fixed("qkv_has_bias", true), fixed("out_proj_has_bias", true),
          fixed("mlp_has_bias", true), fixed("window_size", Value()), norms_of_blocks(),
          only("untie_embeddings_and_output_weights", false, "use False: it shares its table"),
          required("scale_attn_weights", true,
                   "scores that are not divided by the root of a head's size"),
          required("scale_attn_by_inverse_layer_idx", false,
                   "scores that are divided by the layer's number"),
          required("add_cross_attention", false, "attention to an encoder"),
          number("initializer_range", "init_method_std", 0.02),
          number("attn_pdrop", "attention_dropout", 0.1), dense(),
          hidden_dropout("resid_pdrop", "embd_pdrop", 0.1), written("scale_attn_weights", true),
          written("scale_attn_by_inverse_layer_idx", false),
          written("reorder_and_upcast_attn", false), written("use_cache", true)),
      .names = &kNames,
      .gguf = GgufTables{.architecture = "gpt2",
                         .top = {{"tok_embeddings.", "token_embd."},
                                 {"pos_embeddings.", "position_embd."},
                                 {"final_norm.", "output_norm."}},
                         .layer = {{"attention_norm.", "attn_norm."},
                                   {"attention.wq.", "attn_qkv."},
                                   {"attention.wk.", "attn_qkv."},
                                   {"attention.wv.", "attn_qkv."},
                                   {"attention.wo.", "attn_output."},
                                   {"ffn_norm.", "ffn_norm."},
                                   {"feed_forward.w_up.", "ffn_up."},
                                   {"feed_forward.w_down.", "ffn_down."}},
                         .keys = keys,
                         // Which weights have to be trained on; config.json calls it gelu_new.
                         .limits = {only(
                             "hidden_act", "fast_gelu",
                             "llama.cpp computes GPT-2's GELU by its tanh form: use fast_gelu")}},
  };
}

}  // namespace tapestry::architectures
