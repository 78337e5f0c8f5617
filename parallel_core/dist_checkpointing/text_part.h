// What reads text of a model that has more kinds of input.
#pragma once

#include <memory>

#include "autograd/io/tensor_source.h"

namespace tapestry {

/// The files themselves, unless some of their tensors are those of a language model inside of
/// another: then these alone, under the names that they have in a model of text. Such names begin
/// with "language_model.model." and "language_model.lm_head.", or with "model.language_model.".
std::unique_ptr<TensorSource> text_part(std::unique_ptr<TensorSource> files);

}  // namespace tapestry
