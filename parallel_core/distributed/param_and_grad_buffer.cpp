#include "parallel_core/distributed/param_and_grad_buffer.h"

#include <cmath>

#include "autograd/kernels/reduce.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

constexpr int64_t kAlignment = 64;  // bytes

}  // namespace

ParamAndGradBuffer::ParamAndGradBuffer(const std::vector<nn::Module::NamedParameter>& parameters,
                                       DType dtype,
                                       uint64_t seed)
    : seed_(seed) {
  const int64_t unit = kAlignment / size_of(dtype);
  const auto padded = [&](const nn::Parameter& p) { return (p.numel() + unit - 1) / unit * unit; };
  int64_t total = 0;
  for (const auto& entry : parameters) {
    total += padded(*entry.parameter);
  }
  {
    const MemoryKindGuard kind(MemoryKind::kGradient);
    grad_data_ = zeros({total}, dtype);
  }
  int64_t offset = 0;
  for (auto entry = parameters.rbegin(); entry != parameters.rend(); ++entry) {
    const nn::Parameter& parameter = *entry->parameter;
    parameter.set_main_grad(
        alias(grad_data_, parameter.shape(), contiguous_strides(parameter.shape()), offset));
    pieces_.push_back({parameter, combine(stream_of("main_grad"), stream_of(entry->name)), offset,
                       parameter.flags().shared});
    offset += padded(parameter);
  }
}

void ParamAndGradBuffer::settle() const {
  for (const Piece& piece : pieces_) {
    piece.parameter.main_grad();
  }
}

const Tensor& ParamAndGradBuffer::grad_data() const {
  settle();
  return grad_data_;
}

void ParamAndGradBuffer::zero(int64_t step) {
  for (const Piece& piece : pieces_) {
    reset_main_grad(piece.parameter,
                    {seed_, combine(piece.stream, static_cast<uint64_t>(step)), 0});
  }
}

void ParamAndGradBuffer::scale(double factor) {
  settle();
  kernels::scale_inplace(grad_data_.dtype(), grad_data_.numel(), factor, grad_data_.raw());
}

double ParamAndGradBuffer::sum_of_squares() const {
  settle();
  double sum = 0;
  int64_t begin = 0;
  const auto add_until = [&](int64_t end) {
    const Tensor piece = grad_data_.detach().slice(0, begin, end);
    sum += kernels::sum_of_squares(piece.dtype(), piece.numel(), piece.raw());
  };
  for (const Piece& piece : pieces_) {
    if (piece.shared) {
      add_until(piece.begin);
      begin = piece.begin + piece.parameter.numel();
    }
  }
  add_until(grad_data_.numel());
  return sum;
}

double ParamAndGradBuffer::norm() const { return std::sqrt(sum_of_squares()); }

}  // namespace tapestry
