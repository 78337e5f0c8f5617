#include "parallel_core/context_parallel/recurrence.h"

#include <algorithm>
#include <utility>

#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/op.h"
#include "autograd/tape/recompute.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

Tensor received(ProcessGroup& group, const Shape& shape, int source) {
  const Tensor state = empty(shape, kFloat32);
  group.receive(state, source);
  return state;
}

struct ReceiveState {
  static constexpr OpName name = "receive_state";
  static constexpr bool communicates = true;
  ProcessGroup* group;
  Shape shape;
  int source;

  Tensor forward(const Tensor& /*anchor*/) { return received(*group, shape, source); }
  Tensor backward(const Tensor& dy) const {
    check<RuntimeError>(!grad_enabled(),
                        "receive_state: gradients of gradients do not go from rank to rank");
    group->send(dense(dy), source);
    return {};
  }
};

// Its result is the first input; the second one goes to another rank, and what comes back is its
// gradient.
struct SendState {
  static constexpr OpName name = "send_state";
  static constexpr bool communicates = true;
  ProcessGroup* group;
  Shape shape;
  int destination;

  Tensor forward(const Tensor& out, const Tensor& state) {
    group->send(dense(state), destination);
    return out;
  }
  TensorList backward(const Tensor& dy, NeedsGrad /*needs*/) const {
    return {dy, received(*group, shape, destination)};
  }
};

void check_two_chunks(int64_t tokens) {
  check<ValueError>(tokens % 2 == 0,
                    "context parallelism: a rank has two chunks of a sequence, but ", tokens,
                    " tokens");
}

// The owner of the chunk behind or before; this rank's own halves follow one another in the middle.
int owner_of(const ContextParallelLayout& layout, int64_t chunk) {
  return static_cast<int>(chunk < layout.size ? chunk : layout.chunks() - 1 - chunk);
}

}  // namespace

Tensor context_parallel_recurrence(
    const Tensor& anchor,
    int64_t tokens,
    const Shape& state_shape,
    const ContextParallelLayout& layout,
    const std::function<StateResult(const TokenRun&, const Tensor&, bool)>& recur) {
  if (layout.size == 1) {
    return recur({.begin = 0, .end = tokens, .first = 0}, {}, false).out;
  }
  check_two_chunks(tokens);
  const int64_t count = tokens / 2;
  TensorList halves;
  Tensor own;  // behind the first half
  for (const int half : {0, 1}) {
    const int64_t chunk = layout.chunk_of(layout.rank, half);
    const bool is_first = chunk == 0;
    const bool is_last = chunk + 1 == layout.chunks();
    const int before = is_first ? layout.rank : owner_of(layout, chunk - 1);
    const int behind = is_last ? layout.rank : owner_of(layout, chunk + 1);
    Tensor state = own;
    if (before != layout.rank) {
      const RecomputeScope kept(nullptr);  // nobody would send it again
      state = apply_op(ReceiveState{layout.group, state_shape, before}, anchor);
    }
    StateResult result =
        recur({.begin = half * count, .end = (half + 1) * count, .first = chunk * count}, state,
              !is_last);
    own = {};
    if (!is_last && behind == layout.rank) {
      own = result.state;
    } else if (!is_last) {
      const RecomputeScope kept(nullptr);
      result.out = apply_op(SendState{layout.group, state_shape, behind}, result.out, result.state);
    }
    halves.push_back(std::move(result.out));
  }
  return cat(halves, 1);
}

Tensor context_parallel_convolution(const Tensor& x,
                                    const Tensor& weight,
                                    const ShortConvolutionOptions& options,
                                    const ContextParallelLayout& layout) {
  const int64_t back = weight.size(1) - 1;
  if (layout.size == 1) {
    return short_convolution(x, weight, options);
  }
  const int64_t tokens = x.size(1);
  const int64_t count = tokens / 2;
  check_two_chunks(tokens);
  // Of each chunk what is looked back at; a shorter one as a whole, so that several follow on.
  const int64_t tail = std::min(back, count);
  const auto half_of = [&](int half) { return x.slice(1, half * count, (half + 1) * count); };
  const Tensor tails = gather_chunks(
      cat({half_of(0).slice(1, count - tail, count), half_of(1).slice(1, count - tail, count)}, 1),
      1, layout);
  TensorList halves;
  for (const int half : {0, 1}) {
    const int64_t chunk = layout.chunk_of(layout.rank, half);
    ShortConvolutionOptions own = options;
    own.first_position = chunk * count;
    if (chunk > 0 && back > 0) {
      const int64_t end = chunk * tail;
      const Tensor before = tails.slice(1, std::max<int64_t>(end - back, 0), end);
      own.previous = end >= back
                         ? before
                         : cat({zeros({x.size(0), back - end, x.size(2)}, x.dtype()), before}, 1);
    }
    halves.push_back(short_convolution(half_of(half), weight, own));
  }
  return cat(halves, 1);
}

}  // namespace tapestry
