// Predicts the step time of a model on many ranks from figures measured on few; docs/scaling.md.
//
// For each number of ranks it prints the fastest layout that fits into memory. With --check it runs
// collectives and whole steps on simulated ranks instead, and compares their time with what the
// formulas say; it fails where they differ by more than --bound.
#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <cmath>
#include <exception>
#include <functional>
#include <iomanip>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "bench/bench_options.h"
#include "bench/step_model.h"
#include "parallel_core/comm/collective_cost.h"
#include "parallel_core/comm/schedule.h"
#include "parallel_core/comm/simulated_ranks.h"

namespace tapestry::bench {
namespace {

namespace po = boost::program_options;

struct NamedModel {
  const char* name;
  StepModel model;
};
const std::array kModels = {
    NamedModel{"124M, float32",
               {.layers = 12,
                .hidden = 768,
                .ffn = 3072,
                .vocabulary = 50304,
                .kv = 768,
                .tied = true,
                .seq = 1024,
                .batch = 1024,
                .element = 4,
                .state = 16}},
    NamedModel{"7B (32 layers), bfloat16",
               {.layers = 32,
                .hidden = 4096,
                .ffn = 11008,
                .vocabulary = 32000,
                .kv = 4096,
                .gated = true,
                .seq = 4096,
                .batch = 1024,
                .element = 2,
                .state = 16}},
};

// 1,234,567
std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = std::ssize(text) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), ",");
  }
  return text;
}

void print_messages() {
  const int64_t elements = kModels[0].model.parameters();
  std::cout << "### Messages of an all-reduce of " << grouped(elements)
            << " float32\n\n| ranks | messages of a rank | under way at most | bytes of one |\n"
               "|---:|---:|---:|---:|\n";
  for (const int ranks : {2, 8, 64, 256, 1024, 4096}) {
    const bool is_direct = ranks <= kMostDirect;
    const int64_t messages =
        is_direct ? 2 * (ranks - 1) * DirectLayout::all_reduce(ranks, elements, 4).segments(0)
                  : 2 * ChainLayout::all_reduce(ranks, elements, 4).segments();
    const int64_t sent = 2 * 4 * elements / ranks * (is_direct ? ranks - 1 : ranks);
    std::cout << "| " << ranks << " | " << grouped(messages) << " | "
              << 2 * kWindow * (is_direct ? ranks - 1 : 1) << " | " << grouped(sent / messages)
              << " |\n";
  }
  std::cout << "\n";
}

struct Found {
  StepTime time;
  StepLayout layout;
};

std::optional<Found> fastest(const StepModel& model, const RankMachine& machine, int ranks) {
  std::optional<Found> found;
  for (int tp = 1; tp <= 8; tp *= 2) {
    for (int pp = 1; pp <= 32; pp *= 2) {
      for (int64_t micro = 1; micro <= model.batch && ranks % (tp * pp) == 0; micro *= 2) {
        const StepLayout layout = {.tp = tp, .pp = pp, .dp = ranks / tp / pp, .micro = micro};
        const std::optional<StepTime> time = step_time(model, machine, layout);
        if (time && (!found || time->all() < found->time.all())) {
          found = {*time, layout};
        }
      }
    }
  }
  return found;
}

void print_steps(const NamedModel& named, const RankMachine& machine) {
  const StepModel& model = named.model;
  std::cout
      << "### " << named.name << ": " << grouped(model.parameters()) << " parameters, "
      << model.batch << " sequences of " << model.seq
      << "\n\n| ranks | layout | micro-batches | s a step | tokens/s | computing | tp | bubble "
         "| dp |\n|---:|---|---:|---:|---:|---:|---:|---:|---:|\n";
  for (const int ranks : {1, 8, 64, 128, 256, 512, 1024, 2048, 4096}) {
    const std::optional<Found> found = fastest(model, machine, ranks);
    std::cout << "| " << ranks;
    if (!found) {
      std::cout << " | does not fit | | | | | | | |\n";
      continue;
    }
    const StepLayout& layout = found->layout;
    const double all = found->time.all();
    std::cout << " | tp " << layout.tp << ", pp " << layout.pp << ", dp " << layout.dp << " | "
              << layout.micro << " | " << std::fixed << std::setprecision(2) << all << " | "
              << grouped(std::llround(static_cast<double>(model.batch * model.seq) / all));
    for (const double part :
         {found->time.computing, found->time.tensor, found->time.bubble, found->time.data}) {
      std::cout << " | " << std::lround(100 * part / all) << "%";
    }
    std::cout << " |\n";
  }
  std::cout << "\n";
}

// Formulas beside simulated ranks.
class Check {
 public:
  Check(const MessageCost& network, double bound) : network_(network), bound_(bound) {}

  void collectives(int most_ranks) {
    std::cout << "| ranks | bytes | all_reduce us | formula | reduce_scatter us | formula "
                 "| all_gather us | formula |\n|---:|---:|---:|---:|---:|---:|---:|---:|\n";
    for (int ranks = 2; ranks <= most_ranks; ranks *= 2) {
      for (const int64_t bytes : {int64_t{4} << 10, int64_t{256} << 10, int64_t{8} << 20}) {
        const int64_t count = bytes / 4;
        std::cout << "| " << ranks << " | " << grouped(bytes);
        compare([&](ProcessGroup& world) { world.all_reduce(zeros({count})); }, ranks,
                all_reduce_seconds(network_, ranks, bytes));
        compare(
            [&](ProcessGroup& world) {
              world.reduce_scatter(zeros({count / ranks}), zeros({count}));
            },
            ranks, reduce_scatter_seconds(network_, ranks, bytes));
        compare(
            [&](ProcessGroup& world) { world.all_gather(zeros({count}), zeros({count / ranks})); },
            ranks, all_gather_seconds(network_, ranks, bytes));
        std::cout << " |\n";
      }
    }
    std::cout << "\n";
  }

