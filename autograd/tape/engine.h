// Running the tape backwards.
#pragma once

#include <span>

#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/generator.h"
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

/// Where an op's backward may put its contribution to a leaf's gradient itself.
struct MainGradTarget {
  Tensor buffer;           ///< float32, of the leaf's shape; undefined: there is none
  bool overwrite = false;  ///< it holds no contribution yet: write all of it instead of adding
};

/// The main_grad of a leaf, into which an op's backward puts its contribution itself, sparing a
/// temporary and a pass; it then returns that very tensor as the leaf's gradient. Asking counts as
/// contributing: the op must do so. Undefined where that is not possible: no main_grad or not a
/// float32 one, hooks that want to see the gradient, a pass that returns gradients (grad()) or is
/// recorded (create_graph).
MainGradTarget main_grad_target(const Tensor& leaf);

/// Adds an op's contribution, of any floating dtype, to the main_grad of a leaf, and returns that
/// tensor for the op to return: where main_grad has a dtype into which the op cannot write itself.
/// Undefined, and nothing done, for the other reasons that main_grad_target has.
Tensor add_to_main_grad(const Tensor& leaf, const Tensor& gradient);

/// Makes a leaf's main_grad stand for zeros without writing them: the next contribution overwrites
/// it, and where none comes, grad() and main_grad() write the zeros when they are asked. Sums in a
/// bfloat16 main_grad are rounded stochastically with numbers of `rounding`. RuntimeError if the
/// leaf has no main_grad.
void reset_main_grad(const Tensor& leaf, const RandomKey& rounding = {});

/// As reset_main_grad, and gives the memory of main_grad back until there is something to put into
/// it: the gradients of a step then take the place of the activations that have made them.
void release_main_grad(const Tensor& leaf, const RandomKey& rounding = {});

/// Gives a leaf a main_grad of the given dtype, float32 or bfloat16, in the state after
/// release_main_grad.
void attach_main_grad(const Tensor& leaf, DType dtype);

/// As add_to_main_grad, for a gradient of the leaf's shape that nobody else holds: a main_grad
/// without memory takes over that of the gradient (which should have been allocated as
/// MemoryKind::kGradient). `gradient` is then the main_grad, for the op to return. False, and
/// nothing done, where add_to_main_grad has an undefined result.
bool give_to_main_grad(const Tensor& leaf, Tensor& gradient);

/// True while a pass is running that drops what an op saved as soon as its backward returns (no
/// retain_graph or create_graph): an op may then overwrite a saved tensor of which nobody else has
/// a handle (SavedTensor::is_only_handle).
bool releases_graph();

/// Sum of two gradients of one shape and dtype, recorded if grad mode is on.
Tensor accumulate(const Tensor& a, const Tensor& b);

namespace detail {
/// False while grad() is running on this thread: leaves must not be touched.
bool accumulating();
/// A separate handle of each input on the tape, so that one tensor in two places gets two
/// gradients.
TensorList separate(const TensorList& inputs);
TensorList vjp_of(const Tensor& output, const Tensor& dy, const TensorList& inputs);
}  // namespace detail

template <class F>
TensorList vjp(const F& f, const Tensor& dy, const TensorList& inputs) {
  const EnableGradGuard guard;
  const TensorList own = detail::separate(inputs);
  return detail::vjp_of(f(own), dy, own);
}

}  // namespace tapestry
