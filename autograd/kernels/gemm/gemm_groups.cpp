#include "autograd/kernels/gemm/gemm_groups.h"

#include <algorithm>
#include <atomic>
#include <cassert>

#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/machine/ceil_div.h"
#include "autograd/kernels/machine/cpu.h"
#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/kernels/machine/scratch.h"

namespace tapestry::kernels {

namespace {

/// Larger groups are worth a team of their own: what they read of B, or write of C, is little
/// beside their arithmetic.
constexpr int64_t kMostRows = 1024;
/// Copies of left factors that are made before the products of a round.
constexpr int64_t kPackedBytes = 8 << 20;
/// Right factors that stay in the second-level cache while rows of A pass over them.
constexpr int64_t kChunkBytes = 256 << 10;
/// Tiles of a unit: of a product whose B is large, and of one whose C is.
constexpr int64_t kTilesPerPanel = 64;
constexpr int64_t kTilesPerBlock = 16;

/// One product cut into units: chunks of columns, whole panels each, times blocks of tiles. The
/// blocks of one chunk follow one another.
struct UnitsOfProduct {
  TiledProduct product;
  int64_t tiles;
  int64_t packed;  // of them, copied before
  int64_t chunk_columns;
  int64_t chunks;
  int64_t block_tiles;
  int64_t blocks;
  int64_t first_packed;  // tile among those that the round copies
  int64_t first_unit;    // in the round

  int64_t items() const { return ceil_div(product.k, product.pairs ? 2 : 1); }
  int64_t units() const { return chunks * blocks; }
};

struct Unit {
  const UnitsOfProduct* of;
  int64_t chunk;
  int64_t block;
};

int64_t tile_rows_here() { return TAPESTRY_DISPATCH(tile_rows)(); }

int64_t panel_columns() {
  return TAPESTRY_DISPATCH(tile_columns)() * TAPESTRY_DISPATCH(panel_vectors)();
}

UnitsOfProduct cut(const GroupProduct& given) {
  const GemmShape& s = given.shape;
  UnitsOfProduct out{};
  TiledProduct& product = out.product;
  product.dtype = s.dtype;
  product.c_dtype = s.c_dtype;
  product.pairs = s.dtype == kBFloat16 && prefers_bfloat16_pairs();
  product.trans_a = s.trans_a;
  product.trans_b = s.trans_b;
  product.m = s.m;
  product.n = s.n;
  product.k = s.k;
  product.a = given.a;
  product.lda = s.lda;
  product.b = given.b;
  product.ldb = s.ldb;
  product.c = given.c;
  product.ldc = s.ldc;
  product.alpha = static_cast<float>(s.alpha);
  product.beta = static_cast<float>(s.beta);
  const int64_t per_item = product.pairs ? 2 : 1;
  const bool converted = s.dtype != kFloat32 && !product.pairs;
  const bool in_place = !s.trans_a && !converted && s.k % per_item == 0 && s.lda % per_item == 0;
  const int64_t rows = tile_rows_here();
  out.tiles = ceil_div(s.m, rows);
  product.first_packed = in_place ? s.m / rows : 0;
  out.packed = out.tiles - product.first_packed;

  const int64_t width = panel_columns();
  const int64_t panel_bytes = out.items() * width * size_of(kFloat32);
  const bool large_c = s.m > s.k;
  const int64_t panels = large_c ? std::max<int64_t>(1, kChunkBytes / panel_bytes) : 1;
  const int64_t all_panels = ceil_div(s.n, width);
  out.chunk_columns = ceil_div(all_panels, ceil_div(all_panels, panels)) * width;
  out.chunks = ceil_div(s.n, out.chunk_columns);
  out.block_tiles = std::min(out.tiles, large_c ? kTilesPerBlock : kTilesPerPanel);
  out.blocks = ceil_div(out.tiles, out.block_tiles);
  return out;
}

/// The columns of a chunk as a product of their own.
TiledProduct columns_of(const UnitsOfProduct& units, int64_t chunk) {
  TiledProduct own = units.product;
  const int64_t column = chunk * units.chunk_columns;
  own.n = std::min(units.chunk_columns, own.n - column);
  own.b =
      static_cast<const char*>(own.b) + column * (own.trans_b ? own.ldb : 1) * size_of(own.dtype);
  own.c = static_cast<char*>(own.c) + column * size_of(own.c_dtype);
  return own;
}

/// What a unit reads first: the columns of B or, where that has been copied for the unit before it
/// or is small beside C, the first panel of C.
ComingRows first_read(const Unit& unit, const Unit& before) {
  const TiledProduct own = columns_of(*unit.of, unit.chunk);
  const bool copied = unit.of == before.of && unit.chunk == before.chunk;
  if (!copied && own.k >= own.m) {
    const int64_t item = size_of(own.dtype);
    return own.trans_b ? ComingRows{own.b, own.n, own.k * item, own.ldb * item}
                       : ComingRows{own.b, own.k, own.n * item, own.ldb * item};
  }
  if (own.beta == 0) {
    return {};
  }
  const int64_t row = unit.block * unit.of->block_tiles * tile_rows_here();
  const int64_t rows = std::min(unit.of->block_tiles * tile_rows_here(), own.m - row);
  const int64_t item = size_of(own.c_dtype);
  return {static_cast<const char*>(own.c) + row * own.ldc * item, rows,
          std::min(panel_columns(), own.n) * item, own.ldc * item};
}

/// Products that are computed together.
class Round {
 public:
  explicit Round(std::span<UnitsOfProduct> products) : products_(products) {
    for (UnitsOfProduct& p : products_) {
      p.first_packed = packed_;
      p.first_unit = units_;
      packed_ += p.packed;
      units_ += p.units();
      const int64_t tile_bytes = p.items() * tile_rows_here() * size_of(kFloat32);
      packed_bytes_ += p.packed * tile_bytes;
      panel_bytes_ =
          std::max(panel_bytes_, p.items() * std::min(p.chunk_columns, round_up(p.product.n)) *
                                     size_of(kFloat32));
      work_ += static_cast<double>(p.product.m * p.product.n) * static_cast<double>(p.product.k);
    }
  }

