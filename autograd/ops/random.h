// Random tensors and dropout.
//
// Numbers are counter-based (Philox 4x32-10, autograd/kernels/philox.h, which also says how a
// counter becomes a uniform or normal number): an element's value is a function of (seed, stream,
// counter), so it depends neither on the number of threads nor on strides. A tensor of n elements
// uses the counters offset .. offset + n - 1 of its source, element i in row-major order the
// counter offset + i, unless a function says otherwise. Only dropout is differentiable.
#pragma once

#include "autograd/tensor/generator.h"
#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Where numbers come from: the current rank's default generator, a given generator (both advance
/// by what is used), or a fixed key, which gives the same numbers each time.
class RandomSource {
 public:
  RandomSource() = default;
  // NOLINTBEGIN(google-explicit-constructor): a generator or a key is a source
  RandomSource(Generator& generator) : generator_(&generator) {}
  RandomSource(const RandomKey& key) : key_(key), has_key_(true) {}
  // NOLINTEND(google-explicit-constructor)

  /// Numbers of one counter are related if they are of different kinds, so a generator hands out
  /// each kind from a stream of its own: combine(0, kind). A fixed key is taken as it is; use one
  /// for one purpose only.
  enum class Use : uint64_t { kWords, kNormals, kBits };

  /// The key of the next `count` numbers.
  RandomKey reserve(int64_t count, Use use) const;

 private:
  Generator* generator_ = nullptr;
  RandomKey key_;
  bool has_key_ = false;
};

// -- new tensors. ValueError on a negative size, TypeError if the dtype does not fit ------------
/// Uniform on [0, 1): multiples of 2^-24 (of 2^-53 for float64), never rounded up to 1.
Tensor rand(const Shape& shape, DType dtype = kFloat32, const RandomSource& source = {});
/// Standard normal.
Tensor randn(const Shape& shape, DType dtype = kFloat32, const RandomSource& source = {});
/// low + (high - low) rand. ValueError unless low <= high and both are finite.
Tensor uniform(double low,
               double high,
               const Shape& shape,
               DType dtype = kFloat32,
               const RandomSource& source = {});
/// mean + std randn. ValueError if std is negative.
Tensor normal(double mean,
              double std,
              const Shape& shape,
              DType dtype = kFloat32,
              const RandomSource& source = {});
/// Integers on [low, high). Any integer dtype; ValueError if the range is empty or exceeds the
/// dtype.
Tensor randint(int64_t low,
               int64_t high,
               const Shape& shape,
               DType dtype = kInt64,
               const RandomSource& source = {});
/// A random order of 0 .. n-1, int64. ValueError if n is negative.
Tensor randperm(int64_t n, const RandomSource& source = {});
/// true with probability p, bool. ValueError unless p lies in [0, 1].
Tensor bernoulli(double p, const Shape& shape, const RandomSource& source = {});
/// The same with a probability per element, floating (TypeError). ValueError, naming element and
/// value, if one lies outside [0, 1] or is NaN.
Tensor bernoulli(const Tensor& p, const RandomSource& source = {});
/// Indices drawn with the given weights, which need not add up to 1: weights [V] or [N, V],
/// floating (TypeError), result int64 [num_samples] or [N, num_samples].
///
/// With replacement, draw j of row i uses the counter i * num_samples + j. Without, entry v of row
/// i uses the counter i * V + v, and the samples come in the order in which they would be drawn.
/// ValueError if a weight is negative or not finite, a row has sum 0, num_samples is negative, or,
/// without replacement, more samples are asked for than a row has weights above 0.
Tensor multinomial(const Tensor& weights,
                   int64_t num_samples,
                   bool replacement = false,
                   const RandomSource& source = {});

// -- dropout ------------------------------------------------------------------------------------
/// x / (1 - p) where an element is kept, which happens with probability 1 - p, else 0. Any strides;
/// floating (TypeError). Saves nothing but the key: backward makes the same mask again. Not
/// training, or p = 0: x itself, and no numbers are used. p = 1 gives zeros. ValueError unless p
/// lies in [0, 1]. Source: Srivastava et al. 2014.
Tensor dropout(const Tensor& x, double p, bool training = true, const RandomSource& source = {});

/// Where a tensor lies in the tensor that all ranks and micro-batches share, so that dropout is the
/// same however that is cut.
struct LogicalPlace {
  /// Shape of the whole, as many axes as x. The size along sample_axis is not used.
  Shape shape = {};
  /// x's first element in it.
  Shape start = {};
  /// Axis along which each entry has a stream of its own, that of entry i being
  /// combine(key.stream, start[sample_axis] + i); -1: none, all use key.stream.
  int64_t sample_axis = -1;
};
/// Dropout in which an element uses the counter key.offset + its row-major index in place.shape
/// without the sample axis. ValueError if x does not lie inside.
Tensor dropout(const Tensor& x, double p, const RandomKey& key, const LogicalPlace& place);

/// Dropout with a given mask: x * keep / (1 - p); keep is bool and broadcasts to x. ValueError
/// unless p lies in [0, 1), TypeError if keep is not bool.
Tensor dropout_mask(const Tensor& x, const Tensor& keep, double p);

}  // namespace tapestry
