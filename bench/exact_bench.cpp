// Times the products of exact mode beside those of every day: gemm() in one run over k, the trees
// of tensor-parallel layers and the sums of weight gradients. Prints a Markdown table.
//
// Forms, for a linear layer y = x W^T: NT is y and NN is dx = dy W, whose sums are trees of eight
// leaves where ranks may divide k; TN is dW += dy^T x, a sum of the leaves of each sequence. The
// ways take turns; a time is the best of the turns.
#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <iomanip>
#include <iostream>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_exact.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/tensor/factory.h"
#include "bench/bench_options.h"

namespace tapestry {
namespace {

using kernels::GemmShape;
using kernels::SumRun;

struct Layer {
  std::string_view model;
  int64_t samples, length, inputs, outputs;
};

constexpr std::array kLayers = {
    Layer{"tiny", 8, 256, 256, 768},         Layer{"tiny", 8, 256, 256, 256},
    Layer{"tiny", 8, 256, 256, 1024},        Layer{"tiny", 8, 256, 1024, 256},
    Layer{"gpt2_124m", 1, 1024, 768, 2304},  Layer{"gpt2_124m", 1, 1024, 768, 768},
    Layer{"gpt2_124m", 1, 1024, 768, 3072},  Layer{"gpt2_124m", 1, 1024, 3072, 768},
    Layer{"gpt2_124m", 1, 1024, 768, 50304},
};

constexpr std::array<std::string_view, 3> kForms = {"NT", "NN", "TN"};

std::vector<SumRun> tree_of(int64_t k) {
  std::vector<SumRun> runs;
  for (int64_t i = 0; i < kSumLeaves; ++i) {
    runs.push_back({i * k / kSumLeaves, (i + 1) * k / kSumLeaves, true});
  }
  return runs;
}

/// Of rows [samples, length].
std::vector<SumRun> leaves_of_tokens(int64_t samples, int64_t length) {
  std::vector<SumRun> runs;
  const int64_t leaves = sequence_leaves(length);
  const int64_t chunk = length / (2 * leaves);
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t leaf = 0; leaf < leaves; ++leaf) {
      const int64_t first = sample * length + leaf * chunk;
      const int64_t second = sample * length + (2 * leaves - 1 - leaf) * chunk;
      runs.push_back({first, first + chunk, false});
      runs.push_back({second, second + chunk, true});
    }
  }
  return runs;
}

std::vector<double> race(const std::vector<std::function<void()>>& runners, double budget) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> best(runners.size(), std::numeric_limits<double>::infinity());
  double total = 0;
  for (int turn = 0; turn < 4 || total < budget; ++turn) {
    for (size_t i = 0; i < runners.size(); ++i) {
      const auto start = Clock::now();
      runners[i]();
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      total += seconds;
      if (turn > 0) {  // the first warms caches and pages
        best[i] = std::min(best[i], seconds);
      }
    }
  }
  return best;
}

void measure(const Layer& layer, std::string_view form, DType dtype, double budget) {
  const int64_t tokens = layer.samples * layer.length;
  const bool gradient = form == "TN";
  GemmShape s{};
  s.dtype = dtype;
  s.c_dtype = gradient ? kFloat32 : dtype;
  s.beta = gradient ? 1 : 0;
  s.trans_a = gradient;
  s.trans_b = form == "NT";
  s.m = gradient ? layer.outputs : tokens;
  s.n = form == "NT" ? layer.outputs : layer.inputs;
  s.k = form == "NT" ? layer.inputs : form == "NN" ? layer.outputs : tokens;
  s.lda = s.trans_a ? s.m : s.k;
  s.ldb = s.trans_b ? s.k : s.n;
  s.ldc = s.n;
  const Tensor a = (randn({s.trans_a ? s.k : s.m, s.lda}) * 1e-2).to(dtype);
  const Tensor b = (randn({s.trans_b ? s.n : s.k, s.ldb}) * 1e-2).to(dtype);
  const Tensor c = zeros({s.m, s.n}, s.c_dtype);
  const Tensor sums = gradient ? zeros({s.m, s.n}, kFloat64) : Tensor();
  const std::vector<SumRun> runs =
      gradient ? leaves_of_tokens(layer.samples, layer.length) : tree_of(s.k);
  std::vector<std::function<void()>> runners;
  runners.emplace_back([&] { kernels::gemm(s, a.raw(), b.raw(), c.raw()); });
  runners.emplace_back([&] {
    const ExactScope scope;
    kernels::gemm(s, a.raw(), b.raw(), c.raw());
  });
  if (gradient) {
    runners.emplace_back([&] {
      kernels::exact_sum_gemm(s, runs, a.raw(), b.raw(), static_cast<double*>(sums.raw()));
    });
  } else {
    runners.emplace_back([&] { kernels::tree_gemm(s, runs, a.raw(), b.raw(), c.raw()); });
  }
  const std::vector<double> seconds = race(runners, budget);
  std::cout << "| " << layer.model << " | " << form << " | " << s.m << " x " << s.n << " x " << s.k
            << " | " << name_of(dtype) << std::fixed << std::setprecision(1);
  const double work =
      2e-9 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  for (const double t : seconds) {
    std::cout << " | " << work / t;
  }
  std::cout << std::setprecision(3) << " | " << seconds[1] / seconds[0] << " | "
            << seconds[2] / seconds[0] << " |" << std::endl;
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description options("exact_bench");
  options.add_options()("model", po::value<std::string>(), "only the layers of tiny or gpt2_124m")(
      "dtype", po::value<std::string>(), "only float32 or bfloat16")(
      "form", po::value<std::string>(), "only NT, NN or TN")(
      "seconds", po::value<double>()->default_value(0.3), "for each line");
  const std::optional<po::variables_map> parsed = bench::parse_options(argc, argv, options);
  if (!parsed) {
    return 0;
  }
  const po::variables_map& arguments = *parsed;
  const auto wanted = [&](const char* option, std::string_view value) {
    return bench::is_chosen(arguments, option, value);
  };
  std::cout << num_threads() << " threads, CPU level " << name_of(cpu_level()) << ", "
            << kernels::blas_flavour()
            << ". GFLOP/s, and times as shares of gemm's.\n\n"
               "| layer of | form | m x n x k | dtype | gemm | one run | leaves | one run / gemm | "
               "leaves / gemm |\n|---|---|---|---|---:|---:|---:|---:|---:|\n";
  for (const DType dtype : {kFloat32, kBFloat16}) {
    for (const Layer& layer : kLayers) {
      for (const std::string_view form : kForms) {
        if (wanted("dtype", name_of(dtype)) && wanted("model", layer.model) &&
            wanted("form", form)) {
          measure(layer, form, dtype, arguments["seconds"].as<double>());
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
    std::cerr << "exact_bench: " << error.what() << "\n";
    return 2;
  }
}
