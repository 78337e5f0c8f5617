// What optimizer.cpp computes once per step and parameter for the loops of isa/optimizer.cpp.
#pragma once

#include <cstdint>

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

}  // namespace tapestry::kernels
