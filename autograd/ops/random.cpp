#include "autograd/ops/random.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "autograd/kernels/machine/dispatch.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/philox.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/map.h"
#include "autograd/ops/rows.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/check_defined.h"
#include "autograd/tensor/dtype.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

uint64_t word_of(const RandomKey& key, int64_t i) {
  return kernels::random_word(key.seed, key.stream, key.offset + static_cast<uint64_t>(i));
}

// 53 bits of a word, on [0, 1).
double unit(uint64_t word) { return static_cast<double>(word >> 11U) * 0x1p-53; }

// The upper 64 bits of a * b.
uint64_t multiply_high(uint64_t a, uint64_t b) {
  const uint64_t a0 = a & 0xffffffffU;
  const uint64_t a1 = a >> 32U;
  const uint64_t b0 = b & 0xffffffffU;
  const uint64_t b1 = b >> 32U;
  const uint64_t middle = a1 * b0 + ((a0 * b0) >> 32U);
  const uint64_t other = a0 * b1 + (middle & 0xffffffffU);
  return a1 * b1 + (middle >> 32U) + (other >> 32U);
}

Tensor fill_uniform(
    double low, double high, const Shape& shape, DType dtype, const RandomSource& source) {
  Tensor y = empty(shape, dtype);
  const RandomKey key = source.reserve(y.numel(), RandomSource::Use::kWords);
  kernels::fill_uniform(dtype, y.numel(), key.seed, key.stream, key.offset, low, high, y.raw());
  return y;
}

Tensor fill_normal(
    double mean, double std, const Shape& shape, DType dtype, const RandomSource& source) {
  Tensor y = empty(shape, dtype);
  const RandomKey key = source.reserve(y.numel(), RandomSource::Use::kNormals);
  kernels::fill_normal(dtype, y.numel(), key.seed, key.stream, key.offset, mean, std, y.raw());
  return y;
}

// -- multinomial ---------------------------------------------------------------------------------

void draw_with_replacement(const double* weights,
                           int64_t n,
                           int64_t count,
                           const RandomKey& key,
                           int64_t first,
                           int64_t* out) {
  std::vector<double> cumulative(static_cast<size_t>(n));
  std::partial_sum(weights, weights + n, cumulative.begin());
  for (int64_t j = 0; j < count; ++j) {
    const double target = unit(word_of(key, first + j)) * cumulative.back();
    // The first entry whose sum exceeds the target; an entry of weight 0 never does so first.
    const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), target);
    if (found != cumulative.end()) {
      out[j] = found - cumulative.begin();
    } else {  // rounding lifted the target to the total: the last entry with a weight
      out[j] = std::lower_bound(cumulative.begin(), cumulative.end(), cumulative.back()) -
               cumulative.begin();
    }
  }
}

// The entry with the smallest of independent exponential times of rates w comes first with
// probability w / sum(w), and so on for the rest. Source: Efraimidis and Spirakis 2006.
void draw_without_replacement(const double* weights,
                              int64_t n,
                              int64_t count,
                              const RandomKey& key,
                              int64_t first,
                              int64_t* out) {
  std::vector<std::pair<double, int64_t>> times;
  for (int64_t v = 0; v < n; ++v) {
    if (weights[v] > 0) {
      times.emplace_back(-std::log1p(-unit(word_of(key, first + v))) / weights[v], v);
    }
  }
  std::partial_sort(times.begin(), times.begin() + count, times.end());
  for (int64_t j = 0; j < count; ++j) {
    out[j] = times[static_cast<size_t>(j)].second;
  }
}

void check_weights(const double* weights, int64_t row, int64_t n, int64_t wanted) {
  double total = 0;
  int64_t positive = 0;
  for (int64_t v = 0; v < n; ++v) {
    check<ValueError>(weights[v] >= 0 && std::isfinite(weights[v]), "multinomial: weight ",
                      weights[v], " of entry ", v, " in row ", row,
                      " must be finite and not negative");
    total += weights[v];
    positive += weights[v] > 0 ? 1 : 0;
  }
  check<ValueError>(total > 0 && std::isfinite(total), "multinomial: the weights of row ", row,
                    " add up to ", total, "; the sum must be positive and finite");
  check<ValueError>(wanted <= positive, "multinomial: ", wanted,
                    " samples without replacement from row ", row, ", which has only ", positive,
                    " weights above 0");
}

