// Running the tape backwards.
//
// A pass runs on the thread that calls it, which need not be the one that recorded the graph.
// Passes on several threads at the same time may
//   - end in the same leaves: what arrives in a leaf's grad() is added one gradient at a time, in
//     the order in which they come, so that the last bits of a sum of floats may differ from run to
//     run. Hooks are called on the thread of their pass, and may be called by two at once. A leaf
//     with a main_grad takes the contributions of one pass at a time only: ops write into it.
//   - run through the same graph if all of them retain it. Where a pass that releases the graph
//     meets another one, there is a RuntimeError.
// Reading a gradient that a pass on another thread is adding to needs a synchronisation of yours.
#pragma once

#include <span>

#include "autograd/tape/grad_mode.h"
#include "autograd/tape/main_grad.h"  // IWYU pragma: export
#include "autograd/tensor/tensor.h"

namespace tapestry {

struct BackwardOptions {
  /// Keep what the graph saved, so that it can be run again.
  bool retain_graph = false;
  /// Record the backward pass, so that gradients can be differentiated. Implies retain_graph.
  bool create_graph = false;
};

/// Accumulates the gradients of all roots into the leaves they depend on.
///
/// gradients[i] has the shape and dtype of roots[i]; it may be undefined, or the list empty, where
/// the root has one element. RuntimeError if a root has no graph or the graph was released;
/// ValueError if a gradient is missing or has another shape, TypeError if another dtype.
void backward(std::span<const Tensor> roots,
              std::span<const Tensor> gradients = {},
              BackwardOptions options = {});

/// Gradients of the roots with respect to the given tensors (leaves or not); nothing is accumulated
/// in any leaf, and only the part of the graph between them is run.
///
/// The entry of an input that the roots do not depend on is undefined if allow_unused, else a
/// RuntimeError. Other errors as in backward().
TensorList grad(std::span<const Tensor> roots,
                std::span<const Tensor> inputs,
                std::span<const Tensor> gradients = {},
                BackwardOptions options = {},
                bool allow_unused = false);
/// The same for one root.
TensorList grad(const Tensor& root,
                const TensorList& inputs,
                const Tensor& gradient = {},
                BackwardOptions options = {},
                bool allow_unused = false);

/// Vector-Jacobian product of a differentiable function of `inputs` in the shape that an op's
/// backward needs for higher orders: runs f with recording on and returns the gradients of the
/// inputs as part of the graph. Undefined inputs are passed through and have undefined gradients.
template <class F>
TensorList vjp(const F& f, const Tensor& dy, const TensorList& inputs);

/// A root for a later backward() in place of `output`, the result of a recorded op or a leaf: the
/// same place in the graph, shape and dtype, but without the values, which nobody needs to keep for
/// it. Its elements must not be read.
Tensor graph_root(const Tensor& output);

/// True while a pass is running that drops what an op saved as soon as its backward returns (no
/// retain_graph or create_graph): an op may then overwrite a saved tensor of which nobody else has
/// a handle (SavedTensor::is_only_handle).
bool releases_graph();

namespace detail {
/// False while grad() is running on this thread: leaves must not be touched.
bool accumulating();
/// A separate handle of each input on the tape, so that one tensor in two places gets two
/// gradients.
TensorList separate(const TensorList& inputs);
/// What checkpoint() needs: runs the graph of `roots`, made inside a running pass, back to
/// `inputs`, leaves or results of separate(), and returns their gradients. What else the graph
/// leads to is treated as the running pass treats it: leaves accumulate, or the inputs of grad()
/// receive. With a graph if grad mode is on.
TensorList nested_gradients(const TensorList& roots,
                            const TensorList& dys,
                            const TensorList& inputs);
TensorList vjp_of(const Tensor& output, const Tensor& dy, const TensorList& inputs);
}  // namespace detail

template <class F>
TensorList vjp(const F& f, const Tensor& dy, const TensorList& inputs) {
  const EnableGradGuard guard;
  const TensorList own = detail::separate(inputs);
  return detail::vjp_of(f(own), dy, own);
}

}  // namespace tapestry
