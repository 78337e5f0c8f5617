#include "diagnosis/accuracy/checklist_items.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/template_text.h"

namespace tapestry::accuracy {
namespace checklist_items_file {
namespace {

using config::Value;

constexpr std::string_view kStructure = "structure";
constexpr std::string_view kExpertsGroup = "moe";
constexpr std::string_view kOptimizer = "optimizer";
constexpr std::string_view kWeights = "weights";
constexpr std::string_view kPrecision = "precision";
constexpr std::string_view kParallel = "parallel";
constexpr std::string_view kOther = "other";

constexpr std::string_view kAnotherModel =
    "another model: take the other side's value, weights do not fit otherwise";
constexpr std::string_view kSameForm = "another function: take the other side's value";
constexpr std::string_view kSameDtype =
    "another dtype moves each result by its rounding: compare with the same, best all in float32";
constexpr std::string_view kSums =
    "sums are made in another order; no more than rounding may follow";
constexpr std::string_view kRouting = "tokens go to other experts: take the other side's value";
constexpr std::string_view kDecayCourse =
    "weight decay changes over the run on one side, or in another way";
constexpr std::string_view kUpdate = "updates differ from the first step on";

std::string dtype_text(DType dtype) { return std::string(name_of(dtype)); }

Value window(const AllConfig& config, const SideOptions& /*options*/) {
  const auto& size = config.model_config.window_size;
  return size ? Value(concat("window of ", size->front() + 1, " tokens"))
              : Value(std::string("causal"));
}

Value residual_dtype(const AllConfig& config, const SideOptions& /*options*/) {
  const TransformerConfig& model = config.model_config;
  return model.fp32_residual_connection
             ? Value(dtype_text(kFloat32))
             : Value(dtype_text(model.residual_connection_dtype.value_or(model.compute_dtype)));
}

Value softmax_dtype(const AllConfig& config, const SideOptions& /*options*/) {
  const TransformerConfig& model = config.model_config;
  return {dtype_text(model.attention_softmax_in_fp32 ? kFloat32 : model.softmax_compute_dtype)};
}

Value loss_dtype(const AllConfig& config, const SideOptions& /*options*/) {
  return {dtype_text(config.model_config.fp16_lm_cross_entropy ? kFloat16 : kFloat32)};
}

Value embedding_dtype(const AllConfig& config, const SideOptions& /*options*/) {
  const TransformerConfig& model = config.model_config;
  return {dtype_text(model.embedding_init_dtype.value_or(model.params_dtype))};
}

Value compute_dtype(const AllConfig& config, const SideOptions& /*options*/) {
  return {dtype_text(config.model_config.compute_dtype)};
}

Value gradient_dtype(const AllConfig& config, const SideOptions& /*options*/) {
  return {dtype_text(config.training_config.accumulate_allreduce_grads_in_fp32
                         ? kFloat32
                         : config.optimizer_config.main_grads_dtype)};
}

Value experts(const AllConfig& config, const SideOptions& /*options*/) {
  return {config.model_config.moe.num_experts};
}

Value expert_width(const AllConfig& config, const SideOptions& /*options*/) {
  return {moe_ffn_hidden_size(config.model_config)};
}

// Resolved: what is not given follows from the softmax. One over all experts whose k largest are
// divided by their sum is the one over these k.
Value gates_add_up(const AllConfig& config, const SideOptions& /*options*/) {
  const MoEConfig& moe = config.model_config.moe;
  return {moe.norm_topk_prob.value_or(!moe.moe_router_pre_softmax)};
}
Value softmax_of_all(const AllConfig& config, const SideOptions& options) {
  const MoEConfig& moe = config.model_config.moe;
  const bool of_chosen = moe.moe_router_topk > 1 && gates_add_up(config, options).as<bool>();
  return {moe.moe_router_pre_softmax && !of_chosen};
}

Value expert_layers(const AllConfig& config, const SideOptions& /*options*/) {
  return {expert_layers_text(config.model_config.num_layers, [&](int64_t layer) {
    return is_moe_layer(config.model_config, layer);
  })};
}

Value beta1(const AllConfig& config, const SideOptions& /*options*/) {
  return {config.optimizer_config.betas.front()};
}

Value beta2(const AllConfig& config, const SideOptions& /*options*/) {
  return {config.optimizer_config.betas.back()};
}

Value clipping(const AllConfig& config, const SideOptions& /*options*/) {
  const auto clip = gradient_clipping(config);
  return clip && clip->grad_clip_type != "ClipGlobalNorm"
             ? Value(concat(clip->grad_clip_type, " ", clip->clip_value))
             : Value(clip ? clip->clip_value : 0.0);
}

Value global_batch(const AllConfig& config, const SideOptions& options) {
  return {global_batch_size(config, options.data_parallel_size)};
}

Value micro_batches(const AllConfig& config, const SideOptions& /*options*/) {
  return {config.dataset_config.micro_batch_num};
}

Value steps(const AllConfig& config, const SideOptions& options) {
  const int64_t total = total_training_iters(config, options.data_parallel_size);
  return total > 0 ? Value(total) : Value();
}

Value ranks(const AllConfig& /*config*/, const SideOptions& options) {
  return {options.data_parallel_size};
}

Value sharding(const AllConfig& config, const SideOptions& /*options*/) {
  return {static_cast<int64_t>(zero_level(config))};
}

Value expert_ranks(const AllConfig& config, const SideOptions& /*options*/) {
  return {expert_tensor_parallel_size(config.parallel_config)};
}

Value scale(const AllConfig& config, const SideOptions& /*options*/) {
  const auto& loss_scale = config.training_config.loss_scale;
  return loss_scale ? Value(*loss_scale) : Value(std::string("dynamic"));
}

Value fused_qkv(const AllConfig& /*config*/, const SideOptions& /*options*/) { return {true}; }

Value flash(const AllConfig& /*config*/, const SideOptions& /*options*/) { return {true}; }

Value overflow_mode(const AllConfig& /*config*/, const SideOptions& /*options*/) {
  return {std::string("INF/NaN")};
}

Value graph_fusion(const AllConfig& /*config*/, const SideOptions& /*options*/) { return {false}; }

std::string dropout_remark(const Value& value, const ChecklistSide& /*ours*/) {
  return value.is<double>() && value.as<double>() > 0
             ? "set it to 0 on both sides to compare: the random numbers differ"
             : "";
}

std::string vocabulary_remark(const Value& value, const ChecklistSide& /*ours*/) {
  constexpr int64_t kRow = 16;
  return value.is<int64_t>() && value.as<int64_t>() % kRow != 0
             ? "no multiple of 16: matrix products may take another path, which rounds otherwise"
             : "";
}

std::string loss_remark(const Value& value, const ChecklistSide& /*ours*/) {
  return value.is<double>() && value.as<double>() != 0
             ? "set it to 0 on both sides to compare: the mean over ranks or micro-batches differs"
             : "";
}

// Whatever the key says: nothing here depends on which thread or rank comes first.
Value always_deterministic(const AllConfig& /*config*/, const SideOptions& /*options*/) {
  return Value(true);
}

// From 1, so that no choice of tokens is dropped that were spread evenly, to all tokens of an
// expert.
std::string capacity_remark(const Value& value, const ChecklistSide& ours) {
  const auto experts = ours.values.find("moe_config.num_experts");
  const auto topk = ours.values.find("moe_config.moe_router_topk");
  if (!value.is<double>() || experts == ours.values.end() || topk == ours.values.end()) {
    return {};
  }
  const double most = static_cast<double>(experts->second.as<int64_t>()) /
                      static_cast<double>(topk->second.as<int64_t>());
  return value.as<double>() < 1 || value.as<double>() > most
             ? concat("expected from 1 to experts / topk, ", config::number_text(most))
             : "";
}

Value accumulation(const AllConfig& /*config*/, const SideOptions& /*options*/) {
  return {dtype_text(kFloat32)};
}

// The router under either name: gates are normalised before tokens are dropped, as in V2.
Value routing_policy(const AllConfig& /*config*/, const SideOptions& /*options*/) {
  return {std::string("TopkRouterV2")};
}

Value fused_router(const AllConfig& /*config*/, const SideOptions& /*options*/) { return {true}; }

Value chat_template(const AllConfig& config, const SideOptions& /*options*/) {
  std::string mark = run_template(config);
  return mark.empty() ? Value() : Value(std::move(mark));
}

Value program_version(const AllConfig& /*config*/, const SideOptions& options) {
  return options.program.empty() ? Value() : Value(options.program);
}

constexpr ChecklistItem kItems[] = {
    {kStructure, "model_config.num_layers", Effect::kMeaning, kAnotherModel},
    {kStructure, "model_config.mtp_num_layers", Effect::kMeaning,
     "layers that predict further tokens train the model too"},
    {kStructure, "model_config.mtp_loss_scaling_factor", Effect::kMeaning,
     "another weight of the losses of further tokens"},
    {kStructure, "model_config.hidden_size", Effect::kMeaning, kAnotherModel},
    {kStructure, "model_config.num_attention_heads", Effect::kMeaning, kAnotherModel},
    {kStructure, "model_config.num_query_groups", Effect::kMeaning,
     "keys and values are shared by other heads (MHA, GQA, MQA): take the other side's value"},
    {kStructure, "model_config.kv_channels", Effect::kMeaning, kAnotherModel},
    {kStructure, "model_config.ffn_hidden_size", Effect::kMeaning, kAnotherModel},
    {.group = kStructure,
     .key = "model_config.vocab_size",
     .advice = "pad the smaller table with rows that no id reads, and mask their logits",
     .remark = vocabulary_remark},
    {kStructure, "model_config.seq_length", Effect::kMeaning,
     "other samples: take the same length"},
    {kStructure, "model_config.max_position_embeddings", Effect::kMeaning, kAnotherModel,
     Where::kLearned},
    {kStructure, "model_config.position_embedding_type", Effect::kMeaning, kSameForm},
    {kStructure, "model_config.rotary_config.rotary_base", Effect::kMeaning, kSameForm,
     Where::kRotary},
    {kStructure, "model_config.rotary_config.rotary_percent", Effect::kMeaning, kSameForm,
     Where::kRotary},
    {kStructure, "model_config.rotary_config.rotary_interleaved", Effect::kMeaning,
     "pairs are neighbours on one side and halves on the other: permute rows of wq and wk, or "
     "switch",
     Where::kRotary},
    {kStructure, "model_config.rotary_config.seq_len_interpolation_factor", Effect::kMeaning,
     kSameForm, Where::kRotary},
    {kStructure, "model_config.rotary_config.rope_type", Effect::kMeaning, kSameForm,
     Where::kRotary},
    {kStructure, "model_config.rotary_config.rope_scaling_factor", Effect::kMeaning, kSameForm,
     Where::kScaled},
    {kStructure, "model_config.rotary_config.low_freq_factor", Effect::kMeaning, kSameForm,
     Where::kScaled},
    {kStructure, "model_config.rotary_config.high_freq_factor", Effect::kMeaning, kSameForm,
     Where::kScaled},
    {kStructure, "model_config.rotary_config.original_max_position_embeddings", Effect::kMeaning,
     kSameForm, Where::kScaled},
    {kStructure, "model_config.rotary_config.beta_fast", Effect::kMeaning, kSameForm,
     Where::kScaled},
    {kStructure, "model_config.rotary_config.beta_slow", Effect::kMeaning, kSameForm,
     Where::kScaled},
    {kStructure, "model_config.rotary_config.truncate", Effect::kMeaning, kSameForm,
     Where::kScaled},
    {kStructure, "model_config.rotary_config.mscale", Effect::kMeaning, kSameForm, Where::kScaled},
    {kStructure, "model_config.rotary_config.mscale_all_dim", Effect::kMeaning, kSameForm,
     Where::kScaled},
    {kStructure, "model_config.rotary_config.mscale_on_angles", Effect::kMeaning, kSameForm,
     Where::kScaled},
    {kStructure, "model_config.rotary_config.attention_factor", Effect::kMeaning, kSameForm,
     Where::kScaled},
    {kStructure, "model_config.rotary_config.short_factor", Effect::kMeaning, kSameForm,
     Where::kScaled},
    {kStructure, "model_config.rotary_config.long_factor", Effect::kMeaning, kSameForm,
     Where::kScaled},
    {kStructure, "attention_pattern", Effect::kMeaning,
     "queries see other keys; a window of W tokens is window_size [W - 1, 0]", Where::kAlways,
     window},
    {kStructure, "model_config.normalization", Effect::kMeaning, kSameForm},
    {kStructure, "model_config.norm_epsilon", Effect::kMeaning, kSameForm},
    {kStructure, "model_config.qk_layernorm", Effect::kMeaning, kAnotherModel},
    {kStructure, "model_config.apply_residual_connection_post_norm", Effect::kMeaning, kSameForm},
    {kStructure, "model_config.use_final_norm", Effect::kMeaning, kAnotherModel},
    {kStructure, "model_config.use_sandwich_norm", Effect::kMeaning, kAnotherModel},
    {kStructure, "model_config.hidden_act", Effect::kMeaning,
     "another function; gelu is the one with erf, fast_gelu that with tanh"},
    {kStructure, "model_config.qkv_has_bias", Effect::kMeaning, kAnotherModel},
    {kStructure, "model_config.out_proj_has_bias", Effect::kMeaning, kAnotherModel},
    {kStructure, "model_config.mlp_has_bias", Effect::kMeaning, kAnotherModel},
    {kStructure, "model_config.untie_embeddings_and_output_weights", Effect::kMeaning,
     "the head is the token table on one side alone"},
    {kStructure, "model_config.score_head", Effect::kMeaning, "one side alone is a reward model"},
    {.group = kStructure,
     .key = "model_config.hidden_dropout",
     .advice = "set it to 0 on both sides to compare",
     .remark = dropout_remark},
    {.group = kStructure,
     .key = "model_config.attention_dropout",
     .advice = "set it to 0 on both sides to compare",
     .remark = dropout_remark},
    {kStructure, "model_config.apply_query_key_layer_scaling", Effect::kRounding,
     "scores are divided and multiplied again by the layer's number"},
    {kStructure, "fused_qkv", Effect::kRounding,
     "the same products in one matrix or three; mind the order of rows when weights are converted",
     Where::kAlways, fused_qkv},
    {kStructure, "fused_attention", Effect::kRounding, kSums, Where::kAlways, flash},
    {kStructure, "model_config.use_fused_kernels", Effect::kRounding, kSums},

    {kExpertsGroup, "moe_config.num_experts", Effect::kMeaning, kAnotherModel, Where::kExperts,
     experts},
    {kExpertsGroup, "moe_config.moe_router_topk", Effect::kMeaning, kRouting, Where::kExperts},
    {kExpertsGroup, "moe_layers", Effect::kMeaning, kAnotherModel, Where::kExperts, expert_layers},
    {kExpertsGroup, "moe_config.moe_ffn_hidden_size", Effect::kMeaning, kAnotherModel,
     Where::kExperts, expert_width},
    {kExpertsGroup, "moe_config.moe_shared_expert_intermediate_size", Effect::kMeaning,
     kAnotherModel, Where::kExperts},
    {kExpertsGroup, "moe_config.use_shared_expert_gating", Effect::kMeaning, kAnotherModel,
     Where::kExperts},
    {kExpertsGroup, "moe_config.moe_router_score_function", Effect::kMeaning, kRouting,
     Where::kExperts},
    {kExpertsGroup, "moe_config.moe_router_pre_softmax", Effect::kMeaning, kRouting,
     Where::kExperts, softmax_of_all},
    {kExpertsGroup, "routing_policy", Effect::kMeaning,
     "TopkRouterV1 normalises gates after tokens are dropped, and lets a token choose a full "
     "expert "
     "again: TopkRouterV2 on that side",
     Where::kExperts, routing_policy},
    {kExpertsGroup, "use_fused_ops_topkrouter", Effect::kRounding,
     "the same choice by another kernel; switch it on there to compare", Where::kExperts,
     fused_router},
    {kExpertsGroup, "moe_config.norm_topk_prob", Effect::kMeaning, kRouting, Where::kExperts,
     gates_add_up},
    {kExpertsGroup, "moe_config.moe_router_topk_scaling_factor", Effect::kMeaning, kRouting,
     Where::kExperts},
    {kExpertsGroup, "moe_config.moe_apply_probs_on_input", Effect::kMeaning, kSameForm,
     Where::kExperts},
    {kExpertsGroup, "moe_config.topk_method", Effect::kMeaning, kRouting, Where::kExperts},
    {kExpertsGroup, "moe_config.moe_router_num_groups", Effect::kMeaning, kRouting,
     Where::kExperts},
    {kExpertsGroup, "moe_config.moe_router_group_topk", Effect::kMeaning, kRouting,
     Where::kExperts},
    {kExpertsGroup, "moe_config.moe_router_enable_expert_bias", Effect::kMeaning, kRouting,
     Where::kExperts},
    {.group = kExpertsGroup,
     .key = "moe_config.moe_expert_capacity_factor",
     .advice = "tokens are dropped on one side; a factor from 1 to experts / topk, or none on both",
     .where = Where::kExperts,
     .remark = capacity_remark},
    {kExpertsGroup, "moe_config.moe_token_drop_policy", Effect::kMeaning,
     "other tokens are dropped: position on both sides, with a capacity", Where::kExperts},
    {.group = kExpertsGroup,
     .key = "moe_config.moe_aux_loss_coeff",
     .advice = "set it to 0 on both sides to compare",
     .where = Where::kExperts,
     .remark = loss_remark,
     .zero_is_none = true},
    {.group = kExpertsGroup,
     .key = "moe_config.moe_z_loss_coeff",
     .advice = "set it to 0 on both sides to compare",
     .where = Where::kExperts,
     .remark = loss_remark,
     .zero_is_none = true},
    {kExpertsGroup, "moe_config.router_dense_type", Effect::kMeaning,
     "routers choose otherwise where scores are close: float32 on both sides", Where::kExperts},

    {kOptimizer, "optimizer_config.optimizer_type", Effect::kMeaning,
     "Adam of Megatron is AdamW here; Adam adds the decay to the gradient"},
    {kOptimizer, "optimizer_config.learning_rate", Effect::kMeaning, kUpdate},
    {kOptimizer, "optimizer_config.weight_decay", Effect::kMeaning, kUpdate},
    {kOptimizer, "optimizer_config.start_weight_decay", Effect::kMeaning, kDecayCourse},
    {kOptimizer, "optimizer_config.end_weight_decay", Effect::kMeaning, kDecayCourse},
    {kOptimizer, "beta1", Effect::kMeaning,
     "bias correction hides it after one step; it shows from the second on", Where::kAlways, beta1},
    {kOptimizer, "beta2", Effect::kMeaning,
     "bias correction hides it after one step; it shows from the second on", Where::kAlways, beta2},
    {kOptimizer, "optimizer_config.eps", Effect::kMeaning,
     "elements with small gradients move otherwise: 1e-08 on both sides"},
    {kOptimizer, "gradient_clipping", Effect::kMeaning, "0: none; the usual norm is 1.0",
     Where::kAlways, clipping},
    {kOptimizer, "global_batch_size", Effect::kMeaning,
     "sequences of a step: batch size, micro-batches and data-parallel ranks together",
     Where::kAlways, global_batch},
    {kOptimizer, "training_steps", Effect::kMeaning, "schedules are stretched over the run",
     Where::kAlways, steps},
    {kOptimizer, "training_config.calculate_per_token_loss", Effect::kMeaning,
     "means over tokens of a step, or of micro-batches one by one"},
    {kOptimizer, "dataset_config.eod_mask_loss", Effect::kMeaning,
     "the ends of documents count in one loss alone"},
    {kOptimizer, "dataset_config.reset_attention_mask", Effect::kMeaning,
     "tokens see earlier documents on one side alone"},
    {kOptimizer, "dataset_config.reset_position_ids", Effect::kMeaning,
     "positions begin again at each document on one side alone"},

    {kWeights, "model_config.params_dtype", Effect::kMeaning,
     "weights in float32 on both sides to compare; gradients may be communicated in this dtype"},
    {kWeights, "embedding_dtype", Effect::kMeaning, kSameDtype, Where::kAlways, embedding_dtype},
    {kWeights, "model_config.init_method_std", Effect::kStart,
     "start values differ unless both load the same weights"},
    {kWeights, "training_config.seed", Effect::kStart,
     "start values and data order differ, unless both load the same weights and the same steps"},

    {kPrecision, "model_config.compute_dtype", Effect::kMeaning, kSameDtype},
    {kPrecision, "model_config.layernorm_compute_dtype", Effect::kMeaning, kSameDtype},
    {kPrecision, "softmax_dtype", Effect::kMeaning, kSameDtype, Where::kAlways, softmax_dtype},
    {kPrecision, "model_config.rotary_dtype", Effect::kMeaning, kSameDtype, Where::kRotary},
    {kPrecision, "residual_dtype", Effect::kMeaning, kSameDtype, Where::kAlways, residual_dtype},
    {kPrecision, "bias_add_dtype", Effect::kMeaning, kSameDtype, Where::kAlways, compute_dtype},
    {kPrecision, "embedding_and_head_dtype", Effect::kMeaning, kSameDtype, Where::kAlways,
     compute_dtype},
    {kPrecision, "product_sums_dtype", Effect::kRounding,
     "products of matrices are summed in another dtype: switch on high-precision kernels",
     Where::kAlways, accumulation},
    {kPrecision, "loss_dtype", Effect::kMeaning, kSameDtype, Where::kAlways, loss_dtype},
    {kPrecision, "gradient_dtype", Effect::kRounding,
     "gradients are summed over micro-batches and ranks in another dtype", Where::kAlways,
     gradient_dtype},
    {kPrecision, "loss_scale", Effect::kRounding,
     "a power of two moves nothing but overflow and underflow", Where::kLossScale, scale},

    {kParallel, "data_parallel_size", Effect::kRounding, kSums, Where::kAlways, ranks},
    {kParallel, "micro_batches", Effect::kRounding, kSums, Where::kAlways, micro_batches},
    {kParallel, "parallel_config.tensor_model_parallel_size", Effect::kRounding, kSums},
    {kParallel, "parallel_config.pipeline_model_parallel_size", Effect::kRounding, kSums},
    {kParallel, "parallel_config.context_parallel_size", Effect::kRounding, kSums},
    {kParallel, "parallel_config.sequence_parallel", Effect::kRounding, kSums},
    {kParallel, "parallel_config.expert_model_parallel_size", Effect::kRounding, kSums,
     Where::kExperts},
    {kParallel, "expert_tensor_parallel_size", Effect::kRounding, kSums, Where::kExperts,
     expert_ranks},
    {kParallel, "zero_level", Effect::kRounding, "off on both sides to compare step by step",
     Where::kAlways, sharding},

    {.group = kOther,
     .key = "parallel_config.deterministic_mode",
     .effect = Effect::kRounding,
     .advice = "switch it on where it is off, to compare step by step",
     .of = always_deterministic},
    {kOther, "chat_template", Effect::kMeaning,
     "conversations become other texts: the same template in training, in inference and on both "
     "sides",
     Where::kTemplate, chat_template},
    {kOther, "program_version", Effect::kRounding,
     "another program, or another version of it: keep both in your notes, as defaults change "
     "between versions",
     Where::kAlways, program_version},
    {kOther, "overflow_mode", Effect::kMeaning,
     "infinities on one side, saturation at the largest number on the other", Where::kAlways,
     overflow_mode},
    {kOther, "graph_fusion", Effect::kRounding, "switch it off to compare", Where::kAlways,
     graph_fusion},
};

}  // namespace
}  // namespace checklist_items_file

std::span<const ChecklistItem> checklist_items() { return checklist_items_file::kItems; }

std::string expert_layers_text(int64_t layers, const std::function<bool(int64_t)>& has_experts) {
  if (layers > kMostListedLayers) {
    return concat(layers, " layers");
  }
  std::string text;
  for (int64_t layer = 0; layer < layers; ++layer) {
    text += has_experts(layer) ? '1' : '0';
  }
  return text;
}

std::vector<ParameterKind> parameter_kinds(const AllConfig& config) {
  const TransformerConfig& model = config.model_config;
  const bool norm_biases = model.normalization == "LayerNorm";
  bool dense = false;
  bool experts = false;
  for (int64_t layer = 0; layer < std::min(model.num_layers, kMostListedLayers); ++layer) {
    (is_moe_layer(model, layer) ? experts : dense) = true;
  }
  std::vector<ParameterKind> kinds = {{"tok_embeddings.weight"}};
  const auto add = [&](bool has, const ParameterKind& kind) {
    if (has) {
      kinds.push_back(kind);
    }
  };
  add(model.position_embedding_type == "learned_absolute", {"pos_embeddings.weight"});
  add(true, {"layers.*.attention_norm.weight", true});
  add(norm_biases, {"layers.*.attention_norm.bias", true});
  add(true, {"layers.*.attention.w*.weight"});
  add(model.qkv_has_bias || model.out_proj_has_bias, {"layers.*.attention.w*.bias", true});
  add(model.qk_layernorm, {"layers.*.attention.{q,k}_norm.weight", true, true});
  add(true, {"layers.*.ffn_norm.weight", true});
  add(norm_biases, {"layers.*.ffn_norm.bias", true});
  add(dense, {"layers.*.feed_forward.w_*.weight"});
  add(dense && model.mlp_has_bias, {"layers.*.feed_forward.w_*.bias", true});
  add(experts, {"layers.*.moe.router.weight"});
  add(experts, {"layers.*.moe.experts.*.weight"});
  add(model.use_final_norm, {"final_norm.weight", true});
  add(model.use_final_norm && norm_biases, {"final_norm.bias", true});
  add(model.untie_embeddings_and_output_weights && !model.score_head, {"lm_head.weight"});
  add(model.score_head, {"score.weight"});
  return kinds;
}

std::optional<double> weight_decay_of(const ChecklistSide& side, const ParameterKind& kind) {
  const auto found = side.values.find("optimizer_config.weight_decay");
  if (found == side.values.end() || side.decay_rule == DecayRule::kUnknown ||
      !found->second.is<double>()) {
    return std::nullopt;
  }
  const bool decays = !kind.norm_or_bias ||
                      (kind.qk_norm && side.decay_rule == DecayRule::kNotNormsAndBiasesButQkNorm);
  return decays ? found->second.as<double>() : 0;
}

}  // namespace tapestry::accuracy
