// Which instruction set the kernels use: one binary is fast on new processors and correct on old.
//
// The sources in autograd/kernels/isa/ are compiled once per level, each into its own namespace
// (TAPESTRY_ISA is the name of the level). The function that the rest of the library calls picks
// the best level that the processor has:
//
//   // softmax.h                                     // isa/softmax.cpp
//   TAPESTRY_DECLARE_PER_ISA(                        namespace tapestry::kernels::TAPESTRY_ISA {
//       void softmax_rows(int64_t, float*))          void softmax_rows(int64_t n, float* x) {...}
//   // softmax.cpp                                   }
//   void softmax(int64_t n, float* x) { TAPESTRY_DISPATCH(softmax_rows)(n, x); }
//
// A file in isa/ must not leave an out-of-line copy of a shared inline function (no containers, no
// std algorithms on ranges): the linker could choose the copy with the newest instructions for all.
#pragma once

#include <string_view>

namespace tapestry {

/// Instruction-set levels, each containing the ones before it. kAvx512Bf16 adds products of
/// bfloat16 pairs (AVX512-BF16) and has the loops of kAvx512 for all else. kAmx changes only which
/// GEMM runs: the loops for kAvx512Bf16 serve it.
enum class CpuLevel { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx };

/// The best level of this processor, whether or not this build has it.
CpuLevel processor_cpu_level();

/// Whether this build has the loops of the level: a build may leave some out, see
/// TAPESTRY_CPU_LEVELS in cmake/TapestryCpuLevels.cmake. kPortable is always there.
bool is_compiled(CpuLevel level);

/// The best level of this processor that this build has.
CpuLevel detected_cpu_level();

/// The level in use: the detected one, or a lower one forced by the environment variable
/// TAPESTRY_CPU_LEVEL (portable, avx2, avx512, avx512_bf16, amx; read once) or by set_cpu_level.
/// std::runtime_error, at the first call, if the variable names a level of this processor that this
/// build does not have.
CpuLevel cpu_level();

/// Forces a level; one above the detected level is lowered to it, one that this build does not have
/// to the next that it has. For tests and measurements.
void set_cpu_level(CpuLevel level);

/// "portable", "avx2", "avx512", "avx512_bf16" or "amx".
std::string_view name_of(CpuLevel level);

}  // namespace tapestry

#if defined(__x86_64__)
/// Declares one function signature in the namespace of every level at which loops differ.
#define TAPESTRY_DECLARE_PER_ISA(...) \
  namespace portable {                \
  __VA_ARGS__;                        \
  }                                   \
  namespace avx2 {                    \
  __VA_ARGS__;                        \
  }                                   \
  namespace avx512 {                  \
  __VA_ARGS__;                        \
  }

// What stands for the loops of a level that this build does not have, and that is never in use.
#if defined(TAPESTRY_WITHOUT_AVX2)
#define TAPESTRY_OF_AVX2(function) &portable::function
#else
#define TAPESTRY_OF_AVX2(function) &avx2::function
#endif
#if defined(TAPESTRY_WITHOUT_AVX512)
#define TAPESTRY_OF_AVX512(function) TAPESTRY_OF_AVX2(function)
#else
#define TAPESTRY_OF_AVX512(function) &avx512::function
#endif

/// The function of that name for the level in use.
#define TAPESTRY_DISPATCH(function)                                                        \
  (::tapestry::cpu_level() >= ::tapestry::CpuLevel::kAvx512 ? TAPESTRY_OF_AVX512(function) \
   : ::tapestry::cpu_level() == ::tapestry::CpuLevel::kAvx2 ? TAPESTRY_OF_AVX2(function)   \
                                                            : &portable::function)

/// The same for the sources that take no more than AVX2 (narrow_sources in
/// autograd/CMakeLists.txt).
#define TAPESTRY_DECLARE_UP_TO_AVX2(...) \
  namespace portable {                   \
  __VA_ARGS__;                           \
  }                                      \
  namespace avx2 {                       \
  __VA_ARGS__;                           \
  }
#if defined(TAPESTRY_WITHOUT_AVX2) && defined(TAPESTRY_WITHOUT_AVX512)
#define TAPESTRY_DISPATCH_UP_TO_AVX2(function) (&portable::function)
#else
#define TAPESTRY_DISPATCH_UP_TO_AVX2(function) \
  (::tapestry::cpu_level() >= ::tapestry::CpuLevel::kAvx2 ? &avx2::function : &portable::function)
#endif

/// The same for the sources with loops that multiply pairs of bfloat16 (pair_sources in
/// autograd/CMakeLists.txt). Only these loops are compiled for kAvx512Bf16, where TAPESTRY_PAIRS is
/// defined, and the other levels have all others: `pairs` says which are wanted, and may be true
/// only from kAvx512Bf16 on.
#define TAPESTRY_DECLARE_PER_ISA_AND_PAIRS(...) \
  TAPESTRY_DECLARE_PER_ISA(__VA_ARGS__)         \
  namespace avx512_bf16 {                       \
  __VA_ARGS__;                                  \
  }
#if defined(TAPESTRY_WITHOUT_AVX512_BF16)
#define TAPESTRY_DISPATCH_PAIRS(pairs, function) ((void)(pairs), TAPESTRY_DISPATCH(function))
#else
#define TAPESTRY_DISPATCH_PAIRS(pairs, function) \
  ((pairs) ? &avx512_bf16::function : TAPESTRY_DISPATCH(function))
#endif
#else
// One level, whose vectors the compiler maps to what the processor has (NEON on aarch64).
#define TAPESTRY_DECLARE_PER_ISA(...) \
  namespace portable {                \
  __VA_ARGS__;                        \
  }
#define TAPESTRY_DISPATCH(function) (&portable::function)
#define TAPESTRY_DECLARE_UP_TO_AVX2(...) TAPESTRY_DECLARE_PER_ISA(__VA_ARGS__)
#define TAPESTRY_DISPATCH_UP_TO_AVX2(function) TAPESTRY_DISPATCH(function)
#define TAPESTRY_DECLARE_PER_ISA_AND_PAIRS(...) TAPESTRY_DECLARE_PER_ISA(__VA_ARGS__)
#define TAPESTRY_DISPATCH_PAIRS(pairs, function) ((void)(pairs), TAPESTRY_DISPATCH(function))
#endif
