// Granite 4. Sources: GraniteMoeHybridConfig and its model in transformers.
#include "interop/architectures/common_tables.h"
#include "interop/architectures/rules.h"

namespace tapestry::architectures {

Architecture granitemoehybrid();

namespace {

// Every layer has an MLP of this width, beside num_local_experts experts if that is not 0.
class SharedMlp final : public Rule {
 public:
  void read(hf::Fields& file) const override {
    const hf::Found<int64_t> shared = file.size("shared_intermediate_size", 1024);
    const hf::Found<int64_t> width = file.size("intermediate_size", 11008);
    const int64_t experts = file.integer("num_local_experts", 8);
    const std::string text = concat(experts);
    const char* const name = "num_local_experts";
    if (experts < 0 || experts == 1) {
      file.finding(name, concat("expected 0 or a number from 2, got ", experts));
      return;
    }
    if (experts == 0) {
      file.set("ffn_hidden_size", shared, "shared_intermediate_size");
      file.set_moe("num_experts", Value(int64_t{1}), name, text);
      return;
    }
    file.set("ffn_hidden_size", width, "intermediate_size");
    file.set_moe("num_experts", Value(experts), name, text, file.has(name));
    file.set_moe("moe_router_topk", file.size("num_experts_per_tok", 2), "num_experts_per_tok");
    file.set_moe("moe_ffn_hidden_size", width, "intermediate_size");
    file.set_moe("moe_shared_expert_intermediate_size", shared, "shared_intermediate_size");
    file.set_moe_by_type("use_shared_expert_gating", Value(false));
    file.set_moe_by_type("moe_layer_freq", Value(Value::List{Value(int64_t{1})}));
    file.set_moe_by_type("norm_topk_prob", Value(true));
    file.set_moe_by_type("moe_router_pre_softmax", Value(false));
  }

  void write(const AllConfig& config, hf::Json& json) const override {
    const MoEConfig& moe = config.moe_config;
    const bool dense = moe.num_experts <= 1;
    const int64_t width = config.model_config.ffn_hidden_size;
    json["num_local_experts"] = dense ? 0 : moe.num_experts;
    json["num_experts_per_tok"] = dense ? 2 : moe.moe_router_topk;
    json["intermediate_size"] = dense ? width : moe.moe_ffn_hidden_size.value_or(width);
    json["shared_intermediate_size"] =
        dense ? width : moe.moe_shared_expert_intermediate_size.value_or(0);
  }

  void object(const AllConfig& config, std::vector<Objection>& out) const override {
    if (config.moe_config.num_experts <= 1) {
      return;
    }
    object_unless(config, "moe_config.moe_layer_freq", Value(Value::List{Value(int64_t{1})}), out);
    object_unless(config, "moe_config.use_shared_expert_gating", Value(false), out);
    object_unless(config, "moe_config.moe_router_pre_softmax", Value(false), out);
    object_unless(config, "moe_config.first_k_dense_replace", Value(int64_t{0}), out);
    if (config.moe_config.moe_shared_expert_intermediate_size.value_or(0) == 0) {
      out.push_back({"moe_config.moe_shared_expert_intermediate_size", "null",
                     "give every layer a shared expert"});
    }
  }

  std::vector<std::string> keys() const override { return {"ffn_hidden_size"}; }
  RuleText text() const override {
    return {.read =
                "`num_local_experts` (0: none), `num_experts_per_tok`, `intermediate_size` of an "
                "expert, `shared_intermediate_size`"};
  }
};

}  // namespace

Architecture granitemoehybrid() {
  static const TensorNames kNames = [] {
    TensorNames names = llama_names_with(
        {{"feed_forward.w_gate.", "shared_mlp.input_linear."},
         {"feed_forward.w_up.", "shared_mlp.input_linear."},
         {"feed_forward.w_down.", "shared_mlp.output_linear."},
         {"moe.shared_expert.w_gate.", "shared_mlp.input_linear."},
         {"moe.shared_expert.w_up.", "shared_mlp.input_linear."},
         {"moe.shared_expert.w_down.", "shared_mlp.output_linear."},
         {"moe.router.", "block_sparse_moe.router.layer."},
         {"mamba.wz.", "mamba.in_proj."},
         {"mamba.wx.", "mamba.in_proj."},
         {"mamba.wB.", "mamba.in_proj."},
         {"mamba.wC.", "mamba.in_proj."},
         {"mamba.wdt.", "mamba.in_proj."},
         {"mamba.conv_x.", "mamba.conv1d."},
         {"mamba.conv_B.", "mamba.conv1d."},
         {"mamba.conv_C.", "mamba.conv1d."},
         {"mamba.A_log.weight", "mamba.A_log"},
         {"mamba.D.weight", "mamba.D"},
         {"mamba.dt_bias.weight", "mamba.dt_bias"},
         {"mamba.norm.", "mamba.norm."},
         {"mamba.wo.", "mamba.out_proj."}},
        "block_sparse_moe.",
        {{"w_gate.", "input_linear."}, {"w_up.", "input_linear."}, {"w_down.", "output_linear."}});
    names.packed = true;
    names.packed_ending = ".weight";
    names.packed_gate_up = "input_linear";
    names.packed_down = "output_linear";
    return names;
  }();
  return {
      .model_type = "granitemoehybrid",
      .title = "Granite 4",
      .classes = {"GraniteMoeHybridForCausalLM", "GraniteMoeHybridModel"},
      .token_ids = {.bos = 1, .eos = {2}, .pad = {}},
      .rules =
          joined(size("vocab_size", "vocab_size", 32000), size("hidden_size", "hidden_size", 4096),
                 size("num_hidden_layers", "num_layers", 32), heads({.heads = 32}),
                 size("max_position_embeddings", "max_position_embeddings", 2048),
                 rotation_by_member(rotation(10000.0)), fixed("normalization", "RMSNorm"),
                 number("rms_norm_eps", "norm_epsilon", 1e-6), gated_silu(),
                 flag("attention_bias", {"qkv_has_bias", "out_proj_has_bias"}, false),
                 fixed("mlp_has_bias", false),
                 // Newer files call these layers linear_attention.
                 mixer_layers({.kind = "mamba",
                               .words = {"mamba", "linear_attention"},
                               .attention_words = {"attention", "full_attention"},
                               .older_member = "layers_block_type"}),
                 mamba_sizes(), std::make_shared<SharedMlp>(), norms_of_blocks(),
                 number("embedding_multiplier", "embedding_multiplier", 1.0),
                 number("residual_multiplier", "residual_multiplier", 1.0),
                 number("attention_multiplier", "attention_scale", 1.0),
                 reciprocal("logits_scaling", "logit_multiplier", 1.0), balance_loss(),
                 number("initializer_range", "init_method_std", 0.02),
                 number("attention_dropout", "attention_dropout", 0.0), written("use_cache", true)),
      .names = &kNames,
      .no_gguf = "llama.cpp's form of these layers is not written yet",
  };
}

}  // namespace tapestry::architectures