// -- dropout -------------------------------------------------------------------------------------

void check_probability(std::string_view op, double p) {
  check<ValueError>(p >= 0 && p <= 1, op, ": p must lie in [0, 1], got ", p);
}

// Which counters a dense tensor of this place uses, as runs of consecutive elements with
// consecutive counters.
struct CounterRuns {
  Shape sizes;           // of the axes in front of the runs
  Shape counter_stride;  // what a step on them adds to the counter
  int64_t sample_axis = -1;
  int64_t first_sample = 0;
  int64_t length = 1;
  uint64_t first = 0;

  CounterRuns(const Shape& shape, const LogicalPlace& place) {
    sizes = shape;
    counter_stride = Shape::filled(shape.size(), 0);
    sample_axis = place.sample_axis;
    int64_t stride = 1;
    for (int64_t axis = shape.size() - 1; axis >= 0; --axis) {
      if (axis == sample_axis) {
        first_sample = place.start[axis];
        continue;
      }
      counter_stride[axis] = stride;
      first += static_cast<uint64_t>(stride * place.start[axis]);
      stride *= place.shape[axis];
    }
    // Trailing axes join the run as long as the run fills the counters of the whole axis.
    while (!sizes.empty() && sizes.size() - 1 != sample_axis && counter_stride.back() == length) {
      length *= sizes.back();
      sizes.pop_back();
      counter_stride.pop_back();
    }
  }

  // The key whose offset belongs to the first element of a run.
  RandomKey key_of(int64_t run, const RandomKey& key) const {
    RandomKey out = key;
    out.offset += first;
    for (int64_t axis = sizes.size() - 1; axis >= 0; --axis) {
      const int64_t i = run % sizes[axis];
      run /= sizes[axis];
      if (axis == sample_axis) {
        out.stream = combine(key.stream, static_cast<uint64_t>(first_sample + i));
      } else {
        out.offset += static_cast<uint64_t>(i * counter_stride[axis]);
      }
    }
    return out;
  }
};

// Elements that a thread takes at a time.
constexpr int64_t kPiece = 4096;

struct Dropout {
  static constexpr OpName name = "dropout";
  double p;
  RandomKey key;
  LogicalPlace place;

  Tensor forward(const Tensor& x) {
    const Tensor values = dense(x);
    Tensor y = empty_like(values);
    const CounterRuns runs(values.shape(), place);
    const int64_t pieces = (runs.length + kPiece - 1) / kPiece;
    const int64_t item = size_of(x.dtype());
    const double scale = p < 1 ? 1 / (1 - p) : 0;
    const auto* source = static_cast<const std::byte*>(values.raw());
    auto* target = static_cast<std::byte*>(y.raw());
    const int64_t grain = std::max<int64_t>(
        1, kernels::kGrainSize / std::max<int64_t>(1, std::min(runs.length, kPiece)));
    kernels::parallel_for(runs.sizes.numel() * pieces, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t run = i / pieces;
        const int64_t start = (i % pieces) * kPiece;
        const int64_t n = std::min(kPiece, runs.length - start);
        const RandomKey own = runs.key_of(run, key);
        const int64_t at = (run * runs.length + start) * item;
        kernels::dropout(x.dtype(), n, own.seed, own.stream,
                         own.offset + static_cast<uint64_t>(start), 1 - p, scale, source + at,
                         target + at);
      }
    });
    return y;
  }
  Tensor backward(const Tensor& dy) const { return apply_op(Dropout{p, key, place}, dy); }
};

}  // namespace

RandomKey RandomSource::reserve(int64_t count, Use use) const {
  if (has_key_) {
    return key_;
  }
  Generator& generator =
      generator_ != nullptr ? *generator_ : RankContext::current().default_generator();
  RandomKey key = generator.reserve(count);
  key.stream = combine(key.stream, static_cast<uint64_t>(use));
  return key;
}

