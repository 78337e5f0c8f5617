#include "parallel_core/data/batch_rows.h"

#include <algorithm>
#include <span>

#include "autograd/tensor/error.h"

namespace tapestry::data {
namespace {

template <class T>
std::span<const T> part(const std::vector<T>& values, int64_t first, int64_t count, int64_t width) {
  return values.empty() ? std::span<const T>()
                        : std::span(values).subspan(static_cast<size_t>(first * width),
                                                    static_cast<size_t>(count * width));
}

}  // namespace

std::vector<uint8_t> causal_masks(int64_t rows, int64_t seq) {
  std::vector<uint8_t> hidden;
  hidden.reserve(static_cast<size_t>(rows * seq * seq));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t query = 0; query < seq; ++query) {
      for (int64_t key = 0; key < seq; ++key) {
        hidden.push_back(key > query ? 1 : 0);
      }
    }
  }
  return hidden;
}

void append_rows(Batch& to, const Batch& from) {
  const auto add = [](auto& values, const auto& more) {
    values.insert(values.end(), more.begin(), more.end());
  };
  add(to.tokens, from.tokens);
  add(to.labels, from.labels);
  add(to.loss_mask, from.loss_mask);
  add(to.attention_mask, from.attention_mask);
}

Batch part_of(const Batch& all, int64_t first, int64_t count) {
  const auto copy = [&](const auto& values, int64_t width) {
    const auto rows = part(values, first, count, width);
    return std::vector(rows.begin(), rows.end());
  };
  Batch batch;
  batch.batch = count;
  batch.seq = all.seq;
  batch.tokens = copy(all.tokens, all.seq);
  batch.labels = copy(all.labels, all.seq);
  batch.loss_mask = copy(all.loss_mask, all.seq);
  batch.attention_mask = copy(all.attention_mask, all.seq * all.seq);
  return batch;
}

bool same_rows(const Batch& all, int64_t a, int64_t b, int64_t count) {
  const auto same = [&](const auto& values, int64_t width) {
    const auto at_a = part(values, a, count, width);
    const auto at_b = part(values, b, count, width);
    return std::equal(at_a.begin(), at_a.end(), at_b.begin(), at_b.end());
  };
  return same(all.tokens, all.seq) && same(all.labels, all.seq) && same(all.loss_mask, all.seq) &&
         same(all.attention_mask, all.seq * all.seq);
}

std::vector<int64_t> distinct_folders(const Batch& all, int64_t folders, int64_t copies) {
  const int64_t size = all.batch / folders;
  std::vector<int64_t> firsts;
  std::vector<int64_t> counts;
  for (int64_t rank = 0; rank < folders; ++rank) {
    size_t kind = 0;
    while (kind < firsts.size() && !same_rows(all, firsts[kind] * size, rank * size, size)) {
      ++kind;
    }
    if (kind == firsts.size()) {
      firsts.push_back(rank);
      counts.push_back(0);
    }
    ++counts[kind];
  }
  const bool each = std::all_of(counts.begin(), counts.end(),
                                [copies](int64_t count) { return count == copies; });
  return each ? firsts : std::vector<int64_t>();
}

}  // namespace tapestry::data
