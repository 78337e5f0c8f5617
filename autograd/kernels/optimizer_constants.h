// What optimizer.cpp computes once per step and parameter for the loops of isa/optimizer.cpp, and
// these loops.
#pragma once

#include <cstdint>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/optimizer.h"

namespace tapestry::kernels {

struct AdamConstants {
  double grad_scale;
  double grad_limit;
  double coupled_decay;    // wd, or 0 if decoupled
  double decoupled_decay;  // lr wd, or 0
  double beta1;
  double rest1;  // 1 - beta1
  double beta2;
  double rest2;       // 1 - beta2
  double step_size;   // lr / (1 - beta1^step)
  double root_scale;  // 1 / sqrt(1 - beta2^step)
  double eps;
  uint64_t seed;
};

/// buf = keep buf + take g; p -= lr (from_grad g + from_buffer buf). At the first step buf = g.
struct SgdConstants {
  double grad_scale;
  double grad_limit;
  double decay;
  double keep;
  double take;
  double from_grad;
  double from_buffer;
  double lr;
};

struct LionConstants {
  double grad_scale;
  double grad_limit;
  double decay;  // lr wd
  double beta1;
  double rest1;
  double beta2;
  double rest2;
  double lr;
  uint64_t seed;
};

TAPESTRY_DECLARE_PER_ISA(
    void adamw_range(const AdamTensor& t, const AdamConstants& k, int64_t begin, int64_t end);
    void sgd_range(const SgdTensor& t, const SgdConstants& k, int64_t begin, int64_t end);
    void lion_range(const LionTensor& t, const LionConstants& k, int64_t begin, int64_t end);
    void momentum_range(const MuonMomentum& t, const MuonSettings& k, int64_t begin, int64_t end);
    void apply_range(const MuonApply& t, int64_t begin, int64_t end);
    void split_range(int64_t begin,
                     int64_t end,
                     const float* x,
                     BFloat16* high,
                     uint16_t* low_bits,
                     DType exp_avg_sq_dtype,
                     void* exp_avg_sq);
    void join_range(int64_t begin,
                    int64_t end,
                    const BFloat16* high,
                    const uint16_t* low_bits,
                    DType exp_avg_sq_dtype,
                    const void* exp_avg_sq,
                    float* x);
    void add_stochastic_range(DType dtype,
                              int64_t begin,
                              int64_t end,
                              const void* x,
                              uint64_t seed,
                              const RandomRows* rounding,
                              int64_t rounding_count,
                              BFloat16* sum))

}  // namespace tapestry::kernels
