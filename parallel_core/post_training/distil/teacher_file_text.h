// What reader and writer of a teacher's file both spell.
#pragma once

#include <cstdint>
#include <string_view>

namespace tapestry::post_training::teacher_file {

inline constexpr std::string_view kKind = "teacher_log_probs";
inline constexpr int64_t kVersion = 1;

}  // namespace tapestry::post_training::teacher_file
