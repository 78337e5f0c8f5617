#include "autograd/kernels/gemm/gemm_tiled.h"

#include <type_traits>

#include "autograd/kernels/isa/avx2_panel_tile.h"
#include "autograd/kernels/isa/gemm_packing.h"
#include "autograd/kernels/isa/leaf_tiles.h"
#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

// With AVX-512 a tile has 8 x 3 sums, with AVX2 4 x 3: with the vectors of B and one of A that is
// what the registers hold.
constexpr int kPanelVectors = 3;
constexpr int64_t kLane = kLanes<float>;

// What products are made of at this level. What their factors were stored as matters only where
// they are copied and where C is written.
#if defined(TAPESTRY_PAIRS)
using Item = Pair;
#else
using Item = float;
#endif

/// Of the sum.
int64_t items_in_tail(const TiledProduct& product) {
  return product.tail != nullptr ? items_of<Item>(product.tail->k) : 0;
}
int64_t items_in(const TiledProduct& product) {
  if (product.tail != nullptr) {
    return items_of<Item>(product.k) + items_in_tail(product);
  }
  return product.leaves != nullptr ? product.leaves->items : items_of<Item>(product.k);
}

/// The factors of a product's tail in place of its own; packed, they lie behind those.
TiledProduct tail_of(const TiledProduct& product) {
  TiledProduct out = product;
  out.a = product.tail->d;
  out.lda = product.tail->ldd;
  out.b = product.tail->e;
  out.ldb = product.tail->lde;
  out.trans_b = product.tail->trans_e;
  return out;
}
PackedRun run_of_tail(const TiledProduct& product) {
  return {0, 1, product.tail->k, items_of<Item>(product.k)};
}

/// Calls f(run) for the runs of k that are copied one after the other.
template <class F>
[[gnu::always_inline]] inline void for_packed_runs(const TiledProduct& product, const F& f) {
  if (product.leaves == nullptr) {
    f(PackedRun{0, 1, product.k, 0});
    return;
  }
  for (int64_t i = 0; i < product.leaves->run_count; ++i) {
    f(product.leaves->runs[i]);
  }
}

/// What that copies of a factor; the elements of a line that are neighbours are one step apart.
template <class Element>
Factor<Item, Element> factor_of_run(const void* x, int64_t ld, bool along, const PackedRun& run) {
  const auto* data = static_cast<const Element*>(x) + run.k * (along ? 1 : ld);
  return {data, along ? ld : ld * run.step, along, run.count};
}

template <class T>
[[gnu::always_inline]] inline void finish_columns(int64_t rows,
                                                  int64_t columns,
                                                  float* sums,
                                                  int64_t ld,
                                                  float alpha,
                                                  float beta,
                                                  T* c,
                                                  int64_t ldc) {
  for (int64_t r = 0; r < rows; ++r) {
    float* sum = sums + r * ld;
    T* out = c + r * ldc;
    if (alpha != 1) {
      TAPESTRY_VECTOR_LOOP
      for (int64_t j = 0; j < columns; ++j) {
        sum[j] *= alpha;
      }
    }
    if (beta != 0) {
      float old[kPanelVectors * kLane];
      load_row(columns, out, old);
      TAPESTRY_VECTOR_LOOP
      for (int64_t j = 0; j < columns; ++j) {
        sum[j] += beta * old[j];
      }
    }
    store_row(columns, sum, out);
  }
}

/// C = alpha sums + beta C, `columns` of each of `rows`.
template <class T>
[[gnu::noinline]] void finish_rows(int64_t rows,
                                   int64_t columns,
                                   float* sums,
                                   int64_t ld,
                                   float alpha,
                                   float beta,
                                   T* c,
                                   int64_t ldc) {
  constexpr int64_t kMost = kPanelVectors * kLane;
  if (columns == kMost) {  // a constant: whole vectors
    finish_columns(rows, kMost, sums, ld, alpha, beta, c, ldc);
  } else {
    finish_columns(rows, columns, sums, ld, alpha, beta, c, ldc);
  }
}

