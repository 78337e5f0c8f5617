// Times products of few rows, y = x W^T with 1 to 64 rows of x, as decoding of one or several
// prompts has them: by the kernels for few rows, beside what other products of that shape would
// take. Prints a Markdown table: GB/s are the bytes of W alone.
//
// Every call of a line takes another W, of so many that none is still in a cache. The ways take
// turns; a time is the best of the turns.
#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <iomanip>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/gemm/gemm_blas.h"
#include "autograd/kernels/gemm/gemm_few_rows.h"
#include "autograd/kernels/gemm/gemm_quantized.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/gemm/gemm_widened.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/ops/transformer/quantized_matrix.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "bench/bench_options.h"

namespace tapestry {
namespace {

using kernels::GemmShape;
using Clock = std::chrono::steady_clock;

/// W in as many copies as are larger than the caches together.
struct Weights {
  std::vector<Tensor> copies;
  size_t next = 0;

  const void* take() {
    next = (next + 1) % copies.size();
    return copies[next].raw();
  }
};

double best_seconds(const std::function<void()>& work, double budget) {
  double best = std::numeric_limits<double>::infinity();
  double total = 0;
  for (int turn = 0; turn < 4 || total < budget; ++turn) {
    const auto start = Clock::now();
    work();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    total += seconds;
    if (turn > 0) {
      best = std::min(best, seconds);
    }
  }
  return best;
}

void measure(DType dtype,
             int64_t out,
             int64_t in,
             const std::vector<int64_t>& rows,
             int64_t weight_mib,
             double budget) {
  Weights weights;
  const int64_t bytes = out * in * size_of(dtype);
  const int64_t copies = std::max<int64_t>(2, (weight_mib << 20) / bytes);
  const Tensor first = (randn({out, in}) * 0.1).to(dtype);
  for (int64_t i = 0; i < copies; ++i) {
    weights.copies.push_back(first.clone());
  }
  for (const int64_t n : rows) {
    const Tensor x = randn({n, in}).to(dtype);
    const Tensor y = empty({n, out}, dtype);
    const GemmShape s = {.dtype = dtype,
                         .c_dtype = dtype,
                         .trans_b = true,
                         .m = n,
                         .n = out,
                         .k = in,
                         .lda = in,
                         .ldb = in,
                         .ldc = out};
    std::vector<double> seconds(3, std::numeric_limits<double>::infinity());
    const auto time = [&](size_t way, const auto& product) {
      seconds[way] = best_seconds([&] { product(s, x.raw(), weights.take(), y.raw()); }, budget);
    };
    time(0, [](const auto&... args) { kernels::few_rows_gemm(args...); });
    if (kernels::has_tiled_gemm(dtype) && (dtype != kFloat32 || n > 1)) {
      time(1, [](const auto&... args) { kernels::tiled_gemm(args...); });
    }
    if (dtype == kFloat32) {
      time(2, [](const auto&... args) { kernels::blas_gemm(args...); });
    } else {
      time(2, [](const auto&... args) { kernels::widened_gemm(args..., &kernels::blas_gemm); });
    }
    std::cout << "| " << n << " x " << out << " x " << in << " | " << name_of(dtype) << " | "
              << std::fixed << std::setprecision(1);
    for (const double t : seconds) {
      std::cout << static_cast<double>(bytes) / t / 1e9 << " | ";
    }
    std::cout << 2e-9 * static_cast<double>(n * out * in) / seconds[0] << " |" << std::endl;
  }
}

/// The same with W in blocks and x in bfloat16.
void measure_blocks(BlockFormat format,
                    int64_t out,
                    int64_t in,
                    const std::vector<int64_t>& rows,
                    int64_t weight_mib,
                    double budget) {
  const QuantizedMatrix first = quantize(randn({out, in}), format);
  const int64_t bytes = first.bytes().numel();
  Weights weights;
  for (int64_t i = 0; i < std::max<int64_t>(2, (weight_mib << 20) / bytes); ++i) {
    weights.copies.push_back(first.bytes().clone());
  }
  for (const int64_t n : rows) {
    const Tensor x = randn({n, in}).to(kBFloat16);
    const Tensor y = empty({n, out}, kBFloat16);
    const double seconds = best_seconds(
        [&] {
          kernels::gemm_quantized(kBFloat16, n, {format, weights.take(), out, in}, x.raw(), in, 0,
                                  y.raw(), out);
        },
        budget);
    std::cout << "| " << n << " x " << out << " x " << in << " | " << name_of(format) << " | "
              << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / seconds / 1e9
              << " | - | - | " << 2e-9 * static_cast<double>(n * out * in) / seconds << " |"
              << std::endl;
  }
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description options("few_rows_bench");
  options.add_options()("quick", "small shapes, to see that it works")(
      "dtype", po::value<std::string>(), "only float32, bfloat16, float16, q8_0 or q4_0")(
      "rows", po::value<std::vector<int64_t>>()->multitoken(), "of x; default: 1 2 4 8 16 32 64")(
      "matrix", po::value<std::vector<int64_t>>()->multitoken(),
      "OUT IN of W; default: those of a Llama of 1.1 billion parameters")(
      "seconds", po::value<double>()->default_value(0.2), "for each time");
  const std::optional<po::variables_map> parsed = bench::parse_options(argc, argv, options);
  if (!parsed) {
    return 0;
  }
  const po::variables_map& arguments = *parsed;
  const bool quick = arguments.count("quick") != 0;
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 32, 64};
  if (arguments.count("rows") != 0) {
    rows = arguments["rows"].as<std::vector<int64_t>>();
  }
  std::cout
      << num_threads() << " threads, CPU level " << name_of(cpu_level()) << ", "
      << kernels::blas_flavour()
      << ".\n\n| n x out x in | dtype | few rows, GB/s | tiled | OpenBLAS | few rows, GFLOP/s "
         "|\n|---|---|---:|---:|---:|---:|\n";
  struct Matrix {
    int64_t out, in;
  };
  std::vector<Matrix> matrices =
      quick ? std::vector<Matrix>{{96, 64}}
            : std::vector<Matrix>{{2048, 2048}, {5632, 2048}, {2048, 5632}, {32000, 2048}};
  if (arguments.count("matrix") != 0) {
    const auto sizes = arguments["matrix"].as<std::vector<int64_t>>();
    check<ValueError>(sizes.size() == 2, "--matrix needs OUT and IN, got ", sizes.size(), " sizes");
    matrices = {{sizes[0], sizes[1]}};
  }
  for (const DType dtype : {kBFloat16, kFloat32, kFloat16}) {
    if (!bench::is_chosen(arguments, "dtype", name_of(dtype))) {
      continue;
    }
    for (const Matrix& matrix : matrices) {
      measure(dtype, matrix.out, matrix.in, rows, quick ? 0 : 700,
              quick ? 0 : arguments["seconds"].as<double>());
    }
  }
  for (const BlockFormat format : kernels::kBlockFormats) {
    if (!bench::is_chosen(arguments, "dtype", name_of(format))) {
      continue;
    }
    for (const Matrix& matrix : matrices) {
      measure_blocks(format, matrix.out, matrix.in, rows, quick ? 0 : 700,
                     quick ? 0 : arguments["seconds"].as<double>());
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
    std::cerr << "few_rows_bench: " << error.what() << "\n";
    return 2;
  }
}
