#include "bench/arithmetic_peak.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry {

namespace {

// Sums that do not wait for each other: at least the latency of an instruction times how many
// start in a cycle, on any processor of these levels.
constexpr int kSums = 24;

/// Runs `rounds` times kSums instructions; its result keeps them from being left out.
using Chain = float (*)(int64_t rounds);

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) float by_avx2(int64_t rounds) {
  constexpr int kRegisters = 12;  // of the 16
  __m256 sums[kRegisters];
#pragma GCC unroll 12
  for (__m256& sum : sums) {
    sum = _mm256_set1_ps(1e-30F);
  }
  const __m256 a = _mm256_set1_ps(1e-20F);
  for (int64_t i = 0; i < rounds * kSums / kRegisters; ++i) {
#pragma GCC unroll 12
    for (__m256& sum : sums) {
      sum = _mm256_fmadd_ps(a, a, sum);
      asm("" : "+x"(sum));  // else the loop is folded into one product
    }
  }
  float result = 0;
#pragma GCC unroll 12
  for (const __m256& sum : sums) {
    result += _mm256_cvtss_f32(sum);
  }
  return result;
}

__attribute__((target("avx512f"))) float by_avx512(int64_t rounds) {
  __m512 sums[kSums];
#pragma GCC unroll 24
  for (__m512& sum : sums) {
    sum = _mm512_set1_ps(1e-30F);
  }
  const __m512 a = _mm512_set1_ps(1e-20F);
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
    for (__m512& sum : sums) {
      sum = _mm512_fmadd_ps(a, a, sum);
      asm("" : "+v"(sum));
    }
  }
  float result = 0;
#pragma GCC unroll 24
  for (const __m512& sum : sums) {
    result += _mm512_cvtss_f32(sum);
  }
  return result;
}

__attribute__((target("avx512f,avx512bf16"))) float by_pairs(int64_t rounds) {
  __m512 sums[kSums];
#pragma GCC unroll 24
  for (__m512& sum : sums) {
    sum = _mm512_set1_ps(1e-30F);
  }
  const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x2080));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 24
    for (__m512& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, a, a);
      asm("" : "+v"(sum));
    }
  }
  float result = 0;
#pragma GCC unroll 24
  for (const __m512& sum : sums) {
    result += _mm512_cvtss_f32(sum);
  }
  return result;
}

struct Unit {
  Chain chain = nullptr;
  int operations = 0;  // of one instruction
};

Unit unit_for(DType dtype) {
  const CpuLevel level = cpu_level();
  if (dtype == kBFloat16) {
    return level == CpuLevel::kAvx512Bf16 && kernels::has_native_gemm(kBFloat16)
               ? Unit{&by_pairs, 64}
               : Unit{};
  }
  return level >= CpuLevel::kAvx512 ? Unit{&by_avx512, 32}
         : level == CpuLevel::kAvx2 ? Unit{&by_avx2, 16}
                                    : Unit{};
}

#else

struct Unit {
  Chain chain = nullptr;
  int operations = 0;
};

Unit unit_for(DType /*dtype*/) { return {}; }

#endif

}  // namespace

double arithmetic_peak(DType dtype, double seconds) {
  using Clock = std::chrono::steady_clock;
  const Unit unit = unit_for(dtype);
  if (unit.chain == nullptr) {
    return 0;
  }
  constexpr int64_t kRounds = 1'000'000;
  const int64_t team = num_threads();
  double best = 0;
  double total = 0;
  while (best == 0 || total < seconds) {
    const auto start = Clock::now();
    kernels::parallel_for(team, 1, [&](int64_t begin, int64_t end) {
      volatile float sink = 0;
      for (int64_t i = begin; i < end; ++i) {
        sink = unit.chain(kRounds);
      }
      (void)sink;
    });
    const double taken = std::chrono::duration<double>(Clock::now() - start).count();
    const auto operations = static_cast<double>(team * kRounds * kSums * unit.operations);
    best = std::max(best, operations / taken / 1e9);
    total += taken;
  }
  return best;
}

}  // namespace tapestry
