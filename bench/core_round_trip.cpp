#include "bench/core_round_trip.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "autograd/kernels/machine/team.h"

namespace tapestry::bench {
namespace {

constexpr int kBursts = 60;
constexpr int kTrips = 500;  // of a burst
constexpr size_t kLine = 64;

std::vector<int> allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> out;
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) {
        out.push_back(cpu);
      }
    }
  }
  return out;
}

void pin_this_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);  // if refused, the system's choice is measured
}

/// Nanoseconds of a round trip in each burst, sorted. The line holds a count: odd, it is with the
/// second thread, even, it is back. The first burst is not counted.
std::array<double, kBursts> bursts_between(int first, int second) {
  struct alignas(kLine) Line {
    std::atomic<int> count = 0;
  } line;
  // No pause instruction in the loop: on some processors it takes longer than a trip.
  const auto await = [&line](int count) {
    while (line.count.load(std::memory_order_acquire) != count) {
    }
  };
  std::thread answering([&] {
    pin_this_thread(second);
    for (int count = 1; count < 2 * kTrips * (1 + kBursts); count += 2) {
      await(count);
      line.count.store(count + 1, std::memory_order_release);
    }
  });
  std::array<double, kBursts> out{};
  std::thread asking([&] {
    using Clock = std::chrono::steady_clock;
    pin_this_thread(first);
    int count = 0;
    for (int burst = -1; burst < kBursts; ++burst) {
      const auto start = Clock::now();
      for (int trip = 0; trip < kTrips; ++trip, count += 2) {
        line.count.store(count + 1, std::memory_order_release);
        await(count + 2);
      }
      const std::chrono::duration<double, std::nano> taken = Clock::now() - start;
      if (burst >= 0) {
        out[static_cast<size_t>(burst)] = taken.count() / kTrips;
      }
    }
  });
  asking.join();
  answering.join();
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

CoreRoundTrip core_round_trip() {
  const std::vector<int> cpus = allowed_processors();
  const size_t team = std::min(cpus.size(), static_cast<size_t>(num_threads()));
  CoreRoundTrip out;
  for (size_t i = 1; i < team; ++i) {
    const auto bursts = bursts_between(cpus[i - 1], cpus[i]);
    out.least = i == 1 ? bursts.front() : std::min(out.least, bursts.front());
    if (bursts.front() > out.largest) {
      out.largest = bursts.front();
      out.median = bursts[kBursts / 2];
    }
  }
  return out;
}

std::string_view state_of(const CoreRoundTrip& seen) {
  if (seen.largest <= 0) {
    return "none";
  }
  if (seen.least >= kFarNanoseconds) {
    return "far";
  }
  return seen.largest < kFarNanoseconds ? "near" : "both";
}

}  // namespace tapestry::bench
