// Arguments of Megatron-LM's pretrain_gpt.py, as a command line or as JSON of their names.
//
// Source of names and defaults: megatron/training/arguments.py of Megatron-LM core 0.8 to 0.12, and
// for the groups of weight decay megatron/core/optimizer/__init__.py.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <string_view>
#include <utility>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/checklist_items.h"
#include "diagnosis/accuracy/checklist_side.h"
#include "parallel_core/optimizer/optimizer_param_scheduler.h"

namespace tapestry::accuracy {
namespace megatron {
namespace {

using config::Value;
using Json = nlohmann::json;

enum class Kind : uint8_t { kInteger, kNumber, kText, kSwitch };

struct Argument {
  std::string_view name;  // as in the program: "num_layers"
  Kind kind;
  std::string_view fallback;  // as it would be written; "-": it has none, and must be said
  std::string_view key = {};  // of the item whose value it is, where no more is to be done
};

constexpr std::string_view kNone = "-";

// What an item needs. Others are not understood, and need not be.
constexpr Argument kArguments[] = {
    {"num_layers", Kind::kInteger, kNone, "model_config.num_layers"},
    {"hidden_size", Kind::kInteger, kNone, "model_config.hidden_size"},
    {"ffn_hidden_size", Kind::kInteger, kNone},
    {"num_attention_heads", Kind::kInteger, kNone, "model_config.num_attention_heads"},
    {"kv_channels", Kind::kInteger, kNone},
    {"group_query_attention", Kind::kSwitch, "false"},
    {"num_query_groups", Kind::kInteger, "1"},
    {"seq_length", Kind::kInteger, kNone, "model_config.seq_length"},
    {"max_position_embeddings", Kind::kInteger, kNone, "model_config.max_position_embeddings"},
    {"position_embedding_type", Kind::kText, "learned_absolute",
     "model_config.position_embedding_type"},
    {"rotary_base", Kind::kNumber, "10000", "model_config.rotary_config.rotary_base"},
    {"rotary_percent", Kind::kNumber, "1.0", "model_config.rotary_config.rotary_percent"},
    {"rotary_interleaved", Kind::kSwitch, "false", "model_config.rotary_config.rotary_interleaved"},
    {"rotary_seq_len_interpolation_factor", Kind::kNumber, kNone},
    {"use_rope_scaling", Kind::kSwitch, "false"},
    {"rope_scaling_factor", Kind::kNumber, "8.0"},
    {"normalization", Kind::kText, "LayerNorm", "model_config.normalization"},
    {"norm_epsilon", Kind::kNumber, "1e-5", "model_config.norm_epsilon"},
    {"apply_residual_connection_post_layernorm", Kind::kSwitch, "false",
     "model_config.apply_residual_connection_post_norm"},
    {"qk_layernorm", Kind::kSwitch, "false", "model_config.qk_layernorm"},
    {"swiglu", Kind::kSwitch, "false"},
    {"squared_relu", Kind::kSwitch, "false"},
    {"openai_gelu", Kind::kSwitch, "false"},
    {"bias_gelu_fusion", Kind::kSwitch, "true"},
    {"add_bias_linear", Kind::kSwitch, "true"},
    {"add_qkv_bias", Kind::kSwitch, "false"},
    {"untie_embeddings_and_output_weights", Kind::kSwitch, "false",
     "model_config.untie_embeddings_and_output_weights"},
    {"padded_vocab_size", Kind::kInteger, kNone},
    {"vocab_size", Kind::kInteger, kNone},
    {"make_vocab_size_divisible_by", Kind::kInteger, "128"},
    {"hidden_dropout", Kind::kNumber, "0.1", "model_config.hidden_dropout"},
    {"attention_dropout", Kind::kNumber, "0.1", "model_config.attention_dropout"},
    {"apply_query_key_layer_scaling", Kind::kSwitch, "false",
     "model_config.apply_query_key_layer_scaling"},
    {"use_flash_attn", Kind::kSwitch, "false", "fused_attention"},
    {"window_size", Kind::kText, kNone},

    {"num_experts", Kind::kInteger, "1", "moe_config.num_experts"},
    {"moe_router_topk", Kind::kInteger, "2", "moe_config.moe_router_topk"},
    {"moe_ffn_hidden_size", Kind::kInteger, kNone},
    {"moe_layer_freq", Kind::kText, "1"},
    {"moe_shared_expert_intermediate_size", Kind::kInteger, kNone},
    {"moe_router_score_function", Kind::kText, "softmax", "moe_config.moe_router_score_function"},
    {"moe_router_pre_softmax", Kind::kSwitch, "false", "moe_config.moe_router_pre_softmax"},
    {"moe_router_topk_scaling_factor", Kind::kNumber, "1.0",
     "moe_config.moe_router_topk_scaling_factor"},
    {"moe_router_enable_expert_bias", Kind::kSwitch, "false",
     "moe_config.moe_router_enable_expert_bias"},
    {"moe_expert_capacity_factor", Kind::kNumber, kNone},
    {"moe_token_drop_policy", Kind::kText, "probs", "moe_config.moe_token_drop_policy"},
    {"moe_aux_loss_coeff", Kind::kNumber, "0.0", "moe_config.moe_aux_loss_coeff"},
    {"moe_z_loss_coeff", Kind::kNumber, kNone},
    {"moe_router_dtype", Kind::kText, kNone},

    {"optimizer", Kind::kText, "adam"},
    {"lr", Kind::kNumber, kNone, "optimizer_config.learning_rate"},
    {"min_lr", Kind::kNumber, "0.0"},
    {"lr_decay_style", Kind::kText, "linear"},
    {"lr_wsd_decay_style", Kind::kText, "exponential"},
    {"lr_decay_iters", Kind::kInteger, kNone},
    {"lr_decay_samples", Kind::kInteger, kNone},
    {"lr_wsd_decay_iters", Kind::kInteger, kNone},
    {"lr_wsd_decay_samples", Kind::kInteger, kNone},
    {"lr_warmup_fraction", Kind::kNumber, kNone},
    {"lr_warmup_iters", Kind::kInteger, "0"},
    {"lr_warmup_samples", Kind::kInteger, "0"},
    {"lr_warmup_init", Kind::kNumber, "0.0"},
    {"weight_decay", Kind::kNumber, "0.01", "optimizer_config.weight_decay"},
    {"start_weight_decay", Kind::kNumber, kNone},
    {"end_weight_decay", Kind::kNumber, kNone},
    {"no_weight_decay_cond_type", Kind::kText, kNone},
    {"adam_beta1", Kind::kNumber, "0.9", "beta1"},
    {"adam_beta2", Kind::kNumber, "0.999", "beta2"},
    {"adam_eps", Kind::kNumber, "1e-8", "optimizer_config.eps"},
    {"clip_grad", Kind::kNumber, "1.0", "gradient_clipping"},
    {"micro_batch_size", Kind::kInteger, kNone},
    {"global_batch_size", Kind::kInteger, kNone, "global_batch_size"},
    {"train_iters", Kind::kInteger, kNone},
    {"train_samples", Kind::kInteger, kNone},
    {"calculate_per_token_loss", Kind::kSwitch, "false",
     "training_config.calculate_per_token_loss"},
    {"eod_mask_loss", Kind::kSwitch, "false", "dataset_config.eod_mask_loss"},
    {"reset_attention_mask", Kind::kSwitch, "false", "dataset_config.reset_attention_mask"},
    {"reset_position_ids", Kind::kSwitch, "false", "dataset_config.reset_position_ids"},
    {"init_method_std", Kind::kNumber, "0.02", "model_config.init_method_std"},
    {"seed", Kind::kInteger, "1234", "training_config.seed"},

    {"bf16", Kind::kSwitch, "false"},
    {"fp16", Kind::kSwitch, "false"},
    {"loss_scale", Kind::kNumber, kNone},
    {"attention_softmax_in_fp32", Kind::kSwitch, "false"},
    {"fp32_residual_connection", Kind::kSwitch, "false"},
    {"accumulate_allreduce_grads_in_fp32", Kind::kSwitch, "false"},
    {"fp16_lm_cross_entropy", Kind::kSwitch, "false"},

    {"data_parallel_size", Kind::kInteger, kNone, "data_parallel_size"},
    {"tensor_model_parallel_size", Kind::kInteger, "1",
     "parallel_config.tensor_model_parallel_size"},
    {"pipeline_model_parallel_size", Kind::kInteger, "1",
     "parallel_config.pipeline_model_parallel_size"},
    {"context_parallel_size", Kind::kInteger, "1", "parallel_config.context_parallel_size"},
    {"expert_model_parallel_size", Kind::kInteger, "1",
     "parallel_config.expert_model_parallel_size"},
    {"expert_tensor_parallel_size", Kind::kInteger, kNone, "expert_tensor_parallel_size"},
    {"sequence_parallel", Kind::kSwitch, "false", "parallel_config.sequence_parallel"},
    {"use_distributed_optimizer", Kind::kSwitch, "false"},
    {"deterministic_mode", Kind::kSwitch, "false", "parallel_config.deterministic_mode"},
};

// Options that switch an argument off, under the names of the command line.
constexpr std::pair<std::string_view, std::string_view> kOff[] = {
    {"disable_bias_linear", "add_bias_linear"},
    {"no_bias_gelu_fusion", "bias_gelu_fusion"},
};

// Other names of the same: earlier releases'.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"layernorm_epsilon", "norm_epsilon"},
    {"model_parallel_size", "tensor_model_parallel_size"},
    {"num_moe_experts", "num_experts"},
};

const Argument* find_argument(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kArguments), std::end(kArguments),
                   [&](const Argument& argument) { return argument.name == name; });
  return found == std::end(kArguments) ? nullptr : found;
}

