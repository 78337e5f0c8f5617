// Where an adapter's logical tensors lie in the file of a PEFT adapter.
//
// A module has the path that it has in the Hugging Face model, a model without such names its
// logical one. One of the file's that is fused, c_attn of GPT-2, has one A, and the Bs of its
// logical weights one below the other. Of stacked experts a layer has one A and one B for each of
// the base's tensors. A tensor that is trained whole has the name, the shape and
// the orientation of the base's files, but for the name of a bias beside an adapter.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "autograd/tensor/shape.h"
#include "interop/architectures/file_place.h"
#include "parallel_core/lora/adapter_plan.h"

namespace tapestry {

/// Whether a logical tensor is an adapter's own: A, B or magnitudes (lora_a_name, ...).
bool is_adapter_tensor(std::string_view logical);

/// The place in adapter_model.safetensors of a logical tensor that is an adapter's own, or is
/// trained whole. `names`: those of the base's files. The bias of a matrix that has an adapter in
/// the plan is that of the module's base_layer.
FilePlace peft_place(const FileNames& names,
                     const AdapterPlan& plan,
                     const std::string& logical,
                     const Shape& shape);

/// What the names of the tensors beside a parameter of stacked experts
/// ("model.layers.0.mlp.experts.down_proj") begin with: PEFT wraps their module once for each
/// parameter that has an adapter, gate_up_proj first. `down_too`: whether down_proj has one.
std::string peft_parameter_stem(const std::string& path, bool down_too);

/// A tensor of its own that the file has besides, with the same values: of the table of embeddings
/// of a model that has it for its output too, the output's. PEFT trains the two apart, unless both
/// are named; empty for any other tensor.
std::string peft_twin(const TransformerConfig& config, const std::string& logical);

}  // namespace tapestry
