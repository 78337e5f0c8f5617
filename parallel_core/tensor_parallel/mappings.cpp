#include "parallel_core/tensor_parallel/mappings.h"

#include "autograd/ops/map.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "parallel_core/tensor_parallel/axis_collectives.h"

namespace tapestry {

namespace {

struct CopyToRegion {
  static constexpr OpName name = "copy_to_model_parallel_region";
  ProcessGroup* group;
  Tensor forward(const Tensor& x) { return x; }
  Tensor backward(const Tensor& dy) const { return reduce_from_model_parallel_region(dy, *group); }
};

struct ReduceFromRegion {
  static constexpr OpName name = "reduce_from_model_parallel_region";
  static constexpr bool communicates = true;
  ProcessGroup* group;
  Tensor forward(const Tensor& x) { return start_all_reduce(dense_copy(x), *group).wait(); }
  Tensor backward(const Tensor& dy) const { return copy_to_model_parallel_region(dy, *group); }
};

struct ScatterToRegion {
  static constexpr OpName name = "scatter_to_model_parallel_region";
  ProcessGroup* group;
  int64_t axis;
  Tensor forward(const Tensor& x) { return dense_copy(piece_along(x, axis, *group)); }
  Tensor backward(const Tensor& dy) const {
    return gather_from_model_parallel_region(dy, axis, *group);
  }
};

struct GatherFromRegion {
  static constexpr OpName name = "gather_from_model_parallel_region";
  static constexpr bool communicates = true;
  ProcessGroup* group;
  int64_t axis;
  Tensor forward(const Tensor& x) { return start_all_gather(x, axis, *group).wait(); }
  Tensor backward(const Tensor& dy) const {
    return scatter_to_model_parallel_region(dy, axis, *group);
  }
};

struct GatherFromSequence {
  static constexpr OpName name = "gather_from_sequence_parallel_region";
  static constexpr bool communicates = true;
  ProcessGroup* group;
  int64_t axis;
  Tensor forward(const Tensor& x) { return start_all_gather(x, axis, *group).wait(); }
  Tensor backward(const Tensor& dy) const {
    return reduce_scatter_to_sequence_parallel_region(dy, axis, *group);
  }
};

struct ReduceScatterToSequence {
  static constexpr OpName name = "reduce_scatter_to_sequence_parallel_region";
  static constexpr bool communicates = true;
  ProcessGroup* group;
  int64_t axis;
  Tensor forward(const Tensor& x) { return start_reduce_scatter(x, axis, *group).wait(); }
  Tensor backward(const Tensor& dy) const {
    return gather_from_sequence_parallel_region(dy, axis, *group);
  }
};

int64_t checked_axis(std::string_view op, const Tensor& x, int64_t axis) {
  const int64_t positive = axis < 0 ? axis + x.dim() : axis;
  check<IndexError>(positive >= 0 && positive < x.dim(), op, ": ", describe(x), " has no axis ",
                    axis);
  return positive;
}

template <class Op>
Tensor along(const Tensor& x, int64_t axis, ProcessGroup& group) {
  const int64_t positive = checked_axis(Op::name, x, axis);
  return group.size() == 1 ? x : apply_op(Op{&group, positive}, x);
}

}  // namespace

Tensor copy_to_model_parallel_region(const Tensor& x, ProcessGroup& group) {
  return group.size() == 1 ? x : apply_op(CopyToRegion{&group}, x);
}

Tensor reduce_from_model_parallel_region(const Tensor& x, ProcessGroup& group) {
  return group.size() == 1 ? x : apply_op(ReduceFromRegion{&group}, x);
}

Tensor scatter_to_model_parallel_region(const Tensor& x, int64_t axis, ProcessGroup& group) {
  return along<ScatterToRegion>(x, axis, group);
}

Tensor gather_from_model_parallel_region(const Tensor& x, int64_t axis, ProcessGroup& group) {
  return along<GatherFromRegion>(x, axis, group);
}

Tensor gather_from_sequence_parallel_region(const Tensor& x, int64_t axis, ProcessGroup& group) {
  return along<GatherFromSequence>(x, axis, group);
}

Tensor reduce_scatter_to_sequence_parallel_region(const Tensor& x,
                                                  int64_t axis,
                                                  ProcessGroup& group) {
  return along<ReduceScatterToSequence>(x, axis, group);
}

}  // namespace tapestry
