#include "autograd/kernels/norm.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"

// Weight and bias come in the compute type, the gradients of both are returned in it; norm.cpp
// converts. `mean` is null for the root-mean-square norm.
namespace tapestry::kernels::TAPESTRY_ISA {

void norm_rows(DType dtype,
               int64_t begin,
               int64_t end,
               int64_t n,
               double eps,
               const void* x,
               const void* weight,
               const void* bias,
               void* y,
               void* mean,
               void* rstd);
void norm_backward_rows(DType dtype,
                        int64_t begin,
                        int64_t end,
                        int64_t n,
                        const void* dy,
                        const void* x,
                        const void* weight,
                        const void* mean,
                        const void* rstd,
                        void* dx,
                        void* dweight,
                        void* dbias);

namespace {

/// Sum of x (power 1), or of (x - center)^2 (power 2), in float64.
template <int kPower, class T, class C = compute_t<T>>
double sum_row(int64_t n, const T* x, double center) {
  C block[kBlock];
  double sum = 0;
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* in = read_block(m, x + done, block);
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < m; ++i) {
      const double d = in[i] - center;
      sum += kPower == 1 ? d : d * d;
    }
  }
  return sum;
}

/// The mean is given in two parts: rounding it would shift all results where it is large.
template <class T, class C = compute_t<T>>
void normalize_row(
    int64_t n, const T* x, const C* weight, const C* bias, C mean, C rest, C rstd, T* y) {
  C in_block[kBlock];
  C out_block[kBlock];
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* in = read_block(m, x + done, in_block);
    C* out = output_block(y + done, out_block);
    if (weight != nullptr && bias != nullptr) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        out[i] = (in[i] - mean - rest) * rstd * weight[done + i] + bias[done + i];
      }
    } else if (weight != nullptr) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        out[i] = (in[i] - mean - rest) * rstd * weight[done + i];
      }
    } else {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        out[i] = (in[i] - mean - rest) * rstd;
      }
      if (bias != nullptr) {
        TAPESTRY_VECTOR_LOOP
        for (int64_t i = 0; i < m; ++i) {
          out[i] += bias[done + i];
        }
      }
    }
    write_block(m, out, y + done);
  }
}

/// dweight and dbias are accumulated into.
template <class T, class C = compute_t<T>>
void backward_row(int64_t n,
                  const T* dy,
                  const T* x,
                  const C* weight,
                  C mean,
                  C rstd,
                  bool centered,
                  T* dx,
                  C* dweight,
                  C* dbias) {
  C x_block[kBlock];
  C dy_block[kBlock];
  C dx_block[kBlock];
  C gw_block[kBlock];
  double sum_g = 0;
  double sum_gx = 0;
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* in = read_block(m, x + done, x_block);
    const C* g = read_block(m, dy + done, dy_block);
    if (dweight != nullptr) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        dweight[done + i] += g[i] * ((in[i] - mean) * rstd);
      }
    }
    if (dbias != nullptr) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        dbias[done + i] += g[i];
      }
    }
    if (dx == nullptr) {
      continue;
    }
    if (weight != nullptr) {
#pragma omp simd reduction(+ : sum_g, sum_gx)
      for (int64_t i = 0; i < m; ++i) {
        const C gw = g[i] * weight[done + i];
        sum_g += gw;
        sum_gx += gw * ((in[i] - mean) * rstd);
      }
    } else {
#pragma omp simd reduction(+ : sum_g, sum_gx)
      for (int64_t i = 0; i < m; ++i) {
        sum_g += g[i];
        sum_gx += g[i] * ((in[i] - mean) * rstd);
      }
    }
  }
  if (dx == nullptr) {
    return;
  }
  const auto average_g = static_cast<C>(centered ? sum_g / static_cast<double>(n) : 0.0);
  const auto average_gx = static_cast<C>(sum_gx / static_cast<double>(n));
  for (int64_t done = 0; done < n; done += kBlock) {
    const int64_t m = block_size(n - done);
    const C* in = read_block(m, x + done, x_block);
    const C* g = read_block(m, dy + done, dy_block);
    C* out = output_block(dx + done, dx_block);
    if (weight != nullptr) {
      // In a loop of its own, so that the product is rounded as it was for the average and not
      // fused into the difference: in a row of one element that has to be exactly 0.
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        gw_block[i] = g[i] * weight[done + i];
      }
      g = gw_block;
    }
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      const C xhat = (in[i] - mean) * rstd;
      out[i] = rstd * (g[i] - average_g - xhat * average_gx);
    }
    write_block(m, out, dx + done);
  }
}

}  // namespace

void norm_rows(DType dtype,
               int64_t begin,
               int64_t end,
               int64_t n,
               double eps,
               const void* x_,
               const void* weight,
               const void* bias,
               void* y_,
               void* mean_,
               void* rstd_) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using C = compute_t<T>;
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(x_) + row * n;
      double mean = 0;
      if (mean_ != nullptr) {
        mean = sum_row<1>(n, x, 0.0) / static_cast<double>(n);
        static_cast<C*>(mean_)[row] = static_cast<C>(mean);
      }
      const double variance = sum_row<2>(n, x, mean) / static_cast<double>(n);
      const auto rstd = static_cast<C>(1.0 / __builtin_sqrt(variance + eps));
      static_cast<C*>(rstd_)[row] = rstd;
      normalize_row(n, x, static_cast<const C*>(weight), static_cast<const C*>(bias),
                    static_cast<C>(mean), static_cast<C>(mean - static_cast<C>(mean)), rstd,
                    static_cast<T*>(y_) + row * n);
    }
  });
}

void norm_backward_rows(DType dtype,
                        int64_t begin,
                        int64_t end,
                        int64_t n,
                        const void* dy,
                        const void* x,
                        const void* weight,
                        const void* mean,
                        const void* rstd,
                        void* dx,
                        void* dweight,
                        void* dbias) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using C = compute_t<T>;
    for (int64_t row = begin; row < end; ++row) {
      backward_row(n, static_cast<const T*>(dy) + row * n, static_cast<const T*>(x) + row * n,
                   static_cast<const C*>(weight),
                   mean != nullptr ? static_cast<const C*>(mean)[row] : C(0),
                   static_cast<const C*>(rstd)[row], mean != nullptr,
                   dx != nullptr ? static_cast<T*>(dx) + row * n : nullptr,
                   static_cast<C*>(dweight), static_cast<C*>(dbias));
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
