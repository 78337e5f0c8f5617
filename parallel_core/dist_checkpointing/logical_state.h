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
/// parameters. In a pipeline those of the rank's stage (gather_over_pipeline brings them together);
/// a further copy of a tensor that another stage owns is left to that stage.
LogicalState get_logical_state(const nn::Module& model,
                               const optim::Optimizer* optimizer = nullptr);

/// What is missing from, unexpected in, or of another shape in `state`. In a pipeline every rank
/// makes the call with the same state; unexpected is what no stage expects.
nn::LoadReport compare_logical_state(const nn::Module& model, const LogicalState& state);

/// Writes the tensors into the parameters, converting dtypes. ValueError with the whole report, and
/// nothing changed, unless names and shapes are exactly the model's; `source` names the origin in
/// the message. In a pipeline a stage takes what it has, further copies included.
void set_logical_state(nn::Module& model, const LogicalState& state, const std::string& source);

}  // namespace tapestry
