// Matrix products of our own: the left factor is read where it lies, the right one copied panel by
// panel into the second-level cache, and tiles of C are summed in registers; used by gemm.cpp only.
// 16-bit factors are converted to float32 as they are copied (the left one is copied too), or
// multiplied in pairs where the processor does that faster.
//
// Each element of C is one sum in the order of k (in blocks of kMaxDepth items), however many
// threads there are and whatever the other rows and columns: its bits depend on its own row of A
// and column of B alone.
#pragma once

#include <cstdint>

#include "autograd/kernels/gemm/gemm_shape.h"
#include "autograd/kernels/machine/bfloat16_pairs.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels {

struct LeafSums;  // gemm_leaves.h

/// One block of rows and of the sum, as the kernels of a level see it.
///
/// The sum runs over items of four bytes: a float32, or a pair of bfloat16 that are neighbours in
/// k (the last one with a zero if k is odd). A tile is tile_rows(level) rows.
struct TiledProduct {
  DType dtype;    // kFloat32, kBFloat16 or kFloat16
  DType c_dtype;  // dtype or kFloat32; of sums of leaves in units, kFloat64
  bool pairs;     // items are pairs of bfloat16; otherwise float32
  bool trans_a;
  bool trans_b;
  int64_t m;
  int64_t n;
  int64_t k;
  const void* a;  // [m,k], or [k,m] if trans_a
  int64_t lda;
  const void* b;  // [k,n], or [n,k] if trans_b
  int64_t ldb;
  void* c;
  int64_t ldc;
  float alpha;
  float beta;
  /// Tiles of A from `first_packed` on, each [items, tile rows] with zeros below the last row, or
  /// [tile rows, items] where rows of 16 bits were converted; the tiles before it are read from
  /// `a`.
  void* packed_a;
  int64_t first_packed;
  /// float32 [m,n] to which the sum is added before it goes to C; null: to zero.
  const float* addend;
  /// The sum is cut into leaves: there is no addend, and where C is float64 beta does not count.
  /// Null: it is not.
  const LeafSums* leaves;
  /// What is summed after these items, in items of its own. Neither factor A is transposed then,
  /// nor made of 16 bits that are converted, and there are no leaves. Null: nothing.
  const GemmTail* tail;
};

/// Memory that somebody reads or writes next, to be on its way into the second-level cache before.
struct ComingRows {
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t row_bytes = 0;
  int64_t stride_bytes = 0;
};

/// Blocks of the sum, in items: a panel of B of that depth stays in the second-level cache.
inline constexpr int64_t kMaxDepth = 2048;

TAPESTRY_DECLARE_PER_ISA(
    // Rows of a tile, columns of a vector, vectors of a panel (the last panels may have fewer).
    int64_t tile_rows(); int64_t tile_columns(); int64_t panel_vectors();
    // What multiply_share() needs for panels that are packed together.
    int64_t panel_bytes(int64_t m, int64_t n, int64_t items))

// The level kAvx512Bf16 has the products of pairs, the others have those of float32 items.
TAPESTRY_DECLARE_PER_ISA_AND_PAIRS(
    // Fills packed_a for tiles [begin, end), counted from first_packed on.
    void pack_tiles(const TiledProduct& product, int64_t begin, int64_t end);
    // Copies all of B, panel after panel, to `panels`: k items x n, whole vectors of columns.
    void pack_all_panels(const TiledProduct& product, void* panels);
    // All columns of the tiles [begin, end), from what that has copied.
    void multiply_tiles(
        const TiledProduct& product, int64_t begin, int64_t end, const void* panels);
    // The same, panel by panel; during each it fetches the C of the next one, if it reads that, and
    // during the last one what comes.
    void multiply_tiles_fetching(const TiledProduct& product,
                                 int64_t begin,
                                 int64_t end,
                                 const void* panels,
                                 const ComingRows& coming);
    // Computes its share of C: the work is cut into tiles x vectors of columns, panel after panel,
    // and [begin, end) of these is done. `panel` has panel_bytes().
    void multiply_share(const TiledProduct& product, int64_t begin, int64_t end, void* panel))

/// Whether tiled_gemm takes that dtype at the level in use: float32 always, bfloat16 and float16
/// from AVX2 on.
bool has_tiled_gemm(DType dtype);

/// The product of one block, on the team, but for packed_a and first_packed, which are set here.
void multiply_tiled(const TiledProduct& given);

/// Rows of C in a block, as even as they can be.
int64_t rows_of_block(int64_t m, bool packs_a);

/// One product (the batch of the shape is not looked at) of a dtype that has_tiled_gemm; m, n, k >
/// 0. C of a 16-bit product has that dtype or is float32. `pairs`, for bfloat16 only and where
/// has_bfloat16_pairs(): without conversion to float32.
void tiled_gemm(const GemmShape& shape,
                const void* a,
                const void* b,
                void* c,
                bool pairs,
                const GemmTail* tail = nullptr);

/// In pairs where that is preferred.
void tiled_gemm(const GemmShape& shape, const void* a, const void* b, void* c);

/// The same with a tail, of a shape that takes_tail().
void tiled_gemm(
    const GemmShape& shape, const void* a, const void* b, void* c, const GemmTail& tail);

/// Whether tiles sum a tail of that product in the same run: A is read where it lies, as float32 or
/// as pairs of bfloat16.
bool takes_tail(const GemmShape& shape, const GemmTail& tail);

}  // namespace tapestry::kernels
