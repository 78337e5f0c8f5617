// Which examples stand in which row of a run, epoch after epoch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "parallel_core/sft/packing.h"

namespace tapestry::sft {

struct RowOrderOptions {
  /// Tokens that a row has room for: seq_length + 1, of which the last one is a label alone.
  int64_t capacity = 0;
  /// False: each example has a row of its own.
  bool packing = true;
  /// False: examples in the order of the files; packing moves them by less than a window.
  bool shuffle = true;
  int64_t seed = 1234;
};

/// Rows of an endless list of examples. An epoch is as many examples as there are; no row has some
/// of two epochs. Each epoch has an order of its own, is cut into windows of at most kWindow
/// examples, and these are packed one by one, so that row k depends on the lengths, the weights and
/// the options, but never on how many rows are asked for.
///
/// Without weights an epoch has each example once. With weights the next example is taken from the
/// file that is furthest behind its weight (data::build_blend_indices' rule), of which each has
/// epochs of its own; small files of large weight come more than once.
class RowOrder {
 public:
  static constexpr int64_t kWindow = 4096;

  /// `lengths` are those of the examples of each file, which are numbered through; `weights` are
  /// empty or one for each file. ValueError if there are no examples, more than 2^31, a file with a
  /// weight has none, or as pack_rows and data::normalize_weights.
  RowOrder(std::vector<std::vector<int64_t>> lengths,
           std::vector<double> weights,
           const RowOrderOptions& options);

  /// Appends the rows of the next epoch.
  void add_epoch();
  int64_t num_epochs() const { return static_cast<int64_t>(epoch_ends_.size()); }
  /// Rows of the epochs that there are.
  int64_t num_rows() const { return rows_.size(); }
  /// Rows before an epoch, from 0 to num_epochs().
  int64_t rows_before(int64_t epoch) const;
  /// The epoch of a row; num_epochs() behind the last one.
  int64_t epoch_of(int64_t row) const;
  /// Examples of a row, in its order. Each begins a document.
  std::span<const int32_t> row(int64_t k) const { return rows_.row(k); }
  int64_t num_examples() const { return num_examples_; }

 private:
  struct File {
    std::vector<int32_t> order;  ///< of its examples, in its present epoch
    size_t next = 0;
    int64_t epoch = 0;
    double share = 0;
    int64_t taken = 0;
  };

  void shuffle(std::vector<int32_t>& values, int64_t purpose, int64_t epoch) const;
  std::vector<int32_t> next_examples();
  void start_epoch(size_t file);
  void add_window(std::span<const int32_t> examples, int64_t window);

  std::vector<int64_t> lengths_;  // of all examples
  std::vector<int64_t> first_;    // example of each file
  std::vector<File> files_;       // with weights alone
  RowOrderOptions options_;
  int64_t num_examples_ = 0;
  int64_t drawn_ = 0;
  int64_t windows_ = 0;
  RowLists rows_;
  std::vector<int64_t> epoch_ends_;  // in rows
};

}  // namespace tapestry::sft
