// Copies of the factors of a product, in the order in which its tiles read them: the items of a
// panel of B or of a tile of A that belong to one k lie together, those of the next follow.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include "autograd/kernels/dtype.h"
#include "autograd/kernels/isa/matrix_tile.h"
#include "autograd/kernels/isa/vector_math.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

[[gnu::always_inline]] inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// What an item is made of: itself, or two neighbours in k.
template <class Item>
struct Elements {
  using type = Item;
  static constexpr int64_t kPerItem = 1;
};
#if defined(__AVX512BF16__)
template <>
struct Elements<Pair> {
  using type = BFloat16;
  static constexpr int64_t kPerItem = 2;
};
#endif

template <class Item>
int64_t items_of(int64_t k) {
  return ceil_div(k, Elements<Item>::kPerItem);
}

/// A factor as the packing sees it: `lines` are the rows of A or the columns of B.
template <class Item>
struct Factor {
  const typename Elements<Item>::type* data;
  int64_t ld;
  bool along;  // the elements of a line are neighbours; otherwise those of one k are
  int64_t k;

  /// Item p of a line; zeros beyond k.
  Item at(int64_t line, int64_t p) const {
    if constexpr (Elements<Item>::kPerItem == 1) {
      return along ? data[line * ld + p] : data[p * ld + line];
    } else {
      const int64_t first = 2 * p;
      const int64_t step = along ? 1 : ld;
      const auto* x = data + (along ? line * ld + first : first * ld + line);
      const uint32_t low = x[0].bits;
      const uint32_t high = first + 1 < k ? x[step].bits : 0;
      return {low | high << 16U};
    }
  }
};

/// kCount items of neighbouring lines, from the elements of one k and of the next.
template <int64_t kCount, class Element, class Item>
[[gnu::always_inline]] inline void join(const Element* even,
                                        [[maybe_unused]] const Element* odd,
                                        Item* out) {
  if constexpr (Elements<Item>::kPerItem == 1) {
    __builtin_memcpy(out, even, kCount * sizeof(Item));
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t c = 0; c < kCount; ++c) {
      out[c].bits = even[c].bits | static_cast<uint32_t>(odd[c].bits) << 16U;
    }
  }
}

/// out [items, kWidth] = the items of lines [first, first + count), zeros for the others.
template <int64_t kWidth, class Item>
[[gnu::noinline]] void pack(const Factor<Item>& x, int64_t first, int64_t count, Item* out) {
  constexpr int64_t kPer = Elements<Item>::kPerItem;
  const int64_t items = items_of<Item>(x.k);
  const int64_t whole = x.k / kPer;  // without a half-filled pair
  int64_t done = 0;                  // items of all kWidth lines
  if (count == kWidth) {
    if (!x.along) {
      for (; done < whole; ++done) {
        const auto* even = x.data + done * kPer * x.ld + first;
        join<kWidth>(even, kPer == 1 ? even : even + x.ld, out + done * kWidth);
      }
    } else if (kWidth % kLanes<float> == 0 && x.ld % kPer == 0) {
      static_assert(sizeof(Item) == sizeof(float));  // only moved: any bits will do
      done = whole / kLanes<float> * kLanes<float>;
      transpose(kWidth, done, reinterpret_cast<const float*>(x.data + first * x.ld), x.ld / kPer,
                reinterpret_cast<float*>(out), kWidth);
    }
  }
  for (int64_t p = done; p < items; ++p) {
    for (int64_t c = 0; c < kWidth; ++c) {
      out[p * kWidth + c] = c < count ? x.at(first + c, p) : Item{};
    }
  }
}

/// As pack() for kTiles tiles that follow one another, from rows of A^T: all of them at once, so
/// that what is read of a row is at least a cache line.
template <int64_t kTiles, class Item>
[[gnu::noinline]] void pack_across_tiles(const Factor<Item>& x,
                                         int64_t first,
                                         int64_t items,
                                         Item* out) {
  constexpr int64_t kPer = Elements<Item>::kPerItem;
  for (int64_t p = 0; p < items; ++p) {
    const auto* even = x.data + p * kPer * x.ld + first;
    const auto* odd = kPer == 1 ? even : even + x.ld;
    // Rows are pages apart, which the processor does not foresee.
    constexpr int64_t kAhead = 12;
    if (p + kAhead < items) {
      constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(*even));
      for (int64_t c = 0; c < kTiles * kTileRows; c += kLine) {
        for (int64_t q = 0; q < kPer; ++q) {
          __builtin_prefetch(even + (kAhead * kPer + q) * x.ld + c);
        }
      }
    }
    for (int64_t t = 0; t < kTiles; ++t) {
      join<kTileRows>(even + t * kTileRows, odd + t * kTileRows, out + (t * items + p) * kTileRows);
    }
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
