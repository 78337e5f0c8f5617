// The loop of multiply_tile() for four rows of A and a packed panel of three vectors of float with
// AVX2, in assembly: twelve sums, the three vectors of B and one of A are all sixteen registers,
// and GCC 12 spills some of them as soon as a turn of its loop takes more than one k. Four a turn
// leave a sixth fewer instructions, which counts where two threads share a core.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

#include "autograd/kernels/isa/simd.h"

#if defined(__AVX2__) && !defined(__AVX512F__)

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

// One k: b at B, elements of A at A0 to A3.
#define TAPESTRY_TILE_ROW(A, S0, S1, S2) \
  "vbroadcastss " A                      \
  ", %%ymm15\n\t"                        \
  "vfmadd231ps %%ymm12, %%ymm15, " S0    \
  "\n\t"                                 \
  "vfmadd231ps %%ymm13, %%ymm15, " S1    \
  "\n\t"                                 \
  "vfmadd231ps %%ymm14, %%ymm15, " S2 "\n\t"
#define TAPESTRY_TILE_ITEM(B0, B1, B2, A0, A1, A2, A3)                                    \
  "vmovups " B0                                                                           \
  "(%[b]), %%ymm12\n\t"                                                                   \
  "vmovups " B1                                                                           \
  "(%[b]), %%ymm13\n\t"                                                                   \
  "vmovups " B2 "(%[b]), %%ymm14\n\t" TAPESTRY_TILE_ROW(A0, "%%ymm0", "%%ymm1", "%%ymm2") \
      TAPESTRY_TILE_ROW(A1, "%%ymm3", "%%ymm4", "%%ymm5")                                 \
          TAPESTRY_TILE_ROW(A2, "%%ymm6", "%%ymm7", "%%ymm8")                             \
              TAPESTRY_TILE_ROW(A3, "%%ymm9", "%%ymm10", "%%ymm11")
// The elements of one k lie together, or in rows.
#define TAPESTRY_TILE_PACKED(B0, B1, B2, A0, A1, A2, A3) \
  TAPESTRY_TILE_ITEM(B0, B1, B2, A0 "(%[a])", A1 "(%[a])", A2 "(%[a])", A3 "(%[a])")
#define TAPESTRY_TILE_IN_ROWS(B0, B1, B2, A)                                         \
  TAPESTRY_TILE_ITEM(B0, B1, B2, A "(%[a])", A "(%[a],%[lda])", A "(%[a],%[lda],2)", \
                     A "(%[a],%[lda3])")
#define TAPESTRY_TILE_MOVE(C, S0, S1, S2, FROM) FROM(C, S0) FROM("32+" C, S1) FROM("64+" C, S2)
#define TAPESTRY_TILE_LOAD(ROW, S) "vmovups " ROW ", " S "\n\t"
#define TAPESTRY_TILE_STORE(ROW, S) "vmovups " S ", " ROW "\n\t"
#define TAPESTRY_TILE_SUMS(FROM)                                             \
  TAPESTRY_TILE_MOVE("0(%[c])", "%%ymm0", "%%ymm1", "%%ymm2", FROM)          \
  TAPESTRY_TILE_MOVE("0(%[c],%[ldc])", "%%ymm3", "%%ymm4", "%%ymm5", FROM)   \
  TAPESTRY_TILE_MOVE("0(%[c],%[ldc],2)", "%%ymm6", "%%ymm7", "%%ymm8", FROM) \
  TAPESTRY_TILE_MOVE("0(%[c],%[ldc3])", "%%ymm9", "%%ymm10", "%%ymm11", FROM)
