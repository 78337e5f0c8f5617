// Measures the limits that the other figures are held against: the rate of matrix products through
// the library's own seam (kernels::gemm), that of the arithmetic alone, and the memory bandwidth;
// and how far apart the processors are (core_round_trip.h), before and after. Prints one JSON
// object.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/program_options.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/ops/random.h"
#include "autograd/tensor/factory.h"
#include "bench/arithmetic_peak.h"
#include "bench/bench_options.h"
#include "bench/core_round_trip.h"

namespace tapestry {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// Shortest time of one call in seconds: at least three calls, more until `budget` is used up.
double best_seconds(const std::function<void()>& work, double budget) {
  work();  // warms caches, pages and the library's own set-up
  double best = std::numeric_limits<double>::infinity();
  double total = 0;
  for (int calls = 0; calls < 3 || total < budget; ++calls) {
    const auto start = Clock::now();
    work();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

struct LinearShape {
  int64_t m, n, k;
};

/// y = x weight^T in GFLOP/s, as a linear layer of `shape.k` inputs and `shape.n` outputs.
double gemm_rate(DType dtype, const LinearShape& shape, double budget) {
  const Tensor x = randn({shape.m, shape.k}).to(dtype);
  const Tensor weight = randn({shape.n, shape.k}).to(dtype);
  const Tensor y = empty({shape.m, shape.n}, dtype);
  const double seconds = best_seconds(
      [&] {
        kernels::gemm({.dtype = dtype,
                       .c_dtype = dtype,
                       .trans_b = true,
                       .m = shape.m,
                       .n = shape.n,
                       .k = shape.k,
                       .lda = shape.k,
                       .ldb = shape.k,
                       .ldc = shape.n},
                      x.raw(), weight.raw(), y.raw());
      },
      budget);
  return 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
         static_cast<double>(shape.k) / seconds / 1e9;
}

Json gemm_rates(DType dtype, const std::vector<LinearShape>& shapes, double budget) {
  Json rates;
  double peak = 0;
  for (const LinearShape& shape : shapes) {
    const double rate = gemm_rate(dtype, shape, budget);
    rates[std::to_string(shape.m) + "x" + std::to_string(shape.n) + "x" + std::to_string(shape.k)] =
        rate;
    peak = std::max(peak, rate);
  }
  return {{"peak_gflops", peak}, {"gflops", rates}};
}

constexpr double kFactor = 1e-3;

// a = b + s c: two arrays are read and one is written (and, by most processors, read before).
void triad(int64_t n, const double* b, const double* c, double* a) {
  kernels::parallel_for(n, kernels::kGrainSize, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      a[i] = b[i] + kFactor * c[i];
    }
  });
}

// a = a + s b: what is written was needed anyway, as in an optimizer's update.
void update(int64_t n, const double* b, double* a) {
  kernels::parallel_for(n, kernels::kGrainSize, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      a[i] += kFactor * b[i];
    }
  });
}

// Reading alone, as a product of one row reads its weights. Sums of integers are the same in any
// order, so that the compiler may keep as many as it likes.
uint64_t read(int64_t n, const double* a) {
  const auto* words = reinterpret_cast<const uint64_t*>(a);
  std::atomic<uint64_t> total = 0;
  kernels::parallel_for(n, kernels::kGrainSize, [&total, words](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      sum += words[i];
    }
    total += sum;
  });
  return total;
}

int64_t last_level_cache_bytes() {
  const int64_t bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? bytes : int64_t{32} << 20;
}

Json bandwidth(int64_t array_bytes, double budget) {
  const int64_t n = array_bytes / static_cast<int64_t>(sizeof(double));
  const Tensor a = ones({n}, kFloat64);
  const Tensor b = ones({n}, kFloat64);
  const Tensor c = ones({n}, kFloat64);
  const auto moved = 3.0 * static_cast<double>(n) * sizeof(double) / 1e9;
  auto* pa = a.data<double>();
  const auto* pb = b.data<double>();
  const auto* pc = c.data<double>();
  const double triad_rate = moved / best_seconds([=] { triad(n, pb, pc, pa); }, budget);
  const double update_rate = moved / best_seconds([=] { update(n, pb, pa); }, budget);
  uint64_t sum = 0;
  const double read_seconds = best_seconds([&sum, n, pa] { sum += read(n, pa); }, budget);
  const double read_rate = sum == 0 ? 0 : moved / 3 / read_seconds;  // ones are not 0
  return {{"peak_gbs", std::max(triad_rate, update_rate)},
          {"read_gbs", read_rate},
          {"triad_gbs", triad_rate},
          {"update_gbs", update_rate},
          {"array_bytes", array_bytes},
          {"last_level_cache_bytes", last_level_cache_bytes()}};
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description options("machine_bench");
  options.add_options()("quick", "small shapes, to see that it works")(
      "round-trip", "only how far apart the processors are: near or far")(
      "array_mib", po::value<int64_t>(),
      "size of each of the three arrays of the bandwidth test; default: the last-level cache's, at "
      "least 256");
  const std::optional<po::variables_map> parsed = bench::parse_options(argc, argv, options);
  if (!parsed) {
    return 0;
  }
  const po::variables_map& arguments = *parsed;
  Json out;
  const bench::CoreRoundTrip before = bench::core_round_trip();
  out["round_trip_ns"] = before.largest;
  out["state"] = bench::state_of(before);
  out["round_trip_least_ns"] = before.least;
  out["round_trip_median_ns"] = before.median;
  if (arguments.count("round-trip") != 0) {
    std::cout << out.dump() << "\n";
    return 0;
  }
  const bool quick = arguments.count("quick") != 0;
  int64_t array_bytes = std::max(last_level_cache_bytes(), int64_t{256} << 20);
  if (arguments.count("array_mib") != 0) {
    array_bytes = arguments["array_mib"].as<int64_t>() << 20;
  } else if (quick) {
    array_bytes = int64_t{16} << 20;
  }
  const double budget = quick ? 0.0 : 1.0;
  const std::vector<LinearShape> shapes = quick ? std::vector<LinearShape>{{256, 256, 256}}
                                                : std::vector<LinearShape>{{1024, 3072, 768},
                                                                           {1024, 768, 3072},
                                                                           {1024, 50304, 768},
                                                                           {2048, 2048, 2048},
                                                                           {4096, 4096, 4096}};
  out["tapestry"] = TAPESTRY_VERSION;
  out["threads"] = num_threads();
  out["cpu_level"] = name_of(cpu_level());
  out["blas"] = kernels::blas_flavour();
  out["gemm"]["float32"] = gemm_rates(kFloat32, shapes, budget);
  out["gemm"]["bfloat16"] = gemm_rates(kBFloat16, shapes, budget);
  out["gemm"]["bfloat16"]["native"] = kernels::has_native_gemm(kBFloat16);
  for (const DType dtype : {kFloat32, kBFloat16}) {
    out["arithmetic"][std::string(name_of(dtype))]["peak_gflops"] = arithmetic_peak(dtype, budget);
  }
  out["memory"] = bandwidth(array_bytes, budget);
  const bench::CoreRoundTrip after = bench::core_round_trip();
  out["round_trip_ns_after"] = after.largest;
  out["state_after"] = bench::state_of(after);
  std::cout << out.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace tapestry

int main(int argc, char** argv) {
  try {
    return tapestry::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "machine_bench: " << error.what() << "\n";
    return 2;
  }
}
