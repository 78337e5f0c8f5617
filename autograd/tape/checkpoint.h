// Recompute: trade a second forward for the memory of the first one's intermediate results.
#pragma once

#include <functional>
#include <memory>

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

/// The same for a function with several results; each is part of the graph, also where the function
/// returns one of its inputs or a value that wants no gradient.
using TensorListFunction = std::function<TensorList(const TensorList&)>;
TensorList checkpoint(const TensorListFunction& function, const TensorList& inputs);

/// State of a layer above that functions read and that may be another when they run again: of a
/// pipeline's later micro-batch, for example. An object holds what it was when it was made.
class ReplayedState {
 public:
  ReplayedState() = default;
  ReplayedState(const ReplayedState&) = delete;
  ReplayedState& operator=(const ReplayedState&) = delete;
  virtual ~ReplayedState() = default;
  /// Exchanges what it holds for what is current on the calling thread.
  virtual void swap() = 0;
};
/// `capture` is called whenever checkpoint() runs a function first; what it makes is swapped in for
/// the second run. To be called at static initialisation; returns true.
bool register_replayed_state(std::unique_ptr<ReplayedState> (*capture)());

}  // namespace tapestry