#if defined(TAPESTRY_PAIRS)
/// y = x rounded, which is no denormal: the instruction takes those for 0.
[[gnu::always_inline]] inline void round_normal(FloatVector x, BFloat16* y) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(y),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

/// y = x + y, rounded.
[[gnu::always_inline]] inline void round_onto(FloatVector x, BFloat16* y) {
  auto* const memory = reinterpret_cast<__m256i*>(y);
  const __m512i old = _mm512_maskz_cvtepu16_epi32(kAllLanes, _mm256_loadu_si256(memory));
  const FloatVector sum =
      x + reinterpret_cast<FloatVector>(reinterpret_cast<UInt32Vector>(old) << 16U);
  const auto u = reinterpret_cast<UInt32Vector>(sum);
  const UInt32Vector high = u >> 16U;
  const UInt32Vector rounded = (u + 0x7fffU + (high & 1U)) >> 16U;
  const auto bits = reinterpret_cast<__m512i>(sum != sum ? high | 0x40U : rounded);
  _mm256_storeu_si256(memory, _mm512_maskz_cvtepi32_epi16(kAllLanes, bits));
}

/// c = or += A B, of the items and then of a tail's, rounded as it leaves the registers. Sums of
/// pairs are no denormals.
template <int kVectors, bool kTransA, class Fetching>
[[gnu::always_inline]] inline void multiply_rounded(int64_t items,
                                                    Operand<Pair> a,
                                                    int64_t tail_items,
                                                    Operand<Pair> tail,
                                                    const Pair* panel,
                                                    bool onto,
                                                    BFloat16* c,
                                                    int64_t ldc,
                                                    [[maybe_unused]] Fetching& fetch) {
  constexpr int64_t kWidth = kVectors * kLane;
  FloatVector sum[kTileRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = FloatVector{};
    }
  }
  for (int64_t p = 0; p < items;) {
    int64_t end = items;
    if constexpr (requires { fetch.go_on(); }) {
      fetch.go_on();
      end = least(p + kItemsPerFetch, items);
    }
    for (; p < end; ++p) {
      multiply_item<Pair, kVectors, kTransA>(p, a.data, a.ld, panel, kWidth, sum);
    }
  }
  for (int64_t p = 0; p < tail_items; ++p) {
    multiply_item<Pair, kVectors, kTransA>(p, tail.data, tail.ld, panel + items * kWidth, kWidth,
                                           sum);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      BFloat16* out = c + r * ldc + v * kLane;
      onto ? round_onto(sum[r][v], out) : round_normal(sum[r][v], out);
    }
  }
}
#endif

/// Rows of memory on their way into the second-level cache, evenly over the sums of some tiles.
class Fetch {
 public:
  Fetch(const ComingRows& coming, int64_t tiles, int64_t items)
      : row_(static_cast<const char*>(coming.data)),
        row_bytes_(coming.row_bytes),
        stride_(coming.stride_bytes),
        rows_(coming.data == nullptr ? 0 : coming.rows) {
    const int64_t lines = rows_ * ceil_div(row_bytes_, kLine);
    per_turn_ = ceil_div(lines, tiles * ceil_div(items, kItemsPerFetch));
  }

  [[gnu::always_inline]] void go_on() {
    for (int64_t i = 0; i < per_turn_ && rows_ > 0; ++i) {
      __builtin_prefetch(row_ + at_, 0, 2);
      at_ += kLine;
      if (at_ >= row_bytes_) {
        at_ = 0;
        row_ += stride_;
        --rows_;
      }
    }
  }

 private:
  static constexpr int64_t kLine = 64;

  const char* row_;
  int64_t row_bytes_;
  int64_t stride_;
  int64_t rows_;
  int64_t at_ = 0;
  int64_t per_turn_ = 0;
};

template <int kVectors, class Fetching = NoFetch>
class PanelOfC {
 public:
  static constexpr int64_t kWidth = kVectors * kLane;

