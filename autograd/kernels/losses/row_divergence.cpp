#include "autograd/kernels/losses/row_divergence.h"

#include <cassert>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void row_divergence_rows(const RowDivergenceForward& call,
                                                  int64_t begin,
                                                  int64_t end);
                         void row_divergence_backward_rows(const RowDivergenceBackward& call,
                                                           int64_t begin,
                                                           int64_t end))

namespace {

template <class Call>
void for_divergence_rows(const Call& call, void (*run)(const Call&, int64_t, int64_t)) {
  const RowDivergenceShape& s = call.shape;
  assert(is_floating(s.dtype) && is_floating(s.other_dtype) && s.valid_vocab >= 1 &&
         s.valid_vocab <= s.vocab && s.temperature > 0 && s.beta >= 0 && s.beta <= 1);
  parallel_for(s.rows, rows_per_thread(s.vocab),
               [&](int64_t begin, int64_t end) { run(call, begin, end); });
}

}  // namespace

void row_divergence(const RowDivergenceForward& call) {
  for_divergence_rows(call, TAPESTRY_DISPATCH(row_divergence_rows));
}

void row_divergence_backward(const RowDivergenceBackward& call) {
  for_divergence_rows(call, TAPESTRY_DISPATCH(row_divergence_backward_rows));
}

}  // namespace tapestry::kernels
