#include "autograd/kernels/gemm/gemm_tiled.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <new>

#include "autograd/kernels/gemm/gemm_leaves.h"
#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/exact.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

namespace {

/// Rows of A and C that one pass over the panels of B serves: enough to make their packing cheap,
/// few enough that these rows stay in the last-level cache.
constexpr int64_t kMaxRows = 2048;
constexpr int64_t kMaxPackedRows = 1024;

/// Multiplications below which a thread more costs more than it gains.
constexpr int64_t kLeastShare = int64_t{1} << 18;

/// Rows of a thread from which on copying all of B for them is cheap, and how much of it is copied:
/// it stays in the second-level cache. Where these rows are copied as well, fewer are enough if B
/// has few columns: what another thread has copied takes as long to fetch as to copy.
constexpr int64_t kLeastRows = 96;
constexpr int64_t kMostColumnsPerCopiedRow = 4;
constexpr int64_t kMostPacked = 1 << 20;

/// The size of the parts when n is cut into equal ones of at most `most`, in whole units.
int64_t even_part(int64_t n, int64_t most, int64_t unit) {
  return ceil_div(ceil_div(n, ceil_div(n, most)), unit) * unit;
}

int64_t packed_bytes(const TiledProduct& product, int64_t items) {
  const int64_t columns = TAPESTRY_DISPATCH(tile_columns)();
  return items * ceil_div(product.n, columns) * columns * size_of(kFloat32);
}

const char* offset(const void* x, DType dtype, int64_t elements) {
  return static_cast<const char*>(x) + elements * size_of(dtype);
}

/// What the shares of threads follow from.
struct Work {
  int64_t items;   // of the sum
  int64_t tiles;   // of rows of A
  int64_t packed;  // of them, copied before they are multiplied
  int64_t team;
};

/// Scratch of each thread, in one piece: the next product finds the same piece, and each thread its
/// own part of it in its own cache.
class MemoryOfThreads {
 public:
  MemoryOfThreads(int64_t team, int64_t bytes)
      : bytes_(ceil_div(bytes, kScratchAlignment) * kScratchAlignment), memory_(team * bytes_) {}
  void* of(int64_t thread) const { return static_cast<char*>(memory_.get()) + thread * bytes_; }

