#include "parallel_core/distributed/gradient_numbers.h"

#include "autograd/tensor/error.h"
#include "nn/random_rows.h"
#include "parallel_core/parameter_ranks.h"

namespace tapestry {

namespace {

// Which share of the gradient this rank has, counted within the ranks that have one.
int64_t share_of(const nn::LogicalTensor& logical, const nn::ParameterFlags& flags) {
  const ProcessGroup& ranks = slices_group(flags.expert);
  if (flags.tp == nn::TensorParallel::kPartial) {
    return ranks.rank();
  }
  return ranks.rank() % logical.copies;
}

}  // namespace

std::vector<kernels::RandomRows> gradient_numbers(const std::string& name,
                                                  const nn::Parameter& parameter) {
  std::vector<nn::LogicalTensor> logical = parameter.logical();
  if (logical.empty()) {
    const int64_t size = parameter.numel();
    logical = {{.name = name, .shape = parameter.shape(), .view_shape = {size}, .end = size}};
  }
  for (nn::LogicalTensor& tensor : logical) {
    const int64_t share = share_of(tensor, parameter.flags());
    if (share > 0) {
      tensor.name += concat(", share ", share);
    }
    if (parameter.flags().shared) {
      tensor.name += ", copy";
    }
  }
  return nn::random_rows(name, logical, 0, parameter.numel());
}

std::vector<kernels::RandomRows> summed_gradient_numbers(const std::string& name,
                                                         const nn::Parameter& parameter,
                                                         int64_t first,
                                                         int64_t count) {
  return nn::random_rows(name, parameter.logical(), first, count);
}

}  // namespace tapestry
