#include "interop/architectures/hf_names.h"

#include "interop/architectures/own_model.h"
#include "interop/architectures/registry.h"

namespace tapestry {

std::string file_model_type(const TransformerConfig& config) {
  const architectures::Architecture* family = architectures::of(config);
  return family == nullptr ? architectures::kOwnType : std::string(family->model_type);
}

}  // namespace tapestry
