// The random words of an array's elements, block by block.
//
// Only for sources in kernels/isa/: everything here has internal linkage, per level.
#pragma once

#include <cstdint>

#include "autograd/kernels/isa/row_io.h"
#include "autograd/kernels/philox_blocks.h"
#include "autograd/kernels/random_rows.h"

namespace tapestry::kernels::TAPESTRY_ISA {
namespace {

/// For one pass over elements in ascending order.
class RandomWords {
 public:
  RandomWords(uint64_t seed, const RandomRows* rows, int64_t count)
      : seed_(seed), rows_(rows), count_(count) {}

  /// Of elements [at, at + n), n <= kBlock; valid until the next call.
  const uint32_t* draw(int64_t at, int64_t n) {
    for (int64_t done = 0; done < n;) {
      const int64_t element = at + done;
      while (now_ + 1 < count_ && rows_[now_ + 1].begin <= element) {
        ++now_;
      }
      const RandomRows& rows = rows_[now_];
      const int64_t position = element - rows.begin + rows.within;
      const int64_t row = position / rows.width;
      const int64_t column = position - row * rows.width;
      int64_t size = n - done;
      size = size < rows.width - column ? size : rows.width - column;
      if (now_ + 1 < count_) {
        const int64_t left = rows_[now_ + 1].begin - element;
        size = size < left ? size : left;
      }
      write(rows.stream, rows.first + row * rows.stride + column, size, words_ + kSlack + done);
      done += size;
    }
    return words_ + kSlack;
  }

 private:
  // Philox makes four words at a time, so up to three too many on either side: those behind are
  // written again or not used, those before are put back.
  void write(uint64_t stream, int64_t first, int64_t size, uint32_t* out) const {
    const int64_t skip = first % kWords;
    uint32_t before[kWords];
    for (int64_t i = 0; i < skip; ++i) {
      before[i] = out[i - skip];
    }
    philox_blocks(seed_, stream, static_cast<uint64_t>(first) / kWords,
                  (skip + size + kWords - 1) / kWords, out - skip);
    for (int64_t i = 0; i < skip; ++i) {
      out[i - skip] = before[i];
    }
  }

  static constexpr int64_t kWords = 4;  // of a Philox block
  static constexpr int64_t kSlack = kWords;

  uint64_t seed_;
  const RandomRows* rows_;
  int64_t count_;
  int64_t now_ = 0;
  uint32_t words_[kSlack + kBlock + kSlack] = {};
};

}  // namespace
}  // namespace tapestry::kernels::TAPESTRY_ISA
