#include "parallel_core/distributed/param_and_grad_buffer.h"

#include <cmath>

#include "autograd/kernels/reduce.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry {

namespace {

constexpr int64_t kAlignment = 64;  // bytes

}  // namespace

ParamAndGradBuffer::ParamAndGradBuffer(const std::vector<nn::Module::NamedParameter>& parameters,
                                       const Options& options)
    : options_(options) {
  if (options.memory == GradientMemory::kContiguous) {
    lay_out(parameters);
  }
  for (auto entry = parameters.rbegin(); entry != parameters.rend(); ++entry) {
    if (options.memory == GradientMemory::kOnDemand) {
      attach_main_grad(*entry->parameter, options.dtype);
    }
    pieces_.push_back({*entry->parameter, combine(stream_of("main_grad"), stream_of(entry->name))});
  }
}

void ParamAndGradBuffer::lay_out(const std::vector<nn::Module::NamedParameter>& parameters) {
  const int64_t unit = kAlignment / size_of(options_.dtype);
  const auto padded = [&](const nn::Parameter& p) { return (p.numel() + unit - 1) / unit * unit; };
  int64_t total = 0;
  for (const auto& entry : parameters) {
    total += padded(*entry.parameter);
  }
  {
    const MemoryKindGuard kind(MemoryKind::kGradient);
    grad_data_ = zeros({total}, options_.dtype);
  }
  int64_t offset = 0;
  for (auto entry = parameters.rbegin(); entry != parameters.rend(); ++entry) {
    const nn::Parameter& parameter = *entry->parameter;
    parameter.set_main_grad(
        alias(grad_data_, parameter.shape(), contiguous_strides(parameter.shape()), offset));
    offset += padded(parameter);
  }
}

std::vector<Tensor> ParamAndGradBuffer::settled() const {
  std::vector<Tensor> memory;
  for (const Piece& piece : pieces_) {
    memory.push_back(piece.parameter.main_grad());
  }
  if (grad_data_.defined()) {
    memory = {grad_data_};
  }
  return memory;
}

const Tensor& ParamAndGradBuffer::grad_data() const {
  check<RuntimeError>(grad_data_.defined(), "gradients: they lie apart, there is no buffer of all");
  settled();
  return grad_data_;
}

void ParamAndGradBuffer::zero(int64_t step) {
  for (const Piece& piece : pieces_) {
    const RandomKey rounding = {options_.seed, combine(piece.stream, static_cast<uint64_t>(step)),
                                0};
    if (grad_data_.defined()) {
      reset_main_grad(piece.parameter, rounding);
    } else {
      release_main_grad(piece.parameter, rounding);
    }
  }
}

void ParamAndGradBuffer::scale(double factor) {
  for (const Tensor& memory : settled()) {
    kernels::scale_inplace(memory.dtype(), memory.numel(), factor, memory.raw());
  }
}

double ParamAndGradBuffer::norm() const {
  double squares = 0;
  for (const Tensor& memory : settled()) {
    squares += kernels::sum_of_squares(memory.dtype(), memory.numel(), memory.raw());
  }
  return std::sqrt(squares);
}

}  // namespace tapestry
