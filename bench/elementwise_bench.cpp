// Cycles of the element-wise kernels on one thread, with their arrays in the first- or second-level
// cache: what they compute, without tape, threads and memory. ops_bench has them with all of that.
#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <iomanip>
#include <iostream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/kernels/bias_activation.h"
#include "autograd/kernels/losses/cross_entropy.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/team.h"
#include "autograd/kernels/swiglu.h"
#include "autograd/ops/random.h"
#include "autograd/tensor/factory.h"
#include "bench/bench_options.h"

namespace tapestry {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Shortest time of a call, of several hundreds of calls within `budget` seconds.
double best_seconds(const std::function<void()>& work, double budget) {
  constexpr int kCalls = 100;
  double best = std::numeric_limits<double>::infinity();
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) {
      work();
    }
    best = std::min(best, seconds_since(start) / kCalls);
  } while (seconds_since(begin) < budget);
  return best;
}

/// `kAdditions` additions of which each waits a cycle for the one before it.
constexpr int kAdditions = 1000;
uint64_t add_in_turn(uint64_t sum, uint64_t step) {
#pragma GCC unroll 1000
  for (int i = 0; i < kAdditions; ++i) {
    sum += step;
    asm volatile("" : "+r"(sum), "+r"(step));  // registers: constants are added without waiting
  }
  return sum;
}

double cycles_per_second(double budget) {
  uint64_t sum = 0;
  const double seconds = best_seconds([&] { sum = add_in_turn(sum, 1); }, std::max(budget, 1e-3));
  return kAdditions / seconds;
}

struct Kernel {
  std::string_view name;
  int64_t values;  ///< of a call
  std::function<void()> work;
};

std::vector<Kernel> activations(DType dtype) {
  constexpr int64_t kRows = 4;
  constexpr int64_t kWidth = 1024;
  constexpr int64_t kValues = kRows * kWidth;
  const auto values = [&](const Shape& shape) { return randn(shape).to(dtype); };
  const Tensor x = values({kRows, kWidth});
  const Tensor up = values({kRows, kWidth});
  const Tensor dy = values({kRows, kWidth});
  const Tensor bias = values({kWidth});
  const Tensor y = values({kRows, kWidth});
  const Tensor dup = values({kRows, kWidth});
  const auto gelu = [=] {
    kernels::bias_activation({.dtype = dtype,
                              .bias_dtype = dtype,
                              .rows = kRows,
                              .n = kWidth,
                              .x = x.raw(),
                              .bias = bias.raw(),
                              .y = y.raw()});
  };
  const auto gelu_backward = [=] {
    kernels::bias_activation_backward({.dtype = dtype,
                                       .bias_dtype = dtype,
                                       .rows = kRows,
                                       .n = kWidth,
                                       .dy = dy.raw(),
                                       .x = x.raw(),
                                       .bias = bias.raw(),
                                       .dx = y.raw()});
  };
  const auto swiglu = [=] {
    kernels::swiglu({.dtype = dtype,
                     .rows = kRows,
                     .n = kWidth,
                     .gate = x.raw(),
                     .gate_stride = kWidth,
                     .up = up.raw(),
                     .up_stride = kWidth,
                     .y = y.raw()});
  };
  const auto swiglu_backward = [=] {
    kernels::swiglu_backward({.dtype = dtype,
                              .rows = kRows,
                              .n = kWidth,
                              .gate = x.raw(),
                              .gate_stride = kWidth,
                              .up = up.raw(),
                              .up_stride = kWidth,
                              .dy = dy.raw(),
                              .dgate = y.raw(),
                              .dgate_stride = kWidth,
                              .dup = dup.raw(),
                              .dup_stride = kWidth});
  };
  return {{"bias_gelu forward", kValues, gelu},
          {"bias_gelu backward", kValues, gelu_backward},
          {"swiglu forward", kValues, swiglu},
          {"swiglu backward", kValues, swiglu_backward}};
}

std::vector<Kernel> losses(DType dtype) {
  constexpr int64_t kVocab = 8192;
  const kernels::CrossEntropyShape shape = {
      .dtype = dtype, .rows = 1, .vocab = kVocab, .valid_vocab = kVocab, .ignore_index = -100};
  const Tensor logits = randn({1, kVocab}).to(dtype);
  const Tensor labels = randint(0, kVocab, {1});
  const Tensor dlogits = randn({1, kVocab}).to(dtype);
  const Tensor loss = ones({1});
  const Tensor lse = ones({1});
  const Tensor dloss = ones({1});
  const auto forward = [=] {
    kernels::cross_entropy({.shape = shape,
                            .logits = logits.raw(),
                            .labels = labels.data<int64_t>(),
                            .loss = loss.raw(),
                            .lse = lse.raw()});
  };
  const auto backward = [=] {
    kernels::cross_entropy_backward({.shape = shape,
                                     .logits = logits.raw(),
                                     .labels = labels.data<int64_t>(),
                                     .lse = lse.raw(),
                                     .dloss = dloss.raw(),
                                     .dlogits = dlogits.raw()});
  };
  return {{"cross_entropy forward", kVocab, forward}, {"cross_entropy backward", kVocab, backward}};
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description options("elementwise_bench");
  options.add_options()("dtype", po::value<std::string>(), "only float32 or bfloat16")(
      "seconds", po::value<double>()->default_value(0.2), "for each line");
  const std::optional<po::variables_map> parsed = bench::parse_options(argc, argv, options);
  if (!parsed) {
    return 0;
  }
  set_num_threads(1);
  const double budget = (*parsed)["seconds"].as<double>();
  std::cout << "One thread, CPU level " << name_of(cpu_level()) << std::fixed
            << std::setprecision(2) << ", " << cycles_per_second(budget) / 1e9 << " GHz.\n\n"
            << "| kernel | dtype | ns / 16 values | cycles / 16 values |\n|---|---|---:|---:|\n";
  for (const DType dtype : {kBFloat16, kFloat32}) {
    if (!bench::is_chosen(*parsed, "dtype", name_of(dtype))) {
      continue;
    }
    std::vector<Kernel> kernels = activations(dtype);
    for (Kernel& kernel : losses(dtype)) {
      kernels.push_back(std::move(kernel));
    }
    for (const Kernel& kernel : kernels) {
      const double seconds = best_seconds(kernel.work, budget);
      // Between two kernels, so that a change of the clock does not pass for one of theirs.
      const double frequency = cycles_per_second(budget / 4);
      const double of_16 = seconds / static_cast<double>(kernel.values) * 16;
      std::cout << "| " << kernel.name << " | " << name_of(dtype) << " | " << 1e9 * of_16 << " | "
                << std::setprecision(1) << frequency * of_16 << std::setprecision(2) << " |"
                << std::endl;
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
    std::cerr << "elementwise_bench: " << error.what() << "\n";
    return 2;
  }
}
