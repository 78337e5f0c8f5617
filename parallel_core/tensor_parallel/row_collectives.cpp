#include "parallel_core/tensor_parallel/row_collectives.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>

#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

int64_t sum_of(const RowCounts& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

void check_row_counts(std::string_view op,
                      const char* which,
                      const RowCounts& counts,
                      const ProcessGroup& group) {
  check<ValueError>(std::ssize(counts) == group.size(), op, ": ", counts.size(), " ", which,
                    " counts for the ", group.size(), " ranks of ", group.name());
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    check<ValueError>(counts[rank] >= 0, op, ": the ", which, " count for rank ", rank,
                      " must not be negative, got ", counts[rank]);
  }
}

void check_rows(std::string_view op, const Tensor& x, int64_t rows, const char* what) {
  check_floating(op, x.dtype());
  check<ValueError>(x.dim() >= 1, op, ": ", describe(x), " has no rows");
  check<ValueError>(x.size(0) == rows, op, ": ", describe(x), " has ", x.size(0), " rows, ", what,
                    " ", rows);
}

Shape with_rows(const Tensor& x, int64_t rows) {
  Shape shape = x.shape();
  shape[0] = rows;
  return shape;
}

int64_t row_size(const Tensor& x) {
  int64_t size = 1;
  for (int64_t axis = 1; axis < x.dim(); ++axis) {
    size *= x.size(axis);
  }
  return size;
}

RowCounts elements(const RowCounts& rows, int64_t row) {
  RowCounts out = rows;
  for (int64_t& count : out) {
    count *= row;
  }
  return out;
}

// Rows on their way.
struct Exchange {
  Tensor rows;  // that come
  WorkHandle work;
};

Exchange start_exchange(const Tensor& x,
                        const RowCounts& send,
                        const RowCounts& receive,
                        ProcessGroup& group) {
  Exchange out;
  out.rows = empty(with_rows(x, sum_of(receive)), x.dtype());
  const int64_t row = row_size(x);
  out.work =
      group.all_to_all_async(out.rows, dense(x), elements(receive, row), elements(send, row));
  return out;
}

Tensor exchanged(const Tensor& x,
                 const RowCounts& send,
                 const RowCounts& receive,
                 ProcessGroup& group) {
  Exchange exchange = start_exchange(x, send, receive, group);
  exchange.work->wait();
  return exchange.rows;
}

// The rows behind a window that waits for them.
Tensor waited_for_at_first_touch(Exchange exchange) {
  const Shape shape = exchange.rows.shape();
  const DType dtype = exchange.rows.dtype();
  const int64_t bytes = exchange.rows.numel() * size_of(dtype);
  auto storage = make_ref<Storage>(bytes, [exchange = std::move(exchange)] {
    exchange.work->wait();
    return static_cast<std::byte*>(exchange.rows.raw());
  });
  return Tensor(
      make_ref<TensorImpl>(std::move(storage), 0, shape, contiguous_strides(shape), dtype));
}

// What a RecomputeScope takes for an op that cannot be run again, so that its results stay: values
// are made again where they are touched, which a rank without rows may never do, and then it would
// not send while others wait.
struct ResultStays {
  ResultStays() = default;
  ResultStays(const ResultStays&) = delete;
  ResultStays& operator=(const ResultStays&) = delete;
  ResultStays(ResultStays&&) = default;
  ResultStays& operator=(ResultStays&&) = default;
  ~ResultStays() = default;
};

struct AllToAllRows {
  static constexpr OpName name = "all_to_all_rows";
  static constexpr bool communicates = true;
  RowCounts send;
  RowCounts receive;
  ProcessGroup* group;
  bool waits = true;    // for the rows; else they are waited for where they are touched
  Exchange begun = {};  // of PendingRows
  ResultStays stays = {};

  Tensor forward(const Tensor& x) {
    if (begun.work != nullptr) {
      Exchange exchange = std::exchange(begun, {});
      exchange.work->wait();
      return exchange.rows;
    }
    return waits ? exchanged(x, send, receive, *group)
                 : waited_for_at_first_touch(start_exchange(x, send, receive, *group));
  }
  Tensor backward(const Tensor& dy) const {
    return apply_op(AllToAllRows{.send = receive, .receive = send, .group = group, .waits = false},
                    dy);
  }
};

struct GatherRows {
  static constexpr OpName name = "gather_rows";
  static constexpr bool communicates = true;
  RowCounts counts;
  ProcessGroup* group;
  ResultStays stays = {};

  Tensor forward(const Tensor& x) {
    const auto ranks = static_cast<int64_t>(group->size());
    Shape repeated = x.shape();
    repeated[0] *= ranks;
    const Tensor copies = empty(repeated, x.dtype());
    for (int64_t rank = 0; rank < ranks; ++rank) {
      copy_values(x, alias(copies, x.shape(), contiguous_strides(x.shape()), rank * x.numel()));
    }
    const RowCounts send(static_cast<size_t>(ranks), x.size(0));
    return exchanged(copies, send, counts, *group);
  }
  Tensor backward(const Tensor& dy) const { return reduce_scatter_rows(dy, counts, *group); }
};

