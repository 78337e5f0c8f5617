#include "autograd/kernels/losses/cross_entropy.h"

#include <cassert>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(
    void cross_entropy_rows(const CrossEntropyForward& call, int64_t begin, int64_t end);
    void cross_entropy_backward_rows(const CrossEntropyBackward& call, int64_t begin, int64_t end))

namespace {

template <class Call>
void for_rows(const Call& call, void (*run)(const Call&, int64_t, int64_t)) {
  const CrossEntropyShape& s = call.shape;
  assert(is_floating(s.dtype) && s.valid_vocab >= 1 && s.valid_vocab <= s.vocab);
  parallel_for(s.rows, rows_per_thread(s.vocab),
               [&](int64_t begin, int64_t end) { run(call, begin, end); });
}

}  // namespace

void cross_entropy(const CrossEntropyForward& call) {
  for_rows(call, TAPESTRY_DISPATCH(cross_entropy_rows));
}

void cross_entropy_backward(const CrossEntropyBackward& call) {
  for_rows(call, TAPESTRY_DISPATCH(cross_entropy_backward_rows));
}

}  // namespace tapestry::kernels
