#include "parallel_core/data/numpy_random.h"

#include <bit>

#include "autograd/tensor/error.h"

namespace tapestry::data {

NumpyRandomState::NumpyRandomState(int64_t seed) {
  check<ValueError>(seed >= 0 && seed <= int64_t{UINT32_MAX}, "data seed: ", seed,
                    " is outside 0 .. 4294967295");
  engine_.seed(static_cast<uint32_t>(seed));
}

uint64_t NumpyRandomState::bounded(uint64_t max) {
  if (max == 0) {
    return 0;
  }
  const uint64_t mask = ~uint64_t{0} >> static_cast<unsigned>(std::countl_zero(max));
  uint64_t value = 0;
  do {
    if (max <= UINT32_MAX) {
      value = uint64_t{engine_()} & mask;
    } else {
      const uint64_t high = engine_();
      value = ((high << 32U) | uint64_t{engine_()}) & mask;
    }
  } while (value > max);
  return value;
}

}  // namespace tapestry::data
