#include "autograd/kernels/gemm_few_rows.h"

#include <memory>
#include <type_traits>

#include "autograd/kernels/isa/avx2_few_rows_tile.h"
#include "autograd/kernels/isa/few_rows_forms.h"

namespace tapestry::kernels::TAPESTRY_ISA {

namespace {

// What the registers hold: the sums of a tile, its parts of W and one of x.
#if defined(__AVX512F__)
constexpr int kMostXRows = 6;
template <class Form>
constexpr int kWRows = 4;
#elif defined(__AVX2__)
constexpr int kMostXRows = 4;
template <class Form>
constexpr int kWRows = kSame<Form, Q8Floats> ? 2 : 3;
#else
constexpr int kMostXRows = 4;
template <class Form>
constexpr int kWRows = 2;
#endif

// Rows of x that meet rows of W together are to stay in the first-level cache while those pass: so
// many bytes of them at a time, and the sums so far are kept. Larger tiles do without: they take x
// from the second level as fast as they multiply, and rows of W meet all of it in turn.
constexpr bool kInPieces = kLane < 16;
constexpr int64_t kPieceBytes = 20 << 10;

[[gnu::always_inline]] inline int64_t few_rows_ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// The sum of the lanes: of both halves, then of their halves, ...
[[gnu::always_inline]] inline float lanes_sum(FloatVector v) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const __m256 eight = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                       __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  const __m256 eight = v;
#endif
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

#if defined(__AVX512F__)
/// The lanes of four vectors, in four lanes each: those of v[0] in the first four, and so on.
[[gnu::always_inline]] inline FloatVector fours(const FloatVector (&v)[4]) {
  const auto halves = [](FloatVector a, FloatVector b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30,
                                   31);
  };
  const FloatVector a = halves(v[0], v[1]);
  const FloatVector b = halves(v[2], v[3]);
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
         __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}

/// The sums of the lanes of some rows of four vectors, added in the order of lanes_sum().
template <int kX>
[[gnu::always_inline]] inline void rows_of_sums(const FloatVector (*v)[4], float* out) {
  static_assert(kX >= 1 && kX <= 4);
  FloatVector rows[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = i < kX ? fours(v[i < kX ? i : 0]) : rows[0];
  }
  // In each four lanes: the first and third, the second and fourth of two rows.
  const auto pairs = [](FloatVector a, FloatVector b) {
    return _mm512_maskz_unpacklo_ps(kAllLanes, a, b) + _mm512_maskz_unpackhi_ps(kAllLanes, a, b);
  };
  const FloatVector a = pairs(rows[0], rows[1]);
  const FloatVector b = pairs(rows[2], rows[3]);
  const FloatVector by_column = _mm512_maskz_shuffle_ps(kAllLanes, a, b, 0b01'00'01'00) +
                                _mm512_maskz_shuffle_ps(kAllLanes, a, b, 0b11'10'11'10);
  const FloatVector by_row = __builtin_shufflevector(by_column, by_column, 0, 4, 8, 12, 1, 5, 9, 13,
                                                     2, 6, 10, 14, 3, 7, 11, 15);
  __builtin_memcpy(out, &by_row, kX * 4 * sizeof(float));
}
#endif

/// The same of all vectors of a tile.
template <int kX, int kW>
[[gnu::always_inline]] inline void lanes_sums(const FloatVector (&v)[kX][kW],
                                              float (&out)[kX][kW]) {
#if defined(__AVX512F__)
  if constexpr (kW == 4) {
    constexpr int kFirst = kX < 4 ? kX : 4;
    rows_of_sums<kFirst>(v, out[0]);
    if constexpr (kX > kFirst) {
      rows_of_sums<kX - kFirst>(v + kFirst, out[kFirst]);
    }
    return;
  }
#endif
#pragma GCC unroll 8
  for (int i = 0; i < kX; ++i) {
#pragma GCC unroll 8
    for (int r = 0; r < kW; ++r) {
      out[i][r] = lanes_sum(v[i][r]);
    }
  }
}

template <int kX, int kW, class F>
[[gnu::always_inline]] inline void for_tile(const F& f) {
#pragma GCC unroll 8
  for (int i = 0; i < kX; ++i) {
#pragma GCC unroll 8
    for (int r = 0; r < kW; ++r) {
      f(i, r);
    }
  }
}

/// Chunks of rows, and where the sums of those before and of these are kept, [rows of x][rows of
/// W][lane]; no place where they are all.
struct Piece {
  int64_t begin;
  int64_t end;
  float* sums;
};

/// What is to be on its way from memory meanwhile: of as many rows of W as the tile has, so many
/// bytes for each chunk.
struct Fetch {
  const char* from;
  int64_t step;
};

/// Rows of x that lie together in packed x, chunk by chunk, and make a tile with rows of W.
struct Block {
  int64_t row;
  int64_t rows;
};

/// n rows of x in blocks of about equal size, of which the first few have a row more.
class Blocks {
 public:
  explicit Blocks(int64_t n)
      : count_(few_rows_ceil_div(n, kMostXRows)), rows_(n / count_), larger_(n % count_) {}
  [[nodiscard]] int64_t count() const { return count_; }
  [[gnu::always_inline, nodiscard]] Block at(int64_t index) const {
    return {.row = index * rows_ + (index < larger_ ? index : larger_),
            .rows = rows_ + (index < larger_ ? 1 : 0)};
  }

 private:
  int64_t count_;
  int64_t rows_;
  int64_t larger_;
};

/// Rows of W that meet rows of x: adds to sums [kX][kW].
template <class Form, int kX, int kW>
[[gnu::always_inline]] inline void sum_tile(const FewRowsProduct& product,
                                            const char* w,
                                            const float* x,
                                            const Piece& piece,
                                            Fetch fetch,
                                            FloatVector (&sums)[kX][kW]) {
  constexpr int64_t kXChunk = kX * Form::kFloats;
  const int64_t stride = product.w_stride;
  const auto add = [&](const char* const(&rows)[kW], const float* at)
      __attribute__((always_inline)) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    if constexpr (kSame<Form, EvenOdd> && kX >= 3 && kW == 3) {
      add_even_odd_tile(rows, at, sums);
      return;
    }
#endif
    typename Form::Part parts[kW];
#pragma GCC unroll 8
    for (int r = 0; r < kW; ++r) {
      parts[r] = Form::part(rows[r]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kX; ++i) {
      const typename Form::X row = in_registers(Form::x(at + i * Form::kFloats));
#pragma GCC unroll 8
      for (int r = 0; r < kW; ++r) {
        sums[i][r] = Form::add(parts[r], row, sums[i][r]);
      }
    }
  };
  const char* rows[kW];
  for (int r = 0; r < kW; ++r) {
    rows[r] = w + r * stride + piece.begin * Form::kBytes;
  }
  const int64_t filled = product.k / Form::kCount;
  const int64_t whole = piece.end < filled ? piece.end : filled;
  for (int64_t c = piece.begin; c < whole; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < kW; ++r) {
      __builtin_prefetch(fetch.from + r * stride, 0, kW == 1 ? 3 : 2);
    }
    fetch.from += fetch.step;
    add(rows, x + c * kXChunk);
#pragma GCC unroll 8
    for (int r = 0; r < kW; ++r) {
      rows[r] += Form::kBytes;
    }
  }
  if (whole < piece.end) {
    alignas(64) char last[kW][Form::kBytes] = {};
    const int64_t bytes = (product.k - whole * Form::kCount) * Form::kBytes / Form::kCount;
    const char* padded[kW];
    for (int r = 0; r < kW; ++r) {
      __builtin_memcpy(last[r], rows[r], static_cast<size_t>(bytes));
      padded[r] = last[r];
    }
    add(padded, x + whole * kXChunk);
  }
}

/// y = alpha sum + beta y, of a tile.
template <class Y, int kX, int kW>
[[gnu::always_inline]] inline void put_sums(const FewRowsProduct& product,
                                            int64_t row,
                                            int64_t column,
                                            const float (&sums)[kX][kW]) {
  Y* y = static_cast<Y*>(product.y) + row * product.ldy + column;
  float scaled[kX * kW];
  for (int i = 0; i < kX; ++i) {
    for (int r = 0; r < kW; ++r) {
      scaled[i * kW + r] = sums[i][r] * product.alpha;
      if (product.beta != 0) {
        scaled[i * kW + r] += product.beta * static_cast<float>(get(y[i * product.ldy + r]));
      }
    }
  }
  Y rounded[kX * kW];
  store_row(kX * kW, scaled, rounded);
  for (int i = 0; i < kX; ++i) {
    __builtin_memcpy(y + i * product.ldy, rounded + i * kW, kW * sizeof(Y));
  }
}

template <class Form>
int64_t packed_row(const FewRowsProduct& product) {
  return few_rows_ceil_div(product.k, Form::kCount) * Form::kFloats;
}

template <class Form, int kX, int kW>
[[gnu::noinline]] void few_rows_tile(const FewRowsProduct& product,
                                     int64_t row,
                                     int64_t column,
                                     const float* packed,
                                     const Piece& piece,
                                     const Fetch& fetch) {
  FloatVector lanes[kX][kW];
  const auto kept = [&](int i, int r) { return piece.sums + ((row + i) * kW + r) * kLane; };
  if (kInPieces && piece.begin > 0) {
    for_tile<kX, kW>([&](int i, int r) { lanes[i][r] = load(kept(i, r)); });
  } else {
    for_tile<kX, kW>([&](int i, int r) { lanes[i][r] = FloatVector{}; });
  }
  sum_tile<Form, kX, kW>(product, static_cast<const char*>(product.w) + column * product.w_stride,
                         packed + row * packed_row<Form>(product), piece, fetch, lanes);
  if (kInPieces && piece.end * Form::kCount < product.k) {
    for_tile<kX, kW>([&](int i, int r) { store(kept(i, r), lanes[i][r]); });
    return;
  }
  float sums[kX][kW];
  lanes_sums<kX, kW>(lanes, sums);
  switch (product.y_dtype) {
    case kBFloat16:
      put_sums<BFloat16>(product, row, column, sums);
      break;
    case kFloat16:
      put_sums<Float16>(product, row, column, sums);
      break;
    default:
      put_sums<float>(product, row, column, sums);
  }
}

template <class Form, int kW>
[[gnu::always_inline]] inline void block_tile(const FewRowsProduct& product,
                                              const Block& block,
                                              int64_t column,
                                              const float* packed,
                                              const Piece& piece,
                                              const Fetch& fetch) {
  const auto tile = [&](auto rows) __attribute__((always_inline)) {
    few_rows_tile<Form, decltype(rows)::value, kW>(product, block.row, column, packed, piece,
                                                   fetch);
  };
  switch (block.rows) {
    case 1:
      return tile(std::integral_constant<int, 1>());
    case 2:
      return tile(std::integral_constant<int, 2>());
    case 3:
      return tile(std::integral_constant<int, 3>());
    case 4:
      return tile(std::integral_constant<int, 4>());
#if defined(__AVX512F__)
    case 5:
      return tile(std::integral_constant<int, 5>());
    case 6:
      return tile(std::integral_constant<int, 6>());
#endif
    default:
      __builtin_unreachable();
  }
}

template <class Form>
[[gnu::always_inline]] inline Fetch rows_from(const FewRowsProduct& product, int64_t column) {
  return {.from = static_cast<const char*>(product.w) + column * product.w_stride,
          .step = Form::kBytes};
}

/// Rows of W from begin on, as many as tiles of kW have place before end, with all rows of x: the
/// tile after each is fetched. Returns the row behind the last tile.
template <class Form, int kW>
int64_t tile_by_tile(const FewRowsProduct& product,
                     int64_t begin,
                     int64_t end,
                     const float* packed) {
  const Piece whole{.begin = 0, .end = few_rows_ceil_div(product.k, Form::kCount), .sums = nullptr};
  const Blocks blocks(product.n);
  int64_t column = begin;
  for (; column + kW <= end; column += kW) {
    for (int64_t b = 0; b < blocks.count(); ++b) {
      block_tile<Form, kW>(product, blocks.at(b), column, packed, whole,
                           rows_from<Form>(product, column + kW));
    }
  }
  return column;
}

/// The same, as often as there are pieces and blocks of x. Memory is read at an even pace: each
/// block fetches its share of the next piece, or of the first one of the rows from next on.
template <class Form, int kW>
int64_t piece_by_piece(
    const FewRowsProduct& product, int64_t begin, int64_t end, int64_t next, const float* packed) {
  constexpr int64_t kMostChunks = kPieceBytes / (kMostXRows * Form::kFloats * 4);
  const int64_t tiles = (end - begin) / kW;
  const Blocks blocks(product.n);
  const int64_t chunks = few_rows_ceil_div(product.k, Form::kCount);
  const int64_t pieces = few_rows_ceil_div(chunks, kMostChunks);
  const auto start = [&](int64_t piece) { return chunks * piece / pieces; };
  const int64_t kept = pieces > 1 ? product.n * kW * kLane : 0;
  const auto sums = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(tiles * kept));
  for (int64_t p = 0; p < pieces; ++p) {
    const bool last = p + 1 == pieces;
    const int64_t next_begin = start(last ? 0 : p + 1);
    const int64_t next_chunks = start(last ? 1 : p + 2) - next_begin;
    for (int64_t b = 0; b < blocks.count(); ++b) {
      Fetch fetch = rows_from<Form>(product, last ? next : begin);
      fetch.from += (next_begin + next_chunks * b / blocks.count()) * Form::kBytes;
      fetch.step = few_rows_ceil_div(Form::kBytes, blocks.count());
      for (int64_t t = 0; t < tiles; ++t) {
        block_tile<Form, kW>(
            product, blocks.at(b), begin + t * kW, packed,
            {.begin = start(p), .end = start(p + 1), .sums = sums.get() + t * kept}, fetch);
        fetch.from += kW * product.w_stride;
      }
    }
  }
  return begin + tiles * kW;
}

template <class Form>
int64_t whole_tiles(
    const FewRowsProduct& product, int64_t begin, int64_t end, int64_t next, const float* packed) {
  if (product.n == 1) {
    // Memory is read fastest in one stream; but where that is a long chain of sums it is slower.
    constexpr int kRows = Form::kFloats < Form::kCount && Form::kBytes == 64 ? 1 : 2;
    return tile_by_tile<Form, kRows>(product, begin, end, packed);
  }
  if constexpr (kInPieces) {
    if (product.n > kMostXRows) {
      return piece_by_piece<Form, kWRows<Form>>(product, begin, end, next, packed);
    }
  }
  return tile_by_tile<Form, kWRows<Form>>(product, begin, end, packed);
}

/// Calls f with a null pointer of the form.
template <class F>
void with_form(FewRowsForm form, const F& f) {
  switch (form) {
    case FewRowsForm::kFloat32:
      return f(static_cast<InOrder<float>*>(nullptr));
    case FewRowsForm::kBFloat16:
      return f(static_cast<EvenOdd*>(nullptr));
    case FewRowsForm::kFloat16:
      return f(static_cast<InOrder<Float16>*>(nullptr));
#if defined(__AVX512BF16__)
    case FewRowsForm::kBFloat16Pairs:
      return f(static_cast<Pairs*>(nullptr));
    case FewRowsForm::kQ8Pairs:
      return f(static_cast<Q8Pairs*>(nullptr));
#endif
    case FewRowsForm::kQ8:
      return f(static_cast<Q8Floats*>(nullptr));
    default:
      __builtin_unreachable();
  }
}

/// A row of x as floats, in the order of the form; zeros behind its end.
template <class Form>
void pack_row(const FewRowsProduct& product, int64_t row, float* out) {
  const int64_t k = product.k;
  const int64_t padded = few_rows_ceil_div(k, Form::kCount) * Form::kCount;
  if constexpr (Form::kFloats < Form::kCount) {  // pairs of bfloat16 stay what they are
    const auto* x = static_cast<const BFloat16*>(product.x) + row * product.ldx;
    auto* to = reinterpret_cast<char*>(out);
    __builtin_memcpy(to, x, static_cast<size_t>(k) * sizeof(BFloat16));
    __builtin_memset(to + k * 2, 0, static_cast<size_t>(padded - k) * sizeof(BFloat16));
  } else {
    for_floating(product.x_dtype, [&](auto* tag) {
      if constexpr (sizeof(*tag) <= sizeof(float)) {
        using T = std::remove_pointer_t<decltype(tag)>;
        load_row(k, static_cast<const T*>(product.x) + row * product.ldx, out);
      }
    });
    __builtin_memset(out + k, 0, static_cast<size_t>(padded - k) * sizeof(float));
    if constexpr (kSame<Form, EvenOdd>) {
      for (int64_t i = 0; i < padded; i += Form::kCount) {
        float turned[Form::kCount];
        for (int64_t j = 0; j < kLane; ++j) {
          turned[j] = out[i + 2 * j];
          turned[kLane + j] = out[i + 2 * j + 1];
        }
        __builtin_memcpy(out + i, turned, sizeof(turned));
      }
    }
  }
}

}  // namespace

