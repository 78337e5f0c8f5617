// Counter-based random numbers: a key and a counter in, a number out, no hidden sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "autograd/tensor/spin_lock.h"

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

class DrawScope;

/// Hands out consecutive ranges of one Philox stream. Its state is two numbers, which can be saved
/// and restored exactly. Threads may share a generator: no number is handed out twice, but which
/// thread gets which is not determined.
class Generator {
 public:
  struct State {
    uint64_t seed = 0;
    uint64_t offset = 0;
    friend bool operator==(const State&, const State&) = default;
  };

  explicit Generator(uint64_t seed = 0) : state_{seed, 0} {}

  void manual_seed(uint64_t seed) { set_state({seed, 0}); }
  /// Reserves the next `count` numbers; in the scope of a DrawReplay, those of the first run.
  RandomKey reserve(int64_t count);
  State state() const;
  void set_state(State state);

 private:
  friend class DrawScope;
  RandomKey next(int64_t count);

  mutable SpinLock lock_;
  State state_;
};

/// What one call of Generator::reserve was given.
struct Draw {
  RandomKey key;
  int64_t count = 0;
};

/// Base of the scopes below: what the calling thread reserves from one generator passes through the
/// innermost scope of that generator.
class DrawScope {
 public:
  DrawScope(const DrawScope&) = delete;
  DrawScope& operator=(const DrawScope&) = delete;

 protected:
  explicit DrawScope(Generator& generator);
  virtual ~DrawScope();
  /// What the generator or the next scope around this one hands out.
  RandomKey reserve_outside(int64_t count) const;

 private:
  friend class Generator;
  virtual RandomKey reserve(int64_t count) = 0;
  static RandomKey reserve_through(DrawScope* innermost, Generator& generator, int64_t count);

  Generator& generator_;
  DrawScope* outer_;
};

/// Notes what the calling thread reserves from a generator, so that a function can be run again
/// with the same numbers, on any thread and whoever else has used the generator in between.
class DrawRecording final : public DrawScope {
 public:
  DrawRecording(Generator& generator, std::vector<Draw>& draws)
      : DrawScope(generator), draws_(draws) {}

 private:
  RandomKey reserve(int64_t count) override;

  std::vector<Draw>& draws_;
};

/// Hands out again, in order, what a DrawRecording noted; the generator does not move.
/// Generator::reserve is a RuntimeError where it asks for another count than the first run did.
class DrawReplay final : public DrawScope {
 public:
  DrawReplay(Generator& generator, const std::vector<Draw>& draws)
      : DrawScope(generator), draws_(draws) {}

 private:
  RandomKey reserve(int64_t count) override;

  const std::vector<Draw>& draws_;
  size_t position_ = 0;
};

}  // namespace tapestry
