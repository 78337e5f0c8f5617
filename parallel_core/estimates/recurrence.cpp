#include "parallel_core/estimates/recurrence.h"

#include "parallel_core/config/model_matrices.h"

namespace tapestry {

namespace {
constexpr double kChunk = 64;  // tokens
}

double recurrence_flops(const TransformerConfig& model, MixerKind kind) {
  const MixerWidths w = mixer_widths(model, kind);
  const auto heads = static_cast<double>(w.value_heads);
  const auto k = static_cast<double>(w.key_channels);
  const auto v = static_cast<double>(w.value_channels);
  if (kind == MixerKind::kGatedDelta) {
    // K K^T, Q K^T, and by the inverse of the chunk's triangle both V and K; the state read for
    // keys and queries, and written.
    return 2 * heads * (kChunk * (2 * k + (k + v) / 2 + v) + 3 * k * v);
  }
  if (kind == MixerKind::kMamba) {
    // C B^T once for the heads of a group; that times X, the state read and written.
    const auto groups = static_cast<double>(w.key_heads);
    return 2 * (groups * kChunk * k + heads * (kChunk * v + 2 * k * v));
  }
  return 0;
}

double kept_states(const TransformerConfig& model, MixerKind kind) {
  return 4 * static_cast<double>(mixer_widths(model, kind).state) / kChunk;
}

}  // namespace tapestry
