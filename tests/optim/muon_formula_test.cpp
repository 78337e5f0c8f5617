// Muon against its formula, written out in double precision.
#include <cmath>
#include <vector>

#include "autograd/ops/map.h"
#include "autograd/ops/ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "optim/muon.h"
#include "tests/nn/nn_test_util.h"

namespace tapestry::optim {
namespace muon_formula_test {
namespace {

struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;

  Matrix(int64_t r, int64_t c) : rows(r), columns(c), values(static_cast<size_t>(r * c)) {}
  double& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * columns + c)]; }
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * columns + c)]; }
};

Matrix transposed(const Matrix& x) {
  Matrix out(x.columns, x.rows);
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.columns; ++c) {
      out.at(c, r) = x.at(r, c);
    }
  }
  return out;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows, b.columns);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t k = 0; k < a.columns; ++k) {
      for (int64_t c = 0; c < b.columns; ++c) {
        out.at(r, c) += a.at(r, k) * b.at(k, c);
      }
    }
  }
  return out;
}

// a x + b y.
Matrix combined(double a, const Matrix& x, double b, const Matrix& y) {
  Matrix out = x;
  for (size_t i = 0; i < out.values.size(); ++i) {
    out.values[i] = a * x.values[i] + b * y.values[i];
  }
  return out;
}

using Segments = std::vector<NewtonSchulzSegment>;

Matrix orthogonalised(Matrix x, const Segments& segments) {
  const bool tall = x.rows > x.columns;
  if (tall) {
    x = transposed(x);
  }
  double squares = 0;
  for (const double value : x.values) {
    squares += value * value;
  }
  for (double& value : x.values) {
    value /= std::sqrt(squares) + 1e-7;
  }
  for (const NewtonSchulzSegment& s : segments) {
    for (int64_t step = 0; step < s.steps; ++step) {
      const Matrix gram = product(x, transposed(x));
      const Matrix polynomial = combined(s.b, gram, s.c, product(gram, gram));
      x = combined(s.a, x, 1, product(polynomial, x));
    }
  }
  return tall ? transposed(x) : x;
}

// Rows of a matrix that belong to one of those that it consists of.
std::vector<std::vector<int64_t>> rows_of_turns(int64_t rows, const std::vector<int64_t>& blocks) {
  std::vector<std::vector<int64_t>> out(blocks.size());
  for (int64_t row = 0; row < rows;) {
    for (size_t b = 0; b < blocks.size(); ++b) {
      for (int64_t i = 0; i < blocks[b]; ++i) {
        out[b].push_back(row++);
      }
    }
  }
  return out;
}

struct Expected {
  double lr = 0.01;
  double wd = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  Segments segments = {{}};
  std::vector<int64_t> blocks;  // empty: one
  Matrix weight;
  Matrix buffer;

  explicit Expected(const Matrix& start) : weight(start), buffer(start.rows, start.columns) {}

  void step(const Matrix& gradient) {
    buffer = combined(momentum, buffer, 1, gradient);
    const Matrix u = nesterov ? combined(1, gradient, momentum, buffer) : buffer;
    const std::vector<int64_t> cut = blocks.empty() ? std::vector{weight.rows} : blocks;
    for (const std::vector<int64_t>& rows : rows_of_turns(weight.rows, cut)) {
      Matrix piece(static_cast<int64_t>(rows.size()), weight.columns);
      for (int64_t r = 0; r < piece.rows; ++r) {
        for (int64_t c = 0; c < piece.columns; ++c) {
          piece.at(r, c) = u.at(rows[static_cast<size_t>(r)], c);
        }
      }
      const Matrix x = orthogonalised(piece, segments);
      const double scale =
          0.2 * std::sqrt(static_cast<double>(std::max(piece.rows, piece.columns)));
      for (int64_t r = 0; r < piece.rows; ++r) {
        for (int64_t c = 0; c < piece.columns; ++c) {
          double& w = weight.at(rows[static_cast<size_t>(r)], c);
          w = w * (1 - lr * wd) - lr * scale * x.at(r, c);
        }
      }
    }
  }
};

Tensor drawn(const Shape& shape, uint64_t draw, DType dtype) {
  return normal(0, 1, shape, kFloat32, RandomKey{57, draw, 0}).to(dtype);
}

Matrix matrix_of(const Tensor& x) {
  Matrix out(x.size(0), x.size(1));
  out.values = x.detach().to(kFloat64).to_vector<double>();
  return out;
}

const Segments kDeepSeek = {{.steps = 8}, {.a = 2.0, .b = -1.5, .c = 0.5, .steps = 2}};

