// Samples of hyper-connections.
#include "autograd/ops/transformer/hyper_connection.h"
#include "autograd/tensor/factory.h"
#include "tests/autograd/ops/op_samples.h"

namespace tapestry {

namespace {

DType gates_dtype(const Tensor& streams) {
  return streams.defined() && streams.dtype() != kFloat64 ? kFloat32 : kFloat64;
}
Tensor as_gates(const Tensor& t, const Tensor& streams) {
  return t.defined() ? t.to(gates_dtype(streams)) : t;
}

// in: streams, weight, alpha, bias
auto read_with(const HyperConnectionOptions& options) {
  return [=](const TensorList& in) -> TensorList {
    const HyperConnectionReading made = hyper_connection_read(
        in[0], as_gates(in[1], in[0]), as_gates(in[2], in[0]), as_gates(in[3], in[0]), options);
    return {made.input, made.gates, made.streams};
  };
}

// in: streams, output, gates
auto write_with(int64_t n) {
  return [=](const TensorList& in) -> Tensor {
    return hyper_connection_write(in[0], in[1], as_gates(in[2], in[0]), n);
  };
}

}  // namespace

OP_SAMPLES(hyper_connection_read) {
  const auto inputs = [&](const Shape& streams, int64_t n) -> TensorList {
    const int64_t m = n * (n + 2);
    const double most = 1 / static_cast<double>(streams.back());
    return {randn(streams), uniform({m, streams.back()}, -most, most), nonzero({3}), randn({m})};
  };
  for (const int64_t n : {1, 2, 3, 4}) {
    const HyperConnectionOptions o = {.streams = n, .iterations = 3, .eps = 0.1};
    add(read_with(o), inputs({2, 3, 5 * n}, n));
    add(read_with(o), inputs({4 * n}, n));
    add(read_with(o), inputs({0, 4 * n}, n));
  }
  const HyperConnectionOptions plain = {.streams = 2, .iterations = 20};
  add(read_with(plain), inputs({17, 6}, 2));
  add_large(read_with({.streams = 4, .iterations = 20}), inputs({40, 4 * 290}, 4));
  add_large(read_with({.streams = 2, .iterations = 2}), inputs({70, 2 * 1100}, 2));
  const TensorList good = inputs({2, 8}, 2);
  const auto fails = [&](const HyperConnectionOptions& o, const char* fragment) {
    add_error<ValueError>(read_with(o), good, fragment);
  };
  fails({.streams = 0}, "the number of streams must be 1 to 16, got 0");
  fails({.streams = 17}, "the number of streams must be 1 to 16, got 17");
  fails({.streams = 3}, "must hold 3 streams of equal size, got [2, 8]");
  fails({.streams = 2, .iterations = 0}, "iterations must be at least 1, got 0");
  fails({.streams = 2, .eps = -1}, "eps must not be negative");
  fails({.streams = 4}, "weight must be [24, 8] for 4 streams [2, 8], got [8, 8]");
  add_error<ValueError>(read_with(plain), {good[0], good[1], randn({2}), good[3]},
                        "alpha must be [3] for 2 streams [2, 8], got [2]");
  add_error<ValueError>(read_with(plain), {good[0], good[1], good[2], randn({7})},
                        "bias must be [8] for 2 streams [2, 8], got [7]");
  add_error<ValueError>(read_with(plain), {randn({}), good[1], good[2], good[3]},
                        "must hold 2 streams of equal size");
  add_error<TypeError>(
      [](const TensorList& in) {
        return hyper_connection_read(in[0], in[1].to(kFloat32), in[2], in[3], {.streams = 2}).input;
      },
      good, "weight must be float64 for streams of float64, got float32");
  add_error<TypeError>(read_with(plain), {good[0].to(kInt64), good[1], good[2], good[3]}, "int64");
}

OP_SAMPLES(hyper_connection_write) {
  const auto inputs = [&](int64_t rows, int64_t n, int64_t hidden) -> TensorList {
    return {randn({rows, n * hidden}), randn({rows, hidden}), randn({rows, n * (n + 2)})};
  };
  for (const int64_t n : {1, 2, 4, 5}) {
    add(write_with(n), inputs(3, n, 5));
    add(write_with(n), inputs(0, n, 5));
  }
  add(write_with(2), {randn({2, 2, 6}), randn({2, 2, 3}), randn({2, 2, 8})});
  add(write_with(2), {randn({6}), randn({3}), randn({8})});
  add_large(write_with(4), inputs(40, 4, 290));
  add_large(write_with(3), inputs(20, 3, 1100));
  const TensorList good = inputs(2, 2, 3);
  add_error<ValueError>(write_with(0), good, "the number of streams must be 1 to 16, got 0");
  add_error<ValueError>(write_with(4), good, "must hold 4 streams of equal size, got [2, 6]");
  add_error<ValueError>(write_with(3), good, "output must be [2, 2] for 3 streams [2, 6]");
  add_error<ValueError>(write_with(2), {good[0], good[1], randn({2, 7})},
                        "gates must be [2, 8] for 2 streams [2, 6], got [2, 7]");
  add_error<TypeError>(write_with(2), {good[0], good[1].to(kFloat32), good[2]},
                       "streams of float64 with an output of float32");
  add_error<TypeError>(
      [](const TensorList& in) {
        return hyper_connection_write(in[0], in[1], in[2].to(kFloat32), 2);
      },
      good, "gates must be float64 for streams of float64, got float32");
}

}  // namespace tapestry
