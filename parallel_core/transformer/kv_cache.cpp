#include "parallel_core/transformer/kv_cache.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry {

namespace {

// Positions [begin, begin + count) of a slot, of all groups: of a ring's in at most two pieces.
template <class Visit>
void for_each_place(const LayerCache& layer, int64_t begin, int64_t count, Visit&& visit) {
  const int64_t capacity = layer.capacity();
  for (int64_t done = 0; done < count;) {
    const int64_t place = layer.ring ? (begin + done) % capacity : begin + done;
    const int64_t piece = std::min(count - done, capacity - place);
    visit(done, place, piece);
    done += piece;
  }
}

void append_one(const LayerCache& layer,
                const Tensor& values,
                const Tensor& cache,
                const std::vector<CachedSegment>& segments) {
  // A row of head_dim numbers is dense on both sides.
  const Tensor source = values.strides()[3] == 1 ? values : dense(values);
  const auto width = static_cast<int64_t>(size_of(source.dtype()));
  const auto row_bytes = static_cast<size_t>(source.size(3) * width);
  const auto* from = static_cast<const std::byte*>(source.raw());
  auto* to = static_cast<std::byte*>(cache.raw());
  int64_t token = 0;
  for (const CachedSegment& segment : segments) {
    for_each_place(
        layer, segment.position, segment.count, [&](int64_t done, int64_t place, int64_t piece) {
          for (int64_t g = 0; g < layer.keys.groups; ++g) {
            for (int64_t i = 0; i < piece; ++i) {
              const int64_t read =
                  g * source.strides()[1] + (token + done + i) * source.strides()[2];
              const int64_t write = segment.slot * cache.strides()[0] + g * cache.strides()[1] +
                                    (place + i) * cache.strides()[2];
              std::memcpy(to + write * width, from + read * width, row_bytes);
            }
          }
        });
    token += segment.count;
  }
}

}  // namespace

void LayerCache::append(const Tensor& new_k,
                        const Tensor& new_v,
                        const std::vector<CachedSegment>& segments) const {
  for (const CachedSegment& s : segments) {
    check<ValueError>(
        s.slot >= 0 && s.slot < k.size(0) && s.position >= 0 && s.count >= 0 &&
            (ring ? s.count + keys.window_left.value_or(0) : s.position + s.count) <= capacity(),
        "key-value cache: ", s.count, " tokens from position ", s.position, " of slot ", s.slot,
        " do not fit; it has ", k.size(0), " slots of ", capacity(), " positions");
  }
  append_one(*this, new_k, k, segments);
  if (!keys.values_in_keys) {
    append_one(*this, new_v, v, segments);
  }
}

void LayerStates::clear(int64_t slot) const {
  for (const Tensor& t : {state, inputs}) {
    if (t.defined() && t.numel() > 0) {
      copy_values(broadcast_view(scalar(0), t.slice(0, slot, slot + 1).shape()),
                  t.slice(0, slot, slot + 1));
    }
  }
}

KeyValueCache::KeyValueCache(int64_t slots, int64_t longest_segment)
    : slots_(slots), longest_segment_(longest_segment) {
  check<ValueError>(slots > 0 && longest_segment > 0, "key-value cache: ", slots,
                    " texts and segments of up to ", longest_segment,
                    " tokens; both must be positive");
}

LayerCache KeyValueCache::make(const LayerKeys& keys, int64_t positions) const {
  LayerCache out{.keys = keys, .k = {}, .v = {}, .ring = false};
  int64_t capacity = std::max<int64_t>(positions, 1);
  if (keys.window_left && *keys.window_left + longest_segment_ < capacity) {
    capacity = *keys.window_left + longest_segment_;
    out.ring = true;
  }
  const Shape shape = {slots_, keys.groups, capacity, keys.head_dim};
  out.k = empty(shape, keys.dtype);
  const int64_t channels = keys.value_dim > 0 ? keys.value_dim : keys.head_dim;
  out.v = keys.values_in_keys ? out.k.slice(3, 0, channels)
                              : empty({slots_, keys.groups, capacity, channels}, keys.dtype);
  return out;
}

