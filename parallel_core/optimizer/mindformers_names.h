// What MindFormers 2.0 calls the parameters of its models.
#pragma once

#include <cstdint>
#include <string>

namespace tapestry {

/// The name there of a logical tensor, of a model with `num_layers` layers that predict the next
/// token: "decoder.layers.0.self_attention.linear_qkv.weight" of "layers.0.attention.wk.weight".
/// What is fused there has one name; layers behind num_layers are those of multi-token prediction,
/// "mtp.layers.0.transformer_layer....". Empty for what its models do not have.
///
/// Source: the module tree of mindformers/pynative/base_models/gpt (gpt_model.py,
/// gpt_layer_specs.py, tag r2.0.0).
std::string mindformers_name(const std::string& logical, int64_t num_layers);

}  // namespace tapestry
