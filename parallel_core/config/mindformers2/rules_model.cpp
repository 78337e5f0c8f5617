// Rules of `model`.
#include <cmath>

#include "autograd/tensor/error.h"
#include "parallel_core/config/mindformers2/reading.h"
#include "parallel_core/config/yaml/value.h"

namespace tapestry::config::mindformers2 {
namespace {

constexpr const char* kRotary = "model_config.rotary_config.";

std::string of_model(std::string_view key) { return concat("model.", key); }

// A value that rope_scaling gives, or the key of the model.
std::string scaling_path(const Reading& r, std::string_view inner, std::string_view outer) {
  const std::string path = concat("model.rope_scaling.", inner);
  return r.given(path) ? path : of_model(outer);
}

std::string position_type_path(const Reading& r) {
  for (const char* key : {"type", "rope_type"}) {
    if (r.given(concat("model.rope_scaling.", key))) {
      return concat("model.rope_scaling.", key);
    }
  }
  return of_model("position_embedding_type");
}

double growth(double factor, double strength) {
  return factor <= 1 ? 1 : 0.1 * strength * std::log(factor) + 1;
}

void put_original_length(Reading& r) {
  const std::string inner = of_model("rope_scaling.original_max_position_embeddings");
  const bool has_scaling = !r.given_below("model.rope_scaling").empty();
  const std::string path = r.given(inner) ? inner
                           : has_scaling  ? of_model("seq_length")
                                          : of_model("max_position_embeddings");
  r.put(concat(kRotary, "original_max_position_embeddings"), r.text(path), path);
}

void translate_yarn(Reading& r, bool latent) {
  const std::string factor = scaling_path(r, "factor", "rotary_scaling_factor");
  const std::string mscale = scaling_path(r, "mscale", "mscale");
  const std::string all = scaling_path(r, "mscale_all_dim", "mscale_all_dim");
  r.put(concat(kRotary, "rope_type"), "yarn", position_type_path(r));
  r.put(concat(kRotary, "rope_scaling_factor"), r.text(factor), factor);
  put_original_length(r);
  for (const char* key : {"beta_fast", "beta_slow"}) {
    const std::string path = scaling_path(r, key, key);
    r.put(concat(kRotary, key), r.text(path), path);
  }
  if (!latent && (!r.given(mscale) || !r.given(all))) {
    r.error(position_type_path(r),
            "is yarn, and without multi-latent attention the growth of queries and keys has no "
            "default; give mscale and mscale_all_dim");
    return;
  }
  r.put(concat(kRotary, "mscale"), r.text(mscale), mscale);
  r.put(concat(kRotary, "mscale_all_dim"), r.text(all), all);
  if (r.number(mscale) != r.number(all)) {
    r.put(concat(kRotary, "mscale_on_angles"), "True", mscale);
  }
}

// scale = m^2 / sqrt(channels), m = 0.1 mscale ln(factor) + 1, whatever the kind of positions; ours
// is that of mscale_all_dim, and with yarn alone. Source: multi_latent_attention.py of r2.0.0.
void translate_scale(Reading& r, bool yarn) {
  const std::string factor = scaling_path(r, "factor", "rotary_scaling_factor");
  const std::string mscale = scaling_path(r, "mscale", "mscale");
  const std::string all = scaling_path(r, "mscale_all_dim", "mscale_all_dim");
  const double theirs = growth(r.number(factor), r.number(mscale));
  const double ours = yarn ? growth(r.number(factor), r.number(all)) : 1;
  if (theirs == ours) {
    return;
  }
  const auto channels = static_cast<double>(r.integer(of_model("qk_nope_head_dim")) +
                                            r.integer(of_model("qk_rope_head_dim")));
  const double scale = theirs * theirs / std::sqrt(channels);
  r.put("model_config.attention_scale", number_text(scale), mscale);
  r.note(
      r.given(factor) ? factor : mscale,
      concat("attention_scale is ", number_text(scale), ": MindFormers 2.0 lets scores grow by (",
             "0.1 mscale ln(rotary_scaling_factor) + 1)^2 ",
             yarn ? "with mscale, not mscale_all_dim" : "without yarn too"));
}

void translate_positions(Reading& r, bool latent) {
  const std::string path = position_type_path(r);
  const std::string type = r.text(path);
  const bool yarn = type == "yarn";
  r.put("model_config.position_embedding_type", yarn ? "rope" : type, path);
  if (yarn) {
    translate_yarn(r, latent);
  }
  if (latent) {
    r.put(concat(kRotary, "rotary_interleaved"), "True", of_model("model_type"));
    translate_scale(r, yarn);
  } else if (type == "learned_absolute") {
    r.put("model_config.max_position_embeddings", r.text(of_model("max_position_embeddings")),
          of_model("max_position_embeddings"));
  }
}

void translate_heads(Reading& r, bool latent) {
  const std::string groups = of_model("num_key_value_heads");
  if (latent) {
    for (const char* key : {"num_key_value_heads", "head_dim"}) {
      if (r.given(of_model(key)) && !r.is_null(of_model(key))) {
        r.note(of_model(key), "has no effect with multi-latent attention");
      }
    }
    return;
  }
  if (!r.is_null(groups) && r.integer(groups) != r.integer(of_model("num_attention_heads"))) {
    r.put("model_config.group_query_attention", "True", groups);
    r.put("model_config.num_query_groups", r.text(groups), groups);
  }
  if (!r.is_null(of_model("head_dim"))) {
    r.put("model_config.kv_channels", r.text(of_model("head_dim")), of_model("head_dim"));
  }
}

void translate_attention(Reading& r) {
  const bool latent = !r.is_qwen3();
  const std::string mla = of_model("multi_latent_attention");
  const std::string norms = of_model("qk_layernorm");
  if (r.given(mla) && r.flag(mla) != latent) {
    r.error(mla, concat("is ", r.text(mla), ", but ", r.text("model.model_type"),
                        latent ? " always has multi-latent attention" : " never has it"));
  }
  if (latent) {
    r.put("model_config.multi_latent_attention", "True",
          r.given(mla) ? mla : of_model("model_type"));
    if (!r.flag(norms)) {
      r.error(norms,
              "is False, but the short vectors of multi-latent attention have norms here; write "
              "True");
    }
  } else {
    if (r.given(norms) && !r.flag(norms)) {
      r.note(norms, "has no effect: qwen3 always normalises queries and keys");
    }
    r.put("model_config.qk_layernorm", "True", r.given(norms) ? norms : of_model("model_type"));
  }
  translate_heads(r, latent);
  translate_positions(r, latent);
}

void translate_blocks(Reading& r) {
  const std::string act = of_model("hidden_act");
  const std::string gated = of_model("gated_linear_unit");
  const std::string name = r.text(act);
  if (name == "fusedswiglu" || (name == "silu" && r.flag(gated))) {
    r.put("model_config.hidden_act", "swiglu", act);
  } else {
    r.put("model_config.hidden_act", name, act);
    if (r.flag(gated)) {
      r.put("model_config.gated_linear_unit", "True", gated);
    }
  }
  const std::string width = of_model("intermediate_size");
  r.put("model_config.ffn_hidden_size",
        r.is_null(width) ? concat(4 * r.integer(of_model("hidden_size"))) : r.text(width), width);
  const std::string biases = of_model("add_bias_linear");
  const bool experts = !r.is_qwen3() && !r.is_null(of_model("n_routed_experts"));
  if (experts && r.flag(biases)) {
    r.error(biases, "is True, which MindFormers 2.0 does not have together with experts");
  }
  r.put("model_config.add_bias_linear", r.flag(biases) ? "True" : "False", biases);
  if (r.flag(of_model("attention_bias")) && !r.flag(biases)) {
    r.put("model_config.qkv_has_bias", "True", of_model("attention_bias"));
  }
}

void translate_types(Reading& r) {
  const std::string softmax = of_model("softmax_compute_dtype");
  const std::string type = r.text(softmax);
  const bool full = type == "float32" || type == "fp32";
  r.put("model_config.softmax_compute_dtype", type, softmax);
  r.put("model_config.attention_softmax_in_fp32", full ? "True" : "False", softmax);
  r.put("model_config.normalization", "RMSNorm", of_model("normalization"));
  const std::string tied = of_model("tie_word_embeddings");
  if (r.flag(tied) && !r.is_qwen3()) {
    r.error(tied, "is True, but deepseek_v3 always has an output layer of its own");
  }
  r.put("model_config.untie_embeddings_and_output_weights", r.flag(tied) ? "False" : "True", tied);
}

void translate_further_tokens(Reading& r) {
  for (const char* key : {"mtp_loss_scaling_factor", "mtp_loss_factor"}) {
    if (r.given(of_model(key)) && !r.is_null(of_model(key))) {
      r.put("model_config.mtp_loss_scaling_factor", r.text(of_model(key)), of_model(key));
    }
  }
}

}  // namespace

void translate_model(Reading& r) {
  constexpr const char* kType = "model.model_type";
  if (!r.given(kType)) {
    if (r.errors.empty()) {
      r.errors.push_back(
          concat("model.model_type: is needed: deepseek_v3 or qwen3; other models are described by "
                 "`",
                 kOwnSection, ": {model_config: {...}}` without a section model"));
    }
    return;
  }
  if (r.is_qwen3()) {
    for (const std::string& path : r.given_below("model")) {
      const Row* row = find_row(path);
      if (row != nullptr && row->qwen3 == "-") {
        const RawNode& node = *r.find(path);
        if (path == "model.multi_latent_attention" || node.kind == RawNode::Kind::kNull) {
          continue;
        }
        r.error(path, "is no key of qwen3, which is dense and has no multi-latent attention");
      }
    }
  }
  translate_attention(r);
  translate_blocks(r);
  translate_types(r);
  translate_further_tokens(r);
}

void translate_experts(Reading& r) {
  const std::string number = of_model("n_routed_experts");
  if (r.is_null(number)) {
    return;
  }
  r.put("moe_config.num_experts", r.text(number), number);
  const std::string groups = of_model("n_group");
  if (!r.is_null(groups) && r.integer(groups) > 1) {
    r.put("moe_config.topk_method", "noaux_tc", groups);
    r.put("moe_config.moe_router_num_groups", r.text(groups), groups);
    r.put("moe_config.moe_router_group_topk", r.text(of_model("topk_group")),
          of_model("topk_group"));
  }
  const std::string width = of_model("moe_shared_expert_intermediate_size");
  const std::string shared = of_model("n_shared_experts");
  if (!r.is_null(width)) {
    r.put("moe_config.moe_shared_expert_intermediate_size", r.text(width), width);
    const int64_t usual =
        r.is_null(shared) ? 0 : r.integer(shared) * r.integer(of_model("moe_intermediate_size"));
    if (usual != r.integer(width)) {
      r.note(width, concat("is used, not n_shared_experts x moe_intermediate_size = ", usual));
    }
  } else if (!r.is_null(shared) && r.integer(shared) > 0) {
    r.put("moe_config.shared_expert_num", r.text(shared), shared);
  }
  const std::string scores = r.text(of_model("moe_router_score_function"));
  if (r.given("model.scoring_func") && r.text("model.scoring_func") != scores) {
    r.note("model.scoring_func", concat("MindFormers 2.0 passes over it; the scores are ", scores,
                                        " (moe_router_score_function)"));
  }
  if (scores == "softmax") {
    r.put("moe_config.moe_router_pre_softmax", "True", of_model("moe_router_pre_softmax"));
  }
  const std::string bias = of_model("moe_router_enable_expert_bias");
  if (r.flag(bias) && scores == "softmax") {
    r.error(bias, "needs moe_router_score_function sigmoid or sqrtsoftplus; write False");
  } else if (r.flag(bias)) {
    r.put("moe_config.moe_router_enable_expert_bias", "True", bias);
    r.put("moe_config.moe_router_bias_update_rate", r.text(of_model("moe_router_bias_update_rate")),
          of_model("moe_router_bias_update_rate"));
  }
  const std::string coeff = of_model("moe_aux_loss_coeff");
  const std::string type = of_model("moe_router_load_balancing_type");
  if (r.number(coeff) > 0) {
    const std::string name = r.text(type);
    if (name == "sub_seq_aux_loss" || name == "none") {
      r.error(type, concat("is ", name, ", with moe_aux_loss_coeff ", r.text(coeff),
                           "; write aux_loss, seq_aux_loss or global_aux_loss"));
      return;
    }
    r.put("moe_config.moe_router_load_balancing_type", name, type);
    r.put("moe_config.moe_aux_loss_coeff", r.text(coeff), coeff);
    r.put("moe_config.moe_aux_loss_choice", "scores", type);
  }
}

}  // namespace tapestry::config::mindformers2
