#include "nn/layers/activation.h"

#include "autograd/ops/random.h"
#include "autograd/tensor/error.h"

namespace tapestry::nn {

Dropout::Dropout(double p) : p_(p) {
  check<ValueError>(p >= 0 && p <= 1, "Dropout: the probability must lie in [0, 1], got ", p);
}

std::string Dropout::extra_repr() const { return concat("p=", p_); }

Tensor Dropout::forward(const Tensor& x) { return dropout(x, p_, is_training()); }

}  // namespace tapestry::nn
