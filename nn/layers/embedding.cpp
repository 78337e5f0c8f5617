#include "nn/layers/embedding.h"

#include "autograd/ops/embedding.h"
#include "autograd/ops/random.h"
#include "autograd/tensor/error.h"

namespace tapestry::nn {

Embedding::Embedding(int64_t num_embeddings, int64_t dim, DType dtype)
    : weight_(register_parameter("weight", randn({num_embeddings, dim}, dtype))) {}

std::string Embedding::extra_repr() const { return concat(weight_.size(0), ", ", weight_.size(1)); }

Tensor Embedding::forward(const Tensor& ids) { return embedding(weight_, ids); }

}  // namespace tapestry::nn
