#include "autograd/ops/transformer/hyper_connection.h"

#include <array>
#include <utility>

#include "autograd/kernels/streams/hyper_connection.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduction.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

namespace hyper_connections {

constexpr OpName kRead = "hyper_connection_read";
constexpr OpName kWrite = "hyper_connection_write";
constexpr double kSinkhornEps = 1e-6;

int64_t gates_of(int64_t n) { return n * (n + 2); }

// A shape with another last size.
Shape with_last(const Tensor& x, int64_t size) {
  Shape shape = x.shape();
  shape.back() = size;
  return shape;
}

void check_streams(std::string_view op, const Tensor& streams, int64_t n) {
  check_floating(op, streams.dtype());
  check<ValueError>(n >= 1 && n <= kernels::kMostStreams, op,
                    ": the number of streams must be 1 to ", kernels::kMostStreams, ", got ", n);
  check<ValueError>(
      streams.dim() >= 1 && streams.shape().back() > 0 && streams.shape().back() % n == 0, op,
      ": the last axis of streams must hold ", n, " streams of equal size, got ", streams.shape());
}

void check_gates_dtype(std::string_view op,
                       const Tensor& streams,
                       const Tensor& t,
                       const char* name) {
  check<TypeError>(t.dtype() == wide_dtype(streams.dtype()), op, ": ", name, " must be ",
                   name_of(wide_dtype(streams.dtype())), " for streams of ",
                   name_of(streams.dtype()), ", got ", name_of(t.dtype()));
}

void check_read(const Tensor& streams,
                const Tensor& weight,
                const Tensor& alpha,
                const Tensor& bias,
                const HyperConnectionOptions& o) {
  check_defined(kRead, streams, "streams", weight, "weight", alpha, "alpha", bias, "bias");
  check_streams(kRead, streams, o.streams);
  check<ValueError>(o.iterations >= 1, kRead, ": iterations must be at least 1, got ",
                    o.iterations);
  check<ValueError>(o.eps >= 0, kRead, ": eps must not be negative, got ", o.eps);
  const int64_t m = gates_of(o.streams);
  const auto check_one = [&](const Tensor& t, const char* name, const Shape& shape) {
    check_gates_dtype(kRead, streams, t, name);
    check<ValueError>(t.shape() == shape, kRead, ": ", name, " must be ", shape, " for ", o.streams,
                      " streams ", streams.shape(), ", got ", t.shape());
  };
  check_one(weight, "weight", {m, streams.shape().back()});
  check_one(alpha, "alpha", {3});
  check_one(bias, "bias", {m});
}

void check_write(const Tensor& streams, const Tensor& output, const Tensor& gates, int64_t n) {
  check_defined(kWrite, streams, "streams", output, "output", gates, "gates");
  check_streams(kWrite, streams, n);
  check_floating(kWrite, output.dtype());
  check<TypeError>((streams.dtype() == kFloat64) == (output.dtype() == kFloat64), kWrite,
                   ": streams of ", name_of(streams.dtype()), " with an output of ",
                   name_of(output.dtype()), "; float64 goes with float64 only");
  check_gates_dtype(kWrite, streams, gates, "gates");
  const Shape own = with_last(streams, streams.shape().back() / n);
  check<ValueError>(output.shape() == own, kWrite, ": output must be ", own, " for ", n,
                    " streams ", streams.shape(), ", got ", output.shape());
  const Shape expected = with_last(streams, gates_of(n));
  check<ValueError>(gates.shape() == expected, kWrite, ": gates must be ", expected, " for ", n,
                    " streams ", streams.shape(), ", got ", gates.shape());
}

// ------------------------------------------------------------------------------------------ twins

// [.., n h] as [.., n, h]
Tensor by_stream(const Tensor& packed, int64_t n) {
  Shape shape = with_last(packed, n);
  shape.push_back(packed.shape().back() / n);
  return packed.reshape(shape);
}

Tensor composed_gates(const Tensor& x,
                      const Tensor& weight,
                      const Tensor& alpha,
                      const Tensor& bias,
                      const HyperConnectionOptions& o) {
  const int64_t n = o.streams;
  const Tensor r = mul(x, rsqrt(add(mean(square(x), {-1}, true), o.eps)));
  const Tensor p = matmul(r, weight.transpose(0, 1));
  const TensorList scales = split(alpha, 1, 0);
  const Tensor factors =
      cat({scales[0].expand({n}), scales[1].expand({n}), scales[2].expand({n * n})}, 0);
  const TensorList z = split(add(mul(p, factors), bias), Shape{n, n, n * n}, -1);
  Shape square_shape = with_last(p, n);
  square_shape.push_back(n);
  Tensor res = z[2].reshape(square_shape);
  res = exp(sub(res, amax(res, {-1}, true)));
  for (int64_t round = 0; round < o.iterations; ++round) {
    res = div(res, add(sum(res, {-1}, true), kSinkhornEps));
    res = div(res, add(sum(res, {-2}, true), kSinkhornEps));
  }
  return cat({sigmoid(z[0]), mul(sigmoid(z[1]), 2), res.reshape(z[2].shape())}, -1);
}

// {input, gates}
TensorList composed_read(const Tensor& streams,
                         const Tensor& weight,
                         const Tensor& alpha,
                         const Tensor& bias,
                         const HyperConnectionOptions& o) {
  const Tensor x = widen(streams);
  const Tensor gates = composed_gates(x, weight, alpha, bias, o);
  const Tensor pre = slice(gates, -1, 0, o.streams).unsqueeze(-1);
  return {sum(mul(by_stream(x, o.streams), pre), {-2}).to(streams.dtype()), gates};
}

Tensor composed_write(const Tensor& streams, const Tensor& output, const Tensor& gates, int64_t n) {
  const Tensor x = by_stream(widen(streams), n);
  const TensorList parts = split(gates, Shape{n, n, n * n}, -1);
  Shape square_shape = with_last(gates, n);
  square_shape.push_back(n);
  const Tensor mixed =
      sum(mul(parts[2].reshape(square_shape).unsqueeze(-1), x.unsqueeze(-3)), {-2});
  const Tensor written = mul(parts[1].unsqueeze(-1), widen(output).unsqueeze(-2));
  return add(mixed, written).reshape(streams.shape()).to(streams.dtype());
}

// -------------------------------------------------------------------------------------------- ops

kernels::HyperConnectionShape shape_of(const Tensor& streams, int64_t n) {
  const int64_t width = streams.shape().back();
  return {
      .rows = streams.numel() / width, .streams = n, .hidden = width / n, .dtype = streams.dtype()};
}

const void* address(const Tensor& t) { return t.defined() ? t.raw() : nullptr; }
void* output_address(const Tensor& t) { return t.defined() ? t.raw() : nullptr; }
Tensor dense_or_none(const Tensor& t) { return t.defined() ? dense(t) : t; }
Tensor wanted(bool needed, const Shape& shape, DType dtype) {
  return needed ? empty(shape, dtype) : Tensor();
}

struct HyperConnectionReadOp {
  static constexpr OpName name = kRead;
  HyperConnectionOptions options;
  SavedTensor x, weight, alpha, bias, logits, rstd, gates;