std::string plain_name(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  for (const auto& [other, ours] : kAliases) {
    if (name == other) {
      return std::string(ours);
    }
  }
  return name;
}

std::string_view switched_off(std::string_view name) {
  for (const auto& [off, argument] : kOff) {
    if (name == off) {
      return argument;
    }
  }
  return {};
}

// Words of a command line or of a script that holds one: without comments, quotes, and what joins
// lines.
std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t comment = line.find('#');
    line = line.substr(0, comment == 0 || (comment != std::string::npos &&
                                           (line[comment - 1] == ' ' || line[comment - 1] == '\t'))
                              ? comment
                              : std::string::npos);
    for (char& letter : line) {
      letter = letter == '"' || letter == '\'' || letter == '\\' || letter == '(' ||
                       letter == ')' || letter == '\r'
                   ? ' '
                   : letter;
    }
    std::istringstream parts(line);
    for (std::string word; parts >> word;) {
      words.push_back(word);
    }
  }
  return words;
}

bool is_option(const std::string& word) {
  return word.size() > 2 && word.starts_with("--") &&
         std::isalpha(static_cast<unsigned char>(word[2])) != 0;
}

// What was written, by argument: texts as on a command line.
std::map<std::string, std::string> written_words(const std::string& text, const std::string& file) {
  std::map<std::string, std::string> written;
  const std::vector<std::string> words = words_of(text);
  for (size_t i = 0; i < words.size(); ++i) {
    if (!is_option(words[i])) {
      continue;
    }
    const size_t equals = words[i].find('=');
    const std::string name = plain_name(words[i].substr(2, equals - 2));
    if (const std::string_view off = switched_off(name); !off.empty()) {
      written[std::string(off)] = "false";
      continue;
    }
    const Argument* argument = find_argument(name);
    if (argument == nullptr) {
      continue;
    }
    if (argument->kind == Kind::kSwitch) {
      written[name] = "true";
    } else if (equals != std::string::npos) {
      written[name] = words[i].substr(equals + 1);
    } else {
      check<ValueError>(i + 1 < words.size() && !is_option(words[i + 1]), file, ": ", words[i],
                        ": a value is missing behind it");
      written[name] = words[i + 1];
    }
  }
  return written;
}

