#include "autograd/kernels/gemm/gemm_few_rows.h"

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
constexpr int kWRows = kIsBlocks<Form> ? 2 : 3;
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
[[gnu::always_inline]] inline void rows_of_sums(const FloatVector (*v)[4], float* out, int64_t ld) {
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
#pragma GCC unroll 4
  for (int i = 0; i < kX; ++i) {
    __builtin_memcpy(out + i * ld, reinterpret_cast<const float*>(&by_row) + i * 4,
                     4 * sizeof(float));
  }
}
#endif

/// The same of all vectors of a tile, whose rows are ld apart in out.
template <int kX, int kW>
[[gnu::always_inline]] inline void lanes_sums(const FloatVector (&v)[kX][kW],
                                              float* out,
                                              int64_t ld) {
#if defined(__AVX512F__)
  if constexpr (kW == 4) {
    constexpr int kFirst = kX < 4 ? kX : 4;
    rows_of_sums<kFirst>(v, out, ld);
    if constexpr (kX > kFirst) {
      rows_of_sums<kX - kFirst>(v + kFirst, out + kFirst * ld, ld);
    }
    return;
  }
#endif
#pragma GCC unroll 8
  for (int i = 0; i < kX; ++i) {
#pragma GCC unroll 8
    for (int r = 0; r < kW; ++r) {
      out[i * ld + r] = lanes_sum(v[i][r]);
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

/// One call: rows of W, all rows of x, and the sums of their products.
struct Stripe {
  const FewRowsProduct& product;
  int64_t begin;
  int64_t end;
  int64_t next;
  const float* packed;
  float* sums;  // [rows of x, ld]
  int64_t ld;   // some more than there are rows of W, see Tiles
};

/// Rows of W in tiles of kW. Where they are no multiple, the last tile shares rows with the one
/// before it; where they are fewer than kW, each is a tile, as all rows of it, and what that writes
/// behind its own column is where the next tile writes, or nobody reads.
template <int kW>
class Tiles {
 public:
  explicit Tiles(const Stripe& stripe)
      : begin_(stripe.begin),
        rows_(stripe.end - stripe.begin),
        stride_(rows_ < kW ? 0 : stripe.product.w_stride) {}
  [[nodiscard]] int64_t count() const { return rows_ < kW ? rows_ : few_rows_ceil_div(rows_, kW); }
  /// The first row of a tile.
  [[gnu::always_inline, nodiscard]] int64_t at(int64_t index) const {
    if (rows_ < kW) {
      return begin_ + index;
    }
    const int64_t row = index * kW;
    return begin_ + (row + kW <= rows_ ? row : rows_ - kW);
  }
  /// Bytes from one row of a tile to the next.
  [[nodiscard]] int64_t stride() const { return stride_; }

 private:
  int64_t begin_;
  int64_t rows_;
  int64_t stride_;
};

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

/// A tile of rows of W: the first one, and bytes from one to the next.
struct WRows {
  int64_t first;
  int64_t stride;
};

/// Rows of W that meet rows of x: adds to sums [kX][kW].
template <class Form, int kX, int kW>
[[gnu::always_inline]] inline void sum_tile(int64_t k,
                                            const char* w,
                                            int64_t stride,
                                            const float* x,
                                            const Piece& piece,
                                            Fetch fetch,
                                            FloatVector (&sums)[kX][kW]) {
  constexpr int64_t kXChunk = kX * Form::kFloats;
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
  const int64_t filled = k / Form::kCount;
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
  if constexpr (!Form::kWhole) {
    if (whole < piece.end) {
      alignas(64) char last[kW][Form::kBytes] = {};
      const int64_t bytes = (k - whole * Form::kCount) * Form::kBytes / Form::kCount;
      const char* padded[kW];
      for (int r = 0; r < kW; ++r) {
        __builtin_memcpy(last[r], rows[r], static_cast<size_t>(bytes));
        padded[r] = last[r];
      }
      add(padded, x + whole * kXChunk);
    }
  }
}

template <class Form>
int64_t packed_row(const FewRowsProduct& product) {
  return few_rows_ceil_div(product.k, Form::kCount) * Form::kFloats;
}

template <class Form, int kX, int kW>
[[gnu::noinline]] void few_rows_tile(
    const Stripe& stripe, int64_t row, const WRows& w, const Piece& piece, const Fetch& fetch) {
  const FewRowsProduct& product = stripe.product;
  FloatVector lanes[kX][kW];
  const auto kept = [&](int i, int r) { return piece.sums + ((row + i) * kW + r) * kLane; };
  if (kInPieces && piece.begin > 0) {
    for_tile<kX, kW>([&](int i, int r) { lanes[i][r] = load(kept(i, r)); });
  } else {
    for_tile<kX, kW>([&](int i, int r) { lanes[i][r] = FloatVector{}; });
  }
  sum_tile<Form, kX, kW>(product.k,
                         static_cast<const char*>(product.w) + w.first * product.w_stride, w.stride,
                         stripe.packed + row * packed_row<Form>(product), piece, fetch, lanes);
  if (kInPieces && piece.end * Form::kCount < product.k) {
    for_tile<kX, kW>([&](int i, int r) { store(kept(i, r), lanes[i][r]); });
    return;
  }
  lanes_sums<kX, kW>(lanes, stripe.sums + row * stripe.ld + w.first - stripe.begin, stripe.ld);
}

/// Rows of x, at most kMostX.
template <class Form, int kMostX, int kW>
[[gnu::always_inline]] inline void block_tile(const Stripe& stripe,
                                              const Block& block,
                                              const WRows& w,
                                              const Piece& piece,
                                              const Fetch& fetch) {
  if constexpr (kMostX > 1) {
    if (block.rows < kMostX) {
      block_tile<Form, kMostX - 1, kW>(stripe, block, w, piece, fetch);
      return;
    }
  }
  few_rows_tile<Form, kMostX, kW>(stripe, block.row, w, piece, fetch);
}

template <class Form>
[[gnu::always_inline]] inline Fetch rows_from(const FewRowsProduct& product, int64_t column) {
  return {.from = static_cast<const char*>(product.w) + column * product.w_stride,
          .step = Form::kBytes};
}

/// Each tile of W with all rows of x, in blocks of at most kMostX: the tile after it is fetched.
template <class Form, int kMostX, int kW>
void tile_by_tile(const Stripe& stripe) {
  const FewRowsProduct& product = stripe.product;
  const Piece whole{.begin = 0, .end = few_rows_ceil_div(product.k, Form::kCount), .sums = nullptr};
  const Blocks blocks(product.n);
  const Tiles<kW> tiles(stripe);
  const int64_t count = tiles.count();
  for (int64_t t = 0; t < count; ++t) {
    const WRows w{.first = tiles.at(t), .stride = tiles.stride()};
    for (int64_t b = 0; b < blocks.count(); ++b) {
      block_tile<Form, kMostX, kW>(stripe, blocks.at(b), w, whole,
                                   rows_from<Form>(product, w.first + kW));
    }
  }
}

/// The same, as often as there are pieces and blocks of x. Memory is read at an even pace: each
/// block fetches its share of the next piece, or of the first one of the rows from stripe.next on.
template <class Form, int kW>
void piece_by_piece(const Stripe& stripe) {
  constexpr int64_t kMostChunks = kPieceBytes / (kMostXRows * Form::kFloats * 4);
  const FewRowsProduct& product = stripe.product;
  const Tiles<kW> tiles(stripe);
  const int64_t count = tiles.count();
  const Blocks blocks(product.n);
  const int64_t chunks = few_rows_ceil_div(product.k, Form::kCount);
  const int64_t pieces = few_rows_ceil_div(chunks, kMostChunks);
  const auto start = [&](int64_t piece) { return chunks * piece / pieces; };
  const int64_t kept = pieces > 1 ? product.n * kW * kLane : 0;
  const auto sums = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(count * kept));
  for (int64_t p = 0; p < pieces; ++p) {
    const bool last = p + 1 == pieces;
    const int64_t next_begin = start(last ? 0 : p + 1);
    const int64_t next_chunks = start(last ? 1 : p + 2) - next_begin;
    for (int64_t b = 0; b < blocks.count(); ++b) {
      Fetch fetch = rows_from<Form>(product, last ? stripe.next : stripe.begin);
      fetch.from += (next_begin + next_chunks * b / blocks.count()) * Form::kBytes;
      fetch.step = few_rows_ceil_div(Form::kBytes, blocks.count());
      for (int64_t t = 0; t < count; ++t) {
        block_tile<Form, kMostXRows, kW>(
            stripe, blocks.at(b), {.first = tiles.at(t), .stride = tiles.stride()},
            {.begin = start(p), .end = start(p + 1), .sums = sums.get() + t * kept}, fetch);
        fetch.from += kW * product.w_stride;
      }
    }
  }
}

template <class Form>
void sum_stripe(const Stripe& stripe) {
  const int64_t n = stripe.product.n;
  if (n == 1) {
    tile_by_tile<Form, 1, Form::kRowsOfOne>(stripe);
    return;
  }
  if constexpr (kInPieces) {
    if (n > kMostXRows) {
      piece_by_piece<Form, kWRows<Form>>(stripe);
      return;
    }
  }
  tile_by_tile<Form, kMostXRows, kWRows<Form>>(stripe);
}

/// y = alpha sum + beta y.
template <class Y>
void put_sums(const Stripe& stripe) {
  const FewRowsProduct& product = stripe.product;
  const int64_t columns = stripe.end - stripe.begin;
  for (int64_t i = 0; i < product.n; ++i) {
    float* sums = stripe.sums + i * stripe.ld;
    Y* y = static_cast<Y*>(product.y) + i * product.ldy + stripe.begin;
    if (product.alpha != 1) {
      for (int64_t j = 0; j < columns; ++j) {
        sums[j] *= product.alpha;
      }
    }
    if (product.beta != 0) {
      for (int64_t j = 0; j < columns; ++j) {
        sums[j] = multiply_add(product.beta, static_cast<float>(get(y[j])), sums[j]);
      }
    }
    store_row(columns, sums, y);
  }
}

/// Calls f with a null pointer of the form.
template <class F>
void with_form(FewRowsForm form, const F& f) {
  switch (form) {
#if !defined(TAPESTRY_PAIRS)
    case FewRowsForm::kFloat32:
      return f(static_cast<InOrder<float>*>(nullptr));
    case FewRowsForm::kBFloat16:
      return f(static_cast<EvenOdd*>(nullptr));
    case FewRowsForm::kFloat16:
      return f(static_cast<InOrder<Float16>*>(nullptr));
    case FewRowsForm::kQ8:
      return f(static_cast<BlockFloats<Q8Numbers>*>(nullptr));
    case FewRowsForm::kQ4:
      return f(static_cast<BlockFloats<Q4Numbers>*>(nullptr));
#else
    case FewRowsForm::kBFloat16Pairs:
      return f(static_cast<Pairs*>(nullptr));
    case FewRowsForm::kQ8Pairs:
      return f(static_cast<BlockPairs<Q8PairNumbers>*>(nullptr));
    case FewRowsForm::kQ4Pairs:
      return f(static_cast<BlockPairs<Q4PairNumbers>*>(nullptr));
#endif
    default:
      __builtin_unreachable();
  }
}

/// How a form has its x.
struct Packing {
  int64_t count;   // numbers in a chunk
  int64_t floats;  // that it takes
};
Packing packing_of(FewRowsForm form) {
  Packing packing{};
  with_form(form, [&](auto* tag) {
    using Form = std::remove_pointer_t<decltype(tag)>;
    packing = {.count = Form::kCount, .floats = Form::kFloats};
  });
  return packing;
}

/// A row of x as the form has it; zeros behind its end.
void pack_row(const FewRowsProduct& product, const Packing& packing, int64_t row, float* out) {
  const int64_t k = product.k;
  const int64_t padded = few_rows_ceil_div(k, packing.count) * packing.count;
#if defined(TAPESTRY_PAIRS)
  const auto* x = static_cast<const BFloat16*>(product.x) + row * product.ldx;
  auto* to = reinterpret_cast<char*>(out);
  __builtin_memcpy(to, x, static_cast<size_t>(k) * sizeof(BFloat16));
  __builtin_memset(to + k * 2, 0, static_cast<size_t>(padded - k) * sizeof(BFloat16));
#else
  for_floating(product.x_dtype, [&](auto* tag) {
    if constexpr (sizeof(*tag) <= sizeof(float)) {
      using T = std::remove_pointer_t<decltype(tag)>;
      load_row(k, static_cast<const T*>(product.x) + row * product.ldx, out);
    }
  });
  __builtin_memset(out + k, 0, static_cast<size_t>(padded - k) * sizeof(float));
  if (product.form == FewRowsForm::kBFloat16) {
    for (int64_t i = 0; i < padded; i += EvenOdd::kCount) {
      float turned[EvenOdd::kCount];
      for (int64_t j = 0; j < kLane; ++j) {
        turned[j] = out[i + 2 * j];
        turned[kLane + j] = out[i + 2 * j + 1];
      }
      __builtin_memcpy(out + i, turned, sizeof(turned));
    }
  }
#endif
}

}  // namespace

int64_t few_rows_packed_bytes(const FewRowsProduct& product) {
  const Packing packing = packing_of(product.form);
  return product.n * few_rows_ceil_div(product.k, packing.count) * packing.floats *
         static_cast<int64_t>(sizeof(float));
}

void pack_few_rows(const FewRowsProduct& product, int64_t begin, int64_t end, void* packed) {
  const Packing packing = packing_of(product.form);
  const int64_t size = few_rows_ceil_div(product.k, packing.count) * packing.floats;
  if (product.n == 1) {
    pack_row(product, packing, 0, static_cast<float*>(packed));
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
      pack_row(product, packing, row, in_order.get());
      const float* from = in_order.get();
      for (int64_t chunk = 0; chunk < size; chunk += packing.floats) {
        float* out = to + chunk * block.rows + (row - block.row) * packing.floats;
        for (int64_t lane = 0; lane < packing.floats; lane += kLane, from += kLane) {
          store(out + lane, load(from));
        }
      }
    }
  }
}

void multiply_few_rows(
    const FewRowsProduct& product, int64_t begin, int64_t end, int64_t next, const void* packed) {
  const int64_t ld = end - begin + kWRows<void>;
  const auto sums = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(product.n * ld));
  const Stripe stripe{.product = product,
                      .begin = begin,
                      .end = end,
                      .next = next,
                      .packed = static_cast<const float*>(packed),
                      .sums = sums.get(),
                      .ld = ld};
  with_form(product.form,
            [&](auto* form) { sum_stripe<std::remove_pointer_t<decltype(form)>>(stripe); });
  switch (product.y_dtype) {
    case kBFloat16:
      return put_sums<BFloat16>(stripe);
    case kFloat16:
      return put_sums<Float16>(stripe);
    default:
      put_sums<float>(stripe);
  }
}

}  // namespace tapestry::kernels::TAPESTRY_ISA
