// Counter-based random numbers: a key and a counter in, a number out, no hidden sequence.
#pragma once

#include <cstdint>
#include <string_view>

namespace tapestry {

/// Where a random tensor takes its numbers from: element i of it is a function of
/// (seed, stream, offset + i) alone, whatever the number of threads.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
  uint64_t offset = 0;
};

/// 64-bit FNV-1a hash: the stream of a name, for example that of a logical parameter.
constexpr uint64_t stream_of(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3U;
  }
  return hash;
}

/// Mixes a value into a stream (splitmix64 finalizer), to build streams from several numbers:
/// combine(combine(step, layer), site).
constexpr uint64_t combine(uint64_t stream, uint64_t value) {
  uint64_t z = stream + 0x9e3779b97f4a7c15U * (value + 1);
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

/// Hands out consecutive ranges of one Philox stream. Its state is two numbers, which can be saved
/// and restored exactly.
class Generator {
 public:
  struct State {
    uint64_t seed = 0;
    uint64_t offset = 0;
    friend bool operator==(const State&, const State&) = default;
  };

  explicit Generator(uint64_t seed = 0) : state_{seed, 0} {}

  void manual_seed(uint64_t seed) { state_ = {seed, 0}; }
  /// Reserves the next `count` numbers.
  RandomKey reserve(int64_t count) {
    const RandomKey key{state_.seed, 0, state_.offset};
    state_.offset += static_cast<uint64_t>(count);
    return key;
  }
  State state() const { return state_; }
  void set_state(State state) { state_ = state; }

 private:
  State state_;
};

}  // namespace tapestry