int64_t few_rows_packed_bytes(const FewRowsProduct& product) {
  int64_t bytes = 0;
  with_form(product.form, [&](auto* form) {
    bytes = product.n * packed_row<std::remove_pointer_t<decltype(form)>>(product) *
            static_cast<int64_t>(sizeof(float));
  });
  return bytes;
}

void pack_few_rows(const FewRowsProduct& product, int64_t begin, int64_t end, void* packed) {
  with_form(product.form, [&](auto* form) {
    using Form = std::remove_pointer_t<decltype(form)>;
    const int64_t size = packed_row<Form>(product);
    if (product.n == 1) {
      pack_row<Form>(product, 0, static_cast<float*>(packed));
      return;
    }
    // Rows of a block chunk by chunk: at the rows' own distance, often a power of two, they would
    // displace each other in the first-level cache.
    const auto in_order = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(size));
    const Blocks blocks(product.n);
    for (int64_t b = 0; b < blocks.count(); ++b) {
      const Block block = blocks.at(b);
      float* to = static_cast<float*>(packed) + block.row * size;
      const int64_t last = end < block.row + block.rows ? end : block.row + block.rows;
      for (int64_t row = begin > block.row ? begin : block.row; row < last; ++row) {
        pack_row<Form>(product, row, in_order.get());
        for (int64_t at = 0; at < size; at += Form::kFloats) {
          __builtin_memcpy(to + at * block.rows + (row - block.row) * Form::kFloats,
                           in_order.get() + at, Form::kFloats * sizeof(float));
        }
      }
    }
  });
}

void multiply_few_rows(
    const FewRowsProduct& product, int64_t begin, int64_t end, int64_t next, const void* packed) {
  with_form(product.form, [&](auto* form) {
    using Form = std::remove_pointer_t<decltype(form)>;
    const auto* x = static_cast<const float*>(packed);
    tile_by_tile<Form, 1>(product, whole_tiles<Form>(product, begin, end, next, x), end, x);
  });
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