struct ReduceScatterRows {
  static constexpr OpName name = "reduce_scatter_rows";
  static constexpr bool communicates = true;
  RowCounts counts;
  ProcessGroup* group;
  ResultStays stays = {};

  Tensor forward(const Tensor& x) {
    const int64_t own = counts[static_cast<size_t>(group->rank())];
    const RowCounts receive(counts.size(), own);
    const Tensor shares = exchanged(x, counts, receive, *group);
    const Shape shape = with_rows(x, own);
    const auto share = [&](int64_t rank) {
      return alias(shares, shape, contiguous_strides(shape), rank * shape.numel());
    };
    const DType dtype = size_of(x.dtype()) < size_of(kFloat32) ? kFloat32 : x.dtype();
    if (in_exact()) {
      return tree_of(shares, shape, dtype).to(x.dtype());
    }
    const Tensor sum = empty(shape, dtype);
    copy_values(share(0), sum);
    for (int64_t rank = 1; rank < group->size() && shape.numel() > 0; ++rank) {
      const Tensor next = share(rank).to(dtype);
      kernels::axpy(dtype, shape.numel(), 1, next.raw(), sum.raw());
    }
    return dtype == x.dtype() ? sum : sum.to(x.dtype());
  }
  Tensor backward(const Tensor& dy) const { return gather_rows(dy, counts, *group); }

 private:
  // Neighbours are added, then their sums, and so on: the rest of a tree of which each rank has a
  // part. An odd one out waits for the next round.
  Tensor tree_of(const Tensor& shares, const Shape& shape, DType dtype) const {
    TensorList sums;
    for (int64_t rank = 0; rank < group->size(); ++rank) {
      sums.push_back(
          alias(shares, shape, contiguous_strides(shape), rank * shape.numel()).to(dtype));
    }
    for (; sums.size() > 1; sums.resize((sums.size() + 1) / 2)) {
      for (size_t i = 0; i < sums.size(); i += 2) {
        if (i + 1 < sums.size() && shape.numel() > 0) {
          kernels::axpy(dtype, shape.numel(), 1, sums[i + 1].raw(), sums[i].raw());
        }
        sums[i / 2] = sums[i];
      }
    }
    return sums.front();
  }
};

void check_exchange(const Tensor& x,
                    const RowCounts& send,
                    const RowCounts& receive,
                    const ProcessGroup& group) {
  check_row_counts(AllToAllRows::name, "send", send, group);
  check_row_counts(AllToAllRows::name, "receive", receive, group);
  check_rows(AllToAllRows::name, x, sum_of(send), "the send counts sum to");
}

}  // namespace

Tensor all_to_all_rows(const Tensor& x,
                       const RowCounts& send_counts,
                       const RowCounts& receive_counts,
                       ProcessGroup& group) {
  check_exchange(x, send_counts, receive_counts, group);
  return group.size() == 1
             ? x
             : apply_op(
                   AllToAllRows{.send = send_counts, .receive = receive_counts, .group = &group},
                   x);
}

Tensor gather_rows(const Tensor& x, const RowCounts& counts, ProcessGroup& group) {
  check_row_counts(GatherRows::name, "row", counts, group);
  check_rows(GatherRows::name, x, counts[static_cast<size_t>(group.rank())],
             "the count of this rank is");
  return group.size() == 1 ? x : apply_op(GatherRows{counts, &group}, x);
}

Tensor reduce_scatter_rows(const Tensor& x, const RowCounts& counts, ProcessGroup& group) {
  check_row_counts(ReduceScatterRows::name, "row", counts, group);
  check_rows(ReduceScatterRows::name, x, sum_of(counts), "the counts sum to");
  return group.size() == 1 ? x : apply_op(ReduceScatterRows{counts, &group}, x);
}

PendingRows::PendingRows(const Tensor& x,
                         RowCounts send_counts,
                         RowCounts receive_counts,
                         ProcessGroup& group)
    : x_(x),
      send_counts_(std::move(send_counts)),
      receive_counts_(std::move(receive_counts)),
      group_(&group) {
  check_exchange(x_, send_counts_, receive_counts_, group);
  if (group.size() > 1) {
    Exchange exchange = start_exchange(x_.detach(), send_counts_, receive_counts_, group);
    rows_ = std::move(exchange.rows);
    work_ = std::move(exchange.work);
  }
}

Tensor PendingRows::finish() {
  const Tensor x = std::exchange(x_, {});
  check<RuntimeError>(x.defined(), "all_to_all_rows: finish() was called twice");
  if (group_->size() == 1) {
    return x;
  }
  return apply_op(
      AllToAllRows{.send = std::move(send_counts_),
                   .receive = std::move(receive_counts_),
                   .group = group_,
                   .begun = {.rows = std::exchange(rows_, {}), .work = std::move(work_)}},
      x);
}

}  // namespace tapestry
