#include "autograd/kernels/norm.h"

#include <cassert>
#include <cstring>

#include "autograd/kernels/parallel_for.h"
#include "autograd/kernels/scratch.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void norm_rows(DType dtype,
                                        int64_t begin,
                                        int64_t end,
                                        int64_t n,
                                        double eps,
                                        const void* x,
                                        const void* weight,
                                        const void* bias,
                                        void* y,
                                        void* mean,
                                        void* rstd))
TAPESTRY_DECLARE_PER_ISA(void norm_backward_rows(DType dtype,
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
                                                 void* dbias))

namespace {

constexpr int64_t kMaxRowBlocks = 64;
constexpr int64_t kMinRowsPerBlock = 16;

[[maybe_unused]] bool dtypes_fit(DType x_dtype, DType w_dtype) {
  return is_floating(x_dtype) && is_floating(w_dtype) &&
         (x_dtype == kFloat64) == (w_dtype == kFloat64);
}

int64_t rows_per_thread(int64_t n) {
  return std::max<int64_t>(kGrainSize / 4 / std::max<int64_t>(n, 1), 1);
}

void forward(DType x_dtype,
             DType w_dtype,
             int64_t rows,
             int64_t n,
             double eps,
             const void* x,
             const void* weight,
             const void* bias,
             void* y,
             void* mean,
             void* rstd) {
  assert(dtypes_fit(x_dtype, w_dtype));
  const ComputeView w(w_dtype, n, weight);
  const ComputeView b(w_dtype, n, bias);
  const auto run = TAPESTRY_DISPATCH(norm_rows);
  parallel_for(rows, rows_per_thread(n), [&](int64_t begin, int64_t end) {
    run(x_dtype, begin, end, n, eps, x, w.get(), b.get(), y, mean, rstd);
  });
}

/// out[n] of dtype w_dtype = the sum over blocks of partial[block][0..n), block after block.
template <class C>
void combine(DType w_dtype, int64_t blocks, int64_t stride, int64_t n, C* partial, void* out) {
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t block = 0; block < blocks; ++block) {
      sum += partial[block * stride + i];
    }
    partial[i] = static_cast<C>(sum);
  }
  TAPESTRY_DISPATCH(from_compute)(w_dtype, n, partial, out);
}

void backward(DType x_dtype,
              DType w_dtype,
              int64_t rows,
              int64_t n,
              const void* dy,
              const void* x,
              const void* weight,
              const void* mean,
              const void* rstd,
              void* dx,
              void* dweight,
              void* dbias) {
  assert(dtypes_fit(x_dtype, w_dtype));
  const ComputeView w(w_dtype, n, weight);
  const auto run = TAPESTRY_DISPATCH(norm_backward_rows);
  if (dweight == nullptr && dbias == nullptr) {
    parallel_for(rows, rows_per_thread(n), [&](int64_t begin, int64_t end) {
      run(x_dtype, begin, end, n, dy, x, w.get(), mean, rstd, dx, nullptr, nullptr);
    });
    return;
  }
  // The blocks depend on the number of rows only, so the sums do not depend on the team.
  const int64_t blocks = std::clamp<int64_t>(rows / kMinRowsPerBlock, 1, kMaxRowBlocks);
  const int64_t item = size_of(compute_dtype(w_dtype));
  const Scratch partial(2 * blocks * n * item);
  char* dweights = static_cast<char*>(partial.get());
  char* dbiases = dweights + blocks * n * item;
  std::memset(partial.get(), 0, static_cast<size_t>(2 * blocks * n * item));
  const int64_t grain =
      std::max<int64_t>(rows_per_thread(n) * blocks / std::max<int64_t>(rows, 1), 1);
  parallel_for(blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      run(x_dtype, rows * block / blocks, rows * (block + 1) / blocks, n, dy, x, w.get(), mean,
          rstd, dx, dweight != nullptr ? dweights + block * n * item : nullptr,
          dbias != nullptr ? dbiases + block * n * item : nullptr);
    }
  });
  for (const auto& [sums, out] : {std::pair{dweights, dweight}, std::pair{dbiases, dbias}}) {
    if (out == nullptr) {
      continue;
    }
    if (w_dtype == kFloat64) {
      combine(w_dtype, blocks, n, n, reinterpret_cast<double*>(sums), out);
    } else {
      combine(w_dtype, blocks, n, n, reinterpret_cast<float*>(sums), out);
    }
  }
}

}  // namespace

void layer_norm(DType x_dtype,
                DType w_dtype,
                int64_t rows,
                int64_t n,
                double eps,
                const void* x,
                const void* weight,
                const void* bias,
                void* y,
                void* mean,
                void* rstd) {
  assert(mean != nullptr && rstd != nullptr);
  forward(x_dtype, w_dtype, rows, n, eps, x, weight, bias, y, mean, rstd);
}

void layer_norm_backward(DType x_dtype,
                         DType w_dtype,
                         int64_t rows,
                         int64_t n,
                         const void* dy,
                         const void* x,
                         const void* weight,
                         const void* mean,
                         const void* rstd,
                         void* dx,
                         void* dweight,
                         void* dbias) {
  assert(mean != nullptr);
  backward(x_dtype, w_dtype, rows, n, dy, x, weight, mean, rstd, dx, dweight, dbias);
}

void rms_norm(DType x_dtype,
              DType w_dtype,
              int64_t rows,
              int64_t n,
              double eps,
              const void* x,
              const void* weight,
              void* y,
              void* rstd) {
  forward(x_dtype, w_dtype, rows, n, eps, x, weight, nullptr, y, nullptr, rstd);
}

void rms_norm_backward(DType x_dtype,
                       DType w_dtype,
                       int64_t rows,
                       int64_t n,
                       const void* dy,
                       const void* x,
                       const void* weight,
                       const void* rstd,
                       void* dx,
                       void* dweight) {
  backward(x_dtype, w_dtype, rows, n, dy, x, weight, nullptr, rstd, dx, dweight, nullptr);
}

}  // namespace tapestry::kernels
