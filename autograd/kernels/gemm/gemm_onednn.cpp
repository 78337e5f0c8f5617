#include "autograd/kernels/gemm/gemm_onednn.h"

#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "autograd/kernels/gemm/gemm.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/scratch.h"
#include "autograd/kernels/machine/team.h"

namespace tapestry::kernels {

namespace {

using Memory = dnnl::memory;

struct ShapeHash {
  size_t operator()(const GemmShape& s) const {
    size_t hash = 0;
    for (const int64_t value :
         {static_cast<int64_t>(s.dtype), static_cast<int64_t>(s.c_dtype),
          static_cast<int64_t>(s.trans_a), static_cast<int64_t>(s.trans_b), s.batch, s.m, s.n, s.k,
          s.lda, s.ldb, s.ldc, s.stride_a, s.stride_b}) {
      hash = (hash ^ static_cast<size_t>(value)) * 0x9e3779b97f4a7c15ULL;
      hash ^= hash >> 29U;
    }
    return hash;
  }
};

const dnnl::engine& engine() {
  static const dnnl::engine cpu = [] {
    if (cpu_level() < CpuLevel::kAmx) {  // only before the library's first use, hence for good
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
    }
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return cpu;
}

/// A compiled product with its arguments' places. One per thread, so that these can be set.
struct Product {
  dnnl::matmul primitive;
  Memory a;
  Memory b;
  Memory c;
  Memory scratchpad;  // left to itself the library takes fresh pages from the system in each call
  int64_t scratchpad_bytes;
};

Memory::data_type type_of(DType dtype) {
  return dtype == kFloat32 ? Memory::data_type::f32 : Memory::data_type::bf16;
}

Memory::desc describe(DType dtype,
                      int64_t batch,
                      int64_t stride,
                      int64_t rows,
                      int64_t cols,
                      int64_t ld,
                      bool trans) {
  const int64_t row_stride = trans ? 1 : ld;
  const int64_t col_stride = trans ? ld : 1;
  if (batch == 1) {
    return {{rows, cols}, type_of(dtype), {row_stride, col_stride}};
  }
  const int64_t matrices = stride == 0 ? 1 : batch;  // one matrix is broadcast
  return {{matrices, rows, cols},
          type_of(dtype),
          {stride == 0 ? rows * cols : stride, row_stride, col_stride}};
}

// Without OpenMP nothing is sent to oneDNN, see has_native_gemm.
[[maybe_unused]] std::optional<Product> compile(const GemmShape& s) {
  const auto a = describe(s.dtype, s.batch, s.stride_a, s.m, s.k, s.lda, s.trans_a);
  const auto b = describe(s.dtype, s.batch, s.stride_b, s.k, s.n, s.ldb, s.trans_b);
  const auto c = describe(s.c_dtype, s.batch, s.stride_c, s.m, s.n, s.ldc, false);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.alpha != 1) {
    attr.set_output_scales(0, {static_cast<float>(s.alpha)});
  }
  if (s.beta != 0) {
    dnnl::post_ops sum;
    sum.append_sum(static_cast<float>(s.beta));
    attr.set_post_ops(sum);
  }
  const dnnl::matmul::primitive_desc found(dnnl::matmul::desc(a, b, c), attr, engine(),
                                           /*allow_empty=*/true);
  if (!found) {
    return std::nullopt;
  }
  // The reference implementation is thousands of times slower than conversion to float32. Of the
  // float32 kernels only those called brg can be used: the others keep an address in the stack
  // pointer while they run, and a signal that arrives meanwhile is delivered into the heap.
  const std::string_view name = found.impl_info_str();
  if (name.substr(0, 3) == "ref" || (s.dtype == kFloat32 && name.substr(0, 3) != "brg")) {
    return std::nullopt;
  }
  return Product{dnnl::matmul(found),
                 Memory(a, engine(), nullptr),
                 Memory(b, engine(), nullptr),
                 Memory(c, engine(), nullptr),
                 Memory(found.scratchpad_desc(), engine(), nullptr),
                 static_cast<int64_t>(found.scratchpad_desc().get_size())};
}

}  // namespace

bool has_onednn_gemm(DType dtype) {
#if defined(_OPENMP) && defined(__x86_64__)
  return dtype == kBFloat16 && cpu_level() == CpuLevel::kAmx;
#else
  // Without OpenMP, oneDNN's own team would run against the promise of a single thread.
  (void)dtype;
  return false;
#endif
}

bool onednn_gemm(const GemmShape& shape, const void* a, const void* b, void* c) {
  constexpr size_t kMaxProducts = 1024;
  thread_local std::unordered_map<GemmShape, std::optional<Product>, ShapeHash> products;
  const LibraryAlone alone;  // a product is compiled for as many threads as it runs on
  auto found = products.find(shape);
  if (found == products.end()) {
    if (products.size() >= kMaxProducts) {
      products.clear();
    }
    found = products.emplace(shape, compile(shape)).first;
  }
  if (!found->second) {
    return false;
  }
  thread_local dnnl::stream stream(engine());
  Product& product = *found->second;
  product.a.set_data_handle(const_cast<void*>(a), stream);
  product.b.set_data_handle(const_cast<void*>(b), stream);
  product.c.set_data_handle(c, stream);
  const Scratch scratchpad =
      product.scratchpad_bytes > 0 ? Scratch(product.scratchpad_bytes) : Scratch();
  product.scratchpad.set_data_handle(scratchpad.get(), stream);
  product.primitive.execute(stream, {{DNNL_ARG_SRC, product.a},
                                     {DNNL_ARG_WEIGHTS, product.b},
                                     {DNNL_ARG_DST, product.c},
                                     {DNNL_ARG_SCRATCHPAD, product.scratchpad}});
  stream.wait();
  return true;
}

}  // namespace tapestry::kernels
