// Parameters that no loss depends on.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/config/config.h"

namespace tapestry {

/// How much of a tensor's true gradient is zero, whatever the data: a key bias adds the same to all
/// scores of a query, which softmax ignores, unless a rotation or norm comes between.
enum class ZeroGradient : uint8_t { kNone, kPart, kAll };
ZeroGradient has_zero_gradient(const TransformerConfig& config, const std::string& logical_name);

}  // namespace tapestry
