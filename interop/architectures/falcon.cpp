// Falcon 40B, 180B. Sources: FalconConfig and its model in transformers.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture falcon();

namespace {

// Its own names of sizes; the inner width follows from the width unless it is given.
class FalconSizes final : public Rule {
 public:
  void read(hf::Fields& file) const override {
    const hf::Found<int64_t> width = file.size("hidden_size", 4544);
    file.set("hidden_size", width, "hidden_size");
    const char* const kInner = "ffn_hidden_size";
    file.set("ffn_hidden_size",
             file.find(kInner) != nullptr
                 ? file.size(kInner, 1)
                 : hf::Found<int64_t>{4 * width.value, "null", file.has(kInner)},
             kInner);
    const hf::Found<int64_t> heads = file.size("num_attention_heads", 71);
    file.set("num_attention_heads", heads, "num_attention_heads");
    const char* const kGroups = "num_kv_heads";
    const hf::Found<int64_t> groups = file.size(kGroups, heads.value);
    if (heads.value % groups.value != 0) {
      file.finding(kGroups,
                   concat(groups.value, " does not divide num_attention_heads ", heads.value));
    }
    if (width.value % heads.value != 0) {
      file.finding("num_attention_heads",
                   concat(heads.text, " does not divide hidden_size ", width.text));
    }
    file.set_value("group_query_attention", Value(groups.value != heads.value), kGroups,
                   groups.text, groups.written);
    file.set("num_query_groups", groups, kGroups);
    file.set_value("kv_channels", Value(std::max<int64_t>(1, width.value / heads.value)),
                   "num_attention_heads", heads.text, heads.written);
    if (!file.boolean("new_decoder_architecture", false).value) {
      file.finding("new_decoder_architecture",
                   "expected true: of the older decoder of Falcon (7B, RefinedWeb) nothing is "
                   "built");
    }
    const int64_t norms = file.integer("num_ln_in_parallel_attn", 2);
    if (norms != 2) {
      file.finding("num_ln_in_parallel_attn",
                   concat("expected 2, a norm of its own for each block, got ", norms));
    }
  }
  void write(const AllConfig& config, hf::Json& json) const override {
    const TransformerConfig& c = config.model_config;
    json["hidden_size"] = c.hidden_size;
    json["ffn_hidden_size"] = c.ffn_hidden_size;
    json["num_attention_heads"] = c.num_attention_heads;
    json["num_kv_heads"] = c.num_query_groups;
    json["num_ln_in_parallel_attn"] = 2;
    json["new_decoder_architecture"] = true;
  }
  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    const TransformerConfig& c = config.model_config;
    if (c.kv_channels.value_or(0) * c.num_attention_heads != c.hidden_size) {
      out.push_back({"model_config.kv_channels", concat(c.kv_channels.value_or(0)),
                     "leave it out: heads divide hidden_size"});
    }
  }
};

}  // namespace

Architecture falcon() {
  static const TensorNames kNames = {
      .part = "transformer.",
      .layers = "h.",
      .top = {{"tok_embeddings.", "word_embeddings."}, {"final_norm.", "ln_f."}},
      .layer = {{"attention_norm.", "ln_attn."},
                {"attention.wq.", "self_attention.query_key_value."},
                {"attention.wk.", "self_attention.query_key_value."},
                {"attention.wv.", "self_attention.query_key_value."},
                {"attention.wo.", "self_attention.dense."},
                {"ffn_norm.", "ln_mlp."},
                {"feed_forward.w_up.", "mlp.dense_h_to_4h."},
                {"feed_forward.w_down.", "mlp.dense_4h_to_h."}},
      .grouped = true,
      .constants = {"rotary_emb.inv_freq"},
  };
  GgufTables gguf = llama_gguf_without_gate("falcon");
  use_layer_norm(gguf);
  join_heads(gguf);
  // The norm before the MLP comes first there.
  rename(gguf, "attention_norm.", "attn_norm_2.");
  rename(gguf, "ffn_norm.", "attn_norm.");
  gguf.limits = joined(no_output_bias_in_gguf(), only("qkv_has_bias", false, "use False"));
  return {
      .model_type = "falcon",
      .title = "Falcon 40B, 180B",
      .classes = {"FalconForCausalLM", "FalconModel"},
      .score_class = "FalconForSequenceClassification",
      .token_ids = {.bos = 11, .eos = {11}, .pad = {}},
      .tied = true,
      .rules = joined(size("vocab_size", "vocab_size", 65024), std::make_shared<FalconSizes>(),
                      size("num_hidden_layers", "num_layers", 32),
                      size("max_position_embeddings", "max_position_embeddings", 2048),
                      rotation(10000.0), fixed("normalization", "LayerNorm"),
                      number("layer_norm_epsilon", "norm_epsilon", 1e-5),
                      activation("activation", "gelu",
                                 {{"gelu", "gelu"},
                                  {"gelu_new", "fast_gelu"},
                                  {"gelu_pytorch_tanh", "fast_gelu", /*writes=*/false}}),
                      flag("bias", {"qkv_has_bias", "out_proj_has_bias", "mlp_has_bias"}, false),
                      no_window(), norms_of_blocks({.placement = "parallel"}),
                      required("alibi", false, "positions by a bias of the scores"),
                      written("alibi", false), written("parallel_attn", true),
                      written("multi_query", true), hidden_dropout("hidden_dropout", "", 0.0),
                      number("initializer_range", "init_method_std", 0.02),
                      number("attention_dropout", "attention_dropout", 0.0), dense(),
                      written("use_cache", true)),
      .names = &kNames,
      .gguf = gguf,
  };
}

}  // namespace tapestry::architectures
