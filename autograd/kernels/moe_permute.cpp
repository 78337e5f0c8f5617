#include "autograd/kernels/moe_permute.h"

#include <cassert>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(
    void permute_tokens(const PermuteRows& call, int64_t begin, int64_t end, bool streams);
    void unpermute_tokens(const UnpermuteRows& call, int64_t begin, int64_t end, bool streams);
    void unpermute_backward_tokens(
        const UnpermuteRowsBackward& call, int64_t begin, int64_t end, bool streams))

namespace {

/// Whether results go past the caches: they do not fit into those of a core or two anyway, and
/// their lines would be read before they are written. Rows are whole lines, from the first on.
bool streams(DType dtype, int64_t rows, int64_t n, const void* y) {
  constexpr int64_t kLine = 64;
  constexpr int64_t kLeastBytes = 4 << 20;
  const int64_t row_bytes = n * size_of(dtype);
  return y != nullptr && rows * row_bytes >= kLeastBytes && row_bytes % kLine == 0 &&
         reinterpret_cast<uintptr_t>(y) % kLine == 0;
}

template <class Call, class Run>
void share_tokens(const Call& call, int64_t rows, const void* y, const Run& run) {
  assert(is_floating(call.dtype));
  const bool past = streams(call.dtype, rows, call.n, y);
  parallel_for(call.map.tokens, rows_per_thread(call.n * (call.map.topk + 1)),
               [&](int64_t begin, int64_t end) { run(call, begin, end, past); });
}

}  // namespace

void permute_rows(const PermuteRows& call) {
  share_tokens(call, call.map.tokens * call.map.topk, call.y, TAPESTRY_DISPATCH(permute_tokens));
}

void unpermute_rows(const UnpermuteRows& call) {
  share_tokens(call, call.map.tokens, call.y, TAPESTRY_DISPATCH(unpermute_tokens));
}

void unpermute_rows_backward(const UnpermuteRowsBackward& call) {
  share_tokens(call, call.map.tokens * call.map.topk, call.dx,
               TAPESTRY_DISPATCH(unpermute_backward_tokens));
}

}  // namespace tapestry::kernels
