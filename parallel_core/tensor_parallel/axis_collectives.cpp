#include "parallel_core/tensor_parallel/axis_collectives.h"

#include <utility>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// A contiguous tensor as [before, pieces, piece]: the axes before `axis`, the pieces into which
// that is cut, and what is behind.
struct Cut {
  int64_t before = 1;
  int64_t pieces = 1;
  int64_t piece = 1;
};

Cut cut(const Shape& whole, int64_t axis, int64_t pieces) {
  Cut out{.pieces = pieces};
  for (int64_t i = 0; i < axis; ++i) {
    out.before *= whole[i];
  }
  for (int64_t i = axis; i < whole.size(); ++i) {
    out.piece *= whole[i];
  }
  out.piece /= pieces;
  return out;
}

// Copies between a contiguous tensor that is cut and its pieces one after the other.
void copy_pieces(const Cut& cut, const Tensor& whole, const Tensor& pieces, bool to_pieces) {
  const Shape shape = {cut.pieces, cut.before, cut.piece};
  const Tensor a = alias(whole, shape, {cut.piece, cut.pieces * cut.piece, 1}, whole.offset());
  const Tensor b = alias(pieces, shape, contiguous_strides(shape), pieces.offset());
  if (to_pieces) {
    copy_values(a, b);
  } else {
    copy_values(b, a);
  }
}

int64_t piece_size(const Tensor& x, int64_t axis, const ProcessGroup& group) {
  const int64_t size = x.size(axis);
  check<ValueError>(size % group.size() == 0, "axis ", axis, " of ", describe(x),
                    " is not divisible by the ", group.size(), " ranks of ", group.name());
  return size / group.size();
}

}  // namespace

Tensor PendingTensor::wait() {
  work_->wait();
  if (!in_pieces_) {
    return std::move(buffer_);
  }
  const int64_t pieces = buffer_.size(0);
  Shape shape = buffer_.shape();
  shape.erase(0);
  shape[axis_] *= pieces;
  Tensor out = empty(shape, buffer_.dtype());
  copy_pieces(cut(shape, axis_, pieces), out, buffer_, /*to_pieces=*/false);
  buffer_ = {};
  return out;
}

PendingTensor start_all_reduce(const Tensor& x, ProcessGroup& group) {
  PendingTensor out;
  out.buffer_ = dense(x);
  out.work_ = group.all_reduce_async(out.buffer_);
  return out;
}

PendingTensor start_all_gather(const Tensor& x, int64_t axis, ProcessGroup& group) {
  const Tensor own = dense(x);
  Shape whole = own.shape();
  whole[axis] *= group.size();
  PendingTensor out;
  if (cut(whole, axis, group.size()).before > 1) {
    Shape pieces = own.shape();
    pieces.insert(0, group.size());
    out.buffer_ = empty(pieces, own.dtype());
    out.axis_ = axis;
    out.in_pieces_ = true;
  } else {
    out.buffer_ = empty(whole, own.dtype());
  }
  out.work_ = group.all_gather_async(out.buffer_, own);
  return out;
}

PendingTensor start_reduce_scatter(const Tensor& x, int64_t axis, ProcessGroup& group) {
  Shape piece = x.shape();
  piece[axis] = piece_size(x, axis, group);
  Tensor input = dense(x);
  if (const Cut parts = cut(x.shape(), axis, group.size()); parts.before > 1) {
    const Tensor pieces = empty(x.shape(), x.dtype());
    copy_pieces(parts, input, pieces, /*to_pieces=*/true);
    input = pieces;
  }
  PendingTensor out;
  out.buffer_ = empty(piece, x.dtype());
  out.work_ = group.reduce_scatter_async(out.buffer_, input);
  return out;
}

Tensor piece_along(const Tensor& x, int64_t axis, const ProcessGroup& group) {
  const int64_t size = piece_size(x, axis, group);
  Shape shape = x.shape();
  shape[axis] = size;
  return alias(x, shape, x.strides(), x.offset() + group.rank() * size * x.strides()[axis]);
}

}  // namespace tapestry
