#include "parallel_core/sft/row_order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/data/blended_dataset.h"
#include "parallel_core/data/numpy_random.h"

namespace tapestry::sft {
namespace {

// What a random order is for; a file's is its number behind these.
constexpr int64_t kExamplesOfEpoch = 0;
constexpr int64_t kRowsOfWindow = 1;
constexpr int64_t kFirstFile = 2;

// SplitMix64's mixing of bits. Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom
// number generators".
uint64_t mixed(uint64_t bits) {
  bits += 0x9E3779B97F4A7C15U;
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
  return bits ^ (bits >> 31U);
}

}  // namespace

RowOrder::RowOrder(std::vector<std::vector<int64_t>> lengths,
                   std::vector<double> weights,
                   const RowOrderOptions& options)
    : options_(options) {
  check<ValueError>(weights.empty() || weights.size() == lengths.size(),
                    "row order: ", weights.size(), " weights of ", lengths.size(), " files");
  for (const std::vector<int64_t>& of_file : lengths) {
    first_.push_back(static_cast<int64_t>(lengths_.size()));
    lengths_.insert(lengths_.end(), of_file.begin(), of_file.end());
  }
  num_examples_ = static_cast<int64_t>(lengths_.size());
  first_.push_back(num_examples_);
  check<ValueError>(num_examples_ > 0, "row order: there are no examples");
  check<ValueError>(num_examples_ <= std::numeric_limits<int32_t>::max(),
                    "row order: ", num_examples_, " examples, expected at most ",
                    std::numeric_limits<int32_t>::max());
  if (weights.empty()) {
    return;
  }
  const std::vector<double> shares = data::normalize_weights(weights);
  files_.resize(shares.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    check<ValueError>(shares[i] == 0 || !lengths[i].empty(), "row order: file ", i,
                      " has a weight and no examples");
    files_[i].share = shares[i];
    start_epoch(i);
  }
}

void RowOrder::shuffle(std::vector<int32_t>& values, int64_t purpose, int64_t epoch) const {
  if (!options_.shuffle) {
    return;
  }
  uint64_t bits = mixed(static_cast<uint64_t>(options_.seed));
  bits = mixed(bits ^ static_cast<uint64_t>(purpose));
  bits = mixed(bits ^ static_cast<uint64_t>(epoch));
  data::NumpyRandomState(static_cast<int64_t>(bits >> 32U)).shuffle(std::span(values));
}

void RowOrder::start_epoch(size_t file) {
  File& f = files_[file];
  f.order.resize(static_cast<size_t>(first_[file + 1] - first_[file]));
  std::iota(f.order.begin(), f.order.end(), static_cast<int32_t>(first_[file]));
  shuffle(f.order, kFirstFile + static_cast<int64_t>(file), f.epoch++);
  f.next = 0;
}

// The examples of an epoch, in its order.
std::vector<int32_t> RowOrder::next_examples() {
  std::vector<int32_t> examples(static_cast<size_t>(num_examples_));
  if (files_.empty()) {
    std::iota(examples.begin(), examples.end(), 0);
    shuffle(examples, kExamplesOfEpoch, num_epochs());
    return examples;
  }
  for (int32_t& example : examples) {
    const auto drawn = static_cast<double>(std::max<int64_t>(drawn_++, 1));
    size_t best = 0;
    double largest = -std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < files_.size(); ++i) {
      const double behind = files_[i].share * drawn - static_cast<double>(files_[i].taken);
      if (files_[i].share > 0 && behind > largest) {
        largest = behind;
        best = i;
      }
    }
    File& file = files_[best];
    if (file.next == file.order.size()) {
      start_epoch(best);
    }
    ++file.taken;
    example = file.order[file.next++];
  }
  return examples;
}

void RowOrder::add_window(std::span<const int32_t> examples, int64_t window) {
  RowLists packed;
  if (options_.packing) {
    std::vector<int64_t> lengths;
    lengths.reserve(examples.size());
    for (const int32_t example : examples) {
      lengths.push_back(lengths_[static_cast<size_t>(example)]);
    }
    packed = pack_rows(lengths, options_.capacity);
  } else {
    for (int32_t i = 0; i < std::ssize(examples); ++i) {
      packed.add_row({&i, 1});
    }
  }
  // Rows that packing has made first hold the longest examples.
  std::vector<int32_t> order(static_cast<size_t>(packed.size()));
  std::iota(order.begin(), order.end(), 0);
  shuffle(order, kRowsOfWindow, window);
  std::vector<int32_t> row;
  for (const int32_t k : order) {
    row.clear();
    for (const int32_t i : packed.row(k)) {
      row.push_back(examples[static_cast<size_t>(i)]);
    }
    rows_.add_row(row);
  }
}

void RowOrder::add_epoch() {
  const std::vector<int32_t> examples = next_examples();
  const int64_t windows = (num_examples_ + kWindow - 1) / kWindow;
  for (int64_t w = 0; w < windows; ++w) {
    const int64_t begin = num_examples_ * w / windows;
    const int64_t end = num_examples_ * (w + 1) / windows;
    add_window(
        std::span(examples).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
        windows_++);
  }
  epoch_ends_.push_back(rows_.size());
}

int64_t RowOrder::rows_before(int64_t epoch) const {
  check<IndexError>(epoch >= 0 && epoch <= num_epochs(), "row order: epoch ", epoch, " of ",
                    num_epochs());
  return epoch == 0 ? 0 : epoch_ends_[static_cast<size_t>(epoch - 1)];
}

int64_t RowOrder::epoch_of(int64_t row) const {
  return std::upper_bound(epoch_ends_.begin(), epoch_ends_.end(), row) - epoch_ends_.begin();
}

}  // namespace tapestry::sft
