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

void philox_blocks(
    uint64_t seed, uint64_t stream, uint64_t first_block, int64_t count, uint32_t* words) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t b = 0; b < count; ++b) {
    uint32_t block[4];
    philox_block(seed, first_block + static_cast<uint64_t>(b), stream, block);
    words[4 * b] = block[0];
    words[4 * b + 1] = block[1];
    words[4 * b + 2] = block[2];
    words[4 * b + 3] = block[3];
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
