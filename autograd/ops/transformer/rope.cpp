#include "autograd/ops/transformer/rope.h"

#include <cmath>
#include <vector>

#include "autograd/kernels/attention/rope.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

void check_table_dtype(DType dtype) {
  check<TypeError>(dtype == kFloat32 || dtype == kFloat64,
                   "rope_table: dtype must be float32 or float64, got ", name_of(dtype));
}

void check_positions(const Tensor& x, const RopeTable& table, const RopeOptions& options) {
  const Tensor& positions = options.positions;
  check<TypeError>(positions.dtype() == kInt64, "rope: positions must be int64, got ",
                   name_of(positions.dtype()));
  check<ValueError>(options.position_offset == 0,
                    "rope: positions and a position_offset exclude each other");
  check<ValueError>(positions.dim() == 2 &&
                        (positions.size(0) == 1 || positions.size(0) == x.size(0)) &&
                        positions.size(1) == x.size(2),
                    "rope: positions ", positions.shape(), " of x ", x.shape(), ", expected [",
                    x.size(0), " or 1, ", x.size(2), "]");
  const int64_t rows = table.cos.size(0);
  for (const int64_t position : positions.to_vector<int64_t>()) {
    check<ValueError>(position >= 0 && position < rows, "rope: position ", position,
                      " lies outside the table, which has ", rows, " rows");
  }
}

void check_rope(const Tensor& x, const RopeTable& table, const RopeOptions& options) {
  check_floating("rope", x.dtype());
  check<ValueError>(x.dim() == 4, "rope: x must be [B, H, S, D], got ", describe(x));
  check<ValueError>(table.cos.defined() && table.sin.defined() && table.cos.dim() == 2 &&
                        table.cos.shape() == table.sin.shape() &&
                        table.cos.dtype() == table.sin.dtype(),
                    "rope: the table must hold cosines and sines of one shape [S, d/2]; make it "
                    "with rope_table()");
  check<TypeError>(
      table.cos.dtype() == kFloat32 || (table.cos.dtype() == kFloat64 && x.dtype() == kFloat64),
      "rope: a ", name_of(table.cos.dtype()), " table for x of ", name_of(x.dtype()),
      "; float64 tables are for float64 x");
  check<ValueError>(2 * table.cos.shape()[1] <= x.shape()[3], "rope: the table rotates ",
                    2 * table.cos.shape()[1], " channels, x ", x.shape(), " has only ",
                    x.shape()[3]);
  if (options.positions.defined()) {
    check_positions(x, table, options);
    return;
  }
  check<ValueError>(options.position_offset >= 0 &&
                        options.position_offset + x.shape()[2] <= table.cos.shape()[0],
                    "rope: positions ", options.position_offset, " .. ",
                    options.position_offset + x.shape()[2] - 1, " of x ", x.shape(),
                    " lie outside the table, which has ", table.cos.shape()[0], " rows");
}

// With inverse, the angles are negated: the transpose of the rotation, which is its gradient.
struct Rope {
  static constexpr OpName name = "rope";
  RopeOptions options;  // without positions
  bool inverse;
  SavedTensor cos, sin, positions;

  Tensor forward(const Tensor& x,
                 const Tensor& cos_,
                 const Tensor& sin_,
                 const Tensor& positions_) {
    cos.save(cos_);
    sin.save(sin_);
    positions.save(positions_);
    const DType dtype = wide_dtype(x.dtype());
    const int64_t s = x.shape()[2];
    const bool given = positions_.defined();
    const Tensor rows = given ? dense(positions_) : positions_;
    const Tensor c = rows_from(cos_, dtype, given ? cos_.size(0) : s);
    const Tensor n = rows_from(sin_, dtype, given ? sin_.size(0) : s);
    const Tensor values = x.shape()[3] > 1 && x.strides()[3] != 1 ? dense_copy(x) : x;
    Tensor y = empty_in_order_of(values);
    kernels::rope({.dtype = x.dtype(),
                   .batch = x.shape()[0],
                   .heads = x.shape()[1],
                   .seq = s,
                   .head_dim = x.shape()[3],
                   .rotary_dim = 2 * c.shape()[1],
                   .interleaved = options.interleaved,
                   .inverse = inverse,
                   .x = values.raw(),
                   .x_strides = strides_of(values),
                   .cos = c.raw(),
                   .sin = n.raw(),
                   .rows = given ? rows.data<int64_t>() : nullptr,
                   .rows_batch = given && rows.size(0) > 1 ? s : 0,
                   .y = y.raw(),
                   .y_strides = strides_of(y)});
    return y;
  }