#define TAPESTRY_TILE_ZERO(S) "vxorps " S ", " S ", " S "\n\t"
#define TAPESTRY_TILE_LOOP(FOUR, ONE, STEP_FOUR, STEP_ONE) \
  "test %[accumulate], %[accumulate]\n\t"                                                        \
  "jz 1f\n\t" TAPESTRY_TILE_SUMS(TAPESTRY_TILE_LOAD) "jmp 2f\n"                                  \
  "1:\n\t"                                                                                       \
  TAPESTRY_TILE_ZERO("%%ymm0") TAPESTRY_TILE_ZERO("%%ymm1") TAPESTRY_TILE_ZERO("%%ymm2")         \
  TAPESTRY_TILE_ZERO("%%ymm3") TAPESTRY_TILE_ZERO("%%ymm4") TAPESTRY_TILE_ZERO("%%ymm5")         \
  TAPESTRY_TILE_ZERO("%%ymm6") TAPESTRY_TILE_ZERO("%%ymm7") TAPESTRY_TILE_ZERO("%%ymm8")         \
  TAPESTRY_TILE_ZERO("%%ymm9") TAPESTRY_TILE_ZERO("%%ymm10") TAPESTRY_TILE_ZERO("%%ymm11")       \
  "2:\n\t"                                                                                       \
  "sub $4, %[k]\n\t"                                                                             \
  "jl 4f\n\t"                                                                                    \
  ".p2align 5\n"                                                                                 \
  "3:\n\t" FOUR "add $" STEP_FOUR ", %[a]\n\t"                                                  \
  "add $384, %[b]\n\t"                                                                           \
  "sub $4, %[k]\n\t"                                                                             \
  "jge 3b\n"                                                                                     \
  "4:\n\t"                                                                                       \
  "add $4, %[k]\n\t"                                                                             \
  "jz 6f\n"                                                                                      \
  "5:\n\t" ONE "add $" STEP_ONE ", %[a]\n\t"                                                    \
  "add $96, %[b]\n\t"                                                                            \
  "dec %[k]\n\t"                                                                                 \
  "jnz 5b\n"                                                                                     \
  "6:\n\t" TAPESTRY_TILE_SUMS(TAPESTRY_TILE_STORE) "vzeroupper\n\t"
#define TAPESTRY_TILE_CLOBBERS                                                                    \
  "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
      "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

/// c [4, 24] = or += A B; A is [4, k], or packed as [k, 4] if kPacked; B [k, 24] dense.
template <bool kPacked>
[[gnu::always_inline]] inline void multiply_panel_tile(int64_t k,
                                                       const float* a,
                                                       int64_t lda,
                                                       const float* b,
                                                       bool accumulate,
                                                       float* c,
                                                       int64_t ldc) {
  constexpr int64_t kSize = sizeof(float);
  if constexpr (kPacked) {
    asm volatile(TAPESTRY_TILE_LOOP(
                     TAPESTRY_TILE_PACKED("0", "32", "64", "0", "4", "8", "12")
                         TAPESTRY_TILE_PACKED("96", "128", "160", "16", "20", "24", "28")
                             TAPESTRY_TILE_PACKED("192", "224", "256", "32", "36", "40", "44")
                                 TAPESTRY_TILE_PACKED("288", "320", "352", "48", "52", "56", "60"),
                     TAPESTRY_TILE_PACKED("0", "32", "64", "0", "4", "8", "12"), "64", "16")
                 : [a] "+r"(a), [b] "+r"(b), [k] "+r"(k)
                 : [c] "r"(c), [ldc] "r"(ldc * kSize), [ldc3] "r"(3 * ldc * kSize),
                   [accumulate] "r"(static_cast<int64_t>(accumulate))
                 : TAPESTRY_TILE_CLOBBERS);
  } else {
    asm volatile(
        TAPESTRY_TILE_LOOP(TAPESTRY_TILE_IN_ROWS("0", "32", "64", "0")
                               TAPESTRY_TILE_IN_ROWS("96", "128", "160", "4")
                                   TAPESTRY_TILE_IN_ROWS("192", "224", "256", "8")
                                       TAPESTRY_TILE_IN_ROWS("288", "320", "352", "12"),
                           TAPESTRY_TILE_IN_ROWS("0", "32", "64", "0"), "16", "4")
        : [a] "+r"(a), [b] "+r"(b), [k] "+r"(k)
        : [lda] "r"(lda * kSize), [lda3] "r"(3 * lda * kSize), [c] "r"(c), [ldc] "r"(ldc * kSize),
          [ldc3] "r"(3 * ldc * kSize), [accumulate] "r"(static_cast<int64_t>(accumulate))
        : TAPESTRY_TILE_CLOBBERS);
  }
}

#undef TAPESTRY_TILE_ROW
#undef TAPESTRY_TILE_ITEM
#undef TAPESTRY_TILE_PACKED
#undef TAPESTRY_TILE_IN_ROWS
#undef TAPESTRY_TILE_MOVE
#undef TAPESTRY_TILE_LOAD
#undef TAPESTRY_TILE_STORE
#undef TAPESTRY_TILE_SUMS
#undef TAPESTRY_TILE_ZERO
#undef TAPESTRY_TILE_LOOP
#undef TAPESTRY_TILE_CLOBBERS

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA

#endif
