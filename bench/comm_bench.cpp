// Times the collectives between the ranks of a job, beside a copy of as many bytes: run it under
// mpirun. Rank 0 prints a Markdown table of medians.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "autograd/tensor/factory.h"
#include "parallel_core/comm/distributed.h"
#include "parallel_core/comm/measure_messages.h"

namespace tapestry {
namespace {

using Clock = std::chrono::steady_clock;

/// Median time of a call in microseconds; every rank makes the same calls.
double median_microseconds(ProcessGroup& world, int calls, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < calls + 2; ++i) {
    world.barrier();
    const auto start = Clock::now();
    work();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  times.erase(times.begin(), times.begin() + 2);
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[static_cast<size_t>(calls / 2)];
}

// The costs of a message, as predictions take them (parallel_core/comm/collective_cost.h).
void print_costs(ProcessGroup& world) {
  const MessageCost cost = measure_messages(world);
  if (world.rank() == 0) {
    std::cout << "latency us | overhead us | ns a byte (GB/s) | ns a byte added (GB/s)\n"
              << std::fixed << std::setprecision(2) << cost.latency * 1e6 << " | "
              << cost.overhead * 1e6 << " | " << std::setprecision(3) << cost.per_byte * 1e9 << " ("
              << std::setprecision(1) << 1e-9 / cost.per_byte << ") | " << std::setprecision(3)
              << cost.add_per_byte * 1e9 << " (" << std::setprecision(1) << 1e-9 / cost.add_per_byte
              << ")\n\n";
  }
}

void measure(ProcessGroup& world) {
  const bool prints = world.rank() == 0;
  const int ranks = world.size();
  const int next = (world.rank() + 1) % ranks;
  const int previous = (world.rank() + ranks - 1) % ranks;
  if (prints) {
    std::cout
        << "| bytes | all_reduce us | all_gather us | reduce_scatter us | send and receive us "
           "| memcpy us |\n|---:|---:|---:|---:|---:|---:|\n"
        << std::fixed << std::setprecision(1);
  }
  for (int64_t bytes = 1024; bytes <= int64_t{64} << 20; bytes *= 16) {
    const int64_t count = bytes / 4 / ranks * ranks;
    const Tensor whole = zeros({count});
    const Tensor piece = zeros({count / ranks});
    const Tensor other = zeros({count});
    const int calls = bytes > (1 << 20) ? 9 : 51;
    std::vector<double> row;
    for (const std::function<void()>& work : std::initializer_list<std::function<void()>>{
             [&] { world.all_reduce(whole); }, [&] { world.all_gather(whole, piece); },
             [&] { world.reduce_scatter(piece, whole); },
             [&] {
               const WorkHandle sent = world.send_async(whole, next);
               world.receive(other, previous);
               sent->wait();
             },
             [&] { std::memcpy(other.raw(), whole.raw(), static_cast<size_t>(count * 4)); }}) {
      row.push_back(median_microseconds(world, calls, work));
    }
    if (prints) {
      std::cout << "| " << count * 4;
      for (const double time : row) {
        std::cout << " | " << time;
      }
      std::cout << " |\n";
    }
  }
}

}  // namespace
}  // namespace tapestry

int main(int argc, char** argv) {
  try {
    tapestry::Distributed job(argc, argv);
    if (job.world()->size() < 2) {
      std::cerr << "comm_bench: one rank has nobody to talk to; start it with mpirun -n 2\n";
      return 2;
    }
    tapestry::print_costs(*job.world());
    tapestry::measure(*job.world());
    job.finish();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "comm_bench: " << error.what() << "\n";
    return 1;
  }
}