  PanelOfC(const TiledProduct& product,
           const Item* panel,
           int64_t column,
           const Fetching& fetch = {})
      : product_(product),
        panel_(panel),
        column_(column),
        columns_(least(kWidth, product.n - column)),
        items_(items_of<Item>(product.k)),
        tail_items_(items_in_tail(product)),
        converted_(product.dtype != kFloat32 && !product.pairs),
        fetch_(fetch) {}

  [[gnu::noinline]] void multiply(int64_t tile_begin, int64_t tile_end) {
    const TiledProduct& g = product_;
    // Such a sum goes on from what stands in C, also in a tile that is not whole and has to be
    // copied: added to it afterwards, it would be rounded once more than its neighbours.
    const bool onto_c = g.c_dtype == kFloat32 && g.alpha == 1 && g.beta == 1;
    const bool plain = onto_c || (g.c_dtype == kFloat32 && g.alpha == 1 && g.beta == 0);
    const bool in_place = plain && g.addend == nullptr && columns_ == kWidth;
    const bool rounded = rounds_in_registers() && columns_ == kWidth;
    const float* start = onto_c ? static_cast<const float*>(g.c) : g.addend;
    const int64_t ld_start = onto_c ? g.ldc : g.n;
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
      const int64_t row = tile * kTileRows;
      const int64_t rows = least(kTileRows, g.m - row);
      if (g.beta != 0 && tile + 1 < tile_end) {
        prefetch(row + kTileRows);
      }
      if (rounded && rows == kTileRows) {
        sum_rounded(tile);
        continue;
      }
      const bool direct = in_place && rows == kTileRows;
      alignas(64) float sums[kTileRows * kWidth];
      if (!direct && start != nullptr) {
        copy_tile(start + row * ld_start + column_, ld_start, rows, sums);
      }
      float* c = direct ? static_cast<float*>(g.c) + row * g.ldc + column_ : sums;
      sum(tile, start != nullptr, c, direct ? g.ldc : kWidth);
      if (!direct) {
        finish(row, rows, onto_c ? 0 : g.beta, sums);
      }
    }
  }

 private:
  /// C's next tile, on its way while this one is summed: its rows are far from each other.
  void prefetch(int64_t row) const {
    const TiledProduct& g = product_;
    const int64_t size = g.c_dtype == kFloat32 ? 4 : 2;  // no look into a table for each tile
    const int64_t rows = least(kTileRows, g.m - row);
    for (int64_t r = 0; r < rows; ++r) {
      const char* c = static_cast<const char*>(g.c) + ((row + r) * g.ldc + column_) * size;
      for (int64_t byte = 0; byte < columns_ * size; byte += 64) {
        __builtin_prefetch(c + byte);
      }
    }
  }

  /// Whether sums in registers are written as they are, rounded to 16 bits.
  bool rounds_in_registers() const {
#if defined(TAPESTRY_PAIRS)
    const TiledProduct& g = product_;
    return g.c_dtype == kBFloat16 && g.alpha == 1 && (g.beta == 0 || g.beta == 1) &&
           g.addend == nullptr;
#else
    return false;
#endif
  }

  void sum_rounded([[maybe_unused]] int64_t tile) {
#if defined(TAPESTRY_PAIRS)
    const TiledProduct& g = product_;
    auto* c = static_cast<BFloat16*>(g.c) + tile * kTileRows * g.ldc + column_;
    const TileOfA a = tile_of_a(tile);
    const TileOfA tail = tail_items_ > 0 ? tile_of_tail(tile) : TileOfA{};
    const bool onto = g.beta == 1;
    if (a.across) {
      multiply_rounded<kVectors, true>(items_, {a.data, a.ld}, tail_items_, {tail.data, tail.ld},
                                       panel_, onto, c, g.ldc, fetch_);
    } else {
      multiply_rounded<kVectors, false>(items_, {a.data, a.ld}, tail_items_, {tail.data, tail.ld},
                                        panel_, onto, c, g.ldc, fetch_);
    }
#endif
  }

  struct TileOfA {
    const Item* data;
    int64_t ld;
    bool across;
  };

  [[gnu::always_inline]] TileOfA tile_of_a(int64_t tile) const {
    const TiledProduct& g = product_;
    if (!converted_ && tile < g.first_packed) {
      const int64_t lda = g.lda / kPerItem<Item>;
      return {static_cast<const Item*>(g.a) + tile * kTileRows * lda, lda, false};
    }
    const auto* packed = static_cast<const Item*>(g.packed_a) +
                         (tile - g.first_packed) * (items_ + tail_items_) * kTileRows;
    const bool across = converted_ ? g.trans_a : true;
    return {packed, across ? kTileRows : items_, across};
  }

  /// Packed it lies behind the tile's other items.
  [[gnu::always_inline]] TileOfA tile_of_tail(int64_t tile) const {
    const TiledProduct& g = product_;
    if (tile < g.first_packed) {
      const int64_t ld = g.tail->ldd / kPerItem<Item>;
      return {static_cast<const Item*>(g.tail->d) + tile * kTileRows * ld, ld, false};
    }
    const TileOfA a = tile_of_a(tile);
    return {a.data + items_ * kTileRows, kTileRows, true};
  }

  [[gnu::always_inline]] void sum(int64_t tile, bool accumulate, float* c, int64_t ldc) {
    const TileOfA a = tile_of_a(tile);
    if (a.across) {
      multiply<true>(a.data, kTileRows, accumulate, c, ldc);
    } else {
      multiply<false>(a.data, a.ld, accumulate, c, ldc);
    }
    if (tail_items_ > 0) {
      add_tail(tile, c, ldc);
    }
  }

  /// The tail, whose panel lies behind that of the other items, goes on from what they left in c.
  [[gnu::noinline]] void add_tail(int64_t tile, float* c, int64_t ldc) {
    const TileOfA a = tile_of_tail(tile);
    const Item* panel = panel_ + items_ * kWidth;
    if (a.across) {
      multiply_tile<Item, kVectors, true>(tail_items_, a.data, a.ld, panel, kWidth, true, c, ldc);
    } else {
      multiply_tile<Item, kVectors, false>(tail_items_, a.data, a.ld, panel, kWidth, true, c, ldc);
    }
  }

  template <bool kTransA>
  [[gnu::always_inline]] void multiply(
      const Item* a, int64_t lda, bool accumulate, float* c, int64_t ldc) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (kVectors == kPanelVectors) {
      multiply_in_parts<kTransA>(a, lda, accumulate, c, ldc);
      return;
    }
