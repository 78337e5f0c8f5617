// What lora_config adds to a linear layer, on this rank.
#pragma once

#include "parallel_core/config/config.h"
#include "parallel_core/tensor_parallel/layers.h"

namespace tapestry {

/// Which side of a weight tensor-parallel ranks divide.
enum class DividedSide : uint8_t { kRows, kColumns };

/// What A starts from: normal with lora_a_std, else as PEFT, uniform within 1 / sqrt(in).
InitMethod start_of_lora_a(const LoraConfig& lora);
/// And B: normal with lora_b_std, for 0 zeros.
InitMethod start_of_lora_b(const LoraConfig& lora);

/// Adds to `spec`, of a layer whose logical weights are parts of a cell of the model, the adapters
/// that lora_config has for them (adapted_modules()). `sequence_first`: hidden states are [S, B,
/// H].
ParallelLinearSpec with_adapters(ParallelLinearSpec spec,
                                 const TransformerConfig& config,
                                 DividedSide divided,
                                 bool sequence_first);

}  // namespace tapestry
