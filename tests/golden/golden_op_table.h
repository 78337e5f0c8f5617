// The table of golden operations, in parts.
#pragma once

#include "tests/golden/golden_ops.h"

namespace tapestry::golden {

using OpTable = std::map<std::string, OpFunction>;

void add_elementwise(OpTable& table);
void add_shape_ops(OpTable& table);
void add_reductions(OpTable& table);
void add_matmul_and_indexing(OpTable& table);
void add_layers(OpTable& table);
void add_optimizer(OpTable& table);

/// The one result of an operation.
inline NamedTensors single(const Tensor& value) { return {{"", value}}; }
/// Input number i of a case.
inline const Tensor& in(const NamedTensors& inputs, size_t i) { return inputs.at(i).second; }
/// The input of that name; undefined if the case has none.
Tensor optional_input(const NamedTensors& inputs, const std::string& name);
TensorList values_of(const NamedTensors& inputs);

}  // namespace tapestry::golden
