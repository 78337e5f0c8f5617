// Copies of the factors of a product, in the order in which its tiles read them: the items of a
// panel of B or of a tile of A that belong to one k lie together, those of the next follow.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include "autograd/kernels/isa/matrix_tile.h"
#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/isa/vector_math.h"
#include "autograd/kernels/machine/dtype.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

[[gnu::always_inline]] inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
[[gnu::always_inline]] inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/// How many neighbours in k an item holds: itself alone, or two bfloat16. A float item may be made
/// of a 16-bit element, converted as it is copied.
template <class Item>
inline constexpr int64_t kPerItem = 1;
#if defined(TAPESTRY_PAIRS)
template <>
inline constexpr int64_t kPerItem<Pair> = 2;
#endif

template <class Item>
int64_t items_of(int64_t k) {
  return ceil_div(k, kPerItem<Item>);
}

/// Whether the bits of an item are those of its elements.
template <class Item, class Element>
inline constexpr bool kConverts = sizeof(Item) != sizeof(Element) * kPerItem<Item>;

/// A factor as the packing sees it: `lines` are the rows of A or the columns of B.
template <class Item, class Element>
struct Factor {
  const Element* data;
  int64_t ld;
  bool along;  // the elements of a line are neighbours; otherwise those of one k are
  int64_t k;

