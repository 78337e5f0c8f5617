// How far apart the processors are that the team runs on.
//
// A virtual machine's two processors may lie on one cache complex or on two, and the host moves
// them within minutes. What threads hand each other costs several times as much then, so a figure
// belongs to a state, and figures of different states are no pair.
#pragma once

#include <string_view>

namespace tapestry::bench {

/// Nanoseconds in which a cache line goes to the other processor and back.
struct CoreRoundTrip {
  double least = 0;    ///< of the pairs of neighbours in the team
  double largest = 0;  ///< the same as `least` for two threads
  double median = 0;   ///< of the largest pair's bursts; far above `largest`: the machine was busy
};

/// From here on two processors are "far" apart: between 51 ns (one cache complex of a Zen 4) or 80
/// (of a Zen 5) and 355 (two of a Zen 4), above the 110 to 130 of Intel's meshes.
inline constexpr double kFarNanoseconds = 180;

/// Two threads hand a flag to and fro in several bursts, pinned to neighbours among the first
/// num_threads() processors on which the process may run; a pair's time is its least burst. Takes
/// some milliseconds. All 0 if there is only one thread or one processor.
CoreRoundTrip core_round_trip();

/// "near", "far", "both" (some neighbours are near, others far), or "none" (there are no two).
std::string_view state_of(const CoreRoundTrip& seen);

}  // namespace tapestry::bench