Tensor rand(const Shape& shape, DType dtype, const RandomSource& source) {
  check_floating("rand", dtype);
  return fill_uniform(0, 1, shape, dtype, source);
}

Tensor randn(const Shape& shape, DType dtype, const RandomSource& source) {
  check_floating("randn", dtype);
  return fill_normal(0, 1, shape, dtype, source);
}

Tensor uniform(
    double low, double high, const Shape& shape, DType dtype, const RandomSource& source) {
  check_floating("uniform", dtype);
  check<ValueError>(low <= high && std::isfinite(low) && std::isfinite(high),
                    "uniform: needs finite limits with low <= high, got ", low, " and ", high);
  if (low == high) {  // no half-open interval; the numbers are used up all the same
    source.reserve(shape.numel(), RandomSource::Use::kWords);
    return full(shape, low, dtype);
  }
  return fill_uniform(low, high, shape, dtype, source);
}

Tensor normal(
    double mean, double std, const Shape& shape, DType dtype, const RandomSource& source) {
  check_floating("normal", dtype);
  check<ValueError>(std >= 0, "normal: std must not be negative, got ", std);
  return fill_normal(mean, std, shape, dtype, source);
}

Tensor randint(
    int64_t low, int64_t high, const Shape& shape, DType dtype, const RandomSource& source) {
  check<TypeError>(is_integral(dtype), "randint: dtype must be an integer one, got ",
                   name_of(dtype));
  check<ValueError>(low < high, "randint: [", low, ", ", high, ") is empty");
  dispatch_all(dtype, [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      check<ValueError>(low >= int64_t{std::numeric_limits<T>::min()} &&
                            high - 1 <= int64_t{std::numeric_limits<T>::max()},
                        "randint: [", low, ", ", high, ") exceeds ", name_of(dtype));
    }
  });
  Tensor y = empty(shape, dtype);
  const RandomKey key = source.reserve(y.numel(), RandomSource::Use::kWords);
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  const auto fill = [&]<class T>(T* out) {
    kernels::parallel_for(y.numel(), kernels::kGrainSize / 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const uint64_t drawn = multiply_high(word_of(key, i), range);
        out[i] = static_cast<T>(static_cast<int64_t>(static_cast<uint64_t>(low) + drawn));
      }
    });
  };
  dispatch_all(dtype, [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      fill(static_cast<T*>(y.raw()));
    }
  });
  return y;
}

Tensor randperm(int64_t n, const RandomSource& source) {
  check<ValueError>(n >= 0, "randperm: n must not be negative, got ", n);
  const RandomKey key = source.reserve(n, RandomSource::Use::kWords);
  std::vector<std::pair<uint64_t, int64_t>> order(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    order[static_cast<size_t>(i)] = {word_of(key, i), i};
  }
  std::sort(order.begin(), order.end());
  Tensor y = empty({n}, kInt64);
  std::transform(order.begin(), order.end(), y.data<int64_t>(),
                 [](const auto& entry) { return entry.second; });
  return y;
}

Tensor bernoulli(double p, const Shape& shape, const RandomSource& source) {
  check_probability("bernoulli", p);
  Tensor y = empty(shape, kBool);
  const RandomKey key = source.reserve(y.numel(), RandomSource::Use::kBits);
  kernels::fill_bernoulli(y.numel(), key.seed, key.stream, key.offset, p, y.data<bool>());
  return y;
}

Tensor bernoulli(const Tensor& p, const RandomSource& source) {
  check_defined("bernoulli", p, "p");
  check_floating("bernoulli", p.dtype());
  const NoGradGuard guard;
  const Tensor chances = dense(p.to(kFloat64));
  const auto* chance = chances.data<double>();
  Tensor y = empty(p.shape(), kBool);
  auto* out = y.data<bool>();
  for (int64_t i = 0; i < y.numel(); ++i) {
    check<ValueError>(chance[i] >= 0 && chance[i] <= 1, "bernoulli: probability ", chance[i],
                      " at position ", position_in(p.shape(), i), " lies outside [0, 1]");
  }
  const RandomKey key = source.reserve(y.numel(), RandomSource::Use::kBits);
  for (int64_t i = 0; i < y.numel(); ++i) {
    const uint64_t index = key.offset + static_cast<uint64_t>(i);
    const uint32_t word = kernels::philox(key.seed, index / 4, key.stream)[index % 4];
    out[i] = word < kernels::bernoulli_threshold(chance[i]);
  }
  return y;
}