#endif
    multiply_tile<Item, kVectors, kTransA>(items_, a, lda, panel_, kWidth, accumulate, c, ldc,
                                           fetch_);
  }

#if defined(__AVX2__) && !defined(__AVX512F__)
  /// Between parts of the sum, which goes on from what stands in c, the fetch goes on.
  template <bool kTransA>
  [[gnu::always_inline]] void multiply_in_parts(
      const Item* a, int64_t lda, bool accumulate, float* c, int64_t ldc) {
    if constexpr (requires { fetch_.go_on(); }) {
      constexpr int64_t kPart = 16 * kItemsPerFetch;
      for (int64_t p = 0; p < items_; p += kPart) {
        const int64_t part = least(kPart, items_ - p);
        for (int64_t i = 0; i < part; i += kItemsPerFetch) {
          fetch_.go_on();
        }
        multiply_panel_tile<kTransA>(part, a + p * (kTransA ? lda : 1), lda, panel_ + p * kWidth,
                                     accumulate || p > 0, c, ldc);
      }
    } else {
      multiply_panel_tile<kTransA>(items_, a, lda, panel_, accumulate, c, ldc);
    }
  }
#endif

  void copy_tile(const float* x, int64_t ld, int64_t rows, float* sums) const {
    for (int64_t r = 0; r < kTileRows; ++r) {
      for (int64_t j = 0; j < kWidth; ++j) {
        sums[r * kWidth + j] = r < rows && j < columns_ ? x[r * ld + j] : 0;
      }
    }
  }

  void finish(int64_t row, int64_t rows, float beta, float* sums) const {
    const TiledProduct& g = product_;
    const auto to = [&](auto* c) {
      finish_rows(rows, columns_, sums, kWidth, g.alpha, beta, c + row * g.ldc + column_, g.ldc);
    };
    switch (g.c_dtype) {
#if defined(__AVX2__)
      case kBFloat16:
        return to(static_cast<BFloat16*>(g.c));
#if !defined(TAPESTRY_PAIRS)
      case kFloat16:
        return to(static_cast<Float16*>(g.c));
#endif
#endif
      default:
        to(static_cast<float*>(g.c));
    }
  }

  const TiledProduct& product_;
  const Item* panel_;
  int64_t column_;
  int64_t columns_;
  int64_t items_;
  int64_t tail_items_;
  bool converted_;
  [[no_unique_address]] Fetching fetch_;
};

