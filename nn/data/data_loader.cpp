#include "nn/data/data_loader.h"

#include <algorithm>
#include <utility>

#include "autograd/ops/indexing.h"
#include "autograd/ops/random.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"

namespace tapestry::data {

Dataset::~Dataset() = default;

TensorList Dataset::range(int64_t begin, int64_t end) const {
  return get(arange(static_cast<double>(begin), static_cast<double>(end)));
}

TensorDataset::TensorDataset(TensorList tensors) : tensors_(std::move(tensors)) {
  check<ValueError>(!tensors_.empty(), "TensorDataset: no tensors");
  for (const Tensor& t : tensors_) {
    check<ValueError>(t.defined() && t.dim() > 0 && t.size(0) == tensors_[0].size(0),
                      "TensorDataset: tensors must have a first axis of one size, got ",
                      describe(tensors_[0]), " and ", describe(t));
  }
}

int64_t TensorDataset::size() const { return tensors_[0].size(0); }

TensorList TensorDataset::get(const Tensor& indices) const {
  TensorList out;
  for (const Tensor& t : tensors_) {
    out.push_back(index_select(t, 0, indices));
  }
  return out;
}

TensorList TensorDataset::range(int64_t begin, int64_t end) const {
  TensorList out;
  for (const Tensor& t : tensors_) {
    out.push_back(t.slice(0, begin, end));
  }
  return out;
}

DataLoader::DataLoader(const Dataset& dataset, DataLoaderOptions options)
    : dataset_(&dataset), options_(options) {
  check<ValueError>(options.batch_size >= 1, "DataLoader: batch_size must be at least 1, got ",
                    options.batch_size);
}

int64_t DataLoader::size() const {
  const int64_t whole = dataset_->size() / options_.batch_size;
  const bool has_rest = dataset_->size() % options_.batch_size != 0;
  return whole + (has_rest && !options_.drop_last ? 1 : 0);
}

DataLoader::Epoch DataLoader::epoch(int64_t number) const {
  check<ValueError>(number >= 0, "DataLoader: there is no epoch ", number);
  return {*dataset_, options_, size(), number};
}

DataLoader::Epoch::Epoch(const Dataset& dataset,
                         const DataLoaderOptions& options,
                         int64_t count,
                         int64_t number)
    : dataset_(&dataset), batch_size_(options.batch_size), count_(count) {
  if (options.shuffle) {
    const uint64_t stream = combine(stream_of("DataLoader"), static_cast<uint64_t>(number));
    order_ = randperm(dataset.size(), RandomKey{.seed = options.seed, .stream = stream});
  }
}

TensorList DataLoader::Epoch::batch(int64_t k) const {
  check<IndexError>(k >= 0 && k < count_, "DataLoader: batch ", k, " of ", count_);
  const NoGradGuard guard;
  const int64_t begin = k * batch_size_;
  const int64_t end = std::min(begin + batch_size_, dataset_->size());
  return order_.defined() ? dataset_->get(order_.slice(0, begin, end))
                          : dataset_->range(begin, end);
}

}  // namespace tapestry::data