  /// Item p of a line; zeros beyond k.
  Item at(int64_t line, int64_t p) const {
    if constexpr (kPerItem<Item> == 1) {
      Item item;
      load_row(1, along ? data + line * ld + p : data + p * ld + line, &item);
      return item;
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
  if constexpr (kConverts<Item, Element>) {
    load_row(kCount, even, out);
  } else if constexpr (kPerItem<Item> == 1) {
    __builtin_memcpy(out, even, kCount * sizeof(Item));
  } else {
    TAPESTRY_VECTOR_LOOP
    for (int64_t c = 0; c < kCount; ++c) {
      out[c].bits = even[c].bits | static_cast<uint32_t>(odd[c].bits) << 16U;
    }
  }
}

/// Rows that are read next, `elements` of each item's: they are pages apart, which the processor
/// does not foresee.
template <int64_t kElements, class Item, class Element>
[[gnu::always_inline]] inline void prefetch_rows(const Factor<Item, Element>& x,
                                                 int64_t item,
                                                 int64_t items,
                                                 const Element* here) {
  constexpr int64_t kAhead = 12;
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(Element));
  if (item + kAhead < items) {
    for (int64_t c = 0; c < kElements; c += kLine) {
      for (int64_t q = 0; q < kPerItem<Item>; ++q) {
        __builtin_prefetch(here + (kAhead * kPerItem<Item> + q) * x.ld + c);
      }
    }
  }
}

/// As pack() for the first items of kWidth whole lines whose elements are neighbours; how many
/// items that were.
template <int64_t kWidth, class Item, class Element>
[[gnu::always_inline]] inline int64_t pack_along(const Factor<Item, Element>& x,
                                                 int64_t first,
                                                 int64_t whole,
                                                 Item* out) {
  static_assert(sizeof(Item) == sizeof(float));  // only moved: any bits will do
  auto* moved = reinterpret_cast<float*>(out);
  const Element* lines = x.data + first * x.ld;
  const int64_t count = whole / kLanes<float> * kLanes<float>;
  if constexpr (kConverts<Item, Element>) {
    constexpr int64_t kPart = 64;
    alignas(64) float wide[kWidth * kPart];
    for (int64_t p = 0; p < count; p += kPart) {
      const int64_t part = count - p < kPart ? count - p : kPart;
      for (int64_t line = 0; line < kWidth; ++line) {
        load_row(part, lines + line * x.ld + p, wide + line * kPart);
      }
      transpose(kWidth, part, wide, kPart, moved + p * kWidth, kWidth);
    }
    return count;
  } else {
    if (x.ld % kPerItem<Item> != 0) {
      return 0;
    }
    transpose(kWidth, count, reinterpret_cast<const float*>(lines), x.ld / kPerItem<Item>, moved,
              kWidth);
    return count;
  }
}

/// out [items, kWidth] = the items of lines [first, first + count), zeros for the others.
template <int64_t kWidth, class Item, class Element>
[[gnu::noinline]] void pack(const Factor<Item, Element>& x,
                            int64_t first,
                            int64_t count,
                            Item* out) {
  constexpr int64_t kPer = kPerItem<Item>;
  const int64_t items = items_of<Item>(x.k);
  const int64_t whole = x.k / kPer;  // without a half-filled pair
  int64_t done = 0;                  // items of all kWidth lines
  if (count == kWidth) {
    if (!x.along) {
      for (; done < whole; ++done) {
        const auto* even = x.data + done * kPer * x.ld + first;
        prefetch_rows<kWidth>(x, done, whole, even);
        join<kWidth>(even, kPer == 1 ? even : even + x.ld, out + done * kWidth);
      }
    } else if constexpr (kWidth % kLanes<float> == 0) {
      done = pack_along<kWidth>(x, first, whole, out);
    }
  }
  for (int64_t p = done; p < items; ++p) {
    for (int64_t c = 0; c < kWidth; ++c) {
      out[p * kWidth + c] = c < count ? x.at(first + c, p) : Item{};
    }
  }
}

/// As pack() for all panels of kWidth that `count` lines make: panel after panel, `all` items each,
/// of which these are written to `out`, and where the elements of one k are neighbours, read in one
/// pass.
template <int64_t kWidth, class Item, class Element>
void pack_panels(
    const Factor<Item, Element>& x, int64_t first, int64_t count, int64_t all, Item* out) {
  constexpr int64_t kPer = kPerItem<Item>;
  const int64_t items = items_of<Item>(x.k);
  const int64_t size = all * kWidth;
  const int64_t whole = count / kWidth;
  if (whole < 2 || x.along || x.k % kPer != 0) {
    for (int64_t line = 0; line < count; line += kWidth) {
      pack<kWidth>(x, first + line, count - line < kWidth ? count - line : kWidth,
                   out + line / kWidth * size);
    }
    return;
  }
  for (int64_t p = 0; p < items; ++p) {
    const auto* even = x.data + p * kPer * x.ld + first;
    for (int64_t panel = 0; panel < whole; ++panel, even += kWidth) {
      prefetch_rows<kWidth>(x, p, items, even);
      join<kWidth>(even, kPer == 1 ? even : even + x.ld, out + panel * size + p * kWidth);
    }
  }
  if (whole * kWidth < count) {
    pack<kWidth>(x, first + whole * kWidth, count - whole * kWidth, out + whole * size);
  }
}

/// As pack() for kTiles tiles that follow one another, `all` items each, from rows of A^T: all of
/// them at once, so that what is read of a row is at least a cache line.
template <int64_t kTiles, class Item, class Element>
[[gnu::noinline]] void pack_across_tiles(
    const Factor<Item, Element>& x, int64_t first, int64_t items, int64_t all, Item* out) {
  constexpr int64_t kPer = kPerItem<Item>;
  constexpr int64_t kLines = kTiles * kTileRows;
  for (int64_t p = 0; p < items; ++p) {
    const auto* even = x.data + p * kPer * x.ld + first;
    prefetch_rows<kLines>(x, p, items, even);
    Item joined[kLines];
    join<kLines>(even, kPer == 1 ? even : even + x.ld, joined);
    for (int64_t t = 0; t < kTiles; ++t) {
      __builtin_memcpy(out + (t * all + p) * kTileRows, joined + t * kTileRows,
                       kTileRows * sizeof(Item));
    }
  }
}

/// out [kTileRows, k], rows `all` apart = the elements of lines [first, first + count), zeros for
/// the others: a tile of A whose rows need only be converted.
template <class Element>
[[gnu::noinline]] void widen_tile(
    const Factor<float, Element>& x, int64_t first, int64_t count, int64_t all, float* out) {
  for (int64_t r = 0; r < kTileRows; ++r) {
    float* row = out + r * all;
    if (r < count) {
      load_row(x.k, x.data + (first + r) * x.ld, row);
    } else {
      __builtin_memset(row, 0, static_cast<size_t>(x.k) * sizeof(float));
    }
  }
}

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