/// Tiles of A that `panels` panels meet one after the other, so that these rows are read from the
/// second-level cache but for the first time; all of them where one panel goes alone.
[[gnu::always_inline]] inline int64_t tiles_together(int64_t items, int64_t panels) {
  constexpr int64_t kBytes = 384 * 1024;
  constexpr int64_t kLeastTiles = 8;
  if (panels <= 1) {
    return int64_t{1} << 40;
  }
  const int64_t tiles = kBytes / (items * kTileRows * static_cast<int64_t>(sizeof(float)));
  return tiles > kLeastTiles ? tiles : kLeastTiles;
}

/// Calls f with a null pointer of what the items are made of.
template <class F>
[[gnu::always_inline]] inline void with_element([[maybe_unused]] DType dtype, const F& f) {
#if defined(TAPESTRY_PAIRS)
  f(static_cast<BFloat16*>(nullptr));
#else
  switch (dtype) {
#if defined(__AVX2__)
    case kBFloat16:
      return f(static_cast<BFloat16*>(nullptr));
    case kFloat16:
      return f(static_cast<Float16*>(nullptr));
#endif
    default:
      return f(static_cast<float*>(nullptr));
  }
#endif
}

/// Copies `columns` columns of B to panels of that many vectors, one after the other.
template <int kVectors>
[[gnu::noinline]] void pack_columns(const TiledProduct& product,
                                    int64_t column,
                                    int64_t columns,
                                    Item* packed) {
  with_element(product.dtype, [&](auto* element) {
    using Element = std::remove_pointer_t<decltype(element)>;
    constexpr int64_t kWidth = kVectors * kLane;
    const int64_t all = items_in(product);
    const auto pack_run = [&](const TiledProduct& from, const PackedRun& run) {
      pack_panels<kWidth>(factor_of_run<Element>(from.b, from.ldb, from.trans_b, run), column,
                          columns, all, packed + run.item * kWidth);
    };
    for_packed_runs(product, [&](const PackedRun& run) { pack_run(product, run); });
    if (product.tail != nullptr) {
      pack_run(tail_of(product), run_of_tail(product));
    }
  });
}

/// The tiles [begin, end) of a panel of C.
template <int kVectors>
[[gnu::always_inline]] inline void multiply_panel(
    const TiledProduct& product, const Item* panel, int64_t column, int64_t begin, int64_t end) {
  if (product.leaves != nullptr) {
    PanelOfLeaves<Item, kVectors>(product, panel, column).multiply(begin, end);
  } else {
    PanelOfC<kVectors>(product, panel, column).multiply(begin, end);
  }
}