  void steps(const RankMachine& machine, int most_ranks) {
    // Small enough to be copied about by one machine; its messages take about half of the time.
    const StepModel model = {.layers = 8,
                             .hidden = 512,
                             .ffn = 64,
                             .vocabulary = 64,
                             .kv = 64,
                             .tied = true,
                             .seq = 32,
                             .batch = 64,
                             .element = 4,
                             .state = 16};
    std::cout
        << "| ranks | layout | micro-batches | ms a step | formula |\n|---:|---|---:|---:|---:|\n";
    for (const StepLayout& layout :
         {StepLayout{.dp = 8, .micro = 2}, StepLayout{.tp = 8, .micro = 4},
          StepLayout{.pp = 8, .micro = 16}, StepLayout{.tp = 2, .pp = 2, .dp = 4, .micro = 4},
          StepLayout{.pp = 4, .dp = 16, .micro = 4}, StepLayout{.tp = 8, .dp = 8, .micro = 2},
          StepLayout{.tp = 2, .pp = 4, .dp = 8, .micro = 8}, StepLayout{.dp = 64}}) {
      if (layout.ranks() > most_ranks) {
        continue;
      }
      StepTime formula = step_time(model, machine, layout, Overlap::kNo).value();
      formula.update = 0;
      const double simulated = simulated_step(model, machine, layout);
      std::cout << "| " << layout.ranks() << " | tp " << layout.tp << ", pp " << layout.pp
                << ", dp " << layout.dp << " | " << layout.micro;
      print(simulated, formula.all(), 1e3, 2);
      std::cout << " |\n";
    }
    std::cout << "\n";
  }

  /// The largest difference that was seen, as a share of the simulated time.
  double worst() const { return worst_; }
  bool passes() const { return worst_ <= bound_; }

 private:
  void compare(const std::function<void(ProcessGroup& world)>& body, int ranks, double formula) {
    const double simulated = simulate_ranks(
        ranks, network_, [&](ProcessGroup& world, SimulatedClock& /*clock*/) { body(world); });
    print(simulated, formula, 1e6, 1);
  }
  void print(double simulated, double formula, double unit, int digits) {
    const double difference = formula / simulated - 1;
    worst_ = std::max(worst_, std::abs(difference));
    std::cout << std::fixed << std::setprecision(digits) << " | " << simulated * unit << " | "
              << formula * unit << " (" << std::showpos << std::setprecision(0) << 100 * difference
              << std::noshowpos << "%)";
  }

  MessageCost network_;
  double bound_;
  double worst_ = 0;
};

int run(int argc, char** argv) {
  po::options_description options("scaling_bench [OPTION]...");
  const auto number = [&](const char* name, double value, const char* what) {
    options.add_options()(name, po::value<double>()->default_value(value), what);
  };
  number("float32", 487e9, "operations per second of a rank");
  number("bfloat16", 985e9, "the same in bfloat16");
  number("efficiency", 0.8, "a step's share of that");
  number("memory-bandwidth", 68e9, "bytes per second");
  number("memory", 24 * std::pow(2.0, 30), "bytes of a rank");
  number("bandwidth", 12.5e9, "of the network, bytes per second in each direction");
  number("latency", 5e-6, "of the network, seconds");
  number("overhead", 0.8e-6, "of the processor for a message, seconds");
  number("bound", 0.1, "the largest difference that --check accepts");
  options.add_options()("check", po::value<int>()->implicit_value(64),
                        "compare with simulated ranks, up to so many");
  const auto arguments = parse_options(argc, argv, options);
  if (!arguments) {
    return 0;
  }
  const auto value = [&](const char* name) {
    const double number = (*arguments)[name].as<double>();
    const std::string_view of_time = name;
    const bool may_be_zero = of_time == "latency" || of_time == "overhead" || of_time == "bound";
    check<ValueError>(std::isfinite(number) && (number > 0 || (may_be_zero && number == 0)), "--",
                      name, " ", number, " must be ", may_be_zero ? "0 or more" : "more than 0");
    return number;
  };
  RankMachine machine = {.flops = value("float32"),
                         .efficiency = value("efficiency"),
                         .memory_bandwidth = value("memory-bandwidth"),
                         .memory = value("memory"),
                         .network = {.latency = value("latency"),
                                     .overhead = value("overhead"),
                                     .per_byte = 1 / value("bandwidth")}};
  if (arguments->count("check") > 0) {
    const int ranks = (*arguments)["check"].as<int>();
    check<ValueError>(ranks >= 2 && ranks <= 64, "--check ", ranks, " must be from 2 to 64 ranks");
    Check check(machine.network, value("bound"));
    check.collectives(ranks);
    check.steps(machine, ranks);
    std::cout << "largest difference: " << std::fixed << std::setprecision(0) << 100 * check.worst()
              << "%\n";
    return check.passes() ? 0 : 1;
  }
  print_messages();
  for (const NamedModel& named : kModels) {
    machine.flops = value(named.model.element == 4 ? "float32" : "bfloat16");
    print_steps(named, machine);
  }
  return 0;
}

}  // namespace
}  // namespace tapestry::bench

int main(int argc, char** argv) {
  try {
    return tapestry::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "scaling_bench: " << error.what() << "\n";
    return 1;
  }
}
