#include "optim/matrix_exchange.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/rank_context.h"

namespace tapestry::optim {

namespace {

using Counts = std::vector<int64_t>;

Tensor elements_of(const Tensor& x, int64_t first, int64_t count) {
  return alias(x, {count}, {1}, x.offset() + (count > 0 ? first : 0));
}

Tensor flat_copy(const Tensor& x) { return dense_copy(x).view({x.numel()}); }

// The pieces of a message, one after the other.
class Message {
 public:
  explicit Message(DType dtype) : dtype_(dtype) {}
  void add(const Tensor& piece) {
    pieces_.push_back(piece);
    size_ += piece.numel();
  }
  Tensor joined() const {
    Tensor all = empty({size_}, dtype_);
    int64_t at = 0;
    for (const Tensor& piece : pieces_) {
      copy_values(piece.is_contiguous() ? elements_of(piece, 0, piece.numel()) : flat_copy(piece),
                  elements_of(all, at, piece.numel()));
      at += piece.numel();
    }
    return all;
  }

 private:
  DType dtype_;
  std::vector<Tensor> pieces_;
  int64_t size_ = 0;
};

// Takes a received message apart.
class Reader {
 public:
  explicit Reader(Tensor all) : all_(std::move(all)) {}
  Tensor take(int64_t count) {
    at_ += count;
    return elements_of(all_, at_ - count, count);
  }

 private:
  Tensor all_;
  int64_t at_ = 0;
};

Reader exchange(const RankGroup& group,
                const Message& message,
                const Counts& receives,
                const Counts& sends,
                DType dtype) {
  const Tensor output =
      empty({std::accumulate(receives.begin(), receives.end(), int64_t{0})}, dtype);
  group.all_to_all(output, message.joined(), receives, sends);
  return Reader(output);
}

int size_of_group(const RankGroup* group) { return group == nullptr ? 1 : group->size(); }
int rank_in(const RankGroup* group) { return group == nullptr ? 0 : group->rank(); }

}  // namespace

MatrixExchange::MatrixExchange(const RankGroup* slices, const RankGroup* copies, bool cut_in_pieces)
    : slices_(size_of_group(slices) > 1 ? slices : nullptr),
      copies_(size_of_group(copies) > 1 ? copies : nullptr) {
  cut_in_pieces_ = cut_in_pieces && copies_ != nullptr;
}

// Each rank writes what it has into a table of zeros, whose sum then says all.
void MatrixExchange::learn_ranges(const std::vector<const Item*>& items) {
  const auto ranks = static_cast<size_t>(size_of_group(copies_));
  const Tensor table = zeros({static_cast<int64_t>(items.size() * ranks), 2}, kFloat64);
  auto* numbers = table.data<double>();
  const auto place = [&](size_t item, size_t rank) { return numbers + 2 * (item * ranks + rank); };
  for (size_t i = 0; i < items.size(); ++i) {
    double* own = place(i, static_cast<size_t>(rank_in(copies_)));
    own[0] = static_cast<double>(items[i]->range.begin);
    own[1] = static_cast<double>(items[i]->range.end);
  }
  copies_->sum(table);
  for (size_t i = 0; i < items.size(); ++i) {
    Holders& holders = holders_[items[i]->logical->name];
    for (size_t rank = 0; rank < ranks; ++rank) {
      const double* range = place(i, rank);
      holders.ranges.push_back({static_cast<int64_t>(range[0]), static_cast<int64_t>(range[1])});
    }
  }
}

void MatrixExchange::learn_slices(const std::vector<const Item*>& items) {
  const auto ranks = static_cast<size_t>(size_of_group(slices_));
  size_t width = 0;  // of the largest entry: offsets, then sizes
  for (const Item* item : items) {
    width = std::max(width, 2 * static_cast<size_t>(item->logical->shape.size()));
  }
  const Tensor table = zeros({static_cast<int64_t>(items.size() * ranks * width)}, kFloat64);
  auto* numbers = table.data<double>();
  const auto place = [&](size_t item, size_t rank) {
    return numbers + width * (item * ranks + rank);
  };
  for (size_t i = 0; i < items.size(); ++i) {
    const nn::LogicalTensor& logical = *items[i]->logical;
    double* own = place(i, static_cast<size_t>(rank_in(slices_)));
    for (int64_t axis = 0; axis < logical.shape.size(); ++axis) {
      *own++ = logical.offset.empty() ? 0 : static_cast<double>(logical.offset[axis]);
      *own++ = static_cast<double>(logical.local_shape()[axis]);
    }
  }
  slices_->sum(table);
  for (size_t i = 0; i < items.size(); ++i) {
    const nn::LogicalTensor& logical = *items[i]->logical;
    Holders& holders = holders_[logical.name];
    const int64_t copies = logical.slice_shape.empty() ? slices_->size() : logical.copies;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const double* theirs = place(i, rank);
      nn::LogicalTensor slice = logical;
      slice.offset = slice.slice_shape = logical.shape;
      for (int64_t axis = 0; axis < logical.shape.size(); ++axis) {
        slice.offset[axis] = static_cast<int64_t>(*theirs++);
        slice.slice_shape[axis] = static_cast<int64_t>(*theirs++);
      }
      holders.slices.push_back(std::move(slice));
      holders.counts.push_back(static_cast<int64_t>(rank) % copies == 0);
    }
  }
}

