// The weights of a model as the world knows them: unfused, whole, under logical names.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nn/module.h"
#include "optim/optimizer.h"

namespace tapestry {

/// Logical name to tensor.
using LogicalState = std::map<std::string, Tensor>;

/// Copies of all logical tensors of the model's parameters, [out, in], in the parameters' dtype,
/// and of buffers with a logical name; with an optimizer, of its masters (Optimizer::main_param),
/// which are float32 for 16-bit parameters. Where other ranks share the parameters or have other
/// experts, see gather_logical: all ranks of a stage make the call. In a pipeline those of the
/// rank's stage (gather_over_pipeline brings them together); a further copy of a tensor that
/// another stage owns is left to that stage.
LogicalState get_logical_state(const nn::Module& model,
                               const optim::Optimizer* optimizer = nullptr);

/// This rank's slice of a logical tensor: its values, or gradients.
struct LogicalSlice {
  const nn::LogicalTensor* logical;
  Tensor values;           ///< of logical->local_shape(), any strides
  bool of_expert = false;  ///< nn::ParameterFlags::expert
};

/// The whole tensors, as copies, on rank 0 of the tensor-parallel group, which the others send
/// their slices; empty on the others. All ranks of the group make the call, with the same names in
/// the same order. Of experts each rank gives those that it has: all ranks that hold a copy of the
/// stage's experts (whole_experts_group) make the call, and those of them with tensor-parallel rank
/// 0 get the tensors of all.
LogicalState gather_logical(const std::vector<LogicalSlice>& slices);

/// What is missing from, unexpected in, or of another shape in `state`. Every rank makes the call
/// with the same state; unexpected is what no stage and no rank with other experts expects.
nn::LoadReport compare_logical_state(const nn::Module& model, const LogicalState& state);

/// Writes the tensors, whole on every rank, into parameters and buffers, each rank taking its
/// slices of what its stage has, further copies included; converts dtypes. ValueError with the
/// whole report, and nothing changed, unless names and shapes are exactly the model's; `source`
/// names the origin in the message.
void set_logical_state(nn::Module& model, const LogicalState& state, const std::string& source);

}  // namespace tapestry
