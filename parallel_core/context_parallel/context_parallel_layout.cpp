#include "parallel_core/context_parallel/context_parallel_layout.h"

#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/tensor_parallel/mappings.h"

namespace tapestry {

SequencePart ContextParallelLayout::positions(int64_t own) const {
  SequencePart part{.runs = {}, .length = own * size};
  if (size == 1) {
    part.runs = {{0, own}};
    return part;
  }
  const int64_t chunk = own / 2;
  for (const int half : {0, 1}) {
    part.runs.push_back({chunk_of(rank, half) * chunk, chunk});
  }
  return part;
}

ContextParallelLayout context_parallel_layout() {
  if (!model_parallel_is_initialized()) {
    return {};
  }
  ProcessGroup& group = get_context_parallel_group();
  return {&group, group.rank(), group.size()};
}

SequencePart hidden_positions(const ContextParallelLayout& context,
                              const TensorParallelLayout& tensor,
                              int64_t own) {
  if (!tensor.sequence_axis) {
    return context.positions(own);
  }
  return context.positions(own * tensor.size).slice(tensor.rank * own, (tensor.rank + 1) * own);
}

Tensor own_chunks(const Tensor& x, int64_t axis, const ContextParallelLayout& layout) {
  if (layout.size == 1) {
    return x;
  }
  check<ValueError>(x.size(axis) % layout.chunks() == 0, "context parallel: ", x.size(axis),
                    " tokens cannot be cut into two chunks for each of ", layout.size, " ranks");
  TensorList halves;
  for (const PositionRun& run : layout.positions(x.size(axis) / layout.size).runs) {
    halves.push_back(x.slice(axis, run.first, run.first + run.count));
  }
  return cat(halves, axis);
}

namespace {

// From the ranks' chunks side by side, as many tokens of each rank.
Tensor in_sequence_order(const Tensor& by_rank, int64_t axis, const ContextParallelLayout& layout) {
  const int64_t chunk = by_rank.size(axis) / layout.chunks();
  TensorList ordered(static_cast<size_t>(layout.chunks()));
  for (int owner = 0; owner < layout.size; ++owner) {
    for (const int half : {0, 1}) {
      const int64_t begin = (2 * owner + half) * chunk;
      ordered[static_cast<size_t>(layout.chunk_of(owner, half))] =
          by_rank.slice(axis, begin, begin + chunk);
    }
  }
  return cat(ordered, axis);
}

}  // namespace

Tensor gather_chunks(const Tensor& x, int64_t axis, const ContextParallelLayout& layout) {
  return layout.size == 1
             ? x
             : in_sequence_order(gather_from_sequence_parallel_region(x, axis, *layout.group), axis,
                                 layout);
}

Tensor gather_alike_chunks(const Tensor& x, int64_t axis, const ContextParallelLayout& layout) {
  return layout.size == 1
             ? x
             : in_sequence_order(gather_from_model_parallel_region(x, axis, *layout.group), axis,
                                 layout);
}

}  // namespace tapestry
