#include "tests/parallel_core/layouts/layout_table.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>

#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "tests/parallel_core/layouts/layout_testing.h"

namespace tapestry::testing {

namespace {

constexpr int64_t kSteps = 20;

// Eight layers for eight stages, eight heads for eight tensor-parallel ranks, a vocabulary that
// none of the sizes divides.
constexpr const char* kBase =
    "training_config: {training_iters: 20, seed: 11, num_threads: 1}\n"
    "dataset_config: {batch_size: 2}\n"
    "model_config:\n"
    "  vocab_size: 61\n"
    "  num_layers: 8\n"
    "  num_attention_heads: 8\n"
    "  hidden_size: 32\n"
    "  ffn_hidden_size: 48\n"
    "  seq_length: 16\n"
    "  init_method_std: 0.05\n"
    "optimizer_config:\n"
    "  learning_rate: 0.001\n"
    "  betas: [0.9, 0.95]\n"
    "  weight_decay: 0.1\n"
    "  clip_grad: 1.0\n"
    "  lr_decay_style: cosine\n"
    "  lr_warmup_iters: 2\n"
    "  min_lr: 0.0001\n";

const std::string kModel = "model_config.";

const std::map<std::string, Overrides>& models() {
  static const Overrides rope = {kModel + "position_embedding_type=rope"};
  static const Overrides grouped = {kModel + "group_query_attention=True"};
  static const Overrides gpt2 = {};  // LayerNorm, learned positions, biases, tied
  static const Overrides llama = joined(
      joined(rope, grouped), {kModel + "num_query_groups=2", kModel + "normalization=RMSNorm",
                              kModel + "hidden_act=swiglu", kModel + "add_bias_linear=False",
                              kModel + "untie_embeddings_and_output_weights=True"});
  static const Overrides qwen = joined(
      joined(rope, grouped),
      {kModel + "num_query_groups=4", kModel + "qk_layernorm=True", kModel + "hidden_act=silu"});
  static const Overrides dropout = {kModel + "hidden_dropout=0.1",
                                    kModel + "attention_dropout=0.1"};
  static const Overrides half = {kModel + "compute_dtype=bfloat16"};
  // Of narrower and deeper models, or with few tokens a step, bfloat16 as such moves loss and norm
  // by more than layouts may: so far away is plain float32.
  static const Overrides calm =
      joined(half, {kModel + "fp32_residual_connection=True", kModel + "hidden_size=64",
                    kModel + "ffn_hidden_size=96", kModel + "num_layers=4",
                    "dataset_config.batch_size=4"});
  const auto by = [](const std::string& type, const Overrides& more = {}) {
    return joined({"optimizer_config.optimizer_type=" + type}, more);
  };
  static const Overrides documents = {"dataset_config.reset_attention_mask=True",
                                      "dataset_config.reset_position_ids=True"};
  static const Overrides alibi = {kModel + "position_embedding_type=alibi"};
  // Four experts of width 24, two for each token, in every layer.
  const std::string moe = "moe_config.";
  static const Overrides experts = joined(
      llama, {kModel + "num_layers=4", moe + "num_experts=4", moe + "moe_router_topk=2",
              moe + "moe_ffn_hidden_size=24", moe + "moe_router_load_balancing_type=aux_loss",
              moe + "moe_aux_loss_coeff=0.01"});
  const auto drops = [&](const std::string& policy) {
    return joined(
        experts, {moe + "moe_expert_capacity_factor=0.9", moe + "moe_token_drop_policy=" + policy});
  };
  static const Overrides shared = {moe + "moe_shared_expert_intermediate_size=32",
                                   moe + "use_shared_expert_gating=True"};
  // Each kind of mixer in either half of the model.
  static const Overrides hybrid =
      joined(llama, {kModel + "layer_types=[linear_attention, conv, mamba, full_attention, mamba, "
                              "linear_attention, full_attention, conv]",
                     kModel + "num_query_groups=4", kModel + "attention_output_gate=True",
                     kModel + "linear_num_key_heads=4", kModel + "linear_num_value_heads=8",
                     kModel + "linear_key_head_dim=4", kModel + "linear_value_head_dim=6",
                     kModel + "linear_conv_kernel_dim=3", kModel + "short_conv_has_bias=True",
                     kModel + "mamba_num_heads=8", kModel + "mamba_head_dim=6",
                     kModel + "mamba_state_dim=5", kModel + "mamba_conv_kernel_dim=3"});
  static const Overrides gemma =
      joined(llama, {kModel + "untie_embeddings_and_output_weights=False",
                     kModel + "num_query_groups=4", kModel + "hidden_act=fast_gelu",
                     kModel + "gated_linear_unit=True", kModel + "norm_placement=sandwich",
                     kModel + "qk_layernorm=True", kModel + "v_layernorm=True",
                     kModel + "attention_scale=0.3", kModel + "layer_scalar=True",
                     kModel + "embedding_multiplier=2", kModel + "window_size=[5, 0]",
                     kModel + "sliding_window_pattern=2", kModel + "full_attention_kv_channels=8",
                     kModel + "rotary_config={rope_type: proportional, rotary_percent: 0.5, "
                              "sliding_rotary_base: 100}",
                     kModel + "per_layer_embedding_size=6"});
  static const Overrides connected = {kModel + "enable_hyper_connections=True",
                                      kModel + "mhc_init_gating_factor=0.3"};
  static const Overrides streams = joined(llama, connected);
  static const std::map<std::string, Overrides> all = {
      {"hybrid", hybrid},
      {"hybrid_groups",
       joined(hybrid, {kModel + "mamba_num_groups=4", kModel + "mamba_proj_has_bias=True",
                       kModel + "norm_placement=sandwich", kModel + "mixer_norm_placement=post"})},
      {"hybrid_documents", joined(joined(hybrid, dropout), documents)},
      {"hybrid_recompute", joined(hybrid, {"parallel_config.recompute_config.recompute=True"})},
      {"gpt2", gpt2},
      {"llama", llama},
      {"qwen", qwen},
      {"gpt2_dropout", joined(gpt2, dropout)},
      {"llama_dropout", joined(llama, dropout)},
      {"gpt2_parallel_positions", {kModel + "parallel_position_embedding=True"}},
      {"gpt2_documents", joined(dropout, documents)},
      {"llama_documents", joined(llama, documents)},
      {"llama_documents_bf16", joined(joined(llama, documents), calm)},
      {"alibi_documents",
       joined(joined(alibi, dropout),
              joined(grouped, joined({kModel + "num_query_groups=4"}, documents)))},
      {"gpt2_bf16", joined(gpt2, calm)},
      {"llama_bf16", joined(llama, calm)},
      {"llama_bf16_stream", joined(llama, half)},
      {"gpt2_came", joined(gpt2, by("Came"))},
      {"llama_adafactor", joined(llama, by("Adafactor", {"optimizer_config.momentum=0.9"}))},
      {"llama_muon", joined(llama, by("Muon", {"optimizer_config.ns_dtype=float32"}))},
      {"moe", experts},
      {"moe_drop_probs", drops("probs")},
      {"moe_drop_position", drops("position")},
      {"moe_drop_choice", drops("choice")},
      {"moe_shared", joined(joined(experts, shared),
                            {moe + "moe_shared_expert_overlap=True", moe + "moe_z_loss_coeff=0.001",
                             moe + "moe_router_load_balancing_type=seq_aux_loss"})},
      {"moe_sigmoid", joined(experts, {moe + "moe_router_score_function=sigmoid",
                                       moe + "moe_router_enable_expert_bias=True",
                                       moe + "moe_router_bias_update_rate=0.001",
                                       moe + "moe_input_jitter_eps=0.01"})},
      // Balance losses that count by scores alone, gates on what experts read.
      {"moe_scores", joined(joined(experts, shared),
                            {moe + "moe_router_score_function=sqrtsoftplus",
                             moe + "topk_method=noaux_tc", moe + "moe_router_num_groups=2",
                             moe + "moe_router_group_topk=1", moe + "moe_aux_loss_choice=scores",
                             moe + "moe_router_load_balancing_type=seq_aux_loss",
                             moe + "moe_apply_probs_on_input=True"})},
      {"moe_dropout", joined(joined(experts, shared), dropout)},
      {"moe_per_token", joined(experts, {"training_config.calculate_per_token_loss=True"})},
      // More experts than are chosen by the few tokens.
      {"moe_idle", joined(experts, {moe + "num_experts=16", moe + "moe_router_topk=1",
                                    moe + "moe_router_pre_softmax=True"})},
      {"moe_bf16", joined(joined(experts, shared), calm)},
      // Layers that predict further tokens, of a tied model and of others.
      {"tied_ahead", joined(joined(rope, dropout), {kModel + "mtp_num_layers=1"})},
      {"untied_ahead", joined(joined(llama, documents), {kModel + "mtp_num_layers=2",
                                                         kModel + "mtp_loss_scaling_factor=0.5"})},
      {"moe_ahead",
       joined(experts, {moe + "moe_router_score_function=sigmoid",
                        moe + "moe_router_enable_expert_bias=True",
                        moe + "moe_router_bias_update_rate=0.001",
                        "training_config.calculate_per_token_loss=True",
                        kModel + "mtp_num_layers=1", kModel + "mtp_loss_scaling_factor=0.5"})},
      // Gemma 4: layers of two kinds, per-layer embeddings, keys of other layers; and experts.
      {"gemma4", joined(gemma, {kModel + "num_kv_shared_layers=2"})},
      {"gemma4_moe",
       joined(gemma, {kModel + "num_layers=4", kModel + "full_attention_num_query_groups=2",
                      kModel + "full_attention_value_is_key=True", moe + "num_experts=4",
                      moe + "moe_router_topk=2", moe + "moe_ffn_hidden_size=24",
                      moe + "moe_beside_dense=True"})},
      // Several residual streams: also beside recomputation, experts, mixers and layers ahead.
      {"streams", streams},
      {"streams_recompute",
       joined(streams, joined(dropout, {"parallel_config.recompute_config={recompute_layers: [0, "
                                        "1, 4, 5], select_recompute: ['.*_hyper_connection', "
                                        "'add', '.*\\.norm']}"}))},
      {"streams_moe_ahead",
       joined(experts, joined(connected, {kModel + "mtp_num_layers=1",
                                          kModel + "mtp_loss_scaling_factor=0.5"}))},
      {"streams_hybrid", joined(hybrid, connected)},
      {"streams_bf16", joined(joined(llama, connected), calm)},
      {"gpt2_bf16_params", joined(gpt2, joined(half, {kModel + "params_dtype=bfloat16"}))},
  };
  return all;
}

AllConfig matrix_config(const std::string& model, const Overrides& overrides) {
  return init_configs_from_text(kBase, "matrix.yaml",
                                {.overrides = joined(models().at(model), overrides)});
}

const Overrides kSequenceFirst = {"dataset_config.data_layout=SBH"};

LayoutReport compare_row(const LayoutRow& row,
                         const std::string& checkpoint,
                         VerifyOptions options) {
  const LayoutPair pair = load_layout_pair(row.layout, [&](const Overrides& more) {
    return matrix_config(row.model,
                         joined(more, {"training_config.load_checkpoint=" + checkpoint}));
  });
  LayoutPair with_overrides = pair;
  if (!row.overrides.empty()) {
    with_overrides.layout =
        matrix_config(row.model, joined(joined(parse_layout(row.layout).overrides, row.overrides),
                                        {"training_config.load_checkpoint=" + checkpoint}));
  }
  options.steps = kSteps;
  options.every_step = false;
  options.timeout_seconds = kTestTimeout;
  options.parts = made_up_data();
  return compare_layout(with_overrides, options);
}

}  // namespace

const std::vector<LayoutRow>& layout_table() {
  static const std::vector<LayoutRow> rows = {
      // Tensor and sequence parallel.
      {"gpt2", "tp=2", {}, true},
      {"gpt2", "tp=4,sp,micro=3"},
      {"gpt2", "tp=8"},
      {"gpt2", "tp=8,sp,micro=3"},
      {"llama", "tp=2,micro=3"},
      {"llama", "tp=4,sp,micro=3", {}, true},
      {"llama", "tp=8,sp"},
      {"qwen", "tp=8,sp,micro=3"},
      {"gpt2_dropout", "tp=4,sp", {}, true},
      {"llama_bf16", "tp=2,sp,micro=3", {}, true},
      // Pipelines.
      {"gpt2", "pp=2,micro=3"},
      {"gpt2", "pp=4,micro=8"},
      {"gpt2", "pp=8,micro=4"},
      {"gpt2", "pp=2,vpp=2,micro=4", {}, true},
      {"gpt2", "pp=2,vpp=4,micro=3"},
      {"gpt2", "pp=4,vpp=2,micro=8"},
      {"gpt2", "pp=2,layers=5,3,micro=4"},
      {"gpt2", "pp=4,layers=3,2,2,1,micro=4", {}, true},
      {"gpt2", "pp=3,offset=1,1,0,micro=4"},
      {"gpt2", "pp=3,embedding_stage,micro=3"},
      {"gpt2", "pp=2,vpp=2,layers=3,2/2,1,micro=5"},
      {"gpt2", "pp=2,vpp=2,layers=3,3/2,0,micro=4", {}, true},
      {"llama_dropout", "tp=2,sp,pp=2,layers=8,0,micro=3", {}, true},
      {"llama", "pp=2,micro=4"},
      {"llama", "pp=4,vpp=2,micro=4"},
      {"gpt2_dropout", "pp=4,vpp=2,micro=3"},
      {"gpt2_bf16", "pp=4,micro=4"},
      {"llama_bf16_stream", "pp=4,vpp=2,micro=4"},
      // Data parallel and the distributed optimizer.
      {"gpt2", "dp=2", {}, true},
      {"gpt2", "dp=4,overlap,bucket=2000,micro=4"},
      {"gpt2", "dp=4,dist_opt,micro=3"},
      {"gpt2", "dp=2,zero=z2,overlap", {}, true},
      {"gpt2", "dp=2,zero=z3,micro=3", {}, true},
      {"gpt2", "dp=4,zero=z3,overlap,micro=3"},
      {"llama", "dp=4,zero=z2,overlap"},
      {"gpt2_dropout", "dp=4,zero=z2,micro=3"},
      {"gpt2_bf16", "dp=4,zero=z2,overlap,micro=3"},
      {"gpt2_bf16_params", "dp=2,dist_opt,overlap,micro=3", {}, true},
      // Context parallel.
      {"gpt2", "cp=2", {}, true},
      {"gpt2", "cp=4,micro=3"},
      {"gpt2", "cp=2,dp=2,zero=z2,overlap,micro=3"},
      {"gpt2", "tp=2,sp,cp=2,pp=2,micro=4"},
      {"gpt2_dropout", "cp=2,dp=2,dist_opt,micro=3"},
      {"llama", "tp=4,sp,cp=2,micro=3", {}, true},
      {"llama", "tp=2,sp,cp=4,dp=2,dist_opt,overlap,micro=3"},
      {"llama", "cp=4,pp=4,micro=4"},
      {"llama_dropout", "tp=2,cp=2,pp=2,vpp=2,micro=3"},
      {"qwen", "cp=2,dp=2,zero=z3,micro=3"},
      {"llama", "tp=2,sp,cp=2,dp=2,micro=3", kSequenceFirst},
      {"gpt2_bf16", "cp=2,tp=2,sp,micro=3"},
      // Combinations.
      {"gpt2", "tp=2,sp,pp=2,dp=2,micro=4", {}, true},
      {"gpt2", "tp=2,pp=2,dp=4,dist_opt,overlap,micro=3"},
      {"gpt2", "tp=2,sp,pp=4,dp=2,zero=z1,micro=8"},
      {"gpt2", "tp=4,sp,pp=2,vpp=2,dp=2,dist_opt,micro=4"},
      {"gpt2", "tp=4,pp=4,micro=8"},
      {"gpt2", "tp=8,sp,pp=2,micro=3"},
      {"gpt2", "tp=2,dp=2,zero=z2,overlap,micro=3"},
      {"gpt2", "tp=2,sp,dp=2,zero=z3,micro=3"},
      {"llama", "tp=4,sp,dp=4,zero=z3,overlap,micro=3"},
      {"llama", "tp=2,sp,pp=2,dp=2,zero=z1,overlap,micro=4", {}, true},
      {"llama", "tp=4,pp=2,dp=2,dist_opt,overlap,micro=3"},
      {"llama", "pp=8,dp=2,dist_opt,micro=8"},
      {"llama", "tp=8,dp=2,zero=z2"},
      {"llama", "pp=2,dp=2,zero=z2,micro=3"},
      {"qwen", "tp=2,sp,pp=2,dp=2,dist_opt,micro=3"},
      {"gpt2_dropout", "tp=2,sp,dp=2,micro=3"},
      {"gpt2_dropout", "tp=4,pp=2,micro=4"},
      {"llama_dropout", "tp=8,sp,dp=2,dist_opt"},
      {"llama_dropout", "tp=2,pp=4,dp=2,micro=4"},
      {"llama_bf16", "tp=4,sp,pp=2,micro=3"},
      {"gpt2_bf16", "tp=2,sp,pp=2,vpp=2,dp=2,dist_opt,overlap,micro=4"},
      // Parameters that are gathered on each stage, tied embeddings on two of them whose gradients
      // are reduced early, and reductions that later stages put off.
      {"llama", "pp=2,dp=2,zero=z3,micro=3"},
      {"llama", "pp=2,vpp=2,dp=2,zero=z3,overlap,micro=3"},
      {"gpt2", "pp=2,dp=2,zero=z3,overlap,micro=3", {}, true},
      {"gpt2", "pp=4,dp=2,zero=z3,micro=4"},
      {"gpt2", "tp=2,sp,pp=2,dp=2,zero=z3,micro=3"},
      {"gpt2", "pp=2,dp=2,zero=z2,micro=3"},
      {"gpt2", "pp=2,vpp=2,dp=4,zero=z2,overlap,micro=3"},
      {"gpt2", "tp=2,pp=2,dp=2,zero=z2,overlap,micro=4"},
      {"gpt2_dropout", "pp=2,dp=2,zero=z3,micro=4"},
      {"gpt2_bf16", "pp=2,dp=2,zero=z3,overlap,micro=3"},
      {"gpt2", "pp=2,dp=2,overlap,delay,bucket=2000,micro=4"},
      {"gpt2", "pp=4,dp=2,zero=z2,overlap,delay,micro=4", {}, true},
      {"llama", "tp=2,sp,pp=2,dp=2,dist_opt,overlap,delay,bucket=2000,micro=3"},
      {"gpt2", "pp=2,vpp=2,dp=2,zero=z3,overlap,delay,micro=3"},
      // Optimizers that look at whole matrices.
      {"gpt2_came", "tp=2,sp,pp=2,dp=2,zero=z3,micro=3"},
      {"gpt2_came", "tp=4,dp=2,zero=z1"},
      {"llama_adafactor", "tp=4,sp,pp=2,dp=2,zero=z2,micro=3"},
      {"llama_adafactor", "cp=2,dp=2,zero=z3,micro=3"},
      {"llama_muon", "tp=4,sp,dp=2,micro=3"},
      {"llama_muon", "tp=2,pp=2,dp=2,zero=z3,overlap,micro=3"},
      // Documents in a sample, of which the stages and chunks have to know.
      {"llama_documents", "tp=2,sp,cp=2,pp=2,micro=3", {}, true},
      {"llama_documents", "cp=4,micro=3"},
      {"llama_documents", "pp=2,vpp=2,dp=2,zero=z2,micro=3"},
      {"llama_documents", "tp=4,sp,dp=2,dist_opt,overlap,micro=3", kSequenceFirst},
      {"llama_documents_bf16", "cp=2,pp=2,micro=3"},
      {"gpt2_documents", "tp=2,pp=2,dp=2,micro=4"},
      {"gpt2_documents", "tp=2,sp,cp=2,dp=2,zero=z3,micro=3"},
      {"alibi_documents", "tp=2,cp=2,pp=2,micro=3"},
      {"alibi_documents", "tp=4,sp,pp=2,vpp=2,micro=3"},
      // The rows of the position table divided.
      {"gpt2_parallel_positions", "tp=4,sp,micro=3"},
      {"gpt2_parallel_positions", "tp=2,cp=2,pp=2,micro=3", kSequenceFirst},
      {"gpt2_parallel_positions", "tp=8,dp=2,zero=z3"},
      // Mixtures of experts.
      {"moe", "dp=2,ep=2", {}, true},
      {"moe", "tp=2,dp=2,ep=2", {}, true},
      {"moe", "tp=2,sp,dp=2,ep=2"},
      {"moe", "tp=2,sp,dp=2,ep=2", kSequenceFirst, true},
      {"moe", "dp=4,ep=4,micro=3"},
      {"moe", "dp=4,ep=2,zero=z1,overlap", {}, true},
      {"moe", "dp=4,ep=2,zero=z2"},
      {"moe", "dp=4,ep=2,zero=z3"},
      {"moe", "tp=2,sp,dp=2,ep=4,etp=1"},
      {"moe", "tp=2,sp,etp=1"},
      {"moe", "dp=4,ep=2,etp=2"},
      {"moe", "cp=2,dp=2,ep=2"},
      {"moe", "cp=2,dp=2,ep=4,zero=z3", {}, true},
      {"moe", "pp=2,dp=2,ep=2"},
      {"moe", "pp=2,vpp=2,dp=2,ep=2,micro=3", {}, true},
      {"moe", "tp=2,sp,pp=2,dp=2,ep=2,zero=z1"},
      {"moe", "tp=2,sp,cp=2,pp=2,dp=2,ep=2"},
      {"moe_drop_probs", "tp=2,sp,dp=2,ep=2"},
      {"moe_drop_probs", "cp=2,dp=2,ep=2", {}, true},
      {"moe_drop_position", "tp=2,dp=2,ep=2"},
      {"moe_drop_position", "cp=2,dp=2,ep=4,zero=z3"},
      {"moe_drop_choice", "tp=2,sp,dp=2,ep=2", kSequenceFirst},
      {"moe_drop_choice", "cp=2,dp=2,ep=2"},
      {"moe_shared", "tp=2,sp,dp=2,ep=2", {}, true},
      {"moe_shared", "tp=2,dp=2,ep=2,zero=z3"},
      {"moe_sigmoid", "tp=2,sp,dp=2,ep=4,etp=1,micro=3", {}, true},
      {"moe_sigmoid", "pp=2,dp=2,ep=2,micro=3"},
      {"moe_scores", "tp=2,sp,dp=2,ep=2,micro=3", {}, true},
      {"moe_scores", "cp=2,pp=2,dp=2,ep=2,micro=3", {}, true},
      {"moe_dropout", "tp=2,sp,dp=2,ep=2"},
      {"moe_dropout", "cp=2,dp=2,ep=2"},
      {"moe_per_token", "tp=2,dp=2,ep=2,micro=3"},
      {"moe_idle", "dp=4,ep=4,zero=z3"},
      {"moe_idle", "tp=2,sp,dp=2,ep=2"},
      {"moe_bf16", "tp=2,sp,dp=2,ep=2,micro=3"},
      {"moe_bf16", "dp=4,ep=2,zero=z2,overlap"},
      // Further tokens: the last stage has the table of embeddings as well.
      {"tied_ahead", "tp=2,micro=3"},
      {"tied_ahead", "pp=2,micro=3", {}, true},
      {"tied_ahead", "tp=2,sp,pp=2,dp=2,zero=z3,overlap,micro=3"},
      {"untied_ahead", "tp=2,sp,micro=3", {}, true},
      {"untied_ahead", "cp=2,micro=3"},
      {"untied_ahead", "tp=2,sp,cp=2,pp=2,micro=3", {}, true},
      {"untied_ahead", "pp=2,vpp=2,dp=2,zero=z3,micro=4", {}, true},
      {"untied_ahead", "pp=2,dp=2,zero=z2,overlap,delay,micro=3"},
      {"untied_ahead", "tp=2,sp,pp=2,micro=3", kSequenceFirst},
      {"moe_ahead", "dp=2,ep=2,micro=3", {}, true},
      {"moe_ahead", "tp=2,sp,pp=2,dp=2,ep=2,micro=3"},
      {"moe_ahead", "cp=2,dp=2,ep=2,zero=z3"},
      // Layers whose states go from rank to rank.
      {"hybrid", "tp=2,sp,micro=3", {}, true},
      {"hybrid", "cp=2,micro=3", {}, true},
      {"hybrid", "tp=4,sp,pp=2,micro=3", kSequenceFirst},
      {"hybrid", "pp=2,vpp=2,dp=2,zero=z3,overlap,micro=4", {}, true},
      {"hybrid_groups", "tp=4,micro=3"},
      {"hybrid_groups", "tp=2,sp,cp=2,micro=3", kSequenceFirst, true},
      {"hybrid_documents", "tp=2,sp,cp=2,pp=2,micro=3", {}, true},
      {"hybrid_documents", "cp=4,dp=2,zero=z3,micro=3"},
      {"hybrid_recompute", "cp=2,tp=2,sp,micro=3", {}, true},
      // Gemma 4. Per-layer embeddings travel with the hidden states.
      {"gemma4", "tp=4,sp,micro=3", {}, true},
      {"gemma4", "tp=8"},
      {"gemma4", "pp=2,micro=3", {}, true},
      {"gemma4", "tp=2,sp,pp=2,dp=2,zero=z3,micro=3"},
      {"gemma4", "cp=2,pp=2,micro=3", {}, true},
      {"gemma4", "tp=2,sp,pp=2,layers=3,5,micro=3", kSequenceFirst},
      {"gemma4_moe", "tp=2,sp,dp=2,ep=2", {}, true},
      {"gemma4_moe", "pp=2,vpp=2,dp=2,ep=2,micro=3"},
      {"gemma4_moe", "cp=2,dp=2,ep=2,zero=z3"},
      // Streams, which stages give each other all together.
      {"streams", "tp=2,sp,micro=3", {}, true},
      {"streams", "tp=4,dp=2,zero=z3,micro=3"},
      {"streams", "pp=2,vpp=2,dp=2,zero=z3,overlap,micro=4", {}, true},
      {"streams", "tp=2,sp,cp=2,pp=2,micro=3", kSequenceFirst, true},
      {"streams", "cp=4,micro=3"},
      {"streams_recompute", "tp=2,sp,pp=2,vpp=2,micro=4", {}, true},
      {"streams_recompute", "cp=2,dp=2,zero=z2,micro=3", kSequenceFirst},
      {"streams_moe_ahead", "tp=2,sp,dp=2,ep=2,micro=3", {}, true},
      {"streams_moe_ahead", "pp=2,vpp=2,dp=2,ep=2,zero=z1,micro=3"},
      {"streams_hybrid", "tp=2,sp,cp=2,pp=2,micro=3"},
      {"streams_bf16", "tp=2,sp,pp=2,micro=3", {}, true},
      // Sequence before batch, against one process with batch before sequence.
      {"llama", "tp=2,sp,pp=2,micro=3", kSequenceFirst, true},
      {"llama", "tp=4,dp=2,dist_opt", kSequenceFirst},
      {"gpt2", "pp=2,vpp=2,dp=2,micro=3", kSequenceFirst},
      {"gpt2_dropout", "tp=4,sp,pp=2,dp=2,zero=z1,micro=3", kSequenceFirst},
  };
  return rows;
}

std::string LayoutRow::name(bool joined) const {
  std::string text = concat(model, " ", layout, overrides.empty() ? "" : " SBH");
  if (joined) {
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const LayoutRow& row) { return out << row.name(); }

std::string start_checkpoint(const std::string& model, const std::string& folder) {
  std::string path = folder + "/" + model + ".safetensors";
  if (!std::filesystem::exists(path)) {
    const auto start = get_model(matrix_config(model, {}));
    jitter(*start, 0.02);
    write_state(path, get_logical_state(*start));
  }
  return path;
}

bool has_bfloat16(const LayoutRow& row) {
  const Overrides settings = joined(models().at(row.model), row.overrides);
  return std::any_of(settings.begin(), settings.end(), [](const std::string& setting) {
    return setting.find("bfloat16") != std::string::npos;
  });
}

LayoutReport compare_row(const LayoutRow& row, const std::string& checkpoint) {
  return compare_row(row, checkpoint, VerifyOptions());
}

LayoutReport run_row(const LayoutRow& row, const std::string& checkpoint) {
  return compare_row(row, checkpoint, {.rounding_runs = 0});
}

}  // namespace tapestry::testing
