// Rows of examples as training takes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parallel_core/data/token_dataset.h"
#include "parallel_core/sft/example_file.h"
#include "parallel_core/sft/row_order.h"

namespace tapestry::sft {

/// Examples [begin, end) of a file.
struct ExampleRange {
  std::shared_ptr<const ExampleFile> file;
  int64_t begin = 0;
  int64_t end = 0;
};

/// The tokens of every example of the ranges, for RowOrder.
std::vector<std::vector<int64_t>> lengths_of(const std::vector<ExampleRange>& ranges);

/// What is in a row.
struct RowFill {
  int64_t tokens = 0;   ///< inputs that are no filling, at most seq_length
  int64_t learned = 0;  ///< labels that count
};

/// Sample k is row k of an order: its examples one after the other, at most seq_length + 1 tokens,
/// filled up with `pad_id`. labels[t] is the next token, loss_mask[t] 1 where that belongs to the
/// same example and is to be learned, position ids count from 0 in each example, each example is a
/// document of its own, and so is what fills up.
class SftDataset final : public data::TokenDataset {
 public:
  /// `size`: samples that there are; those behind the order's last row hold nothing to learn.
  /// ValueError unless the order is one of the ranges' examples, and 0 <= pad_id.
  SftDataset(std::vector<ExampleRange> ranges,
             std::shared_ptr<const RowOrder> order,
             int64_t size,
             int64_t seq_length,
             int64_t pad_id);

  int64_t size() const override { return size_; }
  int64_t seq_length() const override { return seq_length_; }
  int64_t tokens_per_epoch() const override { return tokens_per_epoch_; }
  int64_t epoch(int64_t first_sample) const override { return order_->epoch_of(first_sample); }
  data::Sample get(int64_t k) const override;
  /// The file of the row's first example; parts that are another's name it themselves. A document
  /// is a line of the file, counted from 0, `first` and `count` are tokens of the example.
  data::RowOrigin origin(int64_t k) const override;
  std::map<std::string, int64_t> documents() const override;
  std::vector<int64_t> samples_with(const std::string& prefix, int64_t document) const override;

  /// Of row k of the order, which may have more rows than there are samples.
  RowFill fill(int64_t k) const;
  /// Samples that hold an example.
  int64_t real_rows() const { return std::min(size_, order_->num_rows()); }

 private:
  struct Place {
    const ExampleFile* file;
    int64_t example;
  };
  Place place_of(int32_t number) const;
  std::span<const int32_t> row(int64_t k) const;

  std::vector<ExampleRange> ranges_;
  std::vector<int64_t> ends_;  // numbers of the examples of a range and those before
  std::shared_ptr<const RowOrder> order_;
  int64_t size_;
  int64_t seq_length_;
  int64_t pad_id_;
  int64_t tokens_per_epoch_ = 0;
};

}  // namespace tapestry::sft
