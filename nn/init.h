// Initialisers: fill a tensor in place, unrecorded. Numbers come from a source (see
// autograd/ops/random.h): the rank's default generator, a generator, or a key.
#pragma once

#include "autograd/ops/random.h"
#include "autograd/tensor/tensor.h"

namespace tapestry::nn::init {

void constant_(const Tensor& t, double value);
inline void zeros_(const Tensor& t) { constant_(t, 0); }
inline void ones_(const Tensor& t) { constant_(t, 1); }
void normal_(const Tensor& t, double mean = 0, double std = 1, const RandomSource& source = {});
void uniform_(const Tensor& t, double low = 0, double high = 1, const RandomSource& source = {});
/// Normal, cut off outside [low, high] (in units of std around the mean) by the inverse of the
/// distribution function. ValueError unless low < high, or if std is negative.
void trunc_normal_(const Tensor& t,
                   double mean = 0,
                   double std = 1,
                   double low = -2,
                   double high = 2,
                   const RandomSource& source = {});

/// Inputs and outputs of a unit of a weight [out, in, ...]; further axes count as receptive field.
/// ValueError if there are fewer than two axes.
struct Fans {
  int64_t in = 0;
  int64_t out = 0;
};
Fans fans_of(const Tensor& weight);

/// U(-a, a), a = gain sqrt(6 / (in + out)). Source: Glorot and Bengio 2010.
void xavier_uniform_(const Tensor& weight, double gain = 1, const RandomSource& source = {});
/// N(0, std), std = gain sqrt(2 / (in + out)).
void xavier_normal_(const Tensor& weight, double gain = 1, const RandomSource& source = {});
/// U(-a, a), a = gain sqrt(3 / in); gain is sqrt(2) for relu. Source: He et al. 2015.
void kaiming_uniform_(const Tensor& weight, double gain = 1, const RandomSource& source = {});
/// N(0, std), std = gain / sqrt(in).
void kaiming_normal_(const Tensor& weight, double gain = 1, const RandomSource& source = {});

}  // namespace tapestry::nn::init
