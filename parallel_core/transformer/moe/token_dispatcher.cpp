#include "parallel_core/transformer/moe/token_dispatcher.h"

#include <algorithm>
#include <numeric>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/parameter_ranks.h"

namespace tapestry {

namespace {

// Sums of `size` counts each.
RowCounts sums_of(const std::vector<int64_t>& counts, int64_t size) {
  RowCounts out;
  for (auto at = counts.begin(); at != counts.end(); at += size) {
    out.push_back(std::accumulate(at, at + size, int64_t{0}));
  }
  return out;
}

std::vector<int64_t> integers_of(const Tensor& t) {
  return {t.data<int64_t>(), t.data<int64_t>() + t.numel()};
}

// Counts of the rows of one expert after the other, `each` for an expert, and `experts` of these
// over and over -> the expert of each row.
template <class T>
std::vector<T> experts_of_counts(const std::vector<int64_t>& counts,
                                 int64_t experts,
                                 int64_t each) {
  std::vector<T> out;
  for (size_t i = 0; i < counts.size(); ++i) {
    out.insert(out.end(), static_cast<size_t>(counts[i]),
               static_cast<T>(static_cast<int64_t>(i) / each % experts));
  }
  return out;
}

}  // namespace

TokenDispatcher::TokenDispatcher(const Tensor& rows,
                                 const std::vector<int64_t>& counts,
                                 int64_t leaves)
    : experts_(experts_group()),
      slices_(slices_group(/*of_expert=*/true)),
      leaves_(std::max<int64_t>(leaves, 1)),
      local_(std::ssize(counts) / (experts_.size() * leaves_)) {
  check<ValueError>(local_ > 0 && std::ssize(counts) == local_ * experts_.size() * leaves_,
                    "token dispatcher: the experts of ", counts.size(), " counts, ", leaves_,
                    " for each, cannot be divided over ", experts_.size(), " ranks");
  send_ = sums_of(counts, local_ * leaves_);
  exchange_counts(counts);
  pending_.emplace(rows, send_, receive_, experts_);
  make_order();
  if (leaves > 0) {
    find_leaves();
  }
}

void TokenDispatcher::exchange_counts(const std::vector<int64_t>& counts) {
  received_ = counts;
  if (experts_.size() > 1) {
    const Tensor out = empty({std::ssize(counts)}, kInt64);
    experts_.all_to_all(out, tensor(counts, {std::ssize(counts)}));
    received_ = integers_of(out);
  }
  receive_ = sums_of(received_, local_ * leaves_);
  all_received_ = received_;
  if (slices_.size() > 1) {
    const int64_t size = std::ssize(received_);
    const Tensor all = empty({slices_.size() * size}, kInt64);
    slices_.all_gather(all, tensor(received_, {size}));
    all_received_ = integers_of(all);
  }
  slice_rows_ = sums_of(all_received_, std::ssize(received_));
}

void TokenDispatcher::make_order() {
  std::vector<int64_t> counts(static_cast<size_t>(local_), 0);
  for (size_t i = 0; i < all_received_.size(); ++i) {
    counts[i / static_cast<size_t>(leaves_) % static_cast<size_t>(local_)] += all_received_[i];
  }
  expert_rows_.ends.resize(counts.size());
  std::partial_sum(counts.begin(), counts.end(), expert_rows_.ends.begin());
  if (local_ > 1 && std::ssize(all_received_) > local_ * leaves_) {
    order_ =
        row_map(experts_of_counts<int32_t>(all_received_, local_, leaves_), 1, local_, {}, counts);
  }
}

// Sorted by expert, rows of one source lie behind those of the one before, with their leaves.
void TokenDispatcher::find_leaves() {
  const int64_t of_source = local_ * leaves_;
  int64_t end = 0;
  for (int64_t expert = 0; expert < local_; ++expert) {
    for (int64_t source = 0; source < std::ssize(all_received_); source += of_source) {
      for (int64_t leaf = 0; leaf < leaves_; ++leaf) {
        const int64_t rows = all_received_[static_cast<size_t>(source + expert * leaves_ + leaf)];
        end += rows;
        if (rows > 0) {
          expert_rows_.leaf_ends.push_back(end);
        }
      }
    }
  }
}

Tensor TokenDispatcher::dispatched(bool wide) {
  const Tensor came = pending_->finish();
  const Tensor all = gather_rows(wide ? came.to(kFloat32) : came, slice_rows_, slices_);
  return order_.topk > 0 ? moe_permute(all, order_) : all;
}

Tensor TokenDispatcher::reduced(const Tensor& y) const {
  return reduce_scatter_rows(order_.topk > 0 ? moe_unpermute(y, {}, order_) : y, slice_rows_,
                             slices_);
}

std::vector<int64_t> TokenDispatcher::expert_of_row() const {
  return experts_of_counts<int64_t>(received_, local_, leaves_);
}

Tensor TokenDispatcher::combined(const Tensor& y) const {
  return all_to_all_rows(y, receive_, send_, experts_);
}

}  // namespace tapestry
