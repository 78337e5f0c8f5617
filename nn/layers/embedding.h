// Table of vectors.
#pragma once

#include <string>

#include "nn/module.h"

namespace tapestry::nn {

/// Rows of a table [num_embeddings, dim]: ids [..] (int32 or int64) -> [.., dim]. The table starts
/// standard normal, drawn from the rank's default generator. IndexError for an id out of range.
class Embedding final : public UnaryModule {
 public:
  Embedding(int64_t num_embeddings, int64_t dim, DType dtype = kFloat32);

  std::string type_name() const override { return "Embedding"; }
  std::string extra_repr() const override;
  Tensor forward(const Tensor& ids) override;
  Parameter& weight() const { return weight_; }

 private:
  Parameter& weight_;
};

}  // namespace tapestry::nn
