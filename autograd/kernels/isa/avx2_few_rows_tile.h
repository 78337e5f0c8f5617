// What few_rows_tile() adds of a chunk for four or three rows of x and three rows of W in bfloat16
// with AVX2, in assembly: twelve sums, a vector of each row of W and one of x are all sixteen
// registers. GCC 12 widens even and odd elements of W together, and has six vectors of W where
// there is room for three: it spills sums, and each turn then waits for what the last one stored.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

#include "autograd/kernels/isa/simd.h"

#if defined(__AVX2__) && !defined(__AVX512F__)

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

// One row of x, at X.
#define TAPESTRY_FEW_ROWS_X(X, S)                \
  "vmovups " X "(%[x]), %%ymm15\n\t"             \
  "vfmadd231ps %%ymm12, %%ymm15, %[s" S "0]\n\t" \
  "vfmadd231ps %%ymm13, %%ymm15, %[s" S "1]\n\t" \
  "vfmadd231ps %%ymm14, %%ymm15, %[s" S "2]\n\t"
#define TAPESTRY_FEW_ROWS_THREE(X0, X1, X2) \
  TAPESTRY_FEW_ROWS_X(X0, "0") TAPESTRY_FEW_ROWS_X(X1, "1") TAPESTRY_FEW_ROWS_X(X2, "2")
#define TAPESTRY_FEW_ROWS_EVEN_OF(W, TO) \
  "vmovdqu %[" W "], " TO "\n\tvpslld $16, " TO ", " TO "\n\t"
#define TAPESTRY_FEW_ROWS_ODD_OF(W, TO) \
  "vmovdqu %[" W "], " TO "\n\tvpand %[odd], " TO ", " TO "\n\t"
#define TAPESTRY_FEW_ROWS_WIDEN(OF) OF("w0", "%%ymm12") OF("w1", "%%ymm13") OF("w2", "%%ymm14")
#define TAPESTRY_FEW_ROWS_SUMS(I) \
  [s##I##0] "+x"(sums[I][0]), [s##I##1] "+x"(sums[I][1]), [s##I##2] "+x"(sums[I][2])
#define TAPESTRY_FEW_ROWS_FACTORS                                                     \
  [w0] "m"(*reinterpret_cast<WRow*>(w[0])), [w1] "m"(*reinterpret_cast<WRow*>(w[1])), \
      [w2] "m"(*reinterpret_cast<WRow*>(w[2])), [odd] "m"(kOddHalves), [x] "r"(x),    \
      "m"(*reinterpret_cast<XRows*>(x))
#define TAPESTRY_FEW_ROWS_CLOBBERS "xmm12", "xmm13", "xmm14", "xmm15"

constexpr uint32_t kOddHalf = 0xffff0000U;
alignas(32) constexpr uint32_t kOddHalves[] = {kOddHalf, kOddHalf, kOddHalf, kOddHalf,
                                               kOddHalf, kOddHalf, kOddHalf, kOddHalf};

/// Adds to sums the products of 16 elements of each row: of a lane, the even element's first.
/// x: kX times 8 floats for the even elements, then 8 for the odd ones.
template <int kX>
[[gnu::always_inline]] inline void add_even_odd_tile(const char* const (&w)[3],
                                                     const float* x,
                                                     FloatVector (&sums)[kX][3]) {
  static_assert(kX == 3 || kX == 4);
  using WRow = const char[32];
  using XRows = const float[kX * 16];
  if constexpr (kX == 4) {
    asm(TAPESTRY_FEW_ROWS_WIDEN(TAPESTRY_FEW_ROWS_EVEN_OF) TAPESTRY_FEW_ROWS_THREE("0", "64", "128")
            TAPESTRY_FEW_ROWS_X("192", "3") TAPESTRY_FEW_ROWS_WIDEN(TAPESTRY_FEW_ROWS_ODD_OF)
                TAPESTRY_FEW_ROWS_THREE("32", "96", "160") TAPESTRY_FEW_ROWS_X("224", "3")
        : TAPESTRY_FEW_ROWS_SUMS(0), TAPESTRY_FEW_ROWS_SUMS(1), TAPESTRY_FEW_ROWS_SUMS(2),
          TAPESTRY_FEW_ROWS_SUMS(3)
        : TAPESTRY_FEW_ROWS_FACTORS
        : TAPESTRY_FEW_ROWS_CLOBBERS);
  } else {
    asm(TAPESTRY_FEW_ROWS_WIDEN(TAPESTRY_FEW_ROWS_EVEN_OF) TAPESTRY_FEW_ROWS_THREE("0", "64", "128")
            TAPESTRY_FEW_ROWS_WIDEN(TAPESTRY_FEW_ROWS_ODD_OF)
                TAPESTRY_FEW_ROWS_THREE("32", "96", "160")
        : TAPESTRY_FEW_ROWS_SUMS(0), TAPESTRY_FEW_ROWS_SUMS(1), TAPESTRY_FEW_ROWS_SUMS(2)
        : TAPESTRY_FEW_ROWS_FACTORS
        : TAPESTRY_FEW_ROWS_CLOBBERS);
  }
}

#undef TAPESTRY_FEW_ROWS_X
#undef TAPESTRY_FEW_ROWS_THREE
#undef TAPESTRY_FEW_ROWS_EVEN_OF
#undef TAPESTRY_FEW_ROWS_ODD_OF
#undef TAPESTRY_FEW_ROWS_WIDEN
#undef TAPESTRY_FEW_ROWS_SUMS
#undef TAPESTRY_FEW_ROWS_FACTORS
#undef TAPESTRY_FEW_ROWS_CLOBBERS

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

#endif
