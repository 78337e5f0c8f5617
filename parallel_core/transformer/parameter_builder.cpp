#include "parallel_core/transformer/parameter_builder.h"

#include "autograd/ops/map.h"
#include "autograd/ops/random.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"
#include "parallel_core/random.h"

namespace tapestry {

LogicalInit whole(std::string name, const Shape& shape, InitMethod init) {
  return {{std::move(name), shape, shape, 0, 0, shape[0]}, init};
}

Tensor initial_value(const Shape& shape, const std::vector<LogicalInit>& parts) {
  Tensor value;
  {
    const MemoryKindGuard kind(MemoryKind::kParameter);
    value = empty(shape);
  }
  for (const LogicalInit& part : parts) {
    const Tensor piece = part.logical.view_of(value);
    const Tensor start = part.init.kind == InitMethod::Kind::kNormal
                             ? normal(0, part.init.value, piece.shape(), kFloat32,
                                      initialization_key(part.logical.name))
                             : full(piece.shape(), part.init.value);
    copy_values(start, piece);
  }
  return value;
}

std::vector<nn::LogicalTensor> logical_of(const std::vector<LogicalInit>& parts) {
  std::vector<nn::LogicalTensor> out;
  out.reserve(parts.size());
  for (const LogicalInit& part : parts) {
    out.push_back(part.logical);
  }
  return out;
}

}  // namespace tapestry
