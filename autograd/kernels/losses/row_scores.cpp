#include "autograd/kernels/losses/row_scores.h"

#include <cassert>

#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(
    void scores_of_rows(const RowScoresForward& call, int64_t begin, int64_t end);
    void scores_backward_of_rows(const RowScoresBackward& call, int64_t begin, int64_t end))

namespace {

template <class Call>
void for_scored_rows(const Call& call, void (*run)(const Call&, int64_t, int64_t)) {
  const RowScoresShape& s = call.shape;
  assert(is_floating(s.dtype) && s.valid_vocab >= 1 && s.valid_vocab <= s.vocab &&
         s.temperature > 0);
  parallel_for(s.rows, rows_per_thread(s.vocab),
               [&](int64_t begin, int64_t end) { run(call, begin, end); });
}

}  // namespace

void row_scores(const RowScoresForward& call) {
  for_scored_rows(call, TAPESTRY_DISPATCH(scores_of_rows));
}

void row_scores_backward(const RowScoresBackward& call) {
  for_scored_rows(call, TAPESTRY_DISPATCH(scores_backward_of_rows));
}

}  // namespace tapestry::kernels
