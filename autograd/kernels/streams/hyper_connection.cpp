#include "autograd/kernels/streams/hyper_connection.h"

#include <algorithm>
#include <cassert>
#include <vector>

#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/streams/hyper_connection_rows.h"

namespace tapestry::kernels {

namespace {

namespace hyper_connections {

[[maybe_unused]] bool fits(const HyperConnectionShape& s) {
  return is_floating(s.dtype) && s.streams > 0 && s.streams <= kMostStreams && s.hidden > 0;
}

DType computed(const HyperConnectionShape& s) { return compute_dtype(s.dtype); }

Scratch elements(const HyperConnectionShape& s, int64_t count) {
  return Scratch(count * size_of(computed(s)));
}

// Calls body(begin, end, buffer) for all tokens, in parts of whole groups.
template <class Body>
void for_tokens(const HyperConnectionShape& s, int64_t iterations, const Body& body) {
  const int64_t groups = ceil_div(s.rows, kStreamLanes);
  const int64_t grain = std::max<int64_t>(rows_per_thread(s.width()) / kStreamLanes, 1);
  parallel_for(groups, grain, [&](int64_t begin, int64_t end) {
    const Scratch buffer = elements(s, hyper_connection_buffer(s, iterations));
    body(begin * kStreamLanes, std::min(end * kStreamLanes, s.rows), buffer.get());
  });
}

// dbias = sum over tokens of dz, and dalpha that of dz p over each of the three parts; one token
// after the other, in double.
template <class C>
void sum_over_tokens(const HyperConnectionReadBackward& call, const C* dz) {
  const HyperConnectionShape& s = call.shape;
  const int64_t m = s.gates();
  const auto* logits = static_cast<const C*>(call.logits);
  std::vector<double> bias(static_cast<size_t>(m), 0);
  std::vector<double> scaled(static_cast<size_t>(m), 0);
  for (int64_t row = 0; row < s.rows; ++row) {
    for (int64_t j = 0; j < m; ++j) {
      const double slope = dz[row * m + j];
      bias[static_cast<size_t>(j)] += slope;
      scaled[static_cast<size_t>(j)] += slope * static_cast<double>(logits[row * m + j]);
    }
  }
  double alpha[3] = {};
  for (int64_t j = 0; j < m; ++j) {
    alpha[std::min<int64_t>(j / s.streams, 2)] += scaled[static_cast<size_t>(j)];
  }
  if (call.dbias != nullptr) {
    std::copy(bias.begin(), bias.end(), static_cast<C*>(call.dbias));
  }
  if (call.dalpha != nullptr) {
    std::copy(std::begin(alpha), std::end(alpha), static_cast<C*>(call.dalpha));
  }
}

}  // namespace hyper_connections

}  // namespace

void hyper_connection_read(const HyperConnectionRead& call) {
  assert(hyper_connections::fits(call.shape));
  const auto run = TAPESTRY_DISPATCH(hyper_connection_read_rows);
  hyper_connections::for_tokens(call.shape, 0, [&](int64_t begin, int64_t end, void* buffer) {
    run(call, begin, end, buffer);
  });
}

void hyper_connection_read_backward(const HyperConnectionReadBackward& call) {
  const HyperConnectionShape& s = call.shape;
  assert(hyper_connections::fits(s));
  const int64_t m = s.gates();
  const Scratch dz = hyper_connections::elements(s, s.rows * m);
  const Scratch dq = hyper_connections::elements(s, s.rows * m);
  const auto logits = TAPESTRY_DISPATCH(hyper_connection_logit_gradients);
  const auto rows = TAPESTRY_DISPATCH(hyper_connection_stream_gradients);
  hyper_connections::for_tokens(s, call.maker.iterations,
                                [&](int64_t begin, int64_t end, void* buffer) {
                                  logits(call, begin, end, dz.get(), dq.get(), buffer);
                                  if (call.dx != nullptr) {
                                    rows(call, begin, end, dq.get(), buffer);
                                  }
                                });
  if (call.dbias != nullptr || call.dalpha != nullptr) {
    if (s.dtype == kFloat64) {
      hyper_connections::sum_over_tokens(call, static_cast<const double*>(dz.get()));
    } else {
      hyper_connections::sum_over_tokens(call, static_cast<const float*>(dz.get()));
    }
  }
  if (call.dweight == nullptr) {
    return;
  }
  const auto columns = TAPESTRY_DISPATCH(hyper_connection_weight_gradients);
  const int64_t tasks = ceil_div(s.width(), kWeightColumns);
  const int64_t grain = std::max<int64_t>(kGrainSize / (s.rows * m * kWeightColumns + 1), 1);
  parallel_for(tasks, grain, [&](int64_t begin, int64_t end) {
    const Scratch buffer = hyper_connections::elements(s, weight_gradient_buffer(s));
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task * kWeightColumns;
      columns(call, first, std::min(kWeightColumns, s.width() - first), dq.get(), buffer.get());
    }
  });
}

void hyper_connection_write(const HyperConnectionWrite& call) {
  assert(hyper_connections::fits(call.shape));
  const auto run = TAPESTRY_DISPATCH(hyper_connection_write_rows);
  hyper_connections::for_tokens(call.shape, 0, [&](int64_t begin, int64_t end, void* buffer) {
    run(call, begin, end, buffer);
  });
}

void hyper_connection_write_backward(const HyperConnectionWriteBackward& call) {
  assert(hyper_connections::fits(call.shape));
  const auto run = TAPESTRY_DISPATCH(hyper_connection_write_gradients);
  hyper_connections::for_tokens(call.shape, 0, [&](int64_t begin, int64_t end, void* buffer) {
    run(call, begin, end, buffer);
  });
}

}  // namespace tapestry::kernels
