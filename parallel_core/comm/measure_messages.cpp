#include "parallel_core/comm/measure_messages.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/ordered_reduce.h"

namespace tapestry {

namespace {

using Clock = std::chrono::steady_clock;

double median_seconds(int runs, const std::function<void()>& work) {
  constexpr int kWarm = 3;
  std::vector<double> times;
  for (int i = 0; i < runs + kWarm; ++i) {
    const auto start = Clock::now();
    work();
    if (i >= kWarm) {
      times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  return times[static_cast<size_t>(runs / 2)];
}

double there_and_back(ProcessGroup& group, int peer) {
  const Tensor word = zeros({2});
  return median_seconds(301, [&] {
    if (group.rank() == 0) {
      group.send(word, peer);
      group.receive(word, peer);
    } else {
      group.receive(word, peer);
      group.send(word, peer);
    }
  });
}

// Of a small message in a run of them, at the busier end.
double of_a_run(ProcessGroup& group, int peer) {
  constexpr int kMessages = 200;
  const Tensor word = zeros({2});
  const double seconds = median_seconds(21, [&] {
    for (int i = 0; i < kMessages; ++i) {
      if (group.rank() == 0) {
        group.send(word, peer);
      } else {
        group.receive(word, peer);
      }
    }
    if (group.rank() == 0) {
      group.receive(word, peer);
    } else {
      group.send(word, peer);
    }
  });
  return seconds / kMessages;
}

double both_ways(ProcessGroup& group, int peer, int64_t bytes) {
  const Tensor out = zeros({bytes / 4});
  const Tensor in = zeros({bytes / 4});
  return median_seconds(15, [&] {
    const WorkHandle sent = group.send_async(out, peer);
    group.receive(in, peer);
    sent->wait();
  });
}

double adding_per_byte() {
  constexpr int64_t kElements = int64_t{1} << 20;
  const Tensor a = zeros({kElements});
  const Tensor b = zeros({kElements});
  const double seconds = median_seconds(15, [&] {
    ordered_reduce(ReduceOp::kSum, kFloat32, kElements, {a.raw(), b.raw()}, a.raw(),
                   ReduceOrder::kRanks);
  });
  return seconds / (2 * 4 * static_cast<double>(kElements));
}

}  // namespace

MessageCost measure_messages(ProcessGroup& group) {
  constexpr int64_t kLarge = int64_t{16} << 20;
  constexpr int64_t kSmaller = int64_t{4} << 20;
  const int last = group.size() - 1;
  check<ValueError>(last > 0, "measure_messages: a group of one has no messages");
  const Tensor measured = zeros({4}, kFloat64);
  if (group.rank() == 0 || group.rank() == last) {
    const int peer = group.rank() == 0 ? last : 0;
    const double one_way = there_and_back(group, peer) / 2;
    const double overhead = std::min(of_a_run(group, peer), one_way / 2);
    const double more = both_ways(group, peer, kLarge) - both_ways(group, peer, kSmaller);
    auto* values = measured.data<double>();
    values[0] = one_way - 2 * overhead;
    values[1] = overhead;
    values[2] = std::max(0.0, more) / static_cast<double>(kLarge - kSmaller);
    values[3] = adding_per_byte();
  }
  group.broadcast(measured, 0);
  const auto* values = measured.data<double>();
  return {.latency = values[0],
          .overhead = values[1],
          .per_byte = values[2],
          .add_per_byte = values[3]};
}

}  // namespace tapestry