/// `panels` neighbouring panels from `column` on.
template <int kVectors>
void multiply_panels(const TiledProduct& product,
                     int64_t column,
                     int64_t panels,
                     int64_t tile_begin,
                     int64_t tile_end,
                     Item* packed) {
  constexpr int64_t kWidth = kVectors * kLane;
  const int64_t items = items_in(product);
  const int64_t size = items * kWidth;
  pack_columns<kVectors>(product, column, least(panels * kWidth, product.n - column), packed);
  const int64_t step = tiles_together(items, panels);
  for (int64_t tile = tile_begin; tile < tile_end; tile += step) {
    for (int64_t panel = 0; panel < panels; ++panel) {
      multiply_panel<kVectors>(product, packed + panel * size, column + panel * kWidth, tile,
                               least(tile + step, tile_end));
    }
  }
}

/// How many whole panels are packed before rows of A pass over them: several, unless all rows stay
/// in the cache anyway.
int64_t panels_together(int64_t m, int64_t n, int64_t items) {
  constexpr int64_t kMostPanels = 8;
  constexpr int64_t kBytes = 768 * 1024;
  const int64_t width = kPanelVectors * kLane;
  const int64_t fitting = kBytes / (items * width * static_cast<int64_t>(sizeof(float)));
  const int64_t panels = least(least(kMostPanels, fitting), n / width);
  return panels <= 1 || ceil_div(m, kTileRows) <= tiles_together(items, panels) ? 1 : panels;
}

/// Vectors of the panel that begins where `left` are left.
int64_t panel_width(int64_t left) {
  return left == 4 ? 2 : least(left, kPanelVectors);  // two and two rather than three and one
}

/// Calls f(first vector, width as a constant) for each panel.
template <class F>
void for_panels(const TiledProduct& product, const F& f) {
  const int64_t vectors = ceil_div(product.n, kLane);
  int64_t width = 0;
  for (int64_t v = 0; v < vectors; v += width) {
    width = panel_width(vectors - v);
    switch (width) {
      case 1:
        f(v, std::integral_constant<int, 1>());
        break;
      case 2:
        f(v, std::integral_constant<int, 2>());
        break;
      default:
        f(v, std::integral_constant<int, kPanelVectors>());
    }
  }
}

/// A run of k of the tiles [begin, end).
template <class Element>
void pack_tiles_typed(const TiledProduct& product,
                      int64_t begin,
                      int64_t end,
                      const PackedRun& run) {
  const auto a = factor_of_run<Element>(product.a, product.lda, !product.trans_a, run);
  const int64_t all = items_in(product);
  const int64_t items = items_of<Item>(run.count);
  const int64_t size = all * kTileRows;
  auto* out = static_cast<Item*>(product.packed_a) + run.item * kTileRows;
  constexpr int64_t kTogether = 8;
  int64_t tile = begin;
  if (!a.along && run.count % kPerItem<Item> == 0) {
    for (; tile + kTogether <= end; tile += kTogether) {
      const int64_t row = (product.first_packed + tile) * kTileRows;
      if (row + kTogether * kTileRows > product.m) {
        break;
      }
      pack_across_tiles<kTogether>(a, row, items, all, out + tile * size);
    }
  }
  for (; tile < end; ++tile) {
    const int64_t row = (product.first_packed + tile) * kTileRows;
    const int64_t rows = least(kTileRows, product.m - row);
    if constexpr (kConverts<Item, Element>) {
      if (a.along) {
        widen_tile(a, row, rows, all,
                   static_cast<Item*>(product.packed_a) + tile * size + run.item);
        continue;
      }
    }
    pack<kTileRows>(a, row, rows, out + tile * size);
  }
}

}  // namespace

#if !defined(TAPESTRY_PAIRS)
int64_t tile_rows() { return kTileRows; }
int64_t tile_columns() { return kLane; }
int64_t panel_vectors() { return kPanelVectors; }

int64_t panel_bytes(int64_t m, int64_t n, int64_t items) {
  const int64_t vectors = least(kPanelVectors, ceil_div(n, kLane)) * panels_together(m, n, items);
  return items * vectors * kLane * static_cast<int64_t>(sizeof(float));
}
#endif

