// Names of tensors and keys that several families have.
#pragma once

#include <string_view>
#include <vector>

#include "interop/architectures/architecture.h"

namespace tapestry::architectures {

/// "model.layers.0.self_attn.q_proj.weight", ...: of Llama and those that were made after it.
const TensorNames& llama_names();
/// `more`, and what of Llama's names all layers have that is neither the name nor the tensor of one
/// of its rows.
TensorNames llama_names_with(std::vector<NamePair> more,
                             std::string_view experts,
                             std::vector<NamePair> expert);
/// Gemma's: Llama's with norms of what attention and MLP give.
TensorNames gemma_names();
/// The bias of experts that are chosen by it (DeepSeek-V3, GLM-4.5).
inline constexpr NamePair kCorrectionBias = {"moe.router.expert_bias",
                                             "mlp.gate.e_score_correction_bias"};
/// Llama's with `more`, and routed and shared experts as DeepSeek and GLM call them. Files may have
/// layers behind the model's own.
TensorNames names_with_shared_experts(std::vector<NamePair> more);
/// The same with multi-latent attention.
TensorNames deepseek_names(std::vector<NamePair> more);
/// The same where a file may have layers that predict further tokens (layers_ahead()).
TensorNames with_layers_ahead(TensorNames names);

/// The GGUF form of a Llama, as the architecture of that name. All of llama.cpp's know yarn; few
/// have a place for divisors of the frequencies.
GgufTables llama_gguf(std::string_view architecture);

/// The same of DeepSeek's: multi-latent attention, shared experts.
GgufTables deepseek_gguf();

/// The same without the MLP's gate.
GgufTables llama_gguf_without_gate(std::string_view architecture);
/// The same with LayerNorm.
void use_layer_norm(GgufTables& gguf);
/// Another name for a row of `layer`.
void rename(GgufTables& gguf, std::string_view logical, std::string_view file);
/// Router and experts, and the sizes of both.
void add_experts(GgufTables& gguf);
/// The same with shared experts and leading dense layers, and what the gates are.
void add_shared_experts(GgufTables& gguf);
/// Layers have no width but an expert's.
void use_expert_width(GgufTables& gguf);
/// attention.sliding_window, of the tokens with the query's own; 0 without a window.
void add_window(GgufTables& gguf);
/// Norms of the blocks' outputs: beside those of their inputs, or in place of them.
void add_norms_of_outputs(GgufTables& gguf);
/// Queries, keys and values in one tensor.
void join_heads(GgufTables& gguf);

/// Limits that many architectures have: no window that is shorter than the longest text, no biases
/// in the output projection or the MLP.
Rules no_window_in_gguf();
Rules no_output_bias_in_gguf();
Rules no_dense_layers_in_gguf();
/// Scores are divided by the root of a head's size.
Rules usual_scale_in_gguf();
/// All but every `period`-th layer have the window.
Rules windows_in_gguf(int64_t period);
/// All heads together are as wide as the model.
Rules heads_fill_width_in_gguf();
/// A matrix of its own makes logits.
Rules own_head_in_gguf();

/// Keys of every architecture.
std::vector<GgufKey> common_gguf_keys();

}  // namespace tapestry::architectures
