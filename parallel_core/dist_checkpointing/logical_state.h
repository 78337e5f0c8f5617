// The weights of a model as the world knows them: unfused, under logical names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nn/module.h"
#include "optim/optimizer.h"

namespace tapestry {

/// Logical name to tensor.
using LogicalState = std::map<std::string, Tensor>;

/// Copies of all logical tensors of the model's parameters, [out, in], in the parameters' dtype;
/// with an optimizer, of its masters (Optimizer::main_param), which are float32 for 16-bit
/// parameters.
LogicalState get_logical_state(const nn::Module& model,
                               const optim::Optimizer* optimizer = nullptr);

/// What is missing from, unexpected in, or of another shape in `state`.
nn::LoadReport compare_logical_state(const nn::Module& model, const LogicalState& state);

/// Writes the tensors into the parameters, converting dtypes. ValueError with the whole report, and
/// nothing changed, unless names and shapes are exactly the model's; `source` names the origin in
/// the message.
void set_logical_state(nn::Module& model, const LogicalState& state, const std::string& source);

}  // namespace tapestry
