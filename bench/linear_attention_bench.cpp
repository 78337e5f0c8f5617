// Times what a layer of linear attention is made of: the gated delta rule and the short convolution
// in front of it, forward and backward over whole texts, and their steps of one token as in
// decoding. Prints Markdown tables. FLOPs are those of the formulas (gated_delta.h): what backward
// computes a second time is not counted.
//
// The best of several turns; a large product of float32 is measured between them, so that a change
// of the machine's speed meets both.
#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <iomanip>
#include <iostream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/work_counter.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/ops/transformer/gated_delta_rule.h"
#include "autograd/ops/transformer/short_convolution.h"
#include "autograd/tape/engine.h"
#include "autograd/tensor/factory.h"
#include "bench/bench_options.h"

namespace tapestry {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// A square product of float32, in GFLOP/s.
class LargeProduct {
 public:
  explicit LargeProduct(int64_t n)
      : n_(n), a_(randn({n, n})), b_(randn({n, n})), c_(empty({n, n})) {}
  double rate() const {
    const double seconds = seconds_of([&] {
      kernels::gemm({.m = n_, .n = n_, .k = n_, .lda = n_, .ldb = n_, .ldc = n_}, a_.raw(),
                    b_.raw(), c_.raw());
    });
    return 2e-9 * static_cast<double>(n_ * n_ * n_) / seconds;
  }