void KeyValueCache::reserve(int64_t positions) {
  if (positions <= positions_) {
    return;
  }
  for (LayerCache& layer : layers_) {
    if (!layer.k.defined() || layer.ring) {  // a ring is as long as it has to be
      continue;
    }
    const LayerCache longer = make(layer.keys, positions);
    // What becomes a ring was shorter than one, so its positions are places there too.
    const int64_t kept = std::min(layer.capacity(), longer.capacity());
    copy_values(layer.k.slice(2, 0, kept), longer.k.slice(2, 0, kept));
    if (!layer.keys.values_in_keys) {
      copy_values(layer.v.slice(2, 0, kept), longer.v.slice(2, 0, kept));
    }
    layer = longer;
  }
  positions_ = positions;
}

void KeyValueCache::move(int64_t from, int64_t to, int64_t positions) {
  if (from == to) {
    return;
  }
  for (const LayerStates& layer : states_) {
    for (const Tensor& t : {layer.state, layer.inputs}) {
      if (t.defined() && t.numel() > 0) {
        copy_values(t.slice(0, from, from + 1), t.slice(0, to, to + 1));
      }
    }
  }
  for (const LayerCache& layer : layers_) {
    if (!layer.k.defined()) {
      continue;
    }
    const int64_t count = std::min(positions, layer.capacity());
    for (const Tensor& t :
         layer.keys.values_in_keys ? TensorList{layer.k} : TensorList{layer.k, layer.v}) {
      copy_values(t.slice(0, from, from + 1).slice(2, 0, count),
                  t.slice(0, to, to + 1).slice(2, 0, count));
    }
  }
}

bool KeyValueCache::can_rewind(int64_t positions, int64_t kept) const {
  if (!states_.empty() && kept != positions) {
    return kept == 0;
  }
  return std::all_of(layers_.begin(), layers_.end(), [&](const LayerCache& layer) {
    return !layer.ring || positions <= layer.capacity() || positions - kept <= longest_segment_;
  });
}

const LayerCache& KeyValueCache::layer(int64_t index, const LayerKeys& keys) {
  const auto at = static_cast<size_t>(index);
  if (at >= layers_.size()) {
    layers_.resize(at + 1);
  }
  LayerCache& found = layers_[at];
  if (!found.k.defined()) {
    found = make(keys, positions_);
  }
  check<ValueError>(found.keys == keys, "key-value cache: layer ", index,
                    " has other keys than it was made for; each ",
                    "model needs a cache of its own");
  return found;
}

const LayerStates& KeyValueCache::states(int64_t index, const StateForm& form) {
  const auto at = static_cast<size_t>(index);
  if (at >= states_.size()) {
    states_.resize(at + 1);
  }
  LayerStates& found = states_[at];
  if (!found.inputs.defined()) {
    found.form = form;
    found.inputs = empty({slots_, form.inputs, form.channels}, form.dtype);
    if (form.state.size() > 0) {
      Shape shape = {slots_};
      for (int64_t axis = 0; axis < form.state.size(); ++axis) {
        shape.push_back(form.state[axis]);
      }
      found.state = empty(shape, kFloat32);
    }
  }
  check<ValueError>(found.form == form, "key-value cache: layer ", index,
                    " has another state than it was made for; each ",
                    "model needs a cache of its own");
  return found;
}

int64_t KeyValueCache::bytes() const {
  int64_t total = 0;
  for (const LayerCache& layer : layers_) {
    if (layer.k.defined()) {
      const int64_t values = layer.keys.values_in_keys ? 0 : layer.v.numel();
      total += (layer.k.numel() + values) * static_cast<int64_t>(size_of(layer.k.dtype()));
    }
  }
  for (const LayerStates& layer : states_) {
    for (const Tensor& t : {layer.state, layer.inputs}) {
      total += t.defined() ? t.numel() * static_cast<int64_t>(size_of(t.dtype())) : 0;
    }
  }
  return total;
}

}  // namespace tapestry
