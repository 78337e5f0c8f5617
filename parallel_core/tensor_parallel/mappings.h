// The collectives of tensor and sequence parallelism as ops, in conjugate pairs: the backward of
// each is the forward of another.
//
// A tensor is replicated (the same on every rank), partial (the sum over the ranks is what counts)
// or a piece (the ranks' tensors side by side along an axis are what counts); its gradient is then
// what the table says. Each rank of the group calls the same functions in the same order. In a
// group of one they return x itself. Differentiable any number of times.
//
// | function                                     | forward: in -> out   | backward: dy -> dx      |
// |----------------------------------------------|----------------------|-------------------------|
// | copy_to_model_parallel_region                | replicated -> itself | partial -> replicated   |
// | reduce_from_model_parallel_region            | partial -> replicated| replicated -> itself    |
// | scatter_to_model_parallel_region             | replicated -> piece  | piece -> replicated     |
// | gather_from_model_parallel_region            | piece -> replicated  | replicated -> piece     |
// | gather_from_sequence_parallel_region         | piece -> replicated  | partial -> piece        |
// | reduce_scatter_to_sequence_parallel_region   | partial -> piece     | piece -> replicated     |
//
// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022,
// arXiv:2205.05198, section 4.2.
#pragma once

#include "parallel_core/comm/process_group.h"

namespace tapestry {

/// x itself; backward sums the gradient over the group.
Tensor copy_to_model_parallel_region(const Tensor& x, ProcessGroup& group);
/// The sum over the group; backward passes the gradient on.
Tensor reduce_from_model_parallel_region(const Tensor& x, ProcessGroup& group);
/// This rank's piece along an axis; backward gathers. ValueError if the axis is not divisible.
Tensor scatter_to_model_parallel_region(const Tensor& x, int64_t axis, ProcessGroup& group);
/// All pieces along an axis, of which every rank makes the same use; backward takes this rank's
/// piece.
Tensor gather_from_model_parallel_region(const Tensor& x, int64_t axis, ProcessGroup& group);
/// All pieces along the sequence, of which every rank makes a use of its own: backward sums and
/// scatters.
Tensor gather_from_sequence_parallel_region(const Tensor& x, int64_t axis, ProcessGroup& group);
/// This rank's piece, along the sequence, of the sum over the group; backward gathers. ValueError
/// if the axis is not divisible.
Tensor reduce_scatter_to_sequence_parallel_region(const Tensor& x,
                                                  int64_t axis,
                                                  ProcessGroup& group);

}  // namespace tapestry
