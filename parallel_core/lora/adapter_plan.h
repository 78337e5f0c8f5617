// Which matrices of a model low-rank adapters are beside, and what is trained besides them.
//
// An adapter adds s B A to a matrix W that stays as it is: y = x W^T + b + s (x A^T) B^T, with A
// [rank, in], B [out, rank] and s = alpha / rank, or alpha / sqrt(rank) with use_rslora. Source: Hu
// et al. 2021, arXiv:2106.09685; Kalajdzievski 2023, arXiv:2312.03732. Names are those of PEFT's
// files: every matrix of the Hugging Face model has its own A and B, whatever is fused in memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// A matrix of the Hugging Face model that an adapter is beside.
struct AdaptedModule {
  /// Path of the module in memory: "language_model.encoder.layers.0.attention.qkv_proj".
  std::string cell;
  /// Logical: "layers.0.attention.wq"; "layers.0.attention.wqkv" where the file has one fused
  /// matrix (GPT-2's c_attn), "layers.0.feed_forward.w_gate_up" (Phi-3's gate_up_proj).
  std::string module;
  /// "model.layers.0.self_attn.q_proj", "transformer.h.0.attn.c_attn"; empty where the model has no
  /// Hugging Face names.
  std::string hf_path;
  /// Logical base weights that it adds to: {"layers.0.attention.wq.weight"}, or those of wq, wk and
  /// wv for wqkv, in the order of their rows in the file.
  std::vector<std::string> weights;
  int64_t rank = 0;
  double alpha = 0;
  double scale = 0;  ///< alpha / rank, or alpha / sqrt(rank)
  int64_t in_features = 0;
  int64_t out_features = 0;  ///< of all its weights together
  /// Of stacked experts: how many, each with an A and Bs of its own; module and weights are then
  /// "layers.0.moe.experts.w_gate_up" and those of the first. Else 0.
  int64_t experts = 0;

  bool operator==(const AdaptedModule&) const = default;
};

struct AdapterPlan {
  std::vector<AdaptedModule> modules;      ///< in the order of the layers
  std::vector<std::string> saved_modules;  ///< logical tensors that are trained whole
  std::vector<int64_t> saved_sizes;        ///< elements of the same
  std::vector<std::string> warnings;       ///< patterns without effect, and the like
};

/// What lora_config says of the model of model_config, empty without use_lora. The same on every
/// rank.
///
/// A pattern of target_cells (PCRE2's regular expressions) fits a module if it matches all of its
/// Hugging Face path or of its logical name ("layers.0.attention.wq"), or of the path in memory of
/// the cell that it is part of, unless it matches some modules of the cell by their own names: so
/// ".*v_proj" means v_proj, and ".*qkv_proj" all three. Entries {cell, rank, alpha} are matched in
/// the same way; the first one that fits counts. Norms, embeddings, the head and routers get no
/// adapter, nor do routed experts that have tensors of their own: a pattern that matches one is
/// warned of, and so is one that matches nothing. Experts that are stacked in one parameter
/// (GPT-OSS) get adapters if a pattern names it ("layers.0.moe.experts.w_down",
/// ".*experts.down_proj"). Without target_cells all matrices of attention and MLP have adapters.
///
/// Of what target_cells mean, exclude_cells take away what they match in the same way.
///
/// An entry of modules_to_save matches like this too, or the end of a name after a dot, as in PEFT:
/// "lm_head", "embed_tokens". Parameters that are fused in memory can only be named together. With
/// bias: lora_only the biases of all adapted modules are trained whole too.
///
/// ValueError if target_cells match nothing, exclude_cells leave none of it, an entry with a cell
/// of its own matches no adapted module, a text is no regular expression, something of
/// modules_to_save matches nothing, is adapted too, or is part of a parameter, stacked experts are
/// to have dropout or DoRA (PEFT has neither for them), or bias: lora_only means a part of a fused
/// bias or none.
AdapterPlan plan_adapter(const AllConfig& config);
AdapterPlan plan_adapter(const TransformerConfig& config);

/// What plan_adapter() has of the cell that the logical weight ("layers.0.attention.wq.weight") is
/// part of, in the order of its rows.
std::vector<AdaptedModule> adapted_modules(const TransformerConfig& config,
                                           const std::string& weight);

/// Whether a logical tensor is the bias of a matrix that an adapter of the plan is beside.
bool is_adapted_bias(const AdapterPlan& plan, std::string_view logical);

/// Names of an adapter's logical tensors: A has [rank, in]; B and the magnitudes (DoRA) are split
/// by base weights, `weight` being one of AdaptedModule::weights: [out, rank] and [out].
/// Of stacked experts both are of one expert, `weight` being
/// "layers.0.moe.experts.3.w_gate.weight".
std::string lora_a_name(const AdaptedModule& module, int64_t expert = 0);
std::string lora_b_name(const std::string& weight);
std::string lora_magnitude_name(const std::string& weight);

}  // namespace tapestry