std::map<std::string, std::string> written_json(const Json& json, const std::string& file) {
  std::map<std::string, std::string> written;
  for (const auto& [given, value] : json.items()) {
    const std::string name = plain_name(given);
    if (const std::string_view off = switched_off(name); !off.empty()) {
      check<ValueError>(value.is_boolean(), file, ": ", given, " is ", value.dump(),
                        "; expected true or false");
      written[std::string(off)] = value.get<bool>() ? "false" : "true";
    } else if (find_argument(name) != nullptr && !value.is_null()) {
      written[name] = value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  return written;
}

// Typed access to what was written, or its default.
class Arguments {
 public:
  Arguments(std::map<std::string, std::string> written, std::string file)
      : written_(std::move(written)), file_(std::move(file)) {}

  bool has(const std::string& name) const {
    return written_.contains(name) || find_argument(name)->fallback != kNone;
  }
  bool is_written(const std::string& name) const { return written_.contains(name); }
  std::string text(const std::string& name) const {
    const auto found = written_.find(name);
    return found == written_.end() ? std::string(find_argument(name)->fallback) : found->second;
  }
  double number(const std::string& name) const {
    const std::string value = text(name);
    char* end = nullptr;
    const double parsed = std::strtod(value.c_str(), &end);
    check<ValueError>(!value.empty() && *end == '\0' && std::isfinite(parsed), file_, ": ", name,
                      " is '", value, "'; expected a number",
                      value.starts_with("$") ? ": write out what the variable stands for" : "");
    return parsed;
  }
  int64_t integer(const std::string& name) const {
    // What is multiplied with others is small, samples need not be.
    const double most = name.ends_with("_samples") ? 9e15 : 2147483647;
    const double value = number(name);
    check<ValueError>(value == std::floor(value) && std::abs(value) <= most, file_, ": ", name,
                      " is '", text(name), "'; expected a whole number of at most ", most);
    return static_cast<int64_t>(value);
  }
  bool on(const std::string& name) const {
    const std::string value = text(name);
    check<ValueError>(value == "true" || value == "false", file_, ": ", name, " is '", value,
                      "'; expected true or false");
    return value == "true";
  }
  std::optional<int64_t> maybe_integer(const std::string& name) const {
    return has(name) ? std::optional(integer(name)) : std::nullopt;
  }
  Value value(const Argument& argument) const {
    const std::string name(argument.name);
    switch (argument.kind) {
      case Kind::kInteger:
        return {integer(name)};
      case Kind::kNumber:
        return {number(name)};
      case Kind::kSwitch:
        return {on(name)};
      case Kind::kText:
        break;
    }
    return {text(name)};
  }

 private:
  std::map<std::string, std::string> written_;
  std::string file_;
};

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
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  int known = 0;
  if (json.is_object()) {
    for (const auto& [name, value] : json.items()) {
      known += megatron::find_argument(megatron::plain_name(name)) != nullptr ? 1 : 0;
    }
    return known >= kEnough;
  }
  if (!json.is_discarded()) {
    return false;
  }
  for (const std::string& word : megatron::words_of(text)) {
    if (megatron::is_option(word)) {
      const std::string name = megatron::plain_name(word.substr(2, word.find('=') - 2));
      known += megatron::find_argument(name) != nullptr ? 1 : 0;
    }
  }
  return known >= kEnough;
}

ChecklistSide read_megatron_arguments(const std::string& text, const std::string& file) {
  ChecklistSide side{.kind = SideKind::kMegatron, .file = file};
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const megatron::Arguments args(
      json.is_object() ? megatron::written_json(json, file) : megatron::written_words(text, file),
      file);
  for (const megatron::Argument& argument : megatron::kArguments) {
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
