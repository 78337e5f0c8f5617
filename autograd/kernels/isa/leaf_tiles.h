// Tiles of products whose sum is cut into leaves (gemm/gemm_leaves.h): what is made of the sum of a
// leaf is made while it is in registers.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include "autograd/kernels/gemm/gemm_leaves.h"
#include "autograd/kernels/gemm/gemm_tiled.h"
#include "autograd/kernels/isa/avx2_panel_tile.h"
#include "autograd/kernels/isa/gemm_packing.h"
#include "autograd/kernels/isa/matrix_tile.h"
#include "autograd/kernels/isa/row_io.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

/// Of exact_sums.h.
inline constexpr float kExactUnits = 0x1p44F;

// NOLINTNEXTLINE(modernize-use-using): an alias cannot carry the attribute
typedef float HalfVector __attribute__((vector_size(kVectorBytes / 2)));

/// Lanes from kFirst on as float64.
template <int kFirst, int... kLane>
[[gnu::always_inline]] inline DoubleVector widen_half(FloatVector x,
                                                      std::integer_sequence<int, kLane...> /*n*/) {
  const HalfVector half = __builtin_shufflevector(x, x, (kFirst + kLane)...);
#if defined(__AVX512F__)
  return _mm512_maskz_cvtps_pd(0xff, half);  // GCC 12 converts the vector in four parts
#else
  return __builtin_convertvector(half, DoubleVector);
#endif
}

