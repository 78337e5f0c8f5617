// Parameters that want no gradient: those of a base model beside which adapters are trained.
#pragma once

#include <map>
#include <string>

#include "nn/module.h"

namespace tapestry {

/// The dtype that a trained float32 parameter is to be stored in, where params_dtype is `params`:
/// that one, but an adapter's is float32, as its files are.
DType trained_dtype(const nn::Parameter& parameter, DType params);

/// Gives frozen float32 parameters the dtype `params`, where that is another, one after the other.
/// Quantized ones stay what they are, here and below.
void store_frozen(const nn::Module& model, DType params);
/// Makes them zeros of that dtype, whatever they hold and without looking at it, for values that
/// are read from files later.
void clear_frozen(const nn::Module& model, DType params);

/// By their names in memory.
std::map<std::string, Tensor> frozen_parameters(const nn::Module& model);

}  // namespace tapestry
