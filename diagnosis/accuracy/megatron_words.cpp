// Source of names and defaults: megatron/training/arguments.py of Megatron-LM core 0.8 to 0.12, and
// for the groups of weight decay megatron/core/optimizer/__init__.py.
#include "diagnosis/accuracy/megatron_words.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"

namespace tapestry::accuracy::megatron {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kNone = "-";

// What an item needs. Others are not understood, and need not be.
constexpr Argument kArguments[] = {
    {"num_layers", Kind::kInteger, kNone, "model_config.num_layers"},
    {"mtp_num_layers", Kind::kInteger, "0", "model_config.mtp_num_layers"},
    {"mtp_loss_scaling_factor", Kind::kNumber, "0.1", "model_config.mtp_loss_scaling_factor"},
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

std::map<std::string, std::string> written_text(const std::string& text, const std::string& file) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? written_json(json, file) : written_words(text, file);
}

}  // namespace

std::span<const Argument> known_arguments() { return kArguments; }

int count_known(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  int known = 0;
  if (json.is_object()) {
    for (const auto& [name, value] : json.items()) {
      known += find_argument(plain_name(name)) != nullptr ? 1 : 0;
    }
    return known;
  }
  if (!json.is_discarded()) {
    return 0;
  }
  for (const std::string& word : words_of(text)) {
    if (is_option(word)) {
      const std::string name = plain_name(word.substr(2, word.find('=') - 2));
      known += find_argument(name) != nullptr ? 1 : 0;
    }
  }
  return known;
}

Arguments::Arguments(const std::string& text, std::string file)
    : written_(written_text(text, file)), file_(std::move(file)) {}

bool Arguments::has(const std::string& name) const {
  return written_.contains(name) || find_argument(name)->fallback != kNone;
}

std::string Arguments::text(const std::string& name) const {
  const auto found = written_.find(name);
  return found == written_.end() ? std::string(find_argument(name)->fallback) : found->second;
}

double Arguments::number(const std::string& name) const {
  const std::string value = text(name);
  char* end = nullptr;
  const double parsed = std::strtod(value.c_str(), &end);
  check<ValueError>(!value.empty() && *end == '\0' && std::isfinite(parsed), file_, ": ", name,
                    " is '", value, "'; expected a number",
                    value.starts_with("$") ? ": write out what the variable stands for" : "");
  return parsed;
}

int64_t Arguments::integer(const std::string& name) const {
  // What is multiplied with others is small, samples need not be.
  const double most = name.ends_with("_samples") ? 9e15 : 2147483647;
  const double value = number(name);
  check<ValueError>(value == std::floor(value) && std::abs(value) <= most, file_, ": ", name,
                    " is '", text(name), "'; expected a whole number of at most ", most);
  return static_cast<int64_t>(value);
}

bool Arguments::on(const std::string& name) const {
  const std::string value = text(name);
  check<ValueError>(value == "true" || value == "false", file_, ": ", name, " is '", value,
                    "'; expected true or false");
  return value == "true";
}

std::optional<int64_t> Arguments::maybe_integer(const std::string& name) const {
  return has(name) ? std::optional(integer(name)) : std::nullopt;
}

config::Value Arguments::value(const Argument& argument) const {
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

}  // namespace tapestry::accuracy::megatron
