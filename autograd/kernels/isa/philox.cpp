#include "autograd/kernels/philox.h"

#include <type_traits>

#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {

void philox_blocks(
    uint64_t seed, uint64_t stream, uint64_t first_block, int64_t count, uint32_t* words);
void bernoulli_range(
    int64_t n, uint64_t seed, uint64_t stream, uint64_t first_index, uint64_t threshold, bool* y);
void dropout_range(DType dtype,
                   int64_t begin,
                   int64_t end,
                   const void* x,
                   const bool* keep,
                   double scale,
                   void* y);

namespace {

constexpr int64_t kLanes = 16;

/// philox_block for kLanes blocks side by side: compilers make vectors of a loop over lanes, but
/// not of one over blocks.
[[gnu::always_inline]] inline void philox_lanes(uint64_t seed,
                                                uint64_t stream,
                                                uint64_t first_block,
                                                uint32_t (&words)[4 * kLanes]) {
  uint32_t c0[kLanes];
  uint32_t c1[kLanes];
  uint32_t c2[kLanes];
  uint32_t c3[kLanes];
  for (int64_t l = 0; l < kLanes; ++l) {
    const uint64_t block = first_block + static_cast<uint64_t>(l);
    c0[l] = static_cast<uint32_t>(block);
    c1[l] = static_cast<uint32_t>(block >> 32U);
    c2[l] = static_cast<uint32_t>(stream);
    c3[l] = static_cast<uint32_t>(stream >> 32U);
  }
  auto k0 = static_cast<uint32_t>(seed);
  auto k1 = static_cast<uint32_t>(seed >> 32U);
  for (int round = 0; round < 10; ++round) {
    TAPESTRY_VECTOR_LOOP
    for (int64_t l = 0; l < kLanes; ++l) {
      const uint64_t p0 = uint64_t{0xD2511F53U} * c0[l];
      const uint64_t p1 = uint64_t{0xCD9E8D57U} * c2[l];
      c0[l] = static_cast<uint32_t>(p1 >> 32U) ^ c1[l] ^ k0;
      c1[l] = static_cast<uint32_t>(p1);
      c2[l] = static_cast<uint32_t>(p0 >> 32U) ^ c3[l] ^ k1;
      c3[l] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  for (int64_t l = 0; l < kLanes; ++l) {
    words[4 * l] = c0[l];
    words[4 * l + 1] = c1[l];
    words[4 * l + 2] = c2[l];
    words[4 * l + 3] = c3[l];
  }
}

}  // namespace

void philox_blocks(
    uint64_t seed, uint64_t stream, uint64_t first_block, int64_t count, uint32_t* words) {
  for (int64_t b = 0; b < count; b += kLanes) {
    uint32_t lanes[4 * kLanes];
    philox_lanes(seed, stream, first_block + static_cast<uint64_t>(b), lanes);
    const int64_t n = 4 * (count - b < kLanes ? count - b : kLanes);
    for (int64_t i = 0; i < n; ++i) {
      words[4 * b + i] = lanes[i];
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
    TAPESTRY_VECTOR_LOOP
    for (int64_t i = 0; i < m; ++i) {
      y[done + i] = words[skip + i] < threshold;
    }
  }
}

void dropout_range(DType dtype,
                   int64_t begin,
                   int64_t end,
                   const void* x,
                   const bool* keep,
                   double scale,
                   void* y) {
  for_floating(dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    using C = compute_t<T>;
    const auto factor = static_cast<C>(scale);
    C in_block[kBlock];
    C out_block[kBlock];
    for (int64_t done = begin; done < end; done += kBlock) {
      const int64_t m = block_size(end - done);
      const C* in = read_block(m, static_cast<const T*>(x) + done, in_block);
      C* out = output_block(static_cast<T*>(y) + done, out_block);
      const bool* k = keep + done;
      TAPESTRY_VECTOR_LOOP
      for (int64_t i = 0; i < m; ++i) {
        const C scaled = in[i] * factor;
        out[i] = k[i] ? scaled : C(0);
      }
      write_block(m, out, static_cast<T*>(y) + done);
    }
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
