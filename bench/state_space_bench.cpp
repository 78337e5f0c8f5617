// Times the recurrence of Mamba-2 layers: forward and backward for each token at several lengths,
// and a step of generation. Prints Markdown tables.
#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <iomanip>
#include <iostream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/work_counter.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/ops/transformer/state_space.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"
#include "bench/bench_options.h"

namespace tapestry {
namespace {

/// Seconds of the fastest run, and what one run computes.
struct Timing {
  double seconds;
  double flops;
};

Timing fastest(double budget, const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  Timing best = {std::numeric_limits<double>::infinity(), 0};
  double total = 0;
  for (int turn = 0; turn < 3 || total < budget; ++turn) {
    const double before = kernels::work_counter().flops;
    const auto start = Clock::now();
    run();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best.flops = kernels::work_counter().flops - before;
    total += seconds;
    if (turn > 0) {  // the first warms caches, pages and the allocator
      best.seconds = std::min(best.seconds, seconds);
    }
  }
  return best;
}

std::string number(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

/// Inputs of so many rows: xbc, dt, a_log, d, dt_bias.
TensorList inputs_of(const StateSpaceOptions& o, const Shape& rows, DType dtype) {
  Shape wide = rows;
  wide.push_back(o.heads * o.head_dim + 2 * o.groups * o.state_size);
  Shape narrow = rows;
  narrow.push_back(o.heads);
  return {(randn(wide) * 0.5).to(dtype), (randn(narrow) - 4).to(dtype),
          log(arange(1, o.heads + 1).to(kFloat32)), ones({o.heads}), zeros({o.heads})};
}

void measure_training(const StateSpaceOptions& o, int64_t tokens, DType dtype, double budget) {
  TensorList in = inputs_of(o, {1, tokens}, dtype);
  for (Tensor& t : in) {
    t.set_requires_grad();
  }
  const Tensor dy = randn({1, tokens, o.heads * o.head_dim}).to(dtype);
  const Timing forward = fastest(budget, [&] {
    const NoGradGuard guard;
    state_space(in[0], in[1], in[2], in[3], in[4], o);
  });
  const Timing both =
      fastest(budget, [&] { grad(state_space(in[0], in[1], in[2], in[3], in[4], o).y, in, dy); });
  const auto per_token = [&](double seconds) {
    return number(1e6 * seconds / static_cast<double>(tokens), 2);
  };
  const double backward = both.seconds - forward.seconds;
  std::cout << "| " << tokens << " | " << name_of(dtype) << " | " << o.chunk_size << " | "
            << per_token(forward.seconds) << " | " << per_token(backward) << " | "
            << per_token(both.seconds) << " | " << number(1e-9 * forward.flops / forward.seconds, 1)
            << " | " << number(1e-9 * both.flops / both.seconds, 1) << " |" << std::endl;
}

void measure_step(const StateSpaceOptions& o, int64_t texts, DType dtype, double budget) {
  const TensorList in = inputs_of(o, {texts}, dtype);
  const Tensor states = randn({texts, o.heads, o.head_dim, o.state_size});
  std::vector<int64_t> slots;
  for (int64_t text = 0; text < texts; ++text) {
    slots.push_back(text);
  }
  const NoGradGuard guard;
  constexpr int kSteps = 20;
  const Timing steps = fastest(budget, [&] {
    for (int i = 0; i < kSteps; ++i) {
      state_space_step(in[0], in[1], in[2], in[3], in[4], o, states, slots);
    }
  });
  // States are read and written.
  const double bytes = 2.0 * 4 * kSteps * static_cast<double>(states.numel());
  std::cout << "| " << texts << " | " << name_of(dtype) << " | "
            << number(1e6 * steps.seconds / kSteps, 1) << " | "
            << number(1e-9 * bytes / steps.seconds, 1) << " |" << std::endl;
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description options("state_space_bench");
  options.add_options()("dtype", po::value<std::string>(), "only float32, bfloat16 or float16")(
      "only", po::value<std::string>(), "training or step")(
      "tokens", po::value<std::vector<int64_t>>()->multitoken(),
      "lengths (2048 and 32768 by default)")(
      "chunk", po::value<int64_t>()->default_value(StateSpaceOptions().chunk_size),
      "tokens of a chunk")("heads", po::value<int64_t>()->default_value(48))(
      "head-dim", po::value<int64_t>()->default_value(64))(
      "state", po::value<int64_t>()->default_value(128))("groups",
                                                         po::value<int64_t>()->default_value(1))(
      "seconds", po::value<double>()->default_value(1), "for each number");
  const std::optional<po::variables_map> parsed = bench::parse_options(argc, argv, options);
  if (!parsed) {
    return 0;
  }
  const po::variables_map& arguments = *parsed;
  const auto wanted = [&](const char* option, std::string_view value) {
    return bench::is_chosen(arguments, option, value);
  };
  const auto size = [&](const char* option) { return arguments[option].as<int64_t>(); };
  StateSpaceOptions o = {.heads = size("heads"),
                         .head_dim = size("head-dim"),
                         .groups = size("groups"),
                         .state_size = size("state"),
                         .chunk_size = size("chunk")};
  const double budget = arguments["seconds"].as<double>();
  const std::vector<int64_t> lengths = arguments.contains("tokens")
                                           ? arguments["tokens"].as<std::vector<int64_t>>()
                                           : std::vector<int64_t>{2048, 32768};
  std::cout << num_threads() << " threads, CPU level " << name_of(cpu_level()) << ": " << o.heads
            << " heads of " << o.head_dim << " channels, " << o.groups << " groups, state "
            << o.state_size << ".\n";
  if (wanted("only", "training")) {
    std::cout
        << "\n| tokens | dtype | chunk | forward us/token | backward us/token | both us/token "
           "| forward GFLOP/s | both GFLOP/s |\n|---:|---|---:|---:|---:|---:|---:|---:|\n";
    for (const DType dtype : {kFloat32, kBFloat16, kFloat16}) {
      for (const int64_t tokens : lengths) {
        if (wanted("dtype", name_of(dtype))) {
          measure_training(o, tokens, dtype, budget);
        }
      }
    }
  }
  if (wanted("only", "step")) {
    std::cout << "\n| texts | dtype | step us | state GB/s |\n|---:|---|---:|---:|\n";
    for (const DType dtype : {kFloat32, kBFloat16}) {
      for (const int64_t texts : {1, 8}) {
        if (wanted("dtype", name_of(dtype))) {
          measure_step(o, texts, dtype, budget);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace tapestry

int main(int argc, char** argv) {
  try {
    return tapestry::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "state_space_bench: " << error.what() << "\n";
    return 2;
  }
}