void pack_tiles(const TiledProduct& product, int64_t begin, int64_t end) {
  with_element(product.dtype, [&](auto* element) {
    for_packed_runs(product, [&](const PackedRun& run) {
      pack_tiles_typed<std::remove_pointer_t<decltype(element)>>(product, begin, end, run);
    });
    if (product.tail != nullptr) {
      pack_tiles_typed<std::remove_pointer_t<decltype(element)>>(tail_of(product), begin, end,
                                                                 run_of_tail(product));
    }
  });
}

void pack_all_panels(const TiledProduct& product, void* panels) {
  const int64_t items = items_in(product);
  for_panels(product, [&](int64_t v, auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    pack_columns<kVectors>(product, v * kLane, least(kVectors * kLane, product.n - v * kLane),
                           static_cast<Item*>(panels) + v * kLane * items);
  });
}

void multiply_tiles(const TiledProduct& product, int64_t begin, int64_t end, const void* panels) {
  const auto* packed = static_cast<const Item*>(panels);
  const int64_t items = items_in(product);
  const int64_t step = tiles_together(items, 2);
  for (int64_t tile = begin; tile < end; tile += step) {
    for_panels(product, [&](int64_t v, auto vectors) {
      multiply_panel<decltype(vectors)::value>(product, packed + v * kLane * items, v * kLane, tile,
                                               least(tile + step, end));
    });
  }
}

void multiply_tiles_fetching(const TiledProduct& product,
                             int64_t begin,
                             int64_t end,
                             const void* panels,
                             const ComingRows& coming) {
  const auto* packed = static_cast<const Item*>(panels);
  const int64_t items = items_of<Item>(product.k);
  const int64_t size = size_of(product.c_dtype);
  const int64_t row = begin * kTileRows;
  for_panels(product, [&](int64_t v, auto vectors) {
    constexpr int kVectors = decltype(vectors)::value;
    const int64_t next = (v + kVectors) * kLane;
    ComingRows after = coming;
    if (next < product.n) {
      after = {};
      if (product.beta != 0) {
        after = {static_cast<const char*>(product.c) + (row * product.ldc + next) * size,
                 least(end * kTileRows, product.m) - row,
                 least(kPanelVectors * kLane, product.n - next) * size, product.ldc * size};
      }
    }
    PanelOfC<kVectors, Fetch>(product, packed + v * kLane * items, v * kLane,
                              Fetch(after, end - begin, items))
        .multiply(begin, end);
  });
}

void multiply_share(const TiledProduct& product, int64_t begin, int64_t end, void* panel) {
  auto* packed = static_cast<Item*>(panel);
  const int64_t vectors = ceil_div(product.n, kLane);
  const int64_t tiles = ceil_div(product.m, kTileRows);
  const int64_t together = panels_together(product.m, product.n, items_in(product));
  int64_t width = 0;
  for (int64_t v = 0; v * tiles < end; v += width) {
    width = panel_width(vectors - v);
    if ((v + width) * tiles <= begin) {
      continue;
    }
    // Rounded in the same way at both ends: neighbouring shares meet.
    const int64_t from = begin <= v * tiles ? 0 : ceil_div(begin - v * tiles, width);
    const int64_t to = least(tiles, ceil_div(end - v * tiles, width));
    if (from >= to) {
      continue;
    }
    switch (width) {
      case 1:
        multiply_panels<1>(product, v * kLane, 1, from, to, packed);
        break;
      case 2:
        multiply_panels<2>(product, v * kLane, 1, from, to, packed);
        break;
      default: {
        // Whole panels of this share, but for what goes two and two.
        int64_t panels = 1;
        while (from == 0 && panels < together && (v + (panels + 1) * width) * tiles <= end &&
               vectors - (v + panels * width) >= width && vectors - (v + panels * width) != 4) {
          ++panels;
        }
        multiply_panels<kPanelVectors>(product, v * kLane, panels, from, to, packed);
        width *= panels;
      }
    }
  }
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