 private:
  int64_t bytes_;
  Scratch memory_;
};

/// The columns are divided: threads take panels of B, and all rows of A pass over each.
void multiply_by_panels(const TiledProduct& product, const Work& work, int64_t least) {
  const int64_t tile_work = TAPESTRY_DISPATCH(tile_rows)() * product.k;
  parallel_for(work.packed, std::max<int64_t>(1, kGrainSize / tile_work),
               [&](int64_t begin, int64_t end) {
                 TAPESTRY_DISPATCH_PAIRS(product.pairs, pack_tiles)(product, begin, end);
               });
  const int64_t columns = TAPESTRY_DISPATCH(tile_columns)();
  const int64_t units = work.tiles * ceil_div(product.n, columns);
  const int64_t panel_units = TAPESTRY_DISPATCH(panel_vectors)() * work.tiles;
  const int64_t team = work.team;
  std::atomic<int64_t> taken = 0;
  const MemoryOfThreads panels(team,
                               TAPESTRY_DISPATCH(panel_bytes)(product.m, product.n, work.items));
  parallel_for(team, 1, [&](int64_t first, int64_t last) {
    void* const panel = panels.of(first);
    const bool alone = last - first == team;
    int64_t begin = taken;
    while (begin < units) {
      // Ever smaller shares for whoever is free, so that a core that others slow down gets fewer. A
      // panel in two shares is packed twice: that pays only near the end.
      const int64_t left = units - begin;
      int64_t share = alone ? left : std::clamp(left / (2 * team), std::min(least, left), left);
      if (share > panel_units && share < left) {
        share -= share % panel_units;
      }
      if (taken.compare_exchange_weak(begin, begin + share)) {
        TAPESTRY_DISPATCH_PAIRS(product.pairs, multiply_share)
        (product, begin, begin + share, panel);
        begin = taken;
      }
    }
  });
}

/// The rows of one thread, of which others take some when they are done with their own.
struct alignas(64) RowsOfThread {
  std::atomic<int64_t> next;  // tile
  int64_t end;
};

/// The rows are divided, as other loops divide them: what a thread has written before and will read
/// next is in its own cache. Each copies all of B.
void multiply_by_rows(const TiledProduct& product, const Work& work) {
  const int64_t team = work.team;
  const Scratch memory(team * static_cast<int64_t>(sizeof(RowsOfThread)));
  auto* rows = static_cast<RowsOfThread*>(memory.get());
  for (int64_t i = 0; i < team; ++i) {
    new (rows + i) RowsOfThread{work.tiles * i / team, work.tiles * (i + 1) / team};
  }
  // Those that are copied go eight at a time.
  const int64_t least_tiles = work.packed == work.tiles ? 8 : 4;
  const MemoryOfThreads copies(team, packed_bytes(product, work.items));
  parallel_for(team, 1, [&](int64_t first, int64_t) {
    void* const panels = copies.of(first);
    bool packed = false;
    for (int64_t i = 0; i < team; ++i) {
      RowsOfThread& own = rows[(first + i) % team];
      int64_t begin = own.next;
      while (begin < own.end) {
        const int64_t left = own.end - begin;
        const int64_t half = left / 2 / least_tiles * least_tiles;
        const int64_t share = std::clamp(half, std::min(least_tiles, left), left);
        if (!own.next.compare_exchange_weak(begin, begin + share)) {
          continue;
        }
        if (!packed) {
          packed = true;
          TAPESTRY_DISPATCH_PAIRS(product.pairs, pack_all_panels)(product, panels);
        }
        const int64_t end = begin + share;
        if (end > product.first_packed) {
          TAPESTRY_DISPATCH_PAIRS(product.pairs, pack_tiles)
          (product, std::max<int64_t>(0, begin - product.first_packed), end - product.first_packed);
        }
        TAPESTRY_DISPATCH_PAIRS(product.pairs, multiply_tiles)(product, begin, end, panels);
        begin = own.next;
      }
    }
  });
}

}  // namespace

void multiply_tiled(const TiledProduct& given) {
  TiledProduct product = given;
  const int64_t per_item = product.pairs ? 2 : 1;
  Work work{};
  work.items = product.leaves != nullptr ? product.leaves->items : ceil_div(product.k, per_item);
  work.items += product.tail != nullptr ? ceil_div(product.tail->k, per_item) : 0;
  const int64_t rows = TAPESTRY_DISPATCH(tile_rows)();
  work.tiles = ceil_div(product.m, rows);
  const bool converted = product.dtype != kFloat32 && !product.pairs;
  const bool whole_items =
      product.leaves != nullptr ? product.leaves->in_place : product.k % per_item == 0;
  const bool in_place =
      !product.trans_a && !converted && whole_items && product.lda % per_item == 0;
  product.first_packed = in_place ? product.m / rows : 0;
  work.packed = work.tiles - product.first_packed;
  const Scratch left(std::max<int64_t>(1, work.packed) * work.items * rows * size_of(kFloat32));
  product.packed_a = left.get();
  const int64_t columns = TAPESTRY_DISPATCH(tile_columns)();
  const int64_t units = work.tiles * ceil_div(product.n, columns);
  const int64_t unit_work = rows * product.k * columns;
  const int64_t least =
      std::max(std::max<int64_t>(1, kLeastShare / unit_work), units / (16 * num_threads()));
  work.team = std::clamp<int64_t>(units / least, 1, num_threads());
  const int64_t own_rows = product.m / work.team;
  const bool few_columns =
      work.packed == work.tiles && product.n <= kMostColumnsPerCopiedRow * own_rows;
  if (work.team > 1 && (own_rows >= kLeastRows || few_columns) &&
      packed_bytes(product, work.items) <= kMostPacked) {
    multiply_by_rows(product, work);
  } else {
    multiply_by_panels(product, work, least);
  }
}

