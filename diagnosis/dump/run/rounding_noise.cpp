#include "diagnosis/dump/run/rounding_noise.h"

#include <algorithm>
#include <concepts>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/dtype.h"

namespace tapestry {

namespace {

// splitmix64 (Steele, Lea, Flood 2014).
uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Elements by their bits: a neighbour in magnitude is one more or less, whatever the exponent.
template <std::unsigned_integral Bits>
void move_by_rounding(Bits* values, int64_t count, Bits infinity, uint64_t key) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  constexpr int64_t kGrain = 1 << 14;
  kernels::parallel_for(count, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t chance = mixed(key + static_cast<uint64_t>(i));
      const Bits magnitude = values[i] & static_cast<Bits>(~kSign);
      if ((chance & 3) != 0 || magnitude == 0 || magnitude >= infinity) {
        continue;
      }
      const bool up = (chance & 4) != 0 && magnitude + 1 < infinity;
      values[i] = static_cast<Bits>(up ? values[i] + 1 : values[i] - 1);
    }
  });
}

bool shares_memory(const Tensor& t, std::span<const Tensor> others) {
  return std::any_of(others.begin(), others.end(), [&](const Tensor& other) {
    return other.defined() && other.storage() == t.storage();
  });
}

}  // namespace

void RoundingNoise::op_ended(const OpRun& run) {
  if (run.pass == OpPass::kAgain) {
    return;
  }
  ++ops_;
  uint64_t key = mixed(draw_ ^ mixed(ops_));
  for (const Tensor& result : run.outputs) {
    key = mixed(key);
    if (!result.defined() || !is_floating(result.dtype()) || !result.is_contiguous() ||
        shares_memory(result, run.inputs)) {
      continue;
    }
    void* data = result.raw();
    const int64_t n = result.numel();
    switch (result.dtype()) {
      case kFloat64:
        move_by_rounding(static_cast<uint64_t*>(data), n, uint64_t{0x7ff0000000000000}, key);
        break;
      case kFloat32:
        move_by_rounding(static_cast<uint32_t*>(data), n, uint32_t{0x7f800000}, key);
        break;
      case kBFloat16:
        move_by_rounding(static_cast<uint16_t*>(data), n, uint16_t{0x7f80}, key);
        break;
      case kFloat16:
        move_by_rounding(static_cast<uint16_t*>(data), n, uint16_t{0x7c00}, key);
        break;
      default:
        break;
    }
  }
}

}  // namespace tapestry
