#include "autograd/kernels/moe_permute.h"

#include <cassert>

#include "autograd/kernels/cpu.h"
#include "autograd/kernels/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(
    void permute_tokens(const PermuteRows& call, int64_t begin, int64_t end, bool streams);
    void unpermute_tokens(const UnpermuteRows& call, int64_t begin, int64_t end);
    void unpermute_backward_tokens(const UnpermuteRowsBackward& call, int64_t begin, int64_t end))

namespace {

int64_t tokens_per_thread(const TokenRows& map, int64_t n) {
  return rows_per_thread(n * (map.topk + 1));
}

/// Whether copies go past the caches: they do not fit into those of a core or two anyway, and their
/// lines would be read before they are written, 0.4 of all traffic. Rows are whole lines, from the
/// first on. (Sums of rows are slower that way: they wait for what they read.)
bool streams(DType dtype, int64_t rows, int64_t n, const void* y) {
  constexpr int64_t kLine = 64;
  constexpr int64_t kLeastBytes = 4 << 20;
  const int64_t row_bytes = n * size_of(dtype);
  return rows * row_bytes >= kLeastBytes && row_bytes % kLine == 0 &&
         reinterpret_cast<uintptr_t>(y) % kLine == 0;
}

}  // namespace

void permute_rows(const PermuteRows& call) {
  assert(is_floating(call.dtype));
  const auto run = TAPESTRY_DISPATCH(permute_tokens);
  const bool past = streams(call.dtype, call.map.tokens * call.map.topk, call.n, call.y);
  parallel_for(call.map.tokens, tokens_per_thread(call.map, call.n),
               [&](int64_t begin, int64_t end) { run(call, begin, end, past); });
}

void unpermute_rows(const UnpermuteRows& call) {
  assert(is_floating(call.dtype));
  const auto run = TAPESTRY_DISPATCH(unpermute_tokens);
  parallel_for(call.map.tokens, tokens_per_thread(call.map, call.n),
               [&](int64_t begin, int64_t end) { run(call, begin, end); });
}

void unpermute_rows_backward(const UnpermuteRowsBackward& call) {
  assert(is_floating(call.dtype));
  const auto run = TAPESTRY_DISPATCH(unpermute_backward_tokens);
  parallel_for(call.map.tokens, tokens_per_thread(call.map, call.n),
               [&](int64_t begin, int64_t end) { run(call, begin, end); });
}

}  // namespace tapestry::kernels