 private:
  int64_t n_;
  Tensor a_, b_, c_;
};

struct Best {
  double forward = std::numeric_limits<double>::infinity();
  double both = std::numeric_limits<double>::infinity();
  double flops = 0;
  double product = 0;  // GFLOP/s
};

/// `forward` gives a result of which `dy` is the gradient.
Best measure(int64_t turns,
             const LargeProduct& product,
             const Tensor& dy,
             const std::function<Tensor()>& forward,
             const TensorList& inputs) {
  Best best;
  for (int64_t turn = 0; turn <= turns; ++turn) {
    const double before = kernels::work_counter().flops;
    Tensor y;
    const double first = seconds_of([&] { y = forward(); });
    const double second = seconds_of([&] { grad(y, inputs, dy); });
    best.flops = kernels::work_counter().flops - before;
    if (turn > 0) {
      best.forward = std::min(best.forward, first);
      best.both = std::min(best.both, first + second);
      best.product = std::max(best.product, product.rate());
    }
  }
  return best;
}

GatedDeltaOptions heads_of(int64_t key_heads, int64_t value_heads, int64_t dim) {
  return {.key_heads = key_heads, .value_heads = value_heads, .key_dim = dim, .value_dim = dim};
}

int64_t width_of(const GatedDeltaOptions& o) {
  return 2 * o.key_heads * o.key_dim + o.value_heads * o.value_dim;
}

void measure_rule(const std::vector<int64_t>& lengths,
                  const std::vector<GatedDeltaOptions>& sizes,
                  int64_t turns,
                  const LargeProduct& product) {
  std::cout
      << "\n| gated delta rule | dtype | tokens | forward us/token | with backward us/token | "
         "GFLOP/s | of a large product |\n|---|---|---|---|---|---|---|\n";
  for (const GatedDeltaOptions& o : sizes) {
    for (const DType dtype : {kFloat32, kBFloat16}) {
      for (const int64_t tokens : lengths) {
        const Tensor qkv = randn({1, tokens, width_of(o)}).to(dtype).set_requires_grad();
        const Tensor g = mul(uniform(0, 1, {1, tokens, o.value_heads}), -0.3).set_requires_grad();
        const Tensor beta = uniform(0, 1, {1, tokens, o.value_heads}).set_requires_grad();
        const Tensor dy = randn({1, tokens, o.value_heads, o.value_dim}).to(dtype);
        const Best best =
            measure(turns, product, dy, [&] { return gated_delta_rule(qkv, g, beta, o).out; },
                    {qkv, g, beta});
        const double rate = 1e-9 * best.flops / best.both;
        const auto n = static_cast<double>(tokens);
        std::cout << "| " << o.key_heads << " / " << o.value_heads << " heads of " << o.key_dim
                  << " | " << name_of(dtype) << " | " << tokens << " | " << std::setprecision(2)
                  << 1e6 * best.forward / n << " | " << 1e6 * best.both / n << " | "
                  << std::setprecision(0) << rate << " | " << 100 * rate / best.product << " % |"
                  << std::endl;
      }
    }
  }
}

void measure_convolution(const std::vector<int64_t>& lengths,
                         int64_t channels,
                         int64_t turns,
                         const LargeProduct& product) {
  std::cout << "\n| short convolution, 4 taps, SiLU | dtype | tokens | forward us/token | with "
               "backward us/token | GB/s |\n|---|---|---|---|---|---|\n";
  for (const DType dtype : {kFloat32, kBFloat16}) {
    for (const int64_t tokens : lengths) {
      const Tensor x = randn({1, tokens, channels}).to(dtype).set_requires_grad();
      const Tensor weight = randn({channels, 4}).to(dtype).set_requires_grad();
      const Tensor dy = randn({1, tokens, channels}).to(dtype);
      const Best best =
          measure(turns, product, dy, [&] { return short_convolution(x, weight, {.silu = true}); },
                  {x, weight});
      // x and y; x, dy and dx.
      const auto bytes = static_cast<double>(5 * x.numel() * size_of(dtype));
      const auto n = static_cast<double>(tokens);
      std::cout << "| " << channels << " channels | " << name_of(dtype) << " | " << tokens << " | "
                << std::setprecision(2) << 1e6 * best.forward / n << " | " << 1e6 * best.both / n
                << " | " << std::setprecision(1) << 1e-9 * bytes / best.both << " |" << std::endl;
    }
  }
}

void measure_steps(const std::vector<int64_t>& texts, const GatedDeltaOptions& o, int64_t turns) {
  const NoGradGuard no_grad;
  std::cout << "\n| decoding, one token each | texts | us | GB/s of states |\n|---|---|---|---|\n";
  for (const int64_t count : texts) {
    // Layers in turn, so that no state is still in a cache.
    const int64_t state_bytes = count * o.value_heads * o.key_dim * o.value_dim * 4;
    const int64_t layers = std::max<int64_t>(2, (int64_t{256} << 20) / state_bytes);
    std::vector<Tensor> states;
    for (int64_t i = 0; i < layers; ++i) {
      states.push_back(zeros({count, o.value_heads, o.key_dim, o.value_dim}));
    }
    std::vector<int64_t> slots(static_cast<size_t>(count));
    std::iota(slots.begin(), slots.end(), 0);
    const Tensor qkv = randn({count, width_of(o)}).to(kBFloat16);
    const Tensor g = full({count, o.value_heads}, -0.1);
    const Tensor beta = full({count, o.value_heads}, 0.5);
    double best = std::numeric_limits<double>::infinity();
    for (int64_t turn = 0; turn <= turns; ++turn) {
      const double seconds = seconds_of([&] {
        for (const Tensor& state : states) {
          gated_delta_step(qkv, g, beta, state, slots, o);
        }
      });
      best = std::min(best, seconds / static_cast<double>(layers));
    }
    std::cout << "| " << o.key_heads << " / " << o.value_heads << " heads of " << o.key_dim << " | "
              << count << " | " << std::setprecision(1) << 1e6 * best << " | "
              << 2e-9 * static_cast<double>(state_bytes) / best << " |" << std::endl;
  }
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  int64_t turns = 0;
  po::options_description options("linear_attention_bench");
  options.add_options()("turns", po::value(&turns)->default_value(5),
                        "times that each case is measured")("quick", po::bool_switch(),
                                                            "small sizes: only whether it works");
  const auto arguments = bench::parse_options(argc, argv, options);
  if (!arguments) {
    return 0;
  }
  check<ValueError>(turns >= 1, "--turns must be at least 1, got ", turns);
  std::cout << std::fixed << name_of(cpu_level()) << ", " << num_threads() << " threads"
            << std::endl;
  if ((*arguments)["quick"].as<bool>()) {
    const LargeProduct product(64);
    measure_rule({130}, {heads_of(1, 2, 16)}, 1, product);
    measure_convolution({20}, 32, 1, product);
    measure_steps({2}, heads_of(1, 2, 16), 1);
    return 0;
  }
  const LargeProduct product(1536);
  measure_rule({2048, 32768}, {heads_of(16, 16, 128), heads_of(16, 32, 128)}, turns, product);
  measure_convolution({2048, 32768}, 6144, turns, product);
  measure_steps({1, 16}, heads_of(16, 32, 128), turns);
  return 0;
}

}  // namespace
}  // namespace tapestry

int main(int argc, char** argv) {
  try {
    return tapestry::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "linear_attention_bench: " << error.what() << "\n";
    return 2;
  }
}
