#include "diagnosis/autopsy/token_place.h"

#include <array>

#include "parallel_core/context_parallel/context_parallel_layout.h"
#include "parallel_core/parallel_state.h"

namespace tapestry::autopsy {

namespace {

struct LocalPlace {
  int64_t row = -1;
  int64_t index = -1;  // among the rank's tokens of the sequence
};

LocalPlace local_place(
    const Shape& shape, int64_t element, int64_t batch, int64_t own, int64_t sequence_axis) {
  const int64_t dims = shape.size();
  std::array<int64_t, 3> index = {};
  int64_t inner = shape.numel();
  int64_t rest = element;
  for (int64_t axis = 0; axis < dims && axis < 3; ++axis) {
    inner /= shape[axis];
    index[static_cast<size_t>(axis)] = rest / inner;
    rest %= inner;
  }
  const bool sequence_first = sequence_axis == 0;
  if (dims >= 2 && !sequence_first && shape[0] == batch && shape[1] == own) {
    return {index[0], index[1]};
  }
  if (dims >= 2 && sequence_first && shape[0] == own && shape[1] == batch) {
    return {index[1], index[0]};
  }
  if (dims == 4 && shape[0] == batch && shape[2] == own) {
    return {index[0], index[2]};
  }
  if (dims >= 1 && shape[0] == batch * own) {
    return sequence_first ? LocalPlace{index[0] % batch, index[0] / batch}
                          : LocalPlace{index[0] / own, index[0] % own};
  }
  return {};
}

int64_t position_of(const SequencePart& part, int64_t index) {
  const SequencePart one = part.slice(index, index + 1);
  return one.runs.empty() ? -1 : one.runs.front().first;
}

}  // namespace

TokenPlace token_place(
    const Shape& shape, int64_t element, int64_t batch, int64_t seq, int64_t sequence_axis) {
  if (shape.numel() == 0) {
    return {};
  }
  const ContextParallelLayout context = context_parallel_layout();
  const int64_t tensor_ranks =
      model_parallel_is_initialized() ? get_tensor_model_parallel_world_size() : 1;
  const int64_t of_context = seq / context.size;
  const LocalPlace whole = local_place(shape, element, batch, of_context, sequence_axis);
  if (whole.row >= 0) {
    return {whole.row, position_of(context.positions(of_context), whole.index)};
  }
  if (tensor_ranks > 1 && of_context % tensor_ranks == 0) {
    const int64_t own = of_context / tensor_ranks;
    const LocalPlace part = local_place(shape, element, batch, own, sequence_axis);
    if (part.row >= 0) {
      const int64_t index = get_tensor_model_parallel_rank() * own + part.index;
      return {part.row, position_of(context.positions(of_context), index)};
    }
  }
  return {};
}

}  // namespace tapestry::autopsy
