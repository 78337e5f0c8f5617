#include "autograd/kernels/cross_entropy.h"

#include <cassert>

#include "autograd/kernels/cpu.h"
#include "autograd/kernels/parallel_for.h"

namespace tapestry::kernels {

TAPESTRY_DECLARE_PER_ISA(void cross_entropy_rows(DType dtype,
                                                 int64_t begin,
                                                 int64_t end,
                                                 int64_t vocab,
                                                 int64_t valid_vocab,
                                                 const void* logits,
                                                 const int64_t* labels,
                                                 int64_t ignore_index,
                                                 void* loss,
                                                 void* lse))
TAPESTRY_DECLARE_PER_ISA(void cross_entropy_backward_rows(DType dtype,
                                                          int64_t begin,
                                                          int64_t end,
                                                          int64_t vocab,
                                                          int64_t valid_vocab,
                                                          const void* logits,
                                                          const int64_t* labels,
                                                          int64_t ignore_index,
                                                          const void* lse,
                                                          const void* dloss,
                                                          void* dlogits))

namespace {

int64_t rows_per_thread(int64_t vocab) {
  return std::max<int64_t>(kGrainSize / 4 / std::max<int64_t>(vocab, 1), 1);
}

}  // namespace

void cross_entropy(DType dtype,
                   int64_t rows,
                   int64_t vocab,
                   int64_t valid_vocab,
                   const void* logits,
                   const int64_t* labels,
                   int64_t ignore_index,
                   void* loss,
                   void* lse) {
  assert(is_floating(dtype) && valid_vocab >= 1 && valid_vocab <= vocab);
  const auto run = TAPESTRY_DISPATCH(cross_entropy_rows);
  parallel_for(rows, rows_per_thread(vocab), [&](int64_t begin, int64_t end) {
    run(dtype, begin, end, vocab, valid_vocab, logits, labels, ignore_index, loss, lse);
  });
}

void cross_entropy_backward(DType dtype,
                            int64_t rows,
                            int64_t vocab,
                            int64_t valid_vocab,
                            const void* logits,
                            const int64_t* labels,
                            int64_t ignore_index,
                            const void* lse,
                            const void* dloss,
                            void* dlogits) {
  assert(is_floating(dtype) && valid_vocab >= 1 && valid_vocab <= vocab);
  const auto run = TAPESTRY_DISPATCH(cross_entropy_backward_rows);
  parallel_for(rows, rows_per_thread(vocab), [&](int64_t begin, int64_t end) {
    run(dtype, begin, end, vocab, valid_vocab, logits, labels, ignore_index, lse, dloss, dlogits);
  });
}

}  // namespace tapestry::kernels