Tensor multinomial(const Tensor& weights,
                   int64_t num_samples,
                   bool replacement,
                   const RandomSource& source) {
  check_defined("multinomial", weights, "weights");
  check_floating("multinomial", weights.dtype());
  check<ValueError>(weights.dim() == 1 || weights.dim() == 2,
                    "multinomial: weights must be [V] or [N, V], got ", describe(weights));
  check<ValueError>(num_samples >= 0, "multinomial: num_samples must not be negative, got ",
                    num_samples);
  const NoGradGuard guard;
  const Tensor table = dense(weights.to(kFloat64));
  const int64_t n = weights.shape().back();
  const int64_t rows = weights.dim() == 2 ? weights.shape()[0] : 1;
  for (int64_t i = 0; i < rows; ++i) {
    check_weights(table.data<double>() + i * n, i, n, replacement ? 0 : num_samples);
  }
  Shape shape = weights.shape();
  shape.back() = num_samples;
  Tensor y = empty(shape, kInt64);
  const int64_t per_row = replacement ? num_samples : n;
  const RandomKey key = source.reserve(rows * per_row, RandomSource::Use::kWords);
  const auto draw = replacement ? draw_with_replacement : draw_without_replacement;
  kernels::parallel_for(rows, 1 + kernels::kGrainSize / (n + num_samples + 1),
                        [&](int64_t begin, int64_t end) {
                          for (int64_t i = begin; i < end; ++i) {
                            draw(table.data<double>() + i * n, n, num_samples, key, i * per_row,
                                 y.data<int64_t>() + i * num_samples);
                          }
                        });
  return y;
}

Tensor dropout(const Tensor& x, double p, bool training, const RandomSource& source) {
  check_defined("dropout", x, "x");
  check_probability("dropout", p);
  check_floating("dropout", x.dtype());
  if (!training || p == 0) {
    return x;
  }
  const RandomKey key = source.reserve(x.numel(), RandomSource::Use::kBits);
  return apply_op(Dropout{p, key, {x.shape(), Shape::filled(x.dim(), 0), -1}}, x);
}

Tensor dropout(const Tensor& x, double p, const RandomKey& key, const LogicalPlace& place) {
  check_defined("dropout", x, "x");
  check_probability("dropout", p);
  check_floating("dropout", x.dtype());
  check<ValueError>(place.shape.size() == x.dim() && place.start.size() == x.dim(),
                    "dropout: place (shape ", place.shape, ", start ", place.start,
                    ") must have the axes of x ", x.shape());
  check<ValueError>(place.sample_axis >= -1 && place.sample_axis < x.dim(), "dropout: sample_axis ",
                    place.sample_axis, " is no axis of x ", x.shape());
  for (int64_t axis = 0; axis < x.dim(); ++axis) {
    check<ValueError>(
        place.start[axis] >= 0 &&
            (axis == place.sample_axis || place.start[axis] + x.shape()[axis] <= place.shape[axis]),
        "dropout: x ", x.shape(), " at ", place.start, " does not lie inside ", place.shape);
  }
  return p == 0 ? x : apply_op(Dropout{p, key, place}, x);
}

Tensor dropout_mask(const Tensor& x, const Tensor& keep, double p) {
  check_defined("dropout_mask", x, "x", keep, "keep");
  check<ValueError>(p >= 0 && p < 1, "dropout_mask: p must lie in [0, 1), got ", p);
  check_floating("dropout_mask", x.dtype());
  check<TypeError>(keep.dtype() == kBool, "dropout_mask: keep must be bool, got ",
                   name_of(keep.dtype()));
  check<ValueError>(broadcast_shapes("dropout_mask", x.shape(), keep.shape()) == x.shape(),
                    "dropout_mask: keep ", keep.shape(), " does not broadcast to ", x.shape());
  return where(keep, mul(x, 1 / (1 - p)), scalar(0, x.dtype()));
}

}  // namespace tapestry
