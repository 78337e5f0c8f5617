// Which implementation is the fastest here; used by gemm*.cpp only.
#pragma once

#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// Whether products of that dtype that are worth packing run on gemm_tiled.h at the level in use,
/// rather than on OpenBLAS or oneDNN.
bool prefers_tiles(DType dtype);

}  // namespace tapestry::kernels
