// Products of pairs of bfloat16 (AVX512-BF16), which round otherwise than those of float32.
#pragma once

namespace tapestry::kernels {

/// Whether the level in use has them.
bool has_bfloat16_pairs();

/// Whether they are the fastest way to multiply bfloat16 here: some processors take longer for a
/// pair than for two float32. In exact mode all products go by this, so that a machine is of one
/// class (kernels/exact/exact_class.h).
bool prefers_bfloat16_pairs();

}  // namespace tapestry::kernels
