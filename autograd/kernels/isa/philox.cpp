#include "autograd/kernels/philox.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/philox_blocks.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

// Round by round for a group of blocks: a loop over blocks with the rounds inside does not become
// vector code. Writes the first `count` of them.
template <int64_t kGroup>
[[gnu::always_inline]] inline void philox_group(
    uint64_t seed, uint64_t stream, uint64_t first, int64_t count, uint32_t* out) {
  uint32_t c0[kGroup];
  uint32_t c1[kGroup];
  uint32_t c2[kGroup];
  uint32_t c3[kGroup];
  TAPESTRY_VECTOR_LOOP
  for (int64_t b = 0; b < kGroup; ++b) {
    const uint64_t low = first + static_cast<uint64_t>(b);
    c0[b] = static_cast<uint32_t>(low);
    c1[b] = static_cast<uint32_t>(low >> 32U);
    c2[b] = static_cast<uint32_t>(stream);
    c3[b] = static_cast<uint32_t>(stream >> 32U);
  }
  auto k0 = static_cast<uint32_t>(seed);
  auto k1 = static_cast<uint32_t>(seed >> 32U);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t b = 0; b < kGroup; ++b) {
      philox_round(c0[b], c1[b], c2[b], c3[b], k0, k1);
    }
    k0 += kPhiloxKeyStep0;
    k1 += kPhiloxKeyStep1;
  }
  TAPESTRY_VECTOR_LOOP
  for (int64_t b = 0; b < count; ++b) {
    out[4 * b] = c0[b];
    out[4 * b + 1] = c1[b];
    out[4 * b + 2] = c2[b];
    out[4 * b + 3] = c3[b];
  }
}

}  // namespace

void philox_blocks(
    uint64_t seed, uint64_t stream, uint64_t first_block, int64_t count, uint32_t* words) {
  constexpr int64_t kGroup = 64;
  for (int64_t done = 0; done < count; done += kGroup) {
    const uint64_t first = first_block + static_cast<uint64_t>(done);
    const int64_t left = count - done;
    uint32_t* out = words + 4 * done;
    if (left > kGroup / 2) {
      philox_group<kGroup>(seed, stream, first, left < kGroup ? left : kGroup, out);
    } else if (left > kGroup / 4) {
      philox_group<kGroup / 2>(seed, stream, first, left, out);
    } else {
      philox_group<kGroup / 4>(seed, stream, first, left, out);
    }
  }
}

void bernoulli_range(
    int64_t n, uint64_t seed, uint64_t stream, uint64_t first_index, uint64_t threshold, bool* y) {
  constexpr int64_t kElements = 4 * kBlock;
  uint32_t words[kElements + 4];
  for (int64_t done = 0; done < n; done += kElements) {
    const int64_t m = n - done < kElements ? n - done : kElements;
    const uint64_t index = first_index + static_cast<uint64_t>(done);
    const auto skip = static_cast<int64_t>(index % 4);
    philox_blocks(seed, stream, index / 4, (skip + m + 3) / 4, words);
    // Compared in 32 bits, which have no room for the threshold of certainty.
    const auto limit = static_cast<uint32_t>(threshold);
    const bool always = threshold > UINT32_MAX;
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      y[done + i] = always | (words[skip + i] < limit);
    }
  }
}

void dropout_range(DType dtype,
                   int64_t n,
                   uint64_t seed,
                   uint64_t stream,
                   uint64_t first_index,
                   uint64_t threshold,
                   double scale,
                   const void* x,
                   void* y) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using C = compute_t<T>;
    const auto factor = static_cast<C>(scale);
    const auto limit = static_cast<uint32_t>(threshold);
    const bool always = threshold > UINT32_MAX;
    C in_block[kBlock];
    C out_block[kBlock];
    uint32_t words[kBlock + 4];
    for (int64_t done = 0; done < n; done += kBlock) {
      const int64_t m = block_size(n - done);
      const uint64_t index = first_index + static_cast<uint64_t>(done);
      const auto skip = static_cast<int64_t>(index % 4);
      philox_blocks(seed, stream, index / 4, (skip + m + 3) / 4, words);
      const C* in = read_block(m, static_cast<const T*>(x) + done, in_block);
      C* out = output_block(static_cast<T*>(y) + done, out_block);
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        const C scaled = in[i] * factor;
        out[i] = always | (words[skip + i] < limit) ? scaled : C(0);
      }
      write_block(m, out, static_cast<T*>(y) + done);
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
