#include "autograd/kernels/gemm_grouped.h"

#include <cassert>

#include "autograd/kernels/gemm.h"

namespace tapestry::kernels {

void grouped_gemm(const GemmShape& s,
                  GroupAxis axis,
                  std::span<const int64_t> ends,
                  const void* a,
                  const void* b,
                  void* c) {
  assert(ends.empty() || ends.back() == (axis == GroupAxis::kRows ? s.m : s.k));
  int64_t begin = 0;
  int64_t group = 0;
  for (const int64_t end : ends) {
    assert(begin <= end);
    GemmShape own = s;
    own.batch = 1;
    int64_t b_offset = 0;
    int64_t c_offset = 0;
    if (axis == GroupAxis::kRows) {
      own.m = end - begin;
      b_offset = group * s.stride_b;
      c_offset = begin * s.ldc;
    } else {
      own.k = end - begin;
      b_offset = begin * (s.trans_b ? 1 : s.ldb);
      c_offset = group * s.stride_c;
    }
    const bool by_rows = (axis == GroupAxis::kRows) != s.trans_a;
    const int64_t a_offset = begin * (by_rows ? s.lda : 1);
    gemm(own, static_cast<const char*>(a) + a_offset * size_of(s.dtype),
         static_cast<const char*>(b) + b_offset * size_of(s.dtype),
         static_cast<char*>(c) + c_offset * size_of(s.c_dtype));
    begin = end;
    ++group;
  }
}

}  // namespace tapestry::kernels