// Largest difference of weights after three steps.
double difference(const Shape& shape,
                  DType dtype,
                  const Segments& segments,
                  const std::vector<int64_t>& blocks,
                  bool nesterov = true) {
  const Tensor p = drawn(shape, 1, dtype);
  p.set_requires_grad();
  Expected expected(matrix_of(p));
  expected.blocks = blocks;
  expected.nesterov = nesterov;
  if (!segments.empty()) {
    expected.segments = segments;
  }
  std::vector<ParamGroup> groups = single_group({p}, 0.01, 0.1);
  groups[0].names = {"w"};
  MuonOptions options{.nesterov = nesterov, .coefficients = segments, .products = kFloat32};
  if (!blocks.empty()) {
    options.row_turns = {{"w", blocks}};
  }
  Muon muon(groups, options);
  for (uint64_t step = 0; step < 3; ++step) {
    const Tensor gradient = drawn(shape, 10 + step, dtype);
    p.set_grad(gradient);
    muon.step();
    expected.step(matrix_of(gradient));
  }
  const Matrix found = matrix_of(p);
  double largest = 0;
  for (size_t i = 0; i < found.values.size(); ++i) {
    largest = std::max(largest, std::abs(found.values[i] - expected.weight.values[i]));
  }
  return largest;
}

struct Case {
  Shape shape;
  Segments segments;
  std::vector<int64_t> blocks;
};

TEST(MuonFormula, InDoublePrecision) {
  const std::vector<Case> cases = {
      {{12, 20}, {}, {}},        {{20, 12}, {}, {}},        {{20, 12}, kDeepSeek, {}},
      {{12, 20}, kDeepSeek, {}}, {{30, 8}, {}, {6, 4}},     {{30, 8}, kDeepSeek, {6, 4}},
      {{16, 40}, {}, {12, 4}},   {{36, 10}, {}, {3, 1, 2}}, {{16, 9}, {{.steps = 3}}, {16}},
      {{24, 24}, {}, {1, 1}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.shape);
    EXPECT_LE(difference(c.shape, kFloat64, c.segments, c.blocks), 1e-12);
    // Weights of size 1; the iteration multiplies the rounding of small directions.
    EXPECT_LE(difference(c.shape, kFloat32, c.segments, c.blocks), 1e-6);
  }
  EXPECT_LE(difference({12, 20}, kFloat64, {}, {}, /*nesterov=*/false), 1e-12);
}

// What the bounds above would not forgive.
TEST(MuonFormula, BlocksAndSegmentsMatter) {
  const auto weights = [](const MuonOptions& options) {
    const Tensor p = drawn({30, 8}, 1, kFloat32);
    p.set_requires_grad();
    std::vector<ParamGroup> groups = single_group({p}, 0.01, 0.1);
    groups[0].names = {"w"};
    Muon muon(groups, options);
    p.set_grad(drawn({30, 8}, 2, kFloat32));
    muon.step();
    return values(p.detach());
  };
  const auto largest = [](const std::vector<float>& a, const std::vector<float>& b) {
    double out = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      out = std::max(out, static_cast<double>(std::abs(a[i] - b[i])));
    }
    return out;
  };
  const std::vector<float> plain = weights({.products = kFloat32});
  EXPECT_GT(largest(weights({.products = kFloat32, .row_turns = {{"w", {6, 4}}}}), plain), 1e-4);
  EXPECT_GT(largest(weights({.coefficients = kDeepSeek, .products = kFloat32}), plain), 1e-4);
  EXPECT_EQ(weights({.coefficients = {{}}, .products = kFloat32}), plain);
  EXPECT_EQ(weights({.products = kFloat32, .row_turns = {{"other", {6, 4}}}}), plain);
}

TEST(MuonFormula, WrongSettings) {
  const Tensor p = drawn({4, 4}, 1, kFloat32);
  p.set_requires_grad();
  const auto made = [&](MuonOptions options) {
    std::vector<ParamGroup> groups = single_group({p});
    groups[0].names = {"w"};
    return Muon(groups, std::move(options));
  };
  expect_throws<ValueError>([&] { made({.coefficients = {{.steps = 0}}}); }, {"steps", "0"});
  expect_throws<ValueError>([&] { made({.coefficients = {{.a = INFINITY}}}); }, {"finite", "inf"});
  expect_throws<ValueError>([&] { made({.row_turns = {{"w", {}}}}); }, {"row_turns", "'w'"});
  expect_throws<ValueError>([&] { made({.row_turns = {{"w", {3, -1}}}}); }, {"above 0"});
  Muon muon = made({.row_turns = {{"w", {2, 1}}}});
  p.set_grad(drawn({4, 4}, 2, kFloat32));
  expect_throws<ValueError>([&] { muon.step(); }, {"'w'", "turns of 3 rows"});
}

}  // namespace
}  // namespace muon_formula_test
}  // namespace tapestry::optim