  std::array<Tensor, 4> backward(const Tensor& dy, NeedsGrad /*needs*/) const {
    return {
        apply_op(Rope{options, !inverse, {}, {}, {}}, dy, cos.get(), sin.get(), positions.get()),
        Tensor(), Tensor(), Tensor()};
  }

 private:
  Tensor rows_from(const Tensor& table, DType dtype, int64_t count) const {
    return dense(
        slice(table, 0, options.position_offset, options.position_offset + count).to(dtype));
  }
  static kernels::RopeStrides strides_of(const Tensor& x) {
    return {x.strides()[0], x.strides()[1], x.strides()[2]};
  }
};

}  // namespace

RopeTable rope_table(int64_t length,
                     std::span<const double> frequencies,
                     DType dtype,
                     double factor) {
  check<ValueError>(length >= 0, "rope_table: negative length ", length);
  check_table_dtype(dtype);
  const auto pairs = static_cast<int64_t>(frequencies.size());
  std::vector<double> cosines(static_cast<size_t>(length * pairs));
  std::vector<double> sines(cosines.size());
  kernels::parallel_for(length, 16, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      for (int64_t j = 0; j < pairs; ++j) {
        const double angle = static_cast<double>(s) * frequencies[static_cast<size_t>(j)];
        cosines[static_cast<size_t>(s * pairs + j)] = factor * std::cos(angle);
        sines[static_cast<size_t>(s * pairs + j)] = factor * std::sin(angle);
      }
    }
  });
  const Shape shape{length, pairs};
  return {tensor(cosines, shape).to(dtype), tensor(sines, shape).to(dtype)};
}

RopeTable rope_table(int64_t length, int64_t rotary_dim, const RopeTableOptions& options) {
  check<ValueError>(rotary_dim >= 2 && rotary_dim % 2 == 0,
                    "rope_table: rotary_dim must be even and at least 2, got ", rotary_dim);
  check<ValueError>(options.base > 0, "rope_table: base must be positive, got ", options.base);
  check<ValueError>(options.seq_len_interpolation_factor > 0,
                    "rope_table: seq_len_interpolation_factor must be positive, got ",
                    options.seq_len_interpolation_factor);
  std::vector<double> frequencies;
  for (int64_t j = 0; j < rotary_dim; j += 2) {
    frequencies.push_back(
        std::pow(options.base, -static_cast<double>(j) / static_cast<double>(rotary_dim)) /
        options.seq_len_interpolation_factor);
  }
  return rope_table(length, frequencies, options.dtype);
}

Tensor rope(const Tensor& x, const RopeTable& table, const RopeOptions& options) {
  check_defined("rope", x, "x", table.cos, "table.cos", table.sin, "table.sin");
  check_rope(x, table, options);
  RopeOptions kept = options;
  kept.positions = {};
  return apply_op(Rope{kept, false, {}, {}, {}}, x, table.cos.detach(), table.sin.detach(),
                  options.positions);
}

Tensor composed_rope(const Tensor& x, const RopeTable& table, const RopeOptions& options) {
  check_rope(x, table, options);
  const int64_t first = options.position_offset;
  const int64_t half = table.cos.shape()[1];
  const DType dtype = wide_dtype(x.dtype());
  const auto angles = [&](const Tensor& of_table) {
    return options.positions.defined()
               ? embedding(of_table, options.positions).unsqueeze(1).to(dtype)  // [B, 1, S, d/2]
               : slice(of_table, 0, first, first + x.shape()[2]).to(dtype);
  };
  const Tensor cos = angles(table.cos);
  const Tensor sin = angles(table.sin);
  const Tensor values = widen(x);
  const Tensor rest = slice(values, -1, 2 * half, values.shape()[3]);
  const int64_t step = options.interleaved ? 2 : 1;
  const int64_t second = options.interleaved ? 1 : half;
  const Tensor a = slice(values, -1, 0, options.interleaved ? 2 * half : half, step);
  const Tensor b = slice(values, -1, second, 2 * half, step);
  const Tensor turned_a = sub(mul(a, cos), mul(b, sin));
  const Tensor turned_b = add(mul(b, cos), mul(a, sin));
  if (!options.interleaved) {
    return cat({turned_a, turned_b, rest}, -1).to(x.dtype());
  }
  Shape pairs = turned_a.shape();
  pairs.back() = 2 * half;
  return cat({stack({turned_a, turned_b}, -1).reshape(pairs), rest}, -1).to(x.dtype());
}

}  // namespace tapestry
