// What memory is used for.
#pragma once

#include <cstdint>
#include <string_view>

namespace tapestry {

/// What a block is used for, so that memory can be reported by kind.
enum class MemoryKind : uint8_t { kActivation, kParameter, kGradient, kOptimizer, kWorkspace };
inline constexpr int kNumMemoryKinds = 5;
std::string_view name_of(MemoryKind kind);

}  // namespace tapestry
