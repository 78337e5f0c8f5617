// Why a run must stop that waits for a reward.
#pragma once

#include <string>
#include <string_view>

#include "autograd/tensor/error.h"

namespace tapestry::post_training {

/// A reward cannot be had: the message names the function and the completion.
class RewardError : public RuntimeError {
  using RuntimeError::RuntimeError;
};

/// A text as messages quote it: one line, cut behind so many bytes.
std::string excerpt_of(std::string_view text, size_t most = 200);

}  // namespace tapestry::post_training
