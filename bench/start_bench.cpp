// Times the start of jobs whose ranks are threads of this process, part by part, and counts what
// each rank sends: how the start grows with the number of ranks. Prints Markdown tables.
#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "bench/bench_options.h"
#include "parallel_core/comm/forwarding_transport.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/ranks/equal_configurations.h"
#include "parallel_core/training/ranks/initialize_ranks.h"

namespace tapestry {
namespace {

using Clock = std::chrono::steady_clock;

enum Part : uint8_t { kThreads, kConfigurations, kGroups, kCollectives, kStep, kEnd };
constexpr int kParts = 6;

/// What one rank has sent.
struct Sent {
  Part part = kThreads;
  std::array<int64_t, kParts> messages{};
  std::set<int> peers;
};

class CountingTransport final : public ForwardingTransport {
 public:
  CountingTransport(std::unique_ptr<Transport> inner, Sent& sent)
      : ForwardingTransport(std::move(inner)), sent_(sent) {}
  std::shared_ptr<Transfer> send(int destination,
                                 const Envelope& envelope,
                                 const void* data) override {
    ++sent_.messages[sent_.part];
    sent_.peers.insert(destination);
    return ForwardingTransport::send(destination, envelope, data);
  }

 private:
  Sent& sent_;
};

struct Start {
  std::array<double, kParts> seconds{};
  std::array<double, kParts> mean_messages{};
  int64_t most_messages = 0;
  size_t most_peers = 0;
  double rank_kib = 0;     // resident
  double address_tib = 0;  // of the process
};

// A field of /proc/self/status, in KiB.
double status_kib(const std::string& name) {
  std::ifstream file("/proc/self/status");
  std::string word;
  double value = 0;
  while (file >> word) {
    if (word == name + ":") {
      file >> value;
    }
  }
  return value;
}

// Every group's first collective, and one that carries something.
void use_groups() {
  for (ProcessGroup* group : {&get_world_group(), &get_tensor_model_parallel_group(),
                              &get_pipeline_model_parallel_group(), &get_data_parallel_group(),
                              &get_model_parallel_group(), &get_tensor_and_data_parallel_group(),
                              &get_expert_model_parallel_group()}) {
    group->barrier();
    group->all_reduce(ones({16}));
  }
  throw_if_any_failed(get_world_group(), nullptr);
}

// What a small model's ranks say to each other in a step.
void small_step() {
  const Tensor hidden = ones({1024});
  if (!is_pipeline_first_stage()) {
    get_pipeline_model_parallel_group().receive(hidden, get_pipeline_model_parallel_rank() - 1);
  }
  get_tensor_model_parallel_group().all_reduce(hidden);
  if (!is_pipeline_last_stage()) {
    get_pipeline_model_parallel_group().send(hidden, get_pipeline_model_parallel_rank() + 1);
  }
  get_data_parallel_group().all_reduce(ones({int64_t{1} << 14}));
}

Start start(int ranks, const AllConfig& config) {
  Start result;
  std::vector<Sent> sent(static_cast<size_t>(ranks));
  const double before = status_kib("VmRSS");
  auto last = Clock::now();
  const auto lap = [&](Part part) {
    const auto now = Clock::now();
    result.seconds[part] = std::chrono::duration<double>(now - last).count();
    last = now;
  };
  const auto body = [&](const std::shared_ptr<ProcessGroup>& world) {
    Sent& own = sent[static_cast<size_t>(world->rank())];
    const auto ends = [&](Part part) {
      world->barrier();
      own.part = static_cast<Part>(part + 1);
      if (world->rank() == 0) {
        lap(part);
      }
    };
    ends(kThreads);
    check_equal_configurations(config, *world);
    ends(kConfigurations);
    initialize_model_parallel(model_parallel_sizes(config.parallel_config), world);
    ends(kGroups);
    use_groups();
    ends(kCollectives);
    if (world->rank() == 0) {
      result.rank_kib = (status_kib("VmRSS") - before) / ranks;
    }
    const Tensor large = empty({CachingAllocator::kLargeBlock});  // reserves addresses
    small_step();
    ends(kStep);
    if (world->rank() == 0) {
      result.address_tib = status_kib("VmSize") / (1U << 30U);
    }
  };
  run_thread_ranks(ranks, body, {.wrap_transport = [&](std::unique_ptr<Transport> inner) {
                     Sent& own = sent[static_cast<size_t>(inner->rank())];
                     return std::make_unique<CountingTransport>(std::move(inner), own);
                   }});
  lap(kEnd);
  for (const Sent& rank : sent) {
    int64_t all = 0;
    for (int part = 0; part < kParts; ++part) {
      all += rank.messages[part];
      result.mean_messages[part] += static_cast<double>(rank.messages[part]) / ranks;
    }
    result.most_messages = std::max(result.most_messages, all);
    result.most_peers = std::max(result.most_peers, rank.peers.size());
  }
  return result;
}

void print(int ranks, const AllConfig& config, const Start& start) {
  const ModelParallelConfig& p = config.parallel_config;
  const auto model = p.tensor_model_parallel_size * p.pipeline_model_parallel_size;
  std::cout << "| " << ranks << " | tp " << p.tensor_model_parallel_size << ", pp "
            << p.pipeline_model_parallel_size << ", dp " << ranks / model;
  double all = 0;
  double messages = 0;
  std::cout << std::fixed << std::setprecision(2);
  for (int part = 0; part < kParts; ++part) {
    std::cout << " | " << start.seconds[part];
    all += start.seconds[part];
    messages += start.mean_messages[part];
  }
  std::cout << " | " << all << " | " << std::setprecision(1) << messages << " | "
            << start.most_messages << " | " << start.most_peers << " | " << std::setprecision(0)
            << start.rank_kib << " | " << std::setprecision(2) << start.address_tib << " |"
            << std::endl;
}

int run(int argc, char** argv) {
  boost::program_options::options_description options("start_bench [OPTION]...");
  options.add_options()(
      "ranks", boost::program_options::value<int>()->default_value(1024),
      "the largest number of ranks, of those from about 64 on, each four times the one before")(
      "tp", boost::program_options::value<int>()->default_value(8), "tensor-parallel ranks")(
      "pp", boost::program_options::value<int>()->default_value(16), "pipeline stages");
  const auto arguments = bench::parse_options(argc, argv, options);
  if (!arguments) {
    return 0;
  }
  std::cout
      << "| ranks | layout | threads s | configurations s | groups s | collectives s | step s "
         "| end s | all s | messages of a rank | at most | peers at most | KiB a rank | TiB of "
         "addresses |\n|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
  const int most = (*arguments)["ranks"].as<int>();
  const int tp = (*arguments)["tp"].as<int>();
  check<ValueError>(tp > 0 && most > 0 && most % tp == 0, "--ranks ", most,
                    " is not a multiple of --tp ", tp);
  for (int ranks = std::min(std::max(1, 64 / tp) * tp, most);; ranks = std::min(4 * ranks, most)) {
    AllConfig config;
    config.parallel_config.tensor_model_parallel_size = tp;
    int64_t& pp = config.parallel_config.pipeline_model_parallel_size;
    pp = std::max(1, (*arguments)["pp"].as<int>());
    while (ranks % (tp * pp) != 0) {
      pp /= 2;
    }
    print(ranks, config, start(ranks, config));
    if (ranks == most) {
      return 0;
    }
  }
}

}  // namespace
}  // namespace tapestry

int main(int argc, char** argv) {
  try {
    return tapestry::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "start_bench: " << error.what() << "\n";
    return 1;
  }
}