int64_t rows_of_block(int64_t m, bool packs_a) {
  return even_part(m, packs_a ? kMaxPackedRows : kMaxRows, TAPESTRY_DISPATCH(tile_rows)());
}

bool has_tiled_gemm(DType dtype) {
  return dtype == kFloat32 ||
         ((dtype == kBFloat16 || dtype == kFloat16) && cpu_level() >= CpuLevel::kAvx2);
}

void tiled_gemm(const GemmShape& s, const void* a, const void* b, void* c) {
  tiled_gemm(s, a, b, c, s.dtype == kBFloat16 && prefers_bfloat16_pairs());
}

void tiled_gemm(const GemmShape& s, const void* a, const void* b, void* c, const GemmTail& tail) {
  assert(takes_tail(s, tail));
  tiled_gemm(s, a, b, c, s.dtype == kBFloat16, &tail);
}

bool takes_tail(const GemmShape& s, const GemmTail& tail) {
  if (s.dtype == kFloat32) {
    return !s.trans_a;
  }
  // Rows that are read in pairs begin with a whole one.
  return s.dtype == kBFloat16 && prefers_bfloat16_pairs() && !s.trans_a && s.k % 2 == 0 &&
         s.lda % 2 == 0 && tail.k % 2 == 0 && tail.ldd % 2 == 0;
}

void tiled_gemm(
    const GemmShape& s, const void* a, const void* b, void* c, bool pairs, const GemmTail* tail) {
  assert(has_tiled_gemm(s.dtype));
  assert(!pairs || (s.dtype == kBFloat16 && has_bfloat16_pairs()));
  assert(s.m > 0 && s.n > 0 && s.k > 0);
  const int64_t per_item = pairs ? 2 : 1;
  const bool packs_a = s.trans_a || (s.dtype != kFloat32 && !pairs);
  const int64_t block_k = even_part(s.k, kMaxDepth * per_item, per_item);
  const int64_t block_m = rows_of_block(s.m, packs_a);
  // A C of 16 bits cannot take sums between the blocks of k; one of float32 that is scaled has them
  // added block by block, which in exact mode would not be one run over k.
  const bool scaled = s.alpha != 1 || (s.beta != 0 && s.beta != 1);
  const bool beside = (s.c_dtype != kFloat32 || (scaled && in_exact())) && block_k < s.k;
  const Scratch sums =
      beside ? Scratch(std::min(block_m, s.m) * s.n * size_of(kFloat32)) : Scratch();
  for (int64_t i = 0; i < s.m; i += block_m) {
    for (int64_t p = 0; p < s.k; p += block_k) {
      const bool first = p == 0;
      const bool last = p + block_k >= s.k;
      TiledProduct product{};
      product.dtype = s.dtype;
      product.c_dtype = s.c_dtype;
      product.pairs = pairs;
      product.trans_a = s.trans_a;
      product.trans_b = s.trans_b;
      product.m = std::min(block_m, s.m - i);
      product.n = s.n;
      product.k = std::min(block_k, s.k - p);
      product.a = offset(a, s.dtype, s.trans_a ? p * s.lda + i : i * s.lda + p);
      product.lda = s.lda;
      product.b = offset(b, s.dtype, s.trans_b ? p : p * s.ldb);
      product.ldb = s.ldb;
      product.c = const_cast<char*>(offset(c, s.c_dtype, i * s.ldc));
      product.ldc = s.ldc;
      product.alpha = static_cast<float>(s.alpha);
      product.beta = first ? static_cast<float>(s.beta) : 1.0F;
      GemmTail own;
      if (last && tail != nullptr) {
        own = *tail;
        own.d = offset(tail->d, s.dtype, i * tail->ldd);
        product.tail = &own;
      }
      if (beside && last) {
        product.addend = static_cast<const float*>(sums.get());
        product.beta = static_cast<float>(s.beta);
      } else if (beside) {
        product.c_dtype = kFloat32;
        product.c = sums.get();
        product.ldc = s.n;
        product.alpha = 1;
        product.beta = first ? 0.0F : 1.0F;
      }
      multiply_tiled(product);
    }
  }
}

}  // namespace tapestry::kernels