void MatrixExchange::learn_holders(const std::vector<Item>& items) {
  std::vector<const Item*> unknown;
  for (const Item& item : items) {
    if (holders_.try_emplace(item.logical->name).second) {
      unknown.push_back(&item);
    }
  }
  if (unknown.empty()) {
    return;
  }
  if (cut_in_pieces_) {
    learn_ranges(unknown);
  }
  if (slices_ != nullptr) {
    learn_slices(unknown);
  }
}

// Position p of a round belongs to rank p / (number of slices) of copies() and p % (number of
// slices) of slices().
class MatrixExchange::Round {
 public:
  Round(const MatrixExchange& exchange, const std::vector<Item>& items, std::vector<size_t> order)
      : x_(exchange),
        items_(items),
        order_(std::move(order)),
        dtype_(items[order_.front()].dtype),
        slices_(static_cast<size_t>(size_of_group(x_.slices_))),
        copies_(static_cast<size_t>(size_of_group(x_.copies_))),
        first_(std::min(static_cast<size_t>(rank_in(x_.copies_)) * slices_, order_.size())),
        end_(std::min(first_ + slices_, order_.size())),
        own_(static_cast<size_t>(rank_in(x_.copies_)) * slices_ +
             static_cast<size_t>(rank_in(x_.slices_))) {}

  void run(const Read& read, const Compute& compute, const Write& write) const {
    std::vector<Tensor> parts;
    for (const size_t item : order_) {
      parts.push_back(read(item));
    }
    const std::vector<Tensor> slices = gather_pieces(parts);
    parts.clear();
    const Tensor whole = gather_slices(slices);
    Tensor result;
    if (whole.defined()) {
      result = compute(order_[own_], whole);
    }
    const std::vector<Tensor> results = scatter_pieces(scatter_slices(result));
    for (size_t p = 0; p < order_.size(); ++p) {
      write(order_[p], results[p]);
    }
  }

 private:
  const Item& item(size_t position) const { return items_[order_[position]]; }
  const Holders& holders(size_t position) const {
    return x_.holders_.at(item(position).logical->name);
  }
  int64_t slice_size(size_t position) const {
    return item(position).logical->local_shape().numel();
  }

  // This rank's slices of the tensors at positions [first_, end_).
  std::vector<Tensor> gather_pieces(const std::vector<Tensor>& parts) const {
    if (!x_.cut_in_pieces_) {
      return {parts.begin() + static_cast<std::ptrdiff_t>(first_),
              parts.begin() + static_cast<std::ptrdiff_t>(end_)};
    }
    Message message(dtype_);
    Counts sends(copies_, 0);
    Counts receives(copies_, 0);
    for (size_t p = 0; p < parts.size(); ++p) {
      message.add(parts[p]);
      sends[p / slices_] += parts[p].numel();
    }
    for (size_t rank = 0; rank < copies_; ++rank) {
      for (size_t p = first_; p < end_; ++p) {
        receives[rank] += holders(p).ranges[rank].size();
      }
    }
    Reader reader = exchange(*x_.copies_, message, receives, sends, dtype_);
    std::vector<Tensor> slices;
    for (size_t p = first_; p < end_; ++p) {
      slices.push_back(empty({slice_size(p)}, dtype_));
    }
    for (size_t rank = 0; rank < copies_; ++rank) {
      for (size_t p = first_; p < end_; ++p) {
        const nn::ElementRange range = holders(p).ranges[rank];
        copy_values(reader.take(range.size()),
                    elements_of(slices[p - first_], range.begin, range.size()));
      }
    }
    return slices;
  }

