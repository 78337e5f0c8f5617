// Files of OLMo Hybrid as transformers 5.24 saves them.
#pragma once

#include <memory>

#include "autograd/io/tensor_source.h"

namespace tapestry {

/// The files themselves, unless they are those of an OLMo Hybrid as this version of the library
/// writes some of it: the taps of the convolutions of queries, keys and values one behind the other
/// but cut into equal thirds, where keys and values differ in size; and in layers with attention
/// the norm of its output under the name of a norm before the MLP. Then the same tensors, cut by
/// the rows of the projections beside them, under the names that the library reads.
std::unique_ptr<TensorSource> mended_convolutions(std::unique_ptr<TensorSource> files);

}  // namespace tapestry
