// What a rank has recorded of some steps. Times are nanoseconds of its monotonic clock.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "autograd/tape/observer.h"
#include "autograd/tensor/block_owner.h"

namespace tapestry::profile {

/// Nanoseconds of the monotonic clock that observer_clock() shows in seconds.
int64_t now_ns();

/// Texts by number.
class Names {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t id(std::string_view text);
  /// "" for kNone.
  const std::string& operator[](uint32_t id) const;

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> ids_;
  std::vector<const std::string*> texts_;
};

/// What a slice is, from the outermost to the innermost.
enum class Category : uint8_t { kStep, kPhase, kModule, kOp, kWait };
std::string_view name_of(Category category);

/// The row of a rank in which slices are drawn; the number is the trace's `tid`.
enum class Track : uint8_t { kCompute = 0, kCommunication = 1, kData = 2, kCheckpoint = 3 };

/// A span on the rank's own thread. Spans nest.
struct Slice {
  Category category = Category::kPhase;
  Track track = Track::kCompute;
  OpPass pass = OpPass::kForward;
  uint32_t name = Names::kNone;
  uint32_t module = Names::kNone;
  uint32_t stack = Names::kNone;  ///< where it was called, if that is recorded
  int32_t micro_batch = -1;
  int32_t chunk = 0;
  int64_t step = 0;
  int64_t begin = 0;
  int64_t end = 0;
  double flops = 0;
  double bytes = 0;
};

/// A collective, from when the rank handed it over to when its result was there.
struct Exchange {
  uint32_t kind = Names::kNone;
  uint32_t group = Names::kNone;
  uint32_t module = Names::kNone;
  uint64_t group_id = 0;
  uint64_t sequence = 0;
  int peer = -1;
  int64_t step = 0;
  int64_t bytes = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t waited = 0;  ///< of that, what the rank has waited
};

struct MemoryPoint {
  int64_t time = 0;
  int64_t bytes = 0;  ///< handed out
};

/// A row of the op table: what one op of one pass, a phase outside of ops, or a kind of collective
/// that was waited for has taken.
struct WorkKey {
  Category category = Category::kOp;
  OpPass pass = OpPass::kForward;
  uint32_t name = Names::kNone;
  auto operator<=>(const WorkKey&) const = default;
};
struct WorkSum {
  int64_t calls = 0;
  int64_t ns = 0;       ///< with what ran inside
  int64_t self_ns = 0;  ///< without
  double flops = 0;     ///< its own
  double bytes = 0;
};
/// Own ops of a module, without those of modules inside it.
struct ModuleKey {
  uint32_t module = Names::kNone;
  OpPass pass = OpPass::kForward;
  auto operator<=>(const ModuleKey&) const = default;
};

struct Recording {
  Names names;
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::vector<Slice> slices;
  std::vector<Exchange> exchanges;
  std::vector<MemoryPoint> memory;
  std::map<WorkKey, WorkSum> work;
  std::map<ModuleKey, WorkSum> modules;
  std::map<uint32_t, int64_t> stacks;  ///< own nanoseconds by call stack, outermost first, with ';'
};

}  // namespace tapestry::profile
