#include "parallel_core/transformer/moe/token_dispatcher.h"

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

// Counts of one kind of row after the other, `kinds` of them over and over -> the kind of each row.
template <class T>
std::vector<T> kinds_of_rows(const std::vector<int64_t>& counts, int64_t kinds) {
  std::vector<T> out;
  for (size_t i = 0; i < counts.size(); ++i) {
    out.insert(out.end(), static_cast<size_t>(counts[i]),
               static_cast<T>(static_cast<int64_t>(i) % kinds));
  }
  return out;
}

}  // namespace

TokenDispatcher::TokenDispatcher(const Tensor& rows, const std::vector<int64_t>& counts)
    : experts_(experts_group()),
      slices_(slices_group(/*of_expert=*/true)),
      local_(std::ssize(counts) / experts_.size()) {
  check<ValueError>(local_ > 0 && std::ssize(counts) % experts_.size() == 0,
                    "token dispatcher: ", counts.size(), " experts cannot be divided over ",
                    experts_.size(), " ranks");
  send_ = sums_of(counts, local_);
  exchange_counts(counts);
  pending_.emplace(rows, send_, receive_, experts_);
  make_order();
}

void TokenDispatcher::exchange_counts(const std::vector<int64_t>& counts) {
  received_ = counts;
  if (experts_.size() > 1) {
    const Tensor out = empty({std::ssize(counts)}, kInt64);
    experts_.all_to_all(out, tensor(counts, {std::ssize(counts)}));
    received_ = integers_of(out);
  }
  receive_ = sums_of(received_, local_);
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
    counts[i % static_cast<size_t>(local_)] += all_received_[i];
  }
  ends_.resize(counts.size());
  std::partial_sum(counts.begin(), counts.end(), ends_.begin());
  if (local_ > 1 && std::ssize(all_received_) > local_) {
    order_ = row_map(kinds_of_rows<int32_t>(all_received_, local_), 1, local_, {}, counts);
  }
}

Tensor TokenDispatcher::dispatched() {
  const Tensor all = gather_rows(pending_->finish(), slice_rows_, slices_);
  return order_.topk > 0 ? moe_permute(all, order_) : all;
}

Tensor TokenDispatcher::reduced(const Tensor& y) const {
  return reduce_scatter_rows(order_.topk > 0 ? moe_unpermute(y, {}, order_) : y, slice_rows_,
                             slices_);
}

std::vector<int64_t> TokenDispatcher::expert_of_row() const {
  return kinds_of_rows<int64_t>(received_, local_);
}

Tensor TokenDispatcher::combined(const Tensor& y) const {
  return all_to_all_rows(y, receive_, send_, experts_);
}

}  // namespace tapestry