  std::array<Tensor, 3> forward(const Tensor& streams,
                                const Tensor& weight_,
                                const Tensor& alpha_,
                                const Tensor& bias_) {
    x.save(streams);
    weight.save(weight_);
    alpha.save(alpha_);
    bias.save(bias_);
    const kernels::HyperConnectionShape shape = shape_of(streams, options.streams);
    const DType wide = wide_dtype(streams.dtype());
    const Tensor p = empty(with_last(streams, shape.gates()), wide);
    const Tensor scales = empty({shape.rows}, wide);
    Tensor made = empty(p.shape(), wide);
    Tensor input = empty(with_last(streams, shape.hidden), streams.dtype());
    logits.save(p);
    rstd.save(scales);
    gates.save_output(made, 1);
    if (shape.rows > 0) {
      const Tensor own = dense(streams);
      const Tensor w = dense(weight_);
      const Tensor a = dense(alpha_);
      const Tensor b = dense(bias_);
      kernels::hyper_connection_read({.shape = shape,
                                      .maker = maker(w, a, b),
                                      .x = own.raw(),
                                      .logits = p.raw(),
                                      .rstd = scales.raw(),
                                      .gates = made.raw(),
                                      .input = input.raw()});
    }
    return {input, made, streams};
  }

  TensorList backward(const TensorList& dys, NeedsGrad needs) const {
    if (grad_enabled()) {
      return composed_backward(dys);
    }
    const Tensor own = dense(x);
    const Tensor w = dense(weight);
    const Tensor a = dense(alpha);
    const Tensor b = dense(bias);
    const kernels::HyperConnectionShape shape = shape_of(own, options.streams);
    if (shape.rows == 0) {
      return {zeros_like(own), zeros_like(w), zeros_like(a), zeros_like(b)};
    }
    const Tensor p = logits;
    const Tensor scales = rstd;
    const Tensor made = gates;
    const Tensor dinput = dense_or_none(dys[0]);
    const Tensor dgates = dense_or_none(dys[1]);
    const Tensor dpassed = dense_or_none(dys[2]);
    const Tensor dx = wanted(needs[0], own.shape(), own.dtype());
    const Tensor dweight = wanted(needs[1], w.shape(), w.dtype());
    const Tensor dalpha = wanted(needs[2], a.shape(), a.dtype());
    const Tensor dbias = wanted(needs[3], b.shape(), b.dtype());
    kernels::hyper_connection_read_backward({.shape = shape,
                                             .maker = maker(w, a, b),
                                             .x = own.raw(),
                                             .logits = p.raw(),
                                             .rstd = scales.raw(),
                                             .gates = made.raw(),
                                             .dinput = address(dinput),
                                             .dgates = address(dgates),
                                             .dpassed = address(dpassed),
                                             .dx = output_address(dx),
                                             .dweight = output_address(dweight),
                                             .dalpha = output_address(dalpha),
                                             .dbias = output_address(dbias)});
    return {dx, dweight, dalpha, dbias};
  }