  void run() {
    const Scratch left(std::max<int64_t>(1, packed_bytes_));
    auto* at = static_cast<char*>(left.get());
    for (UnitsOfProduct& p : products_) {
      p.product.packed_a = at;
      at += p.packed * p.items() * tile_rows_here() * size_of(kFloat32);
    }
    constexpr double kLeastShare = 1 << 18;  // multiplications: what a thread more is worth
    const auto team = static_cast<int64_t>(
        std::clamp(work_ / kLeastShare, 1.0, static_cast<double>(num_threads())));
    pack(team);
    std::atomic<int64_t> taken = 0;
    parallel_for(team, 1, [&](int64_t, int64_t) { take(taken); });
  }

 private:
  static int64_t round_up(int64_t columns) {
    const int64_t vector = TAPESTRY_DISPATCH(tile_columns)();
    return ceil_div(columns, vector) * vector;
  }

  void pack(int64_t team) const {
    if (packed_ == 0) {
      return;
    }
    parallel_for(packed_, ceil_div(packed_, team), [&](int64_t begin, int64_t end) {
      for (const UnitsOfProduct& p : products_) {
        const int64_t from = std::max<int64_t>(0, begin - p.first_packed);
        const int64_t to = std::min(p.packed, end - p.first_packed);
        if (from < to) {
          TAPESTRY_DISPATCH_PAIRS(p.product.pairs, pack_tiles)(p.product, from, to);
        }
      }
    });
  }

  Unit unit(int64_t number) const {
    const auto after =
        std::upper_bound(products_.begin(), products_.end(), number,
                         [](int64_t n, const UnitsOfProduct& p) { return n < p.first_unit; });
    const UnitsOfProduct& of = *(after - 1);
    const int64_t own = number - of.first_unit;
    return {&of, own / of.blocks, own % of.blocks};
  }

  void take(std::atomic<int64_t>& taken) const {
    const Scratch panels(panel_bytes_);
    Unit before{};
    int64_t next = taken++;
    while (next < units_) {
      const Unit now = unit(next);
      next = taken++;
      const TiledProduct own = columns_of(*now.of, now.chunk);
      if (now.of != before.of || now.chunk != before.chunk) {
        TAPESTRY_DISPATCH_PAIRS(own.pairs, pack_all_panels)(own, panels.get());
      }
      const int64_t begin = now.block * now.of->block_tiles;
      const int64_t end = std::min(begin + now.of->block_tiles, now.of->tiles);
      TAPESTRY_DISPATCH_PAIRS(own.pairs, multiply_tiles_fetching)
      (own, begin, end, panels.get(), next < units_ ? first_read(unit(next), now) : ComingRows{});
      before = now;
    }
  }

  std::span<UnitsOfProduct> products_;
  int64_t units_ = 0;
  int64_t packed_ = 0;
  int64_t packed_bytes_ = 0;
  int64_t panel_bytes_ = 0;
  double work_ = 0;
};

}  // namespace

void tiled_group_gemm(std::span<const GroupProduct> products) {
  std::vector<UnitsOfProduct> round;
  int64_t bytes = 0;
  const auto finish_round = [&] {
    if (!round.empty()) {
      Round(round).run();
    }
    round.clear();
    bytes = 0;
  };
  for (const GroupProduct& product : products) {
    const GemmShape& s = product.shape;
    assert(s.m > 0 && s.n > 0 && s.k > 0);
    const UnitsOfProduct units = cut(product);
    const int64_t own = units.packed * units.items() * tile_rows_here() * size_of(kFloat32);
    if (product.size > kMostRows || s.k > kMaxDepth || own > kPackedBytes) {
      tiled_gemm(s, product.a, product.b, product.c);
      continue;
    }
    if (bytes + own > kPackedBytes) {
      finish_round();
    }
    bytes += own;
    round.push_back(units);
  }
  finish_round();
}

}  // namespace tapestry::kernels
