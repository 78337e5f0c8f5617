// Static configurations of MindSpore Transformers, read for what they say of a run.
//
// Source of names and formulas: its configuration documents and mindformers/models/llama (config,
// and the width of the feed-forward block), mindformers/core/lr, and its groups of weight decay
// (get_optimizer_grouped_parameters: nothing with one axis, no bias).
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <string_view>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/checklist_side.h"
#include "diagnosis/accuracy/template_text.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::accuracy {
namespace static_yaml {
namespace {

using config::RawNode;
using config::Value;

enum class Form : uint8_t { kAsIs, kOpposite, kNumber };

struct StaticName {
  std::string_view path;
  std::string_view key;
  Form form = Form::kAsIs;
};

constexpr std::string_view kModel = "model.model_config.";
constexpr std::string_view kBatch = "batch_size, micro-batches and data_parallel";

// What a value means without more. Paths are tried in this order; the first that is there counts.
constexpr StaticName kNames[] = {
    {"model.model_config.num_layers", "model_config.num_layers"},
    {"model.model_config.num_hidden_layers", "model_config.num_layers"},
    {"model.model_config.mtp_num_layers", "model_config.mtp_num_layers"},
    {"model.model_config.num_nextn_predict_layers", "model_config.mtp_num_layers"},
    {"model.model_config.mtp_loss_scaling_factor", "model_config.mtp_loss_scaling_factor",
     Form::kNumber},
    {"model.model_config.mtp_loss_factor", "model_config.mtp_loss_scaling_factor", Form::kNumber},
    {"model.model_config.hidden_size", "model_config.hidden_size"},
    {"model.model_config.num_heads", "model_config.num_attention_heads"},
    {"model.model_config.num_attention_heads", "model_config.num_attention_heads"},
    {"model.model_config.n_kv_heads", "model_config.num_query_groups"},
    {"model.model_config.num_key_value_heads", "model_config.num_query_groups"},
    {"model.model_config.num_query_groups", "model_config.num_query_groups"},
    {"model.model_config.intermediate_size", "model_config.ffn_hidden_size"},
    {"model.model_config.ffn_hidden_size", "model_config.ffn_hidden_size"},
    {"model.model_config.seq_length", "model_config.seq_length"},
    {"model.model_config.position_embedding_type", "model_config.position_embedding_type"},
    {"model.model_config.normalization", "model_config.normalization"},
    {"model.model_config.qk_layernorm", "model_config.qk_layernorm"},
    {"model.model_config.vocab_size", "model_config.vocab_size"},
    {"model.model_config.rms_norm_eps", "model_config.norm_epsilon", Form::kNumber},
    {"model.model_config.layernorm_epsilon", "model_config.norm_epsilon", Form::kNumber},
    {"model.model_config.theta", "model_config.rotary_config.rotary_base", Form::kNumber},
    {"model.model_config.rotary_base", "model_config.rotary_config.rotary_base", Form::kNumber},
    {"model.model_config.qkv_has_bias", "model_config.qkv_has_bias"},
    {"model.model_config.attn_proj_has_bias", "model_config.out_proj_has_bias"},
    {"model.model_config.mlp_has_bias", "model_config.mlp_has_bias"},
    {"model.model_config.qkv_concat", "fused_qkv"},
    {"model.model_config.tie_word_embeddings", "model_config.untie_embeddings_and_output_weights",
     Form::kOpposite},
    {"model.model_config.use_flash_attention", "fused_attention"},
    {"model.model_config.hidden_dropout_rate", "model_config.hidden_dropout", Form::kNumber},
    {"model.model_config.attention_dropout_rate", "model_config.attention_dropout", Form::kNumber},
    {"model.model_config.initializer_range", "model_config.init_method_std", Form::kNumber},
    {"model.model_config.param_init_type", "model_config.params_dtype"},
    {"model.model_config.embedding_init_type", "embedding_dtype"},
    {"model.model_config.param_init_type", "embedding_dtype"},
    {"model.model_config.compute_dtype", "model_config.compute_dtype"},
    {"model.model_config.layernorm_compute_type", "model_config.layernorm_compute_dtype"},
    {"model.model_config.layernorm_compute_dtype", "model_config.layernorm_compute_dtype"},
    {"model.model_config.softmax_compute_type", "softmax_dtype"},
    {"model.model_config.softmax_compute_dtype", "softmax_dtype"},
    {"model.model_config.rotary_dtype", "model_config.rotary_dtype"},
    {"model.model_config.residual_dtype", "residual_dtype"},
    {"model.model_config.compute_dtype", "residual_dtype"},

    {"moe_config.expert_num", "moe_config.num_experts"},
    {"moe_config.num_experts_chosen", "moe_config.moe_router_topk"},
    {"moe_config.moe_intermediate_size", "moe_config.moe_ffn_hidden_size"},
    {"moe_config.routing_policy", "routing_policy"},
    {"moe_config.use_fused_ops_topkrouter", "use_fused_ops_topkrouter"},
    {"moe_config.norm_topk_prob", "moe_config.norm_topk_prob"},
    {"moe_config.routed_scaling_factor", "moe_config.moe_router_topk_scaling_factor",
     Form::kNumber},
    {"moe_config.topk_method", "moe_config.topk_method"},
    {"moe_config.n_group", "moe_config.moe_router_num_groups"},
    {"moe_config.topk_group", "moe_config.moe_router_group_topk"},
    {"moe_config.use_shared_expert_gating", "moe_config.use_shared_expert_gating"},
    {"moe_config.aux_loss_factor", "moe_config.moe_aux_loss_coeff", Form::kNumber},
    {"moe_config.z_loss_factor", "moe_config.moe_z_loss_coeff", Form::kNumber},
    {"moe_config.router_dense_type", "moe_config.router_dense_type"},

    {"lr_schedule.learning_rate", "optimizer_config.learning_rate", Form::kNumber},
    {"optimizer.learning_rate", "optimizer_config.learning_rate", Form::kNumber},
    {"optimizer.weight_decay", "optimizer_config.weight_decay", Form::kNumber},
    {"optimizer.eps", "optimizer_config.eps", Form::kNumber},
    {"runner_wrapper.scale_sense.loss_scale_value", "loss_scale", Form::kNumber},
    {"seed", "training_config.seed"},

    {"parallel_config.data_parallel", "data_parallel_size"},
    {"parallel_config.model_parallel", "parallel_config.tensor_model_parallel_size"},
    {"parallel_config.pipeline_stage", "parallel_config.pipeline_model_parallel_size"},
    {"parallel_config.context_parallel", "parallel_config.context_parallel_size"},
    {"parallel_config.expert_parallel", "parallel_config.expert_model_parallel_size"},
    {"parallel_config.use_seq_parallel", "parallel_config.sequence_parallel"},
    {"context.enable_graph_kernel", "graph_fusion"},
    {"train_precision_sync", "parallel_config.deterministic_mode"},
};

const RawNode* entry_of(const RawNode& map, std::string_view name) {
  for (const config::RawEntry& entry : map.entries) {
    if (entry.key.scalar == name) {
      return &entry.value;
    }
  }
  return nullptr;
}

const RawNode* find_path(const RawNode& root, std::string_view path) {
  const RawNode* node = &root;
  while (node != nullptr && !path.empty()) {
    const size_t dot = path.find('.');
    node = entry_of(*node, path.substr(0, dot));
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return node != nullptr && node->kind != RawNode::Kind::kNull ? node : nullptr;
}

// A scalar as the configuration has it; dtypes without what stands before a point
// ("mstype.float16").
Value value_of(const RawNode& node) {
  if (node.quoted) {
    return {node.scalar};
  }
  switch (config::scalar_kind(node.scalar)) {
    case config::ScalarKind::kBool:
      return {node.scalar[0] == 't' || node.scalar[0] == 'T' || node.scalar[0] == 'y' ||
              node.scalar[0] == 'Y' || node.scalar == "on" || node.scalar == "On" ||
              node.scalar == "ON"};
    case config::ScalarKind::kInt:
      return {static_cast<int64_t>(std::strtoll(node.scalar.c_str(), nullptr, 10))};
    case config::ScalarKind::kFloat:
      return {std::strtod(node.scalar.c_str(), nullptr)};
    case config::ScalarKind::kNull:
      return {};
    case config::ScalarKind::kString:
      break;
  }
  return {node.scalar};
}

class StaticReader {
 public:
  StaticReader(const RawNode& root, ChecklistSide& side) : root_(root), side_(side) {}

  void read() {
    for (const StaticName& name : kNames) {
      if (!side_.values.contains(std::string(name.key)) && find_path(root_, name.path) != nullptr) {
        read_name(name);
      }
    }
    read_model();
    read_experts();
    read_optimizer();
    read_batches();
    read_schedule();
    read_other();
  }

 private:
  void read_name(const StaticName& name) {
    const Value value = scalar(name.path);
    if (name.form == Form::kNumber) {
      put(name.key, Value(number(name.path)));
    } else if (name.form == Form::kOpposite) {
      check<ValueError>(value.is<bool>(), place(name.path), ": expected true or false");
      put(name.key, Value(!value.as<bool>()));
    } else {
      put(name.key, value);
    }
  }

  void put(std::string_view key, Value value) { side_.values[std::string(key)] = std::move(value); }
  std::string place(std::string_view path) const {
    const RawNode* node = find_path(root_, path);
    return concat(node == nullptr ? side_.file : node->place.text(), ": ", path);
  }
  bool has(std::string_view path) const { return find_path(root_, path) != nullptr; }
  Value scalar(std::string_view path) const {
    const RawNode* node = find_path(root_, path);
    check<ValueError>(node->kind == RawNode::Kind::kScalar, place(path),
                      ": is a list or a mapping; expected one value");
    return value_of(*node);
  }
  double number(std::string_view path) const {
    const Value value = scalar(path);
    check<ValueError>(value.is<double>() || value.is<int64_t>(), place(path), ": is ",
                      config::to_yaml(value), "; expected a number");
    return value.is<double>() ? value.as<double>() : static_cast<double>(value.as<int64_t>());
  }
  int64_t integer(std::string_view path) const {
    const Value value = scalar(path);
    check<ValueError>(value.is<int64_t>(), place(path), ": is ", config::to_yaml(value),
                      "; expected a whole number");
    constexpr int64_t kLargest = 2147483647;
    check<ValueError>(value.as<int64_t>() >= -1 && value.as<int64_t>() <= kLargest, place(path),
                      ": is ", value.as<int64_t>(), "; expected a number from -1 to ", kLargest);
    return value.as<int64_t>();
  }
  std::string text(std::string_view path) const {
    const Value value = scalar(path);
    return value.is<std::string>() ? value.as<std::string>() : config::to_yaml(value);
  }
  int64_t integer_or(std::string_view path, int64_t otherwise) const {
    return has(path) ? integer(path) : otherwise;
  }
  static std::string in_model(const char* name) { return std::string(kModel) + name; }

  void read_model();
  void read_widths();
  void read_experts();
  void read_shared_experts();
  void read_optimizer();
  void read_batches();
  int64_t product(std::string_view of, std::initializer_list<int64_t> factors) const;
  void read_schedule();
  void read_other();

  const RawNode& root_;
  ChecklistSide& side_;
};

void StaticReader::read_model() {
  const auto put_default = [&](const char* key, const Value& value) {
    side_.values.try_emplace(key, value);
  };
  const auto heads = side_.values.find("model_config.num_attention_heads");
  if (heads != side_.values.end()) {
    put_default("model_config.num_query_groups", heads->second);
  }
  const std::string type = has(in_model("type")) ? text(in_model("type")) : "";
  const bool llama = type.starts_with("Llama");
  if (llama) {
    put_default("model_config.normalization", Value(std::string("RMSNorm")));
    put_default("model_config.position_embedding_type", Value(std::string("rope")));
    put_default("model_config.use_final_norm", Value(true));
  }
  const std::string act = has(in_model("hidden_act")) ? text(in_model("hidden_act"))
                          : llama                     ? "silu"
                                                      : "";
  const bool gated = llama || (has(in_model("gated_linear_unit")) &&
                               scalar(in_model("gated_linear_unit")) == Value(true));
  if (!act.empty()) {
    put("model_config.hidden_act",
        Value(act == "fused_swiglu" || (gated && act == "silu") ? std::string("swiglu") : act));
  }
  read_widths();
}

void StaticReader::read_widths() {
  if (!has(in_model("hidden_size"))) {
    return;
  }
  const int64_t hidden = integer(in_model("hidden_size"));
  if (has(in_model("multiple_of")) && !side_.values.contains("model_config.ffn_hidden_size")) {
    const int64_t step = integer(in_model("multiple_of"));
    check<ValueError>(step > 0, place(in_model("multiple_of")), ": is ", step,
                      "; expected a number above 0");
    int64_t width = 4 * hidden;
    if (has(in_model("ffn_dim_multiplier"))) {
      constexpr double kLargestFactor = 1000;
      const double factor = number(in_model("ffn_dim_multiplier"));
      check<ValueError>(factor > 0 && factor < kLargestFactor,
                        place(in_model("ffn_dim_multiplier")), ": is ", factor,
                        "; expected a number above 0 and below ", kLargestFactor);
      width = static_cast<int64_t>((factor + 0.01) * static_cast<double>(width));
    }
    width = 2 * width / 3;
    put("model_config.ffn_hidden_size", Value((width + step - 1) / step * step));
  }
  const auto heads = side_.values.find("model_config.num_attention_heads");
  if (heads != side_.values.end() && heads->second.is<int64_t>() &&
      heads->second.as<int64_t>() > 0) {
    put("model_config.kv_channels",
        Value(has(in_model("head_dim")) ? integer(in_model("head_dim"))
                                        : hidden / heads->second.as<int64_t>()));
  }
}

void StaticReader::read_experts() {
  if (!has("moe_config") && side_.values.contains("model_config.num_layers")) {
    put("moe_config.num_experts", Value(int64_t{1}));
  }
  if (has("moe_config.capacity_factor")) {
    const double factor = number("moe_config.capacity_factor");
    put("moe_config.moe_expert_capacity_factor",
        factor > 0 ? Value(factor) : Value(std::string("none")));
  }
  if (has("moe_config.enable_sdrop")) {
    put("moe_config.moe_token_drop_policy",
        Value(std::string(text("moe_config.enable_sdrop") == "True" ||
                                  text("moe_config.enable_sdrop") == "true"
                              ? "position"
                              : "choice")));
  }
  read_shared_experts();
  if (has("moe_config.use_gating_sigmoid")) {
    const Value sigmoid = scalar("moe_config.use_gating_sigmoid");
    put("moe_config.moe_router_score_function",
        Value(std::string(sigmoid == Value(true) ? "sigmoid" : "softmax")));
  }
}

// Their number; each is as wide as a routed one, whose width may be given as that of dense layers.
void StaticReader::read_shared_experts() {
  constexpr const char* kNumber = "moe_config.shared_expert_num";
  if (!has(kNumber)) {
    return;
  }
  const int64_t number = integer(kNumber);
  check<ValueError>(number >= 0, place(kNumber), ": is ", number, "; expected a number from 0 on");
  const auto width =
      side_.values.find(has("moe_config.moe_intermediate_size") ? "moe_config.moe_ffn_hidden_size"
                                                                : "model_config.ffn_hidden_size");
  if (number == 0) {
    put("moe_config.moe_shared_expert_intermediate_size", Value(std::string("none")));
  } else if (width != side_.values.end() && width->second.is<int64_t>()) {
    put("moe_config.moe_shared_expert_intermediate_size",
        Value(product("shared_expert_num and the width of an expert",
                      {number, width->second.as<int64_t>()})));
  } else {
    side_.notes.push_back(
        concat(kNumber, " is ", number, ", but nothing says how wide an expert is"));
  }
}

void StaticReader::read_optimizer() {
  if (has("optimizer.type")) {
    const std::string type = text("optimizer.type");
    const bool adamw = type == "AdamW" || type == "mint.AdamW" || type == "SpeedAdamW" ||
                       type == "AdamWeightDecay" || type == "FP32StateAdamWeightDecay" ||
                       type == "PmaAdamW" || type == "FusedAdamW";
    put("optimizer_config.optimizer_type", Value(adamw ? std::string("AdamW") : type));
  }
  if (const RawNode* betas = find_path(root_, "optimizer.betas")) {
    check<ValueError>(betas->kind == RawNode::Kind::kList && betas->items.size() == 2,
                      place("optimizer.betas"), ": expected a list of two numbers");
    for (size_t i = 0; i < 2; ++i) {
      const Value beta = value_of(betas->items[i]);
      check<ValueError>(beta.is<double>(), place("optimizer.betas"),
                        ": expected a list of two numbers");
      put(i == 0 ? "beta1" : "beta2", beta);
    }
  }
  side_.decay_rule = DecayRule::kNotNormsAndBiases;
  if (has("runner_wrapper.use_clip_grad")) {
    const bool clips = scalar("runner_wrapper.use_clip_grad") == Value(true);
    // The norm's default is that of its wrapper.
    put("gradient_clipping",
        Value(!clips                                ? 0.0
              : has("runner_wrapper.max_grad_norm") ? number("runner_wrapper.max_grad_norm")
                                                    : 1.0));
  }
}

void StaticReader::read_batches() {
  if (!has("runner_config.batch_size")) {
    return;
  }
  const int64_t pipeline = integer_or("parallel_config.pipeline_stage", 1);
  // micro_batch_num counts with a pipeline alone.
  const int64_t micro =
      product(kBatch, {integer_or("runner_config.gradient_accumulation_steps", 1),
                       pipeline > 1 ? integer_or("parallel_config.micro_batch_num", 1) : 1,
                       integer_or("micro_batch_interleave_num", 1)});
  put("micro_batches", Value(micro));
  if (has("parallel_config.data_parallel")) {
    put("global_batch_size", Value(product(kBatch, {integer("runner_config.batch_size"), micro,
                                                    integer("parallel_config.data_parallel")})));
  }
}

int64_t StaticReader::product(std::string_view of, std::initializer_list<int64_t> factors) const {
  constexpr double kLargest = 2147483647;
  double whole = 1;
  for (const int64_t factor : factors) {
    whole *= static_cast<double>(factor);
  }
  check<ValueError>(whole >= 1 && whole <= kLargest, side_.file, ": ", of, " together are ", whole,
                    "; expected a number from 1 to ", kLargest);
  return static_cast<int64_t>(whole);
}

void StaticReader::read_schedule() {
  if (!has("lr_schedule.type") || !has("lr_schedule.learning_rate")) {
    return;
  }
  const std::string type = text("lr_schedule.type");
  const double rate = number("lr_schedule.learning_rate");
  const int64_t total = integer_or("lr_schedule.total_steps", -1);
  const bool constant = type == "ConstantWarmUpLR";
  if (total <= 0 && !constant) {
    side_.notes.push_back(
        concat("lr_schedule.total_steps is not given, so the learning rate of a "
               "step is not known"));
    return;
  }
  if (total > 0) {
    side_.steps = total;
    put("training_steps", Value(total));
  }
  const double end = has("lr_schedule.lr_end") ? number("lr_schedule.lr_end") : 0;
  const double init = has("lr_schedule.warmup_lr_init") ? number("lr_schedule.warmup_lr_init") : 0;
  const auto warmup =
      has("lr_schedule.warmup_ratio") && total > 0
          ? std::floor(number("lr_schedule.warmup_ratio") * static_cast<double>(total))
          : static_cast<double>(integer_or("lr_schedule.warmup_steps", 0));
  const double cycles = has("lr_schedule.num_cycles") ? number("lr_schedule.num_cycles") : 0.5;
  const bool cosine = type == "CosineWithWarmUpLR";
  if (!constant && !cosine && type != "LinearWithWarmUpLR") {
    side_.notes.push_back(concat("lr_schedule.type ", type, " is not known here"));
    return;
  }
  const auto whole = static_cast<double>(total);
  side_.learning_rate = [=](int64_t step) {
    const auto at = static_cast<double>(step - 1);
    if (at < warmup) {
      return init + (rate - init) * at / warmup;
    }
    if (constant) {
      return rate;
    }
    const double part = (at - warmup) / std::max(1.0, whole - warmup);
    return cosine
               ? end + (rate - end) *
                           std::max(0.0, 0.5 * (1 + std::cos(std::numbers::pi * 2 * cycles * part)))
               : end + (rate - end) * std::max(0.0, 1 - part);
  };
}

void StaticReader::read_other() {
  if (has("parallel.enable_parallel_optimizer")) {
    put("zero_level",
        Value(int64_t{scalar("parallel.enable_parallel_optimizer") == Value(true) ? 1 : 0}));
  }
  if (has("context.deterministic")) {
    put("parallel_config.deterministic_mode", Value(text("context.deterministic") == "ON"));
  }
  if (has(in_model("eos_token_id"))) {
    side_.token_ids.eos = {integer(in_model("eos_token_id"))};
  }
  if (has(in_model("bos_token_id"))) {
    side_.token_ids.bos = integer(in_model("bos_token_id"));
  }
  if (has(in_model("pad_token_id"))) {
    side_.token_ids.pad = integer(in_model("pad_token_id"));
  }
  constexpr const char* kTemplate = "processor.tokenizer.chat_template";
  if (has(kTemplate)) {
    put("chat_template", Value(template_mark(text(kTemplate))));
  }
  put("attention_pattern", Value(std::string("causal")));
}

RawNode parse_static(const std::string& text, const std::string& file) {
  std::vector<std::string> errors;
  RawNode root = config::parse_yaml(text, {.source = file}, /*fixed_place=*/false, errors);
  check<ValueError>(errors.empty(), errors.empty() ? std::string() : errors.front());
  return root;
}

}  // namespace
}  // namespace static_yaml

bool looks_like_static_yaml(const std::string& text) {
  std::vector<std::string> errors;
  const config::RawNode root =
      config::parse_yaml(text, {.source = "text"}, /*fixed_place=*/false, errors);
  return static_yaml::find_path(root, "model.model_config") != nullptr ||
         static_yaml::find_path(root, "lr_schedule.type") != nullptr;
}

ChecklistSide read_static_yaml(const std::string& text, const std::string& file) {
  const config::RawNode root = static_yaml::parse_static(text, file);
  ChecklistSide side{.kind = SideKind::kStatic, .file = file};
  static_yaml::StaticReader(root, side).read();
  return side;
}

}  // namespace tapestry::accuracy