 private:
  kernels::HyperConnectionGates maker(const Tensor& w, const Tensor& a, const Tensor& b) const {
    return {.weight = w.raw(),
            .alpha = a.raw(),
            .bias = b.raw(),
            .iterations = options.iterations,
            .eps = options.eps};
  }

  TensorList composed_backward(const TensorList& dys) const {
    TensorList out(4);
    for (size_t k = 0; k < 2; ++k) {
      if (!dys[k].defined()) {
        continue;
      }
      const auto twin = [&](const TensorList& in) {
        return composed_read(in[0], in[1], in[2], in[3], options)[k];
      };
      const TensorList part = vjp(twin, dys[k], {x, weight, alpha, bias});
      for (size_t i = 0; i < out.size(); ++i) {
        if (part[i].defined()) {
          out[i] = out[i].defined() ? add(out[i], part[i]) : part[i];
        }
      }
    }
    if (dys[2].defined()) {
      out[0] = out[0].defined() ? add(out[0], dys[2]) : dys[2];
    }
    return out;
  }
};

struct HyperConnectionWriteOp {
  static constexpr OpName name = kWrite;
  int64_t n = 0;
  SavedTensor x, output, gates;

  Tensor forward(const Tensor& streams, const Tensor& output_, const Tensor& gates_) {
    x.save(streams);
    output.save(output_);
    gates.save(gates_);
    Tensor y = empty(streams.shape(), streams.dtype());
    if (y.numel() > 0) {
      const Tensor own = dense(streams);
      const Tensor block = dense(output_);
      const Tensor weights = dense(gates_);
      kernels::hyper_connection_write({.shape = shape_of(streams, n),
                                       .output_dtype = block.dtype(),
                                       .x = own.raw(),
                                       .output = block.raw(),
                                       .gates = weights.raw(),
                                       .y = y.raw()});
    }
    return y;
  }

  std::array<Tensor, 3> backward(const Tensor& dy_, NeedsGrad needs) const {
    if (grad_enabled()) {
      const auto twin = [this](const TensorList& in) {
        return composed_write(in[0], in[1], in[2], n);
      };
      const TensorList gradients = vjp(twin, dy_, {x, output, gates});
      return {gradients[0], gradients[1], gradients[2]};
    }
    const Tensor own = dense(x);
    const Tensor block = dense(output);
    const Tensor weights = dense(gates);
    const Tensor dy = dense(dy_);
    const Tensor dx = wanted(needs[0], own.shape(), own.dtype());
    const Tensor doutput = wanted(needs[1], block.shape(), block.dtype());
    const Tensor dgates = wanted(needs[2], weights.shape(), weights.dtype());
    if (own.numel() > 0) {
      kernels::hyper_connection_write_backward({.shape = shape_of(own, n),
                                                .output_dtype = block.dtype(),
                                                .dy = dy.raw(),
                                                .x = own.raw(),
                                                .output = block.raw(),
                                                .gates = weights.raw(),
                                                .dx = output_address(dx),
                                                .doutput = output_address(doutput),
                                                .dgates = output_address(dgates)});
    }
    return {dx, doutput, dgates};
  }
};

}  // namespace hyper_connections

}  // namespace

HyperConnectionReading hyper_connection_read(const Tensor& streams,
                                             const Tensor& weight,
                                             const Tensor& alpha,
                                             const Tensor& bias,
                                             const HyperConnectionOptions& options) {
  hyper_connections::check_read(streams, weight, alpha, bias, options);
  hyper_connections::HyperConnectionReadOp op;
  op.options = options;
  const auto [input, gates, passed] = apply_op(std::move(op), streams, weight, alpha, bias);
  return {input, gates, passed};
}

Tensor hyper_connection_write(const Tensor& streams,
                              const Tensor& output,
                              const Tensor& gates,
                              int64_t n) {
  hyper_connections::check_write(streams, output, gates, n);
  hyper_connections::HyperConnectionWriteOp op;
  op.n = n;
  return apply_op(std::move(op), streams, output, gates);
}

HyperConnectionReading composed_hyper_connection_read(const Tensor& streams,
                                                      const Tensor& weight,
                                                      const Tensor& alpha,
                                                      const Tensor& bias,
                                                      const HyperConnectionOptions& options) {
  hyper_connections::check_read(streams, weight, alpha, bias, options);
  const TensorList made = hyper_connections::composed_read(streams, weight, alpha, bias, options);
  return {made[0], made[1], streams};
}

Tensor composed_hyper_connection_write(const Tensor& streams,
                                       const Tensor& output,
                                       const Tensor& gates,
                                       int64_t n) {
  hyper_connections::check_write(streams, output, gates, n);
  return hyper_connections::composed_write(streams, output, gates, n);
}

}  // namespace tapestry
