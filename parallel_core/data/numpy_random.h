// The parts of NumPy's legacy random state that decide the order of samples.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace tapestry::data {

/// Reproduces numpy.random.RandomState(seed).shuffle bit for bit: MT19937 seeded with one word,
/// bounded integers by masking and rejection, Fisher-Yates from the last element down. The
/// distributions of <random> are not used because their algorithms are not specified.
class NumpyRandomState {
 public:
  /// ValueError unless 0 <= seed < 2^32, the seeds that NumPy accepts.
  explicit NumpyRandomState(int64_t seed);

  /// Uniform in [0, max]. Draws one word per candidate, two (high half first) beyond 2^32 - 1.
  uint64_t bounded(uint64_t max);

  template <class T>
  void shuffle(std::span<T> values) {
    for (uint64_t i = values.size(); i-- > 1;) {
      const uint64_t j = bounded(i);
      std::swap(values[i], values[j]);
    }
  }

 private:
  std::mt19937 engine_;
};

}  // namespace tapestry::data
