// Batches of a dataset, in order or shuffled.
//
//   const data::TensorDataset dataset({images, labels});
//   const data::DataLoader loader(dataset, {.batch_size = 32, .shuffle = true, .seed = 1});
//   for (int64_t epoch = 0; epoch < 10; ++epoch) {
//     for (const TensorList& batch : loader.epoch(epoch)) { ... batch[0], batch[1] ... }
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "autograd/tensor/tensor.h"

namespace tapestry::data {

/// Samples by number.
class Dataset {
 public:
  Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  virtual ~Dataset();

  /// Number of samples.
  virtual int64_t size() const = 0;
  /// The samples of those numbers (int64 [n]), stacked along the first axis of each tensor.
  virtual TensorList get(const Tensor& indices) const = 0;
  /// Samples begin .. end - 1; get() of these numbers unless a dataset has a quicker way.
  virtual TensorList range(int64_t begin, int64_t end) const;
};

/// Tensors whose first axis counts samples. range() gives views of them.
class TensorDataset final : public Dataset {
 public:
  /// ValueError if there is no tensor, one is a scalar, or their first sizes differ.
  explicit TensorDataset(TensorList tensors);
  int64_t size() const override;
  TensorList get(const Tensor& indices) const override;
  TensorList range(int64_t begin, int64_t end) const override;

 private:
  TensorList tensors_;
};

struct DataLoaderOptions {
  int64_t batch_size = 1;
  /// Each epoch has an order of its own, a function of the dataset's size, seed and epoch alone.
  bool shuffle = false;
  uint64_t seed = 0;
  /// Leaves out the last batch of an epoch if it is not full.
  bool drop_last = false;
};

/// Goes through a dataset, which must outlive it, once an epoch. Batches are made when they are
/// asked for, by the thread that asks; nothing of them is recorded. ValueError for a batch_size
/// below 1.
class DataLoader {
 public:
  explicit DataLoader(const Dataset& dataset, DataLoaderOptions options = {});

  /// The batches of one epoch, for a range-based for loop; may outlive the loader.
  class Epoch;
  /// ValueError if the number is negative.
  Epoch epoch(int64_t number) const;
  /// Batches of an epoch.
  int64_t size() const;

 private:
  const Dataset* dataset_;
  DataLoaderOptions options_;
};

class DataLoader::Epoch {
 public:
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = TensorList;
    using difference_type = std::ptrdiff_t;

    Iterator(const Epoch* epoch, int64_t number) : epoch_(epoch), number_(number) {}
    TensorList operator*() const { return epoch_->batch(number_); }
    Iterator& operator++() {
      ++number_;
      return *this;
    }
    void operator++(int) { ++number_; }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.number_ == b.number_; }

   private:
    const Epoch* epoch_;
    int64_t number_;
  };

  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, count_}; }
  int64_t size() const { return count_; }
  /// Batch k of the epoch. IndexError if there is none.
  TensorList batch(int64_t k) const;

 private:
  friend class DataLoader;
  Epoch(const Dataset& dataset, const DataLoaderOptions& options, int64_t count, int64_t number);

  const Dataset* dataset_;
  int64_t batch_size_;
  int64_t count_;
  Tensor order_;  // undefined: as they are
};

}  // namespace tapestry::data
