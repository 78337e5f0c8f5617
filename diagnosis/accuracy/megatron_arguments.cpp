// Arguments of Megatron-LM as a side of the checklist.
#include <cmath>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/checklist_items.h"
#include "diagnosis/accuracy/checklist_side.h"
#include "diagnosis/accuracy/megatron_words.h"
#include "parallel_core/optimizer/optimizer_param_scheduler.h"

namespace tapestry::accuracy {
namespace megatron {
namespace {

using config::Value;

void add_model(const Arguments& args, ChecklistSide& side) {
  auto& values = side.values;
  const bool gated = args.on("swiglu");
  if (args.has("hidden_size")) {
    const int64_t hidden = args.integer("hidden_size");
    // 4 h, and for gated ones two thirds of it, in steps of 64.
    constexpr int64_t kStep = 64;
    const auto usual =
        gated ? static_cast<int64_t>(4.0 * static_cast<double>(hidden) * 2 / 3) / kStep * kStep
              : 4 * hidden;
    values["model_config.ffn_hidden_size"] =
        Value(args.maybe_integer("ffn_hidden_size").value_or(usual));
    if (args.has("num_attention_heads") && args.integer("num_attention_heads") > 0) {
      values["model_config.kv_channels"] = Value(
          args.maybe_integer("kv_channels").value_or(hidden / args.integer("num_attention_heads")));
    }
  }
  if (args.has("num_attention_heads")) {
    values["model_config.num_query_groups"] = Value(args.integer(
        args.on("group_query_attention") ? "num_query_groups" : "num_attention_heads"));
  }
  const bool biases = args.on("add_bias_linear");
  values["model_config.qkv_has_bias"] = Value(biases || args.on("add_qkv_bias"));
  values["model_config.out_proj_has_bias"] = Value(biases);
  values["model_config.mlp_has_bias"] = Value(biases);
  // Its fused addition of the bias has the gelu with tanh.
  const bool tanh = args.on("openai_gelu") || (args.on("bias_gelu_fusion") && biases);
  values["model_config.hidden_act"] = Value(std::string(gated                     ? "swiglu"
                                                        : args.on("squared_relu") ? "squared_relu"
                                                        : tanh                    ? "fast_gelu"
                                                                                  : "gelu"));
  if (args.text("position_embedding_type") == "rope" || args.is_written("rotary_base")) {
    values["model_config.rotary_config.seq_len_interpolation_factor"] =
        args.has("rotary_seq_len_interpolation_factor")
            ? Value(args.number("rotary_seq_len_interpolation_factor"))
            : Value(std::string("none"));
    const bool llama3 = args.on("use_rope_scaling");
    values["model_config.rotary_config.rope_type"] =
        Value(std::string(llama3 ? "llama3" : "default"));
    if (llama3) {  // the other three are constants there
      const RotaryConfig constants;
      values["model_config.rotary_config.rope_scaling_factor"] =
          Value(args.number("rope_scaling_factor"));
      values["model_config.rotary_config.low_freq_factor"] = Value(constants.low_freq_factor);
      values["model_config.rotary_config.high_freq_factor"] = Value(constants.high_freq_factor);
      values["model_config.rotary_config.original_max_position_embeddings"] =
          Value(constants.original_max_position_embeddings);
    }
  }
  values["model_config.use_final_norm"] = Value(true);
  values["model_config.use_sandwich_norm"] = Value(false);
  values["fused_qkv"] = Value(true);
  if (!args.is_written("window_size")) {
    values["attention_pattern"] = Value(std::string("causal"));
  }
  if (args.has("padded_vocab_size")) {
    values["model_config.vocab_size"] = Value(args.integer("padded_vocab_size"));
  } else if (args.has("vocab_size")) {
    const int64_t step =
        args.integer("make_vocab_size_divisible_by") * args.integer("tensor_model_parallel_size");
    check<ValueError>(step > 0, side.file, ": make_vocab_size_divisible_by times ",
                      "tensor_model_parallel_size is ", step, "; expected a number above 0");
    const int64_t rows = args.integer("vocab_size");
    values["model_config.vocab_size"] = Value((rows + step - 1) / step * step);
    side.notes.push_back(concat("vocab_size ", rows, " is padded to a multiple of ", step));
  }
}

void add_experts(const Arguments& args, ChecklistSide& side) {
  auto& values = side.values;
  const auto number_or_none = [&](const char* name) {
    return args.has(name) ? Value(args.number(name)) : Value(std::string("none"));
  };
  // A pattern in Python is not understood.
  const std::string freq = args.text("moe_layer_freq");
  if (args.has("num_layers") && freq.find_first_not_of("0123456789") == std::string::npos) {
    const int64_t every = args.integer("moe_layer_freq");
    check<ValueError>(every > 0, side.file, ": moe_layer_freq is '", freq,
                      "'; expected a number above 0");
    values["moe_layers"] = Value(expert_layers_text(
        args.integer("num_layers"), [&](int64_t layer) { return layer % every == 0; }));
  }
  if (args.has("moe_ffn_hidden_size")) {
    values["moe_config.moe_ffn_hidden_size"] = Value(args.integer("moe_ffn_hidden_size"));
  } else if (values.contains("model_config.ffn_hidden_size")) {
    values["moe_config.moe_ffn_hidden_size"] = values["model_config.ffn_hidden_size"];
  }
  values["moe_config.moe_shared_expert_intermediate_size"] =
      args.has("moe_shared_expert_intermediate_size")
          ? Value(args.integer("moe_shared_expert_intermediate_size"))
          : Value(std::string("none"));
  values["moe_config.moe_expert_capacity_factor"] = number_or_none("moe_expert_capacity_factor");
  values["moe_config.moe_z_loss_coeff"] = number_or_none("moe_z_loss_coeff");
  if (args.has("moe_router_dtype")) {
    const std::string dtype = args.text("moe_router_dtype");
    values["moe_config.router_dense_type"] = Value(dtype == "fp32"   ? "float32"
                                                   : dtype == "fp64" ? std::string("float64")
                                                                     : dtype);
  }
}

void add_precision(const Arguments& args, ChecklistSide& side) {
  auto& values = side.values;
  const bool half = args.on("fp16");
  const bool brain = args.on("bf16");
  check<ValueError>(!half || !brain, side.file, ": fp16 and bf16 are both given; keep one");
  const std::string compute = brain ? "bfloat16" : half ? "float16" : "float32";
  // Weights are kept in the compute dtype, with masters in float32 in the optimizer.
  values["model_config.compute_dtype"] = Value(compute);
  values["model_config.params_dtype"] = Value(compute);
  values["embedding_dtype"] = Value(compute);
  values["bias_add_dtype"] = Value(compute);
  values["embedding_and_head_dtype"] = Value(compute);
  values["residual_dtype"] =
      Value(args.on("fp32_residual_connection") ? std::string("float32") : compute);
  const bool soft =
      args.on("attention_softmax_in_fp32") || args.on("apply_query_key_layer_scaling");
  values["softmax_dtype"] = Value(soft ? std::string("float32") : compute);
  values["loss_dtype"] =
      Value(std::string(args.on("fp16_lm_cross_entropy") && half ? "float16" : "float32"));
  // With bf16 it sets this itself.
  values["gradient_dtype"] = Value(
      args.on("accumulate_allreduce_grads_in_fp32") || brain ? std::string("float32") : compute);
  values["loss_scale"] =
      args.has("loss_scale") ? Value(args.number("loss_scale")) : Value(std::string("dynamic"));
  values["overflow_mode"] = Value(std::string("INF/NaN"));
  values["zero_level"] = Value(int64_t{args.on("use_distributed_optimizer") ? 1 : 0});
}

void add_schedule(const Arguments& args, ChecklistSide& side) {
  const std::string optimizer = args.text("optimizer");
  side.values["optimizer_config.optimizer_type"] = Value(optimizer == "adam"  ? "AdamW"
                                                         : optimizer == "sgd" ? std::string("SGD")
                                                                              : optimizer);
  for (const char* name : {"start_weight_decay", "end_weight_decay"}) {
    side.values[concat("optimizer_config.", name)] =
        Value(args.number(args.has(name) ? name : "weight_decay"));
  }
  side.decay_rule = DecayRule::kNotNormsAndBiases;
  if (args.has("no_weight_decay_cond_type")) {
    const std::string rule = args.text("no_weight_decay_cond_type");
    side.decay_rule = rule == "apply_wd_to_qk_layernorm" ? DecayRule::kNotNormsAndBiasesButQkNorm
                                                         : DecayRule::kUnknown;
  }
  const std::optional<int64_t> batch = args.maybe_integer("global_batch_size");
  std::optional<int64_t> iterations = args.maybe_integer("train_iters");
  const std::optional<int64_t> samples = args.maybe_integer("train_samples");
  if (!iterations && samples && batch && *batch > 0) {
    side.steps = *samples / *batch;
  } else {
    side.steps = iterations;
  }
  if (side.steps) {
    side.values["training_steps"] = Value(*side.steps);
  }
  if (batch && args.has("micro_batch_size") && args.has("data_parallel_size")) {
    const int64_t rows = args.integer("micro_batch_size") * args.integer("data_parallel_size");
    check<ValueError>(rows > 0 && *batch % rows == 0, side.file, ": global_batch_size ", *batch,
                      " is no multiple of micro_batch_size times data_parallel_size, ", rows);
    side.values["micro_batches"] = Value(*batch / rows);
  }
  if (!args.has("lr") || !side.steps) {
    return;
  }
  const OptimizerParamSchedulerOptions options{
      .learning_rate = args.number("lr"),
      .min_lr = args.number("min_lr"),
      .lr_warmup_init = args.number("lr_warmup_init"),
      .lr_decay_style = args.text("lr_decay_style"),
      .lr_wsd_decay_style = args.text("lr_wsd_decay_style"),
      .weight_decay = args.number("weight_decay"),
      .lr_warmup_fraction = args.has("lr_warmup_fraction")
                                ? std::optional(args.number("lr_warmup_fraction"))
                                : std::nullopt,
      .global_batch_size = batch.value_or(1),
      .training_iters = iterations.value_or(0),
      .lr_warmup_iters = args.integer("lr_warmup_iters"),
      .lr_decay_iters = args.maybe_integer("lr_decay_iters"),
      .lr_wsd_decay_iters = args.maybe_integer("lr_wsd_decay_iters"),
      .train_samples = samples.value_or(0),
      .lr_warmup_samples = args.integer("lr_warmup_samples"),
      .lr_decay_samples = args.maybe_integer("lr_decay_samples"),
      .lr_wsd_decay_samples = args.maybe_integer("lr_wsd_decay_samples")};
  try {
    const auto schedule = std::make_shared<const OptimizerParamScheduler>(options);
    side.learning_rate = [schedule](int64_t step) {
      return schedule->learning_rate({.applied = step - 1, .seen = step - 1});
    };
  } catch (const ValueError& error) {
    throw ValueError(concat(side.file, ": ", error.what()));
  }
}

}  // namespace
}  // namespace megatron

bool looks_like_megatron(const std::string& text) {
  constexpr int kEnough = 2;
  return megatron::count_known(text) >= kEnough;
}

ChecklistSide read_megatron_arguments(const std::string& text, const std::string& file) {
  ChecklistSide side{.kind = SideKind::kMegatron, .file = file};
  const megatron::Arguments args(text, file);
  for (const megatron::Argument& argument : megatron::known_arguments()) {
    if (!argument.key.empty() && args.has(std::string(argument.name))) {
      side.values[std::string(argument.key)] = args.value(argument);
    }
  }
  megatron::add_model(args, side);
  megatron::add_experts(args, side);
  megatron::add_precision(args, side);
  megatron::add_schedule(args, side);
  return side;
}

}  // namespace tapestry::accuracy
