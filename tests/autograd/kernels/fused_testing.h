// Arrays of any floating dtype for kernel tests, and the loops over dtypes, levels and team sizes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "autograd/kernels/machine/dtype.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "tests/cpu_levels.h"

namespace tapestry::testing {

using Doubles = std::vector<double>;

/// Elements of one floating dtype, read and written as double.
class Array {
 public:
  Array(DType dtype, int64_t n)
      : dtype_(dtype), n_(n), words_(static_cast<size_t>(n * size_of(dtype) / 8 + 1), kGarbage) {}
  Array(DType dtype, const Doubles& values) : Array(dtype, static_cast<int64_t>(values.size())) {
    for (int64_t i = 0; i < n_; ++i) {
      set(i, values[i]);
    }
  }
  void* data() { return words_.data(); }
  const void* data() const { return words_.data(); }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(words_.data());
  }
  DType dtype() const { return dtype_; }
  int64_t size() const { return n_; }

  void set(int64_t i, double value) {
    switch (dtype_) {
      case kFloat64:
        return put(i, value);
      case kFloat16:
        return put(i, Float16(static_cast<float>(value)));
      case kBFloat16:
        return put(i, BFloat16(static_cast<float>(value)));
      default:
        return put(i, static_cast<float>(value));
    }
  }
  double operator[](int64_t i) const {
    switch (dtype_) {
      case kFloat64:
        return get<double>(i);
      case kFloat16:
        return static_cast<float>(get<Float16>(i));
      case kBFloat16:
        return static_cast<float>(get<BFloat16>(i));
      default:
        return get<float>(i);
    }
  }
  Doubles values() const {
    Doubles out(n_);
    for (int64_t i = 0; i < n_; ++i) {
      out[i] = (*this)[i];
    }
    return out;
  }
  bool same_bits(const Array& other) const {
    return std::memcmp(data(), other.data(), n_ * size_of(dtype_)) == 0;
  }

 private:
  static constexpr uint64_t kGarbage = 0x7ff4dead7ff4dead;  // NaN in every dtype but float16
  template <class T>
  void put(int64_t i, T value) {
    std::memcpy(reinterpret_cast<char*>(words_.data()) + i * sizeof(T), &value, sizeof(T));
  }
  template <class T>
  T get(int64_t i) const {
    T value;
    std::memcpy(&value, reinterpret_cast<const char*>(words_.data()) + i * sizeof(T), sizeof(T));
    return value;
  }

  DType dtype_;
  int64_t n_;
  std::vector<uint64_t> words_;
};

/// float64 for float64, else float32: the type of statistics.
inline DType statistics_dtype(DType dtype) { return dtype == kFloat64 ? kFloat64 : kFloat32; }

inline Array random_array(DType dtype, int64_t n, uint64_t seed, double std = 1, double mean = 0) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(mean, std);
  Array out(dtype, n);
  for (int64_t i = 0; i < n; ++i) {
    out.set(i, normal(engine));
  }
  return out;
}

/// Half a unit in the last place of the stored type plus the noise of float32 sums.
inline double tolerance(DType dtype) {
  switch (dtype) {
    case kFloat64:
      return 1e-13;
    case kFloat16:
      return 6e-4;
    case kBFloat16:
      return 4.5e-3;
    default:
      return 2e-6;
  }
}

/// max |got - expected| over max |expected|, or over `size` if that is larger (that of the terms,
/// where sums of them cancel); non-finite values must agree in kind.
inline void expect_close(const Array& got,
                         const Doubles& expected,
                         const std::string& what,
                         double tolerance,
                         double size = 1e-30) {
  ASSERT_EQ(got.size(), static_cast<int64_t>(expected.size())) << what;
  double scale = size;
  for (const double e : expected) {
    scale = std::isfinite(e) ? std::max(scale, std::abs(e)) : scale;
  }
  for (int64_t i = 0; i < got.size(); ++i) {
    const double e = expected[i];
    if (!std::isfinite(e)) {
      ASSERT_TRUE(std::isnan(e) ? std::isnan(got[i]) : got[i] == e)
          << what << "[" << i << "] is " << got[i] << ", not " << e;
    } else {
      ASSERT_LE(std::abs(got[i] - e), tolerance * scale)
          << what << "[" << i << "] is " << got[i] << ", not " << e;
    }
  }
}
inline void expect_close(const Array& got, const Doubles& expected, const std::string& what) {
  expect_close(got, expected, what, tolerance(got.dtype()));
}

/// Calls body(dtype) for every floating dtype at every level.
template <class Body>
void for_each_dtype(const Body& body) {
  at_every_cpu_level([&] {
    for (const DType dtype : {kFloat32, kFloat64, kBFloat16, kFloat16}) {
      SCOPED_TRACE(std::string(name_of(dtype)));
      body(dtype);
    }
  });
}

/// body() returns the arrays it computed; the bits must not depend on the size of the team.
template <class Body>
void expect_same_for_any_team(const Body& body) {
  const int before = num_threads();
  set_num_threads(1);
  const std::vector<Array> expected = body();
  for (const int team : {2, 3, 7, 32}) {
    set_num_threads(team);
    const std::vector<Array> got = body();
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(got[i].same_bits(expected[i])) << "output " << i << ", team of " << team;
    }
  }
  set_num_threads(before);
}

/// body() returns the arrays it computed; in exact mode the bits must be the same at every level
/// that fuses multiply-adds, and for teams of one and of several.
template <class Body>
void expect_same_at_fused_levels(const Body& body) {
  const ExactScope scope;
  const CpuLevelGuard guard(CpuLevel::kAvx2);
  if (cpu_level() != CpuLevel::kAvx2) {
    return;
  }
  const int before = num_threads();
  set_num_threads(1);
  const std::vector<Array> expected = body();
  set_num_threads(3);
  set_cpu_level(CpuLevel::kAmx);
  const std::vector<Array> got = body();
  set_num_threads(before);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    for (int64_t j = 0; j < got[i].size(); ++j) {
      ASSERT_TRUE(got[i][j] == expected[i][j] || (got[i][j] != got[i][j]))
          << "output " << i << "[" << j << "] is " << got[i][j] << ", not " << expected[i][j];
    }
  }
}

}  // namespace tapestry::testing
