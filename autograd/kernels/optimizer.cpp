#include "autograd/kernels/optimizer.h"

#include <cassert>
#include <cmath>

#include "autograd/kernels/cpu.h"
#include "autograd/kernels/isa/optimizer_constants.h"
#include "autograd/kernels/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void adamw_range(DType param_dtype,
                                          DType grad_dtype,
                                          int64_t begin,
                                          int64_t end,
                                          void* p,
                                          const void* g,
                                          void* exp_avg,
                                          void* exp_avg_sq,
                                          const AdamConstants& constants))
TAPESTRY_DECLARE_PER_ISA(void sgd_range(DType param_dtype,
                                        DType grad_dtype,
                                        int64_t begin,
                                        int64_t end,
                                        void* p,
                                        const void* g,
                                        void* buffer,
                                        const SgdConstants& constants))

namespace {

constexpr int64_t kBlock = 512;  // elements

/// Calls body on ranges of elements that begin at multiples of kBlock: vector code and the scalar
/// code of its remainder may round differently, so a place must not change with the team.
template <class Body>
void for_elements(int64_t n, const Body& body) {
  parallel_for((n + kBlock - 1) / kBlock, kGrainSize / kBlock, [&](int64_t begin, int64_t end) {
    body(begin * kBlock, std::min(end * kBlock, n));
  });
}

[[maybe_unused]] bool dtypes_fit(DType param_dtype, DType grad_dtype) {
  return (param_dtype == kFloat32 || param_dtype == kFloat64) && is_floating(grad_dtype);
}

}  // namespace

void adamw(DType param_dtype,
           DType grad_dtype,
           int64_t n,
           void* p,
           const void* g,
           void* exp_avg,
           void* exp_avg_sq,
           double lr,
           double beta1,
           double beta2,
           double eps,
           double weight_decay,
           bool decoupled,
           int64_t step,
           double grad_scale) {
  assert(dtypes_fit(param_dtype, grad_dtype) && step >= 1);
  const auto count = static_cast<double>(step);
  const AdamConstants constants{
      .grad_scale = grad_scale,
      .coupled_decay = decoupled ? 0.0 : weight_decay,
      .decoupled_decay = decoupled ? lr * weight_decay : 0.0,
      .beta1 = beta1,
      .rest1 = 1.0 - beta1,
      .beta2 = beta2,
      .rest2 = 1.0 - beta2,
      .step_size = lr / (1.0 - std::pow(beta1, count)),
      .root_scale = 1.0 / std::sqrt(1.0 - std::pow(beta2, count)),
      .eps = eps,
  };
  const auto run = TAPESTRY_DISPATCH(adamw_range);
  for_elements(n, [&](int64_t begin, int64_t end) {
    run(param_dtype, grad_dtype, begin, end, p, g, exp_avg, exp_avg_sq, constants);
  });
}

void sgd(DType param_dtype,
         DType grad_dtype,
         int64_t n,
         void* p,
         const void* g,
         void* momentum_buffer,
         double lr,
         double momentum,
         double dampening,
         double weight_decay,
         bool nesterov,
         bool first_step,
         double grad_scale) {
  assert(dtypes_fit(param_dtype, grad_dtype));
  const SgdConstants constants{
      .grad_scale = grad_scale,
      .decay = weight_decay,
      .keep = momentum,
      .take = 1.0 - dampening,
      .from_grad = nesterov ? 1.0 : 0.0,
      .from_buffer = nesterov ? momentum : 1.0,
      .lr = lr,
      .first_step = first_step,
  };
  const auto run = TAPESTRY_DISPATCH(sgd_range);
  for_elements(n, [&](int64_t begin, int64_t end) {
    run(param_dtype, grad_dtype, begin, end, p, g, momentum_buffer, constants);
  });
}

}  // namespace tapestry::kernels
