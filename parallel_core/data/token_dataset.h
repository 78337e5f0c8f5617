// What the samples of language-model pre-training look like, wherever they come from.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "parallel_core/data/row_origin.h"

namespace tapestry::data {

/// One sample of L tokens. labels[t] is what should follow tokens[t]; loss_mask is 1 where the
/// prediction counts, else 0.
struct Sample {
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;
  std::vector<float> loss_mask;
  /// Empty means 0 .. L-1.
  std::vector<int64_t> position_ids;
  /// First positions of the documents that may not see each other, beginning with 0. Empty means
  /// that every token sees all tokens before it.
  std::vector<int64_t> document_starts;
};

/// Numbered samples in training order. Reading is thread-safe.
class TokenDataset {
 public:
  virtual ~TokenDataset() = default;
  /// Samples that exist; training may use fewer.
  virtual int64_t size() const = 0;
  /// L, the tokens of each sample.
  virtual int64_t seq_length() const = 0;
  /// Tokens of the underlying text read once.
  virtual int64_t tokens_per_epoch() const = 0;
  /// How many times the text was read completely before sample `first_sample`.
  virtual int64_t epoch(int64_t first_sample) const;
  /// Sample k. IndexError outside [0, size()).
  virtual Sample get(int64_t k) const = 0;

  /// Where the tokens of sample k come from; none of them is read. IndexError outside [0, size()).
  virtual RowOrigin origin(int64_t k) const = 0;
  /// The data sets that samples are taken from: their prefixes, and how many documents each has,
  /// those included that belong to another part of the split.
  virtual std::map<std::string, int64_t> documents() const = 0;
  /// The samples with tokens of a document, ascending; none for a prefix that is not among
  /// documents(). Time in proportion to size(). IndexError for a document that the data set does
  /// not have.
  virtual std::vector<int64_t> samples_with(const std::string& prefix, int64_t document) const = 0;
};

}  // namespace tapestry::data
