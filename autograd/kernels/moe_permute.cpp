#include "autograd/kernels/moe_permute.h"

#include <cassert>

#include "autograd/kernels/cpu.h"
#include "autograd/kernels/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(
    void permute_tokens(const PermuteRows& call, int64_t begin, int64_t end);
    void unpermute_tokens(const UnpermuteRows& call, int64_t begin, int64_t end);
    void unpermute_backward_tokens(const UnpermuteRowsBackward& call, int64_t begin, int64_t end))

namespace {

int64_t tokens_per_thread(const TokenRows& map, int64_t n) {
  return rows_per_thread(n * (map.topk + 1));
}

}  // namespace

void permute_rows(const PermuteRows& call) {
  assert(is_floating(call.dtype));
  const auto run = TAPESTRY_DISPATCH(permute_tokens);
  parallel_for(call.map.tokens, tokens_per_thread(call.map, call.n),
               [&](int64_t begin, int64_t end) { run(call, begin, end); });
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
