// Times the products and permutations of a mixture of experts beside what they could be at best:
// the products of all groups beside one dense product of as many rows with one weight, permutations
// beside the memory bandwidth that an axpy reaches. Prints Markdown tables.
//
// The two of a line take turns, so that a slow spell of the machine meets both; a time is the best
// of the turns.
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
#include "autograd/kernels/gemm/gemm_grouped.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/moe_permute.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/elementwise.h"
#include "autograd/ops/random.h"
#include "autograd/ops/transformer/moe_permute.h"
#include "autograd/tensor/factory.h"
#include "bench/bench_options.h"

namespace tapestry {
namespace {

using kernels::GemmShape;
using kernels::GroupAxis;

constexpr int64_t kExperts = 16;
constexpr int64_t kHidden = 768;
constexpr int64_t kFfn = 1536;

struct Load {
  std::string_view name;
  std::vector<int64_t> ends;
};

Load even_load(std::string_view name, int64_t rows) {
  Load load{name, {}};
  for (int64_t e = 1; e <= kExperts; ++e) {
    load.ends.push_back(e * rows);
  }
  return load;
}

/// One expert, in the middle, has half of the rows; the others share the rest as evenly as can be.
Load half_load(std::string_view name, int64_t rows) {
  Load load{name, {}};
  int64_t end = 0;
  for (int64_t e = 0; e < kExperts; ++e) {
    const int64_t other = e < kExperts / 2 ? e : e - 1;
    const int64_t rest = rows - rows / 2;
    end += e == kExperts / 2 ? rows / 2
                             : rest * (other + 1) / (kExperts - 1) - rest * other / (kExperts - 1);
    load.ends.push_back(end);
  }
  return load;
}

/// The shortest time of each, in seconds.
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
      if (turn > 0) {  // the first warms caches, pages and the libraries' own set-up
        best[i] = std::min(best[i], seconds);
      }
    }
  }
  return best;
}

