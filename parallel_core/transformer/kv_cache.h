// Keys and values of texts that grow, and the states of layers without attention: what a model
// keeps so that each new token goes through it alone.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// New tokens of one text: `count` of them, the first at `position`. The keys of all positions
/// before it are in the slot already.
struct CachedSegment {
  int64_t slot = 0;
  int64_t position = 0;
  int64_t count = 0;
};

/// What a layer's keys and values are like, on this rank.
struct LayerKeys {
  int64_t groups = 0;
  int64_t head_dim = 0;
  DType dtype = kFloat32;
  /// A token at position p is seen from positions up to p + window_left.
  std::optional<int64_t> window_left = std::nullopt;
  int64_t value_dim = 0;  ///< 0: as head_dim
  /// The values are the first value_dim channels of the keys, and take no memory of their own.
  bool values_in_keys = false;

  bool operator==(const LayerKeys&) const = default;
};

/// Keys and values of one layer, both [slots, groups, capacity, channels]. Position p of a text
/// lies at p, or, in a ring, at p modulo the capacity.
struct LayerCache {
  LayerKeys keys;
  Tensor k;
  Tensor v;
  bool ring = false;

  int64_t capacity() const { return k.size(2); }
  /// Puts the new tokens [1, groups, N, channels] of the segments, one after the other, into their
  /// places; new_v is not read where values are in keys.
  /// Tokens behind the last segment's are passed over.
  void append(const Tensor& new_k,
              const Tensor& new_v,
              const std::vector<CachedSegment>& segments) const;
};

/// What a layer without attention keeps of a text, on this rank.
struct StateForm {
  Shape state;             ///< of the recurrence, in float32; no axes: there is none
  int64_t inputs = 0;      ///< tokens whose inputs of the convolution are kept
  int64_t channels = 0;    ///< of the convolution
  DType dtype = kFloat32;  ///< of these inputs

  bool operator==(const StateForm&) const = default;
};

/// The same of all texts. It does not grow with them.
struct LayerStates {
  StateForm form;
  Tensor state;   ///< [slots, ..]; undefined without a recurrence
  Tensor inputs;  ///< [slots, form.inputs, form.channels], the latest last

  /// For a text that begins.
  void clear(int64_t slot) const;
};

/// The keys and values of a model's layers on the calling rank, of up to `slots` texts. A layer's
/// memory is made when it is first asked for; with a window that is shorter than the texts it is a
/// ring of window_left + longest_segment positions.
class KeyValueCache {
 public:
  /// ValueError unless both are positive.
  KeyValueCache(int64_t slots, int64_t longest_segment);

  int64_t slots() const { return slots_; }
  int64_t longest_segment() const { return longest_segment_; }
  int64_t positions() const { return positions_; }

  /// Room for so many positions of each text; what is there stays.
  void reserve(int64_t positions);
  /// The text in slot `from`, of `positions` tokens, is in slot `to` instead.
  void move(int64_t from, int64_t to, int64_t positions);
  /// Whether the text in a slot, of `positions` tokens, can be continued after its first `kept`: a
  /// ring may have lost what these see, and a state has no way back.
  bool can_rewind(int64_t positions, int64_t kept) const;
  /// Of layer `index` of the whole model. ValueError if it was made for other keys.
  const LayerCache& layer(int64_t index, const LayerKeys& keys);
  /// The same of a layer without attention; states of texts that have not begun are undetermined.
  const LayerStates& states(int64_t index, const StateForm& form);
  /// Of all layers so far.
  int64_t bytes() const;

 private:
  LayerCache make(const LayerKeys& keys, int64_t positions) const;

  int64_t slots_;
  int64_t longest_segment_;
  int64_t positions_ = 0;
  // By index; those of other stages, and of layers of the other kind, are empty.
  std::vector<LayerCache> layers_;
  std::vector<LayerStates> states_;
};

/// The tokens [1, N] of a pass with a cache: those of the segments, one after the other, and
/// further ones that only fill up what ranks divide. Each token's ModelInput::position_ids is its
/// position in its text.
struct CachedStep {
  KeyValueCache* cache = nullptr;
  std::vector<CachedSegment> segments;
  /// Numbers of the tokens whose logits are wanted, ascending: [1, M, V], or [M, 1, V].
  std::vector<int64_t> logits_of;
};

}  // namespace tapestry
