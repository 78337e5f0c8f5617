// Products y [n, out] = x [n, in] W^T of few rows: W [out, in] is read once, from memory, by the
// whole team, and what little x is stays in the first caches; used by gemm.cpp and
// gemm_quantized.cpp.
//
// An element of y is one sum of vectors over k, then over their lanes, in an order that follows
// from k alone: its bits depend on its own row of x and row of W, not on n, nor on the number of
// threads.
#pragma once

#include <cstdint>

#include "autograd/kernels/gemm/gemm_shape.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

/// How the rows of W lie in memory, and what they are multiplied in.
enum class FewRowsForm : uint8_t {
  kFloat32,
  kBFloat16,       // widened to float32
  kBFloat16Pairs,  // multiplied as such, where has_bfloat16_pairs(): factors below 2^-126 count as
                   // 0
  kFloat16,        // widened
  kQ8,             // blocks of Q8_0, widened to float32
  kQ8Pairs,        // widened to bfloat16, which holds 8 bits exactly
  kQ4,             // the same of Q4_0
  kQ4Pairs,
};

/// One product, as the kernels of a level see it.
struct FewRowsProduct {
  FewRowsForm form;
  DType x_dtype;  // of x and of y, unless y is float32
  DType y_dtype;
  int64_t n;
  int64_t out;
  int64_t k;
  const void* x;
  int64_t ldx;  // elements
  const void* w;
  int64_t w_stride;  // bytes from one row of W to the next
  void* y;
  int64_t ldy;  // elements
  float alpha;
  float beta;
};

// The level kAvx512Bf16 has the forms of pairs, the others have the other forms.
TAPESTRY_DECLARE_PER_ISA_AND_PAIRS(
    // Bytes of x as the form multiplies it.
    int64_t few_rows_packed_bytes(const FewRowsProduct& product);
    // Rows [begin, end) of x in that form.
    void pack_few_rows(const FewRowsProduct& product, int64_t begin, int64_t end, void* packed);
    // Columns [begin, end) of y. Where x goes through the first-level cache in pieces, the first
    // piece of as many rows of W from next on is fetched meanwhile.
    void multiply_few_rows(const FewRowsProduct& product,
                           int64_t begin,
                           int64_t end,
                           int64_t next,
                           const void* packed))

/// Rows of x up to which few_rows_gemm is the fastest way here, or close to it; 0 for dtypes that
/// it does not take.
int64_t most_few_rows(DType dtype);

/// Whether that is the way of a product (of which the batch is not looked at): most_few_rows() at
/// most, with trans_b, without trans_a, and a sum that is not empty.
bool prefers_few_rows(const GemmShape& shape);

/// A product of a shape with trans_b and without trans_a; m, n, k > 0.
FewRowsProduct few_rows_of(const GemmShape& shape, const void* a, const void* b, void* c);

/// Bytes of an element of x as the form multiplies it.
int64_t few_rows_item_bytes(FewRowsForm form);

/// The same, on the team.
void few_rows_gemm(const GemmShape& shape, const void* a, const void* b, void* c);

/// On the team.
void few_rows_product(const FewRowsProduct& product);

}  // namespace tapestry::kernels
