#include "parallel_core/planning/costs/collective_times.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry::planning {

double CollectiveTimes::of(Collective collective, double size) const {
  const std::vector<double>& times = seconds[static_cast<size_t>(collective)];
  const auto above = std::lower_bound(bytes.begin(), bytes.end(), size);
  if (above == bytes.begin()) {
    return times.front();
  }
  if (above == bytes.end()) {
    return times.back() * size / bytes.back();
  }
  const auto i = static_cast<size_t>(above - bytes.begin());
  const double share = std::log(size / bytes[i - 1]) / std::log(bytes[i] / bytes[i - 1]);
  return times[i - 1] * std::pow(times[i] / times[i - 1], share);
}

namespace {

constexpr int64_t kSizes[] = {64, 4096, 32768, 262144, 2097152, 16777216};
constexpr double kLeast = 1e-7;  // seconds: what is lost in the noise

// Additions that take about 50 us: as long as a small product, whatever else runs.
double some_work(double from) {
  double sum = from;
  for (int i = 0; i < 50'000; ++i) {
    sum = sum * 0.999999 + 1e-9;
  }
  return sum;
}

// The least over some rounds of the seconds of one turn: what others of the machine do only adds.
double turn_seconds(ProcessGroup& world, int turns, const std::function<void()>& turn) {
  constexpr int kRounds = 9;
  std::vector<double> rounds;
  for (int round = 0; round <= kRounds; ++round) {
    world.barrier();
    const double start = observer_clock();
    for (int i = 0; i < turns; ++i) {
      turn();
    }
    world.barrier();
    if (round > 0) {
      rounds.push_back((observer_clock() - start) / turns);
    }
  }
  return *std::min_element(rounds.begin(), rounds.end());
}

// The collectives over a tensor of one size.
std::array<std::function<void()>, kCollectives> calls_of(ProcessGroup& group, int64_t size) {
  const int64_t ranks = group.size();
  const int64_t count = std::max<int64_t>(1, size / 4 / ranks) * ranks;
  const Tensor whole = zeros({count});
  const Tensor piece = zeros({count / ranks});
  const Tensor other = zeros({count});
  const int next = static_cast<int>((group.rank() + 1) % ranks);
  const int previous = static_cast<int>((group.rank() + ranks - 1) % ranks);
  return {[=, &group] { group.all_reduce(whole); }, [=, &group] { group.all_gather(whole, piece); },
          [=, &group] { group.reduce_scatter(piece, whole); },
          [=, &group] {
            const WorkHandle sent = group.send_async(whole, next);
            group.receive(other, previous);
            sent->wait();
          }};
}

std::shared_ptr<ProcessGroup> group_of_rank(ProcessGroup& world, int size) {
  std::vector<int> ranks;
  const int first = world.rank() / size * size;
  for (int rank = first; rank < first + size; ++rank) {
    ranks.push_back(rank);
  }
  return world.new_group(ranks, concat("measured-", size, "-", first));
}

}  // namespace

CollectiveTimes measure_collectives(ProcessGroup& world, int size) {
  check<ValueError>(size >= 2 && world.size() % size == 0, "measure_collectives: groups of ", size,
                    " of ", world.size(), " ranks; expected a divisor from 2 on");
  const std::shared_ptr<ProcessGroup> group = group_of_rank(world, size);
  volatile double sink = 1;
  CollectiveTimes times;
  for (const int64_t bytes : kSizes) {
    const int turns = bytes > (1 << 20) ? 6 : 20;
    const double alone = turn_seconds(world, turns, [&] { sink = some_work(sink); });
    const auto calls = calls_of(*group, bytes);
    times.bytes.push_back(static_cast<double>(bytes));
    for (size_t i = 0; i < kCollectives; ++i) {
      const double both = turn_seconds(world, turns, [&] {
        sink = some_work(sink);
        calls[i]();
      });
      // Never less than where nobody computes, nor than a smaller one.
      const double idle = turn_seconds(world, turns, calls[i]);
      const double before = times.seconds[i].empty() ? kLeast : times.seconds[i].back();
      times.seconds[i].push_back(std::max({before, idle, both - alone}));
    }
  }
  for (std::vector<double>& of_one : times.seconds) {
    const Tensor all = zeros({std::ssize(of_one)}, kFloat64);
    std::copy(of_one.begin(), of_one.end(), all.data<double>());
    world.broadcast(all, 0);
    std::copy_n(all.data<double>(), of_one.size(), of_one.begin());
  }
  return times;
}

}  // namespace tapestry::planning