/// y = x + the lanes of `units`, rounded to whole numbers.
[[gnu::always_inline]] inline void add_rounded(FloatVector units, const double* x, double* y) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const FloatVector whole =
      _mm512_maskz_roundscale_ps(kAllLanes, units, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const FloatVector whole = _mm256_round_ps(units, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
  constexpr int kHalf = kLanes<double>;
  constexpr std::make_integer_sequence<int, kHalf> kAll;
  store(y, load(x) + widen_half<0>(whole, kAll));
  store(y + kHalf, load(x + kHalf) + widen_half<kHalf>(whole, kAll));
#else
  for (int64_t i = 0; i < kLanes<float>; ++i) {
    y[i] = x[i] + static_cast<double>(__builtin_rintf(units[i]));
  }
#endif
}

/// A call of its own, so that the product is rounded before anything is added to it.
[[gnu::noinline]] inline void scale_row(int64_t n, float factor, float* x) {
  TAPESTRY_VECTOR_LOOP
  for (int64_t i = 0; i < n; ++i) {
    x[i] *= factor;
  }
}

template <class Item, int kVectors>
class PanelOfLeaves {
 public:
  static constexpr int64_t kLane = kLanes<float>;
  static constexpr int64_t kWidth = kVectors * kLane;

  PanelOfLeaves(const TiledProduct& product, const Item* panel, int64_t column)
      : product_(product),
        leaves_(*product.leaves),
        panel_(panel),
        column_(column),
        columns_(least(kWidth, product.n - column)),
        exact_(product.c_dtype == kFloat64) {}

  [[gnu::noinline]] void multiply(int64_t tile_begin, int64_t tile_end) {
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
      if ((exact_ || product_.beta != 0) && tile + 1 < tile_end) {
        prefetch((tile + 1) * kTileRows);
      }
      const Rows rows = rows_of(tile);
      if (exact_) {
        rows.across ? exact_tile<true>(tile, rows) : exact_tile<false>(tile, rows);
      } else {
        rows.across ? tree_tile<true>(tile, rows) : tree_tile<false>(tile, rows);
      }
    }
  }

 private:
  static constexpr int64_t kTile = kTileRows * kWidth;
  using Sums = FloatVector[kTileRows][kVectors];

  /// A tile of A: packed, or rows where they lie, whose pieces are where k says.
  struct Rows {
    const char* data;
    int64_t ld;  // items
    bool across;
    bool in_place;
  };

  Rows rows_of(int64_t tile) const {
    const TiledProduct& g = product_;
    const bool converted = g.dtype != kFloat32 && !g.pairs;
    if (!converted && tile < g.first_packed) {
      const int64_t size = g.pairs ? 2 : 4;
      return {static_cast<const char*>(g.a) + tile * kTileRows * g.lda * size,
              g.lda / kPerItem<Item>, false, true};
    }
    const auto* packed =
        static_cast<const Item*>(g.packed_a) + (tile - g.first_packed) * leaves_.items * kTileRows;
    const bool across = !converted || g.trans_a;
    return {reinterpret_cast<const char*>(packed), across ? kTileRows : leaves_.items, across,
            false};
  }

  template <bool kTransA>
  [[gnu::always_inline]] static const Item* items_of_rows(const Rows& rows,
                                                          const LeafPiece& piece) {
    const int64_t element = static_cast<int64_t>(sizeof(Item)) / kPerItem<Item>;
    const int64_t byte =
        rows.in_place ? piece.k * element
                      : piece.item * static_cast<int64_t>(sizeof(Item)) * (kTransA ? kTileRows : 1);
    return reinterpret_cast<const Item*>(rows.data + byte);
  }

  void prefetch(int64_t row) const {
    const TiledProduct& g = product_;
    const int64_t size = exact_ ? 8 : g.c_dtype == kFloat32 ? 4 : 2;
    const int64_t rows = least(kTileRows, g.m - row);
    for (int64_t r = 0; r < rows; ++r) {
      const char* c = static_cast<const char*>(g.c) + ((row + r) * g.ldc + column_) * size;
      for (int64_t byte = 0; byte < columns_ * size; byte += 64) {
        __builtin_prefetch(c + byte);
      }
    }
  }

  /// Calls finish(sums) with those of a piece, which go on from the dense tile `start` if there is
  /// one.
  template <bool kTransA, class Finish>
  [[gnu::always_inline]] void sum(const LeafPiece& piece,
                                  const Rows& rows,
                                  const float* start,
                                  const Finish& finish) const {
    const Item* a = items_of_rows<kTransA>(rows, piece);
    const Item* b = panel_ + piece.item * kWidth;
    Sums sums;
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (kVectors == 3) {
      alignas(64) float tile[kTile];
      if (start != nullptr) {
        __builtin_memcpy(tile, start, sizeof(tile));
      }
      multiply_panel_tile<kTransA>(piece.items, a, rows.ld, b, start != nullptr, tile, kWidth);
      load_tile(tile, sums);
      finish(sums);
      return;
    }
#endif
    if (start != nullptr) {
      load_tile(start, sums);
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) {
          sums[r][v] = FloatVector{};
        }
      }
    }
    for (int64_t p = 0; p < piece.items; ++p) {
      multiply_item<Item, kVectors, kTransA>(p, a, rows.ld, b, kWidth, sums);
    }
    finish(sums);
  }

  [[gnu::always_inline]] static void load_tile(const float* x, Sums& sums) {
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        sums[r][v] = load(x + r * kWidth + v * kLane);
      }
    }
  }

  [[gnu::always_inline]] static void store_tile(const Sums& sums, float* y, int64_t ld) {
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        store(y + r * ld + v * kLane, sums[r][v]);
      }
    }
  }

  float* kept_tile(int slot, int64_t tile) const {
    return leaves_.kept[slot] + tile * kTileRows * leaves_.row_size + column_ * kTileRows;
  }

  template <bool kTransA>
  void tree_tile(int64_t tile, const Rows& a) const {
    const TiledProduct& g = product_;
    const int64_t row = tile * kTileRows;
    const int64_t rows = least(kTileRows, g.m - row);
    const bool direct = g.c_dtype == kFloat32 && g.alpha == 1 && g.beta == 0 && rows == kTileRows &&
                        columns_ == kWidth;
    alignas(64) float own[kLeafSlots][kTile];
    const auto place = [&](int slot, bool kept) {
      return kept ? kept_tile(slot, tile) : own[slot];
    };
    for (int64_t i = 0; i < leaves_.piece_count; ++i) {
      const LeafPiece& piece = leaves_.pieces[i];
      const float* start = piece.goes_on ? place(kOpenSlot, (piece.from_kept & 1U) != 0) : nullptr;
      const float* neighbours[kLeafSlots];
      for (int slot = 1; slot <= piece.adds; ++slot) {
        neighbours[slot] = place(slot, (piece.from_kept >> static_cast<unsigned>(slot) & 1U) != 0);
      }
      float* to = piece.to_c ? own[kOpenSlot]
                             : place(piece.ends ? piece.adds + 1 : kOpenSlot, piece.to_kept);
      int64_t ld = kWidth;
      if (piece.to_c && direct) {
        to = static_cast<float*>(g.c) + row * g.ldc + column_;
        ld = g.ldc;
      }
      sum<kTransA>(
          piece, a, start, [&](Sums & sums) __attribute__((always_inline)) {
            for (int slot = 1; slot <= piece.adds; ++slot) {
              const float* x = neighbours[slot];
#pragma GCC unroll 8
              for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
                for (int v = 0; v < kVectors; ++v) {
                  sums[r][v] += load(x + r * kWidth + v * kLane);
                }
              }
            }
            store_tile(sums, to, ld);
          });
      if (piece.to_c && !direct) {
        finish(row, rows, to);
      }
    }
  }

  template <class T>
  void finish_rows_of(int64_t rows, float* sums, T* c) const {
    const TiledProduct& g = product_;
    for (int64_t r = 0; r < rows; ++r) {
      float* own = sums + r * kWidth;
      if (g.beta != 0) {
        float old[kWidth];
        load_row(columns_, c + r * g.ldc, old);
        if (g.beta != 1) {
          scale_row(columns_, g.beta, old);
        }
        TAPESTRY_VECTOR_LOOP
        for (int64_t j = 0; j < columns_; ++j) {
          own[j] += old[j];
        }
      }
      store_row(columns_, own, c + r * g.ldc);
    }
  }

  /// C = alpha sums + beta C, every product and sum rounded.
  [[gnu::noinline]] void finish(int64_t row, int64_t rows, float* sums) const {
    const TiledProduct& g = product_;
    if (g.alpha != 1) {
      scale_row(kTile, g.alpha, sums);
    }
    const int64_t at = row * g.ldc + column_;
    switch (g.c_dtype) {
#if defined(__AVX2__)
      case kBFloat16:
        return finish_rows_of(rows, sums, static_cast<BFloat16*>(g.c) + at);
#if !defined(TAPESTRY_PAIRS)
      case kFloat16:
        return finish_rows_of(rows, sums, static_cast<Float16*>(g.c) + at);
#endif
#endif
      default:
        finish_rows_of(rows, sums, static_cast<float*>(g.c) + at);
    }
  }

  static void copy_doubles(
      int64_t rows, int64_t columns, const double* x, int64_t ldx, double* y, int64_t ldy) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < columns; ++j) {
        y[r * ldy + j] = x[r * ldx + j];
      }
    }
  }

  template <bool kTransA>
  void exact_tile(int64_t tile, const Rows& a) const {
    const TiledProduct& g = product_;
    const int64_t row = tile * kTileRows;
    const int64_t rows = least(kTileRows, g.m - row);
    const bool whole = rows == kTileRows && columns_ == kWidth;
    double* c = static_cast<double*>(g.c) + row * g.ldc + column_;
    // Rows of C are far apart, and would drive one another from the first-level cache: between the
    // leaves the sums are beside it.
    alignas(64) double own[kTile];
    alignas(64) float open[kTile];
    const double* from = c;
    int64_t ld_from = g.ldc;
    if (!whole) {
      __builtin_memset(own, 0, sizeof(own));
      copy_doubles(rows, columns_, c, g.ldc, own, kWidth);
      from = own;
      ld_from = kWidth;
    }
    const FloatVector factor = broadcast(g.alpha * kExactUnits);
    for (int64_t i = 0; i < leaves_.piece_count; ++i) {
      const LeafPiece& piece = leaves_.pieces[i];
      const float* start = !piece.goes_on                ? nullptr
                           : (piece.from_kept & 1U) != 0 ? kept_tile(kOpenSlot, tile)
                                                         : open;
      if (!piece.ends) {
        float* to = piece.to_kept ? kept_tile(kOpenSlot, tile) : open;
        sum<kTransA>(
            piece, a, start, [&](const Sums& sums) __attribute__((always_inline)) {
              store_tile(sums, to, kWidth);
            });
        continue;
      }
      double* to = whole && piece.last ? c : own;
      const int64_t ld_to = whole && piece.last ? g.ldc : kWidth;
      sum<kTransA>(
          piece, a, start, [&](const Sums& sums) __attribute__((always_inline)) {
#pragma GCC unroll 8
            for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 3
              for (int v = 0; v < kVectors; ++v) {
                add_rounded(sums[r][v] * factor, from + r * ld_from + v * kLane,
                            to + r * ld_to + v * kLane);
              }
            }
          });
      from = own;
      ld_from = kWidth;
    }
    if (!whole) {
      copy_doubles(rows, columns_, own, kWidth, c, g.ldc);
    }
  }

  const TiledProduct& product_;
  const LeafSums& leaves_;
  const Item* panel_;
  int64_t column_;
  int64_t columns_;
  bool exact_;
};

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
