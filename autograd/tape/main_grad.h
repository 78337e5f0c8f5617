// main_grad: a buffer of a leaf's shape into which its gradients are summed, in a dtype of its own
// and in memory that the owner of the buffer chooses (Tensor::set_main_grad).
#pragma once

#include <vector>

#include "autograd/kernels/random_rows.h"
#include "autograd/tensor/generator.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

struct LeafState;

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

/// The same in exact mode (kernels/machine/exact.h), where a leaf that is not float64 has a float64
/// main_grad: the op adds each term in units of kernels/exact_sums.h, and returns that very tensor.
/// Zeros are written where it only stood for them. Undefined for the reasons that main_grad_target
/// has, or without such a main_grad.
Tensor exact_main_grad(const Tensor& leaf);

/// Adds an op's contribution, of any floating dtype, to the main_grad of a leaf, and returns that
/// tensor for the op to return: where main_grad has a dtype into which the op cannot write itself.
/// Undefined, and nothing done, for the other reasons that main_grad_target has. ValueError for
/// another shape than the leaf's; RuntimeError where main_grad holds exact sums, which take terms.
Tensor add_to_main_grad(const Tensor& leaf, const Tensor& gradient);

/// Makes a leaf's main_grad stand for zeros without writing them: the next contribution overwrites
/// it, and where none comes, grad() and main_grad() write the zeros when they are asked. Sums in a
/// bfloat16 main_grad are rounded stochastically with numbers of `rounding`. RuntimeError if the
/// leaf has no main_grad.
void reset_main_grad(const Tensor& leaf, const RandomKey& rounding = {});

/// As reset_main_grad, and gives the memory of main_grad back until there is something to put into
/// it: the gradients of a step then take the place of the activations that have made them.
void release_main_grad(const Tensor& leaf, const RandomKey& rounding = {});

/// Says which random numbers round the elements of a leaf's main_grad: those of `numbers`, whose
/// streams are mixed with that of each contribution (reset_main_grad); for a leaf that is a part of
/// something or made of several things. Holds until the next set_main_grad. RuntimeError if the
/// leaf has no main_grad, ValueError if `numbers` is empty.
void number_main_grad(const Tensor& leaf, std::vector<kernels::RandomRows> numbers);

/// Gives a leaf a main_grad of the given dtype (Tensor::set_main_grad), in the state after
/// release_main_grad.
void attach_main_grad(const Tensor& leaf, DType dtype);

/// Ends the exact sums in a leaf's main_grad, which is float32 from here on: rounded once, in the
/// first half of its memory. Returns the largest magnitude that a sum had, in units (NaN where one
/// is not finite). Where nothing was added it keeps standing for zeros. RuntimeError unless
/// main_grad is float64.
double round_main_grad(const Tensor& leaf);

/// What has the first half of the memory of exact sums, in their order, once they are rounded in
/// place. `sums` is float64, contiguous, and begins its storage.
Tensor rounded_view(const Tensor& sums);

/// As add_to_main_grad, for a gradient of the leaf's shape that nobody else holds: a main_grad
/// without memory takes over that of the gradient (which should have been allocated as
/// MemoryKind::kGradient). `gradient` is then the main_grad, for the op to return. False, and
/// nothing done, where add_to_main_grad has an undefined result.
bool give_to_main_grad(const Tensor& leaf, Tensor& gradient);

/// Adds exact sums that an op has made beside the main_grad of a leaf (exact_main_grad): float64 of
/// its shape, contiguous. With `own` nobody else holds them, and a main_grad without memory takes
/// over theirs. `sums` is then the main_grad, for the op to return. False, and nothing done, where
/// exact_main_grad is undefined.
bool give_exact_sums(const Tensor& leaf, Tensor& sums, bool own);

namespace detail {

/// Gives main_grad memory if it has none.
void open_main_grad_storage(LeafState& state);

/// The main_grad, with the zeros written that it may only stand for.
Tensor settled_main_grad(LeafState& state);

/// main_grad += gradient of any floating dtype.
void accumulate_into_main_grad(LeafState& state, const Tensor& gradient);

}  // namespace detail

}  // namespace tapestry
