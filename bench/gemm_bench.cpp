// Times matrix products of GPT layers by each implementation that can do them, beside one another
// and beside what the arithmetic alone allows: what gemm.cpp decides by. Prints a Markdown table.
//
// Forms, for a linear layer y = x W^T: NT is y, NN is dx = dy W, TN is dW = dy^T x. OpenBLAS does
// 16-bit products through float32 (gemm_widened.h). The implementations take turns, so that a slow
// spell of the machine meets all of them; a time is the best of the turns.
#include <algorithm>
#include <array>
#include <boost/program_options.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <iomanip>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_blas.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/gemm/gemm_widened.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/tensor/factory.h"
#include "bench/arithmetic_peak.h"
#include "bench/bench_options.h"

namespace tapestry {
namespace {

using kernels::GemmShape;

struct Layer {
  std::string_view model;
  int64_t tokens, inputs, outputs;
};

constexpr std::array kLayers = {
    Layer{"char", 768, 128, 384},         Layer{"char", 768, 128, 128},
    Layer{"char", 768, 128, 512},         Layer{"char", 768, 512, 128},
    Layer{"char", 768, 128, 65},          Layer{"tiny", 1024, 256, 768},
    Layer{"tiny", 1024, 256, 256},        Layer{"tiny", 1024, 256, 1024},
    Layer{"tiny", 1024, 1024, 256},       Layer{"tiny", 1024, 256, 512},
    Layer{"gpt2_124m", 1024, 768, 768},   Layer{"gpt2_124m", 1024, 768, 2304},
    Layer{"gpt2_124m", 1024, 768, 3072},  Layer{"gpt2_124m", 1024, 3072, 768},
    Layer{"gpt2_124m", 1024, 768, 50304}, Layer{"llama_110m", 1024, 768, 4096},
    Layer{"llama_110m", 1024, 2048, 768}, Layer{"llama_110m", 1024, 768, 32000},
    Layer{"layer_7b", 1024, 4096, 11008},
};

constexpr std::array<std::string_view, 3> kForms = {"NT", "NN", "TN"};

GemmShape product_of(const Layer& layer, std::string_view form, DType dtype) {
  GemmShape s{};
  s.dtype = dtype;
  s.c_dtype = dtype;
  s.batch = 1;
  s.alpha = 1;
  s.trans_a = form == "TN";
  s.trans_b = form == "NT";
  s.m = form == "TN" ? layer.outputs : layer.tokens;
  s.n = form == "NT" ? layer.outputs : layer.inputs;
  s.k = form == "NT" ? layer.inputs : form == "NN" ? layer.outputs : layer.tokens;
  s.lda = s.trans_a ? s.m : s.k;
  s.ldb = s.trans_b ? s.k : s.n;
  s.ldc = s.n;
  return s;
}

/// The shortest time of each, in seconds; empty functions take none.
std::vector<double> race(const std::vector<std::function<void()>>& runners, double budget) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> best(runners.size(), std::numeric_limits<double>::infinity());
  double total = 0;
  for (int turn = 0; turn < 4 || total < budget; ++turn) {
    for (size_t i = 0; i < runners.size(); ++i) {
      if (!runners[i]) {
        continue;
      }
      const auto start = Clock::now();
      runners[i]();
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      total += seconds;
      if (turn > 0) {  // the first warms caches, pages and the libraries' own set-up
        best[i] = std::min(best[i], seconds);
      }
    }
  }
  return best;
}

std::string cell(double value, int digits, std::string_view unit = "") {
  if (!(value > 0) || value == std::numeric_limits<double>::infinity()) {
    return "-";
  }
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value << unit;
  return text.str();
}

/// The best rate so far of the arithmetic that products of `dtype` are made of, from one more try.
double peak_of(DType dtype) {
  static std::array<double, 2> best = {0, 0};  // of float32 and of pairs of bfloat16
  const bool pairs = dtype == kBFloat16 && arithmetic_peak(kBFloat16, 0) > 0;
  double& found = best[pairs ? 1 : 0];
  found = std::max(found, arithmetic_peak(pairs ? kBFloat16 : kFloat32, 0));
  return found;
}

void measure(const Layer& layer, std::string_view form, DType dtype, double budget) {
  const GemmShape s = product_of(layer, form, dtype);
  const Tensor a = (randn({s.trans_a ? s.k : s.m, s.lda}) * 0.1).to(dtype);
  const Tensor b = (randn({s.trans_b ? s.n : s.k, s.ldb}) * 0.1).to(dtype);
  const Tensor c = empty({s.m, s.n}, dtype);
  double peak = 0;
  std::vector<std::function<void()>> runners(5);
  runners[0] = [&] { kernels::gemm(s, a.raw(), b.raw(), c.raw()); };
  if (kernels::has_tiled_gemm(dtype)) {
    runners[1] = [&] { kernels::tiled_gemm(s, a.raw(), b.raw(), c.raw()); };
  }
  if (dtype == kBFloat16 && kernels::has_bfloat16_pairs()) {
    runners[3] = [&] { kernels::tiled_gemm(s, a.raw(), b.raw(), c.raw(), true); };
    runners[1] = [&] { kernels::tiled_gemm(s, a.raw(), b.raw(), c.raw(), false); };
  }
  runners[2] = [&] {
    if (dtype == kFloat32) {
      kernels::blas_gemm(s, a.raw(), b.raw(), c.raw());
    } else {
      kernels::widened_gemm(s, a.raw(), b.raw(), c.raw(), &kernels::blas_gemm);
    }
  };
  runners[4] = [&] { peak = peak_of(dtype); };
  const double work =
      2e-9 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  std::vector<double> seconds = race(runners, budget);
  seconds.pop_back();
  std::cout << "| " << layer.model << " | " << form << " | " << s.m << " x " << s.n << " x " << s.k
            << " | " << name_of(dtype);
  for (const double t : seconds) {
    std::cout << " | " << cell(work / t, 1);
  }
  std::cout << " | " << cell(peak, 1) << " | " << cell(100 * work / seconds[1] / peak, 0, " %")
            << " | " << cell(seconds[2] / seconds[1], 2, "x") << " |" << std::endl;
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description options("gemm_bench");
  options.add_options()("model", po::value<std::string>(),
                        "only the layers of char, tiny, gpt2_124m, llama_110m, layer_7b")(
      "dtype", po::value<std::string>(), "only float32, bfloat16 or float16")(
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
  const double budget = arguments["seconds"].as<double>();
  std::cout << num_threads() << " threads, CPU level " << name_of(cpu_level()) << ", "
            << kernels::blas_flavour()
            << ".\n\n| layer of | form | m x n x k | dtype | gemm | tiled | OpenBLAS | pairs | "
               "arithmetic "
               "| tiled of it | tiled to OpenBLAS |\n"
               "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|\n";
  for (const DType dtype : {kFloat32, kBFloat16, kFloat16}) {
    for (const Layer& layer : kLayers) {
      for (const std::string_view form : kForms) {
        if (wanted("dtype", name_of(dtype)) && wanted("model", layer.model) &&
            wanted("form", form)) {
          measure(layer, form, dtype, budget);
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
    std::cerr << "gemm_bench: " << error.what() << "\n";
    return 2;
  }
}
