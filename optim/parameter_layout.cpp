#include "optim/parameter_layout.h"

namespace tapestry::optim {

bool counts_slice(const nn::LogicalTensor& logical, const RankGroup* slices) {
  if (slices == nullptr) {
    return true;
  }
  return logical.slice_shape.empty() ? slices->rank() == 0 : slices->rank() % logical.copies == 0;
}

}  // namespace tapestry::optim