  // The whole tensor that this rank owns; undefined if the round has none for it.
  Tensor gather_slices(const std::vector<Tensor>& slices) const {
    const bool owns = own_ < order_.size();
    if (x_.slices_ == nullptr) {
      return owns ? slices.front().view(item(own_).logical->shape) : Tensor();
    }
    const auto rank = static_cast<size_t>(x_.slices_->rank());
    Message message(dtype_);
    Counts sends(slices_, 0);
    Counts receives(slices_, 0);
    for (size_t p = first_; p < end_; ++p) {
      if (holders(p).counts[rank]) {
        message.add(slices[p - first_]);
        sends[p - first_] = slices[p - first_].numel();
      }
    }
    for (size_t other = 0; owns && other < slices_; ++other) {
      const Holders& theirs = holders(own_);
      receives[other] = theirs.counts[other] ? theirs.slices[other].slice_shape.numel() : 0;
    }
    Reader reader = exchange(*x_.slices_, message, receives, sends, dtype_);
    if (!owns) {
      return {};
    }
    Tensor whole = empty(item(own_).logical->shape, dtype_);
    for (size_t other = 0; other < slices_; ++other) {
      if (receives[other] > 0) {
        const nn::LogicalTensor& slice = holders(own_).slices[other];
        copy_values(reader.take(receives[other]).view(slice.slice_shape), slice.slice_of(whole));
      }
    }
    return whole;
  }

  // This rank's slices of the results at positions [first_, end_).
  std::vector<Tensor> scatter_slices(const Tensor& result) const {
    if (x_.slices_ == nullptr) {
      return result.defined() ? std::vector<Tensor>{result.view({result.numel()})}
                              : std::vector<Tensor>();
    }
    Message message(dtype_);
    Counts sends(slices_, 0);
    Counts receives(slices_, 0);
    for (size_t other = 0; result.defined() && other < slices_; ++other) {
      const nn::LogicalTensor& slice = holders(own_).slices[other];
      message.add(slice.slice_of(result));
      sends[other] = slice.slice_shape.numel();
    }
    for (size_t p = first_; p < end_; ++p) {
      receives[p - first_] = slice_size(p);
    }
    Reader reader = exchange(*x_.slices_, message, receives, sends, dtype_);
    std::vector<Tensor> slices;
    for (size_t p = first_; p < end_; ++p) {
      slices.push_back(reader.take(slice_size(p)));
    }
    return slices;
  }

  // What this rank has of the results, by position.
  std::vector<Tensor> scatter_pieces(const std::vector<Tensor>& slices) const {
    if (x_.copies_ == nullptr) {
      return slices;
    }
    Message message(dtype_);
    Counts sends(copies_, 0);
    Counts receives(copies_, 0);
    for (size_t rank = 0; rank < copies_; ++rank) {
      for (size_t p = first_; p < end_; ++p) {
        const Tensor& slice = slices[p - first_];
        const nn::ElementRange range =
            x_.cut_in_pieces_ ? holders(p).ranges[rank] : nn::ElementRange{0, slice.numel()};
        message.add(elements_of(slice, range.begin, range.size()));
        sends[rank] += range.size();
      }
    }
    for (size_t p = 0; p < order_.size(); ++p) {
      receives[p / slices_] += item(p).range.size();
    }
    Reader reader = exchange(*x_.copies_, message, receives, sends, dtype_);
    std::vector<Tensor> results;
    for (size_t p = 0; p < order_.size(); ++p) {
      results.push_back(reader.take(item(p).range.size()));
    }
    return results;
  }

  const MatrixExchange& x_;
  const std::vector<Item>& items_;
  std::vector<size_t> order_;  // items by position
  DType dtype_;
  size_t slices_;  // ranks
  size_t copies_;
  size_t first_;  // positions whose owners are on this rank's place in copies()
  size_t end_;
  size_t own_;  // this rank's position, which the last round may not have
};

void MatrixExchange::run(const std::vector<Item>& items,
                         const Read& read,
                         const Compute& compute,
                         const Write& write) {
  learn_holders(items);
  const MemoryKindGuard kind(MemoryKind::kWorkspace);
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto key = [&](size_t i) {
      return std::tuple(items[i].dtype, -items[i].logical->shape.numel());
    };
    return key(a) < key(b);
  });
  const auto ranks =
      static_cast<size_t>(size_of_group(slices_)) * static_cast<size_t>(size_of_group(copies_));
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && end < begin + ranks &&
           items[order[end]].dtype == items[order[begin]].dtype) {
      ++end;
    }
    Round(*this, items,
          {order.begin() + static_cast<std::ptrdiff_t>(begin),
           order.begin() + static_cast<std::ptrdiff_t>(end)})
        .run(read, compute, write);
    begin = end;
  }
}

}  // namespace tapestry::optim
