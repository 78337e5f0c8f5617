// Recompute: trade a second forward for the memory of the first one's intermediate results.
#pragma once

#include <functional>

#include "autograd/tape/recompute.h"  // IWYU pragma: export, is_recomputing()
#include "autograd/tensor/tensor.h"

namespace tapestry {

using TensorFunction = std::function<Tensor(const TensorList&)>;

/// function(inputs), of which only the inputs are kept: backward runs the function again, which
/// gets the random numbers that it drew from the default generator the first time, and
/// differentiates that run, on whichever thread. RuntimeError if the function then asks for others.
///
/// Parameters that the function uses besides its inputs receive their gradients too, in backward()
/// and in grad(). In backward() their post-accumulate hooks fire once for each recomputed function
/// that uses them. With create_graph the second run is part of the graph, and its intermediate
/// results are kept as long as the gradients are.
/// Source: Chen et al. 2016, arXiv:1604.06174.
Tensor checkpoint(const TensorFunction& function, const TensorList& inputs);

}  // namespace tapestry