std::string number(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

struct Product {
  std::string_view name;
  GroupAxis axis;
  GemmShape shape;  // of all rows and one weight: the dense product
};

std::vector<Product> products_of(int64_t rows, DType dtype) {
  const GemmShape forward = {.dtype = dtype,
                             .c_dtype = dtype,
                             .trans_b = true,
                             .m = rows,
                             .n = kFfn,
                             .k = kHidden,
                             .lda = kHidden,
                             .ldb = kHidden,
                             .stride_b = kFfn * kHidden,
                             .ldc = kFfn};
  const GemmShape input = {.dtype = dtype,
                           .c_dtype = dtype,
                           .m = rows,
                           .n = kHidden,
                           .k = kFfn,
                           .lda = kFfn,
                           .ldb = kHidden,
                           .stride_b = kFfn * kHidden,
                           .ldc = kHidden};
  const GemmShape weight = {.dtype = dtype,
                            .c_dtype = kFloat32,
                            .trans_a = true,
                            .m = kFfn,
                            .n = kHidden,
                            .k = rows,
                            .lda = kFfn,
                            .ldb = kHidden,
                            .ldc = kHidden,
                            .stride_c = kFfn * kHidden};
  GemmShape added = weight;
  added.beta = 1;
  return {{"y", GroupAxis::kRows, forward},
          {"dx", GroupAxis::kRows, input},
          {"dW", GroupAxis::kSum, weight},
          {"dW +=", GroupAxis::kSum, added}};
}

void measure_products(const Load& load, DType dtype, double budget) {
  const int64_t rows = load.ends.back();
  const Tensor x = (randn({rows, kHidden}) * 0.1).to(dtype);
  const Tensor dy = (randn({rows, kFfn}) * 0.1).to(dtype);
  const Tensor weight = (randn({kExperts, kFfn, kHidden}) * 0.1).to(dtype);
  const Tensor gradient = zeros({kExperts, kFfn, kHidden});
  const Tensor y = zeros({rows, kFfn}, dtype);
  const Tensor dx = zeros({rows, kHidden}, dtype);
  double dense_total = 0;
  double grouped_total = 0;
  for (const Product& product : products_of(rows, dtype)) {
    const bool is_forward = product.name == "y";
    const bool by_rows = product.axis == GroupAxis::kRows;
    const void* a = is_forward ? x.raw() : dy.raw();
    const void* b = by_rows ? weight.raw() : x.raw();
    void* c = by_rows ? (is_forward ? y.raw() : dx.raw()) : gradient.raw();
    GemmShape dense = product.shape;
    dense.stride_b = dense.stride_c = 0;
    const std::vector<double> seconds =
        race({[&] { kernels::gemm(dense, a, b, c); },
              [&] { kernels::grouped_gemm(product.shape, product.axis, load.ends, a, b, c); }},
             budget);
    const double work = 2e-9 * static_cast<double>(rows * kFfn * kHidden);
    std::cout << "| " << load.name << " | " << name_of(dtype) << " | " << product.name << " | "
              << number(work / seconds[0], 1) << " | " << number(work / seconds[1], 1) << " | "
              << number(seconds[0] / seconds[1], 2) << " |" << std::endl;
    if (product.name != "dW +=") {
      dense_total += seconds[0];
      grouped_total += seconds[1];
    }
  }
  std::cout << "| " << load.name << " | " << name_of(dtype) << " | y, dx, dW | | | "
            << number(dense_total / grouped_total, 2) << " |" << std::endl;
}

void measure_permutations(int64_t tokens, int64_t topk, DType dtype, double budget) {
  std::vector<int32_t> experts;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < topk; ++j) {
      experts.push_back(static_cast<int32_t>((t * 7 + t / 5 + j * 5) % kExperts));
    }
  }
  std::vector<int64_t> counts;
  const RowMap map = row_map(experts, topk, kExperts, {}, counts);
  const kernels::TokenRows rows = {tokens, topk, map.rows.data()};
  const int64_t total = tokens * topk;
  const Tensor x = randn({tokens, kHidden}).to(dtype);
  const Tensor sorted = randn({total, kHidden}).to(dtype);
  const Tensor sorted_out = zeros({total, kHidden}, dtype);
  const Tensor out = zeros({tokens, kHidden}, dtype);
  const Tensor gates = randn({tokens, topk});
  const Tensor dgates = zeros({tokens, topk});
  constexpr int64_t kTriad = int64_t{1} << 25;
  const Tensor a = randn({kTriad});
  const Tensor b = randn({kTriad});
  const std::vector<double> seconds = race(
      {[&] { kernels::axpy(kFloat32, kTriad, 1e-3, a.raw(), b.raw()); },
       [&] {
         kernels::permute_rows({dtype, rows, kHidden, x.raw(), kHidden, sorted_out.raw()});
       },
       [&] {
         kernels::unpermute_rows({dtype, rows, kHidden, sorted.raw(), kHidden, nullptr, out.raw()});
       },
       [&] {
         kernels::unpermute_rows(
             {dtype, rows, kHidden, sorted.raw(), kHidden, gates.raw(), out.raw()});
       },
       [&] {
         kernels::unpermute_rows_backward({dtype, rows, kHidden, sorted.raw(), kHidden, gates.raw(),
                                           x.raw(), kHidden, sorted_out.raw(), dgates.raw()});
       }},
      budget);
  const auto bytes = [&](int64_t passes_of_tokens, int64_t passes_of_rows) {
    return 1e-9 * static_cast<double>((passes_of_tokens + passes_of_rows * topk) * tokens *
                                      kHidden * size_of(dtype));
  };
  const double bandwidth = 1e-9 * 12 * kTriad / seconds[0];
  const std::array<std::string_view, 4> names = {"permute", "permute, backward", "unpermute",
                                                 "unpermute, backward"};
  const std::array<double, 4> moved = {bytes(1, 1), bytes(1, 1), bytes(1, 1), bytes(1, 2)};
  for (size_t i = 0; i < names.size(); ++i) {
    const double speed = moved[i] / seconds[i + 1];
    std::cout << "| " << tokens << " x " << kHidden << ", k = " << topk << " | " << name_of(dtype)
              << " | " << names[i] << " | " << number(bandwidth, 1) << " | " << number(speed, 1)
              << " | " << number(speed / bandwidth, 2) << " |" << std::endl;
  }
}

int run(int argc, char** argv) {
  namespace po = boost::program_options;
  po::options_description options("grouped_bench");
  options.add_options()("dtype", po::value<std::string>(), "only float32, bfloat16 or float16")(
      "load", po::value<std::string>(), "only 64, 256 (rows for each expert) or half")(
      "only", po::value<std::string>(), "products or permutations")(
      "seconds", po::value<double>()->default_value(0.5), "for each line");
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
            << kernels::blas_flavour() << ".\n";
  if (wanted("only", "products")) {
    std::cout << "\n| rows | dtype | product | dense GFLOP/s | grouped GFLOP/s | of it |\n"
                 "|---|---|---|---:|---:|---:|\n";
    for (const DType dtype : {kFloat32, kBFloat16, kFloat16}) {
      for (const Load& load :
           {even_load("64", 64), even_load("256", 256), half_load("half", 4096)}) {
        if (wanted("dtype", name_of(dtype)) && wanted("load", load.name)) {
          measure_products(load, dtype, budget);
        }
      }
    }
  }
  if (wanted("only", "permutations")) {
    std::cout << "\n| tokens | dtype | | axpy GB/s | GB/s | of it |\n"
                 "|---|---|---|---:|---:|---:|\n";
    for (const DType dtype : {kFloat32, kBFloat16}) {
      for (const int64_t tokens : {2048, 16384}) {
        if (wanted("dtype", name_of(dtype))) {
          measure_permutations(tokens, 2, dtype, budget);
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
    std::cerr << "grouped_bench: " << error.what() << "\n";
    return 2;
  }
}
