#include "parallel_core/distributed/param_and_grad_buffer.h"

#include <cmath>
#include <cstring>

#include "autograd/kernels/parallel_for.h"
#include "autograd/kernels/reduce.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

constexpr int64_t kAlignment = 16;  // float32 elements, 64 bytes

}  // namespace

ParamAndGradBuffer::ParamAndGradBuffer(const std::vector<nn::Module::NamedParameter>& parameters) {
  int64_t total = 0;
  for (const auto& entry : parameters) {
    total += (entry.parameter->numel() + kAlignment - 1) / kAlignment * kAlignment;
  }
  {
    const MemoryKindGuard kind(MemoryKind::kGradient);
    grad_data_ = zeros({total});
  }
  int64_t offset = 0;
  for (auto entry = parameters.rbegin(); entry != parameters.rend(); ++entry) {
    const nn::Parameter& parameter = *entry->parameter;
    parameter.set_main_grad(
        alias(grad_data_, parameter.shape(), contiguous_strides(parameter.shape()), offset));
    offset += (parameter.numel() + kAlignment - 1) / kAlignment * kAlignment;
  }
}

void ParamAndGradBuffer::zero() {
  auto* data = grad_data_.data<float>();
  kernels::parallel_for(grad_data_.numel(), kernels::kGrainSize, [&](int64_t begin, int64_t end) {
    std::memset(data + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
  });
}

void ParamAndGradBuffer::scale(double factor) {
  kernels::scale_inplace(kFloat32, grad_data_.numel(), factor, grad_data_.raw());
}

double ParamAndGradBuffer::norm() const {
  return std::sqrt(kernels::sum_of_squares(kFloat32, grad_data_.numel(), grad_data_.raw()));
}

}  // namespace tapestry
