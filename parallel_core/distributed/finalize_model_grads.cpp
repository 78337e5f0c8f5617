#include "parallel_core/distributed/finalize_model_grads.h"

#include <algorithm>
#include <vector>

#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/parameter_ranks.h"

namespace tapestry {

namespace {

// A gradient to be summed, and where it lies in the buffer that is summed.
struct Summand {
  Tensor gradient;
  int64_t offset;
};

Tensor place(const Tensor& buffer, const Summand& summand) {
  const Shape& shape = summand.gradient.shape();
  return alias(buffer, shape, contiguous_strides(shape), summand.offset);
}

// Of the parameters of experts, or of all others.
void sum_shares(const ParameterList& parameters, bool of_experts) {
  ProcessGroup& group = slices_group(of_experts);
  if (group.size() == 1) {
    return;
  }
  std::vector<Summand> summands;
  int64_t size = 0;
  for (const nn::Parameter* parameter : parameters) {
    if (parameter->flags().expert != of_experts) {
      continue;
    }
    const Tensor gradient = parameter->grad();
    if (!gradient.defined()) {
      continue;  // not used in this step, on any rank
    }
    if (parameter->flags().tp == nn::TensorParallel::kPartial) {
      summands.push_back({gradient, size});
      size += gradient.numel();
      continue;
    }
    for (const nn::LogicalTensor& logical : parameter->logical()) {
      if (logical.copies == 1) {
        continue;
      }
      // A place for each of the slices that differ: ranks that hold the same one add to the same.
      const Tensor piece = logical.view_of(gradient);
      const int64_t different = group.size() / logical.copies;
      const int64_t own = group.rank() / logical.copies;
      summands.push_back({piece, size + own * piece.numel()});
      size += different * piece.numel();
    }
  }
  if (size == 0) {
    return;
  }
  // Exact sums are added without rounding.
  const bool exact = std::any_of(summands.begin(), summands.end(), [](const Summand& summand) {
    return summand.gradient.dtype() == kFloat64;
  });
  const Tensor buffer = zeros({size}, exact ? kFloat64 : kFloat32);
  for (const Summand& summand : summands) {
    copy_values(summand.gradient, place(buffer, summand));
  }
  group.all_reduce(buffer);
  for (const Summand& summand : summands) {
    copy_values(place(buffer, summand), summand.gradient);
  }
}

}  // namespace

void all_reduce_partial_gradients(const ParameterList& parameters) {
  sum_shares(parameters, /*of_experts=*/false);
  sum_shares(parameters, /*of_experts=*/true);
}

Tensor part_with_copies(const nn::LogicalTensor& logical, const Tensor& gradient, int64_t first) {
  // A rank with copies has one group of heads, so the slice lies together in its parameter.
  int64_t outer = 1;
  int64_t inner = 1;
  for (int64_t i = 0; i < logical.view_shape.size(); ++i) {
    (i < logical.axis ? outer : inner) *= i == logical.axis ? 1 : logical.view_shape[i];
  }
  check<RuntimeError>(outer == 1, "gradient norm: the slices of '", logical.name,
                      "' that several ranks hold do not lie together");
  const int64_t size = gradient.numel();
  const int64_t begin = std::clamp<int64_t>(logical.begin * inner - first, 0, size);
  const int64_t end = std::clamp<int64_t>(logical.end * inner - first, begin, size);
  return dense(gradient).view({-1}).slice(0, begin, end);
}

double repeated_squares(const nn::Parameter& parameter, const Tensor& gradient, int64_t first) {
  double squares = 0;
  for (const nn::LogicalTensor& logical : parameter.logical()) {
    if (logical.copies == 1) {
      continue;
    }
    const Tensor values = part_with_copies(logical, gradient, first);
    if (values.numel() > 0) {
      const auto copies = static_cast<double>(logical.copies);
      squares += kernels::sum_of_squares(values.dtype(), values.numel(), values.raw()) *
                 (copies - 1) / copies;
    }
  }
  return squares;
}

void sum_tied_embedding_gradients(const ParameterList& parameters) {
  for (const nn::Parameter* entry : parameters) {
    const nn::Parameter& parameter = *entry;
    if (!parameter.flags().shared && !parameter.flags().has_copy) {
      continue;
    }
    Tensor gradient = parameter.grad();
    if (!gradient.defined()) {
      gradient = zeros_like(parameter);
      parameter.set_grad(gradient);
    }
    get_embedding_group().all_reduce(gradient);
    gradient.bump_version();
  }
}

void finalize_model_grads(const ParameterList& parameters) {
  all_reduce_partial_gradients(parameters);
  sum_tied_embedding_gradients(parameters);
}

}  // namespace tapestry
