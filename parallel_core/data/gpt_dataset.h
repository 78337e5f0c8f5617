// Megatron's GPT dataset: which tokens of an indexed dataset form sample k. The order is a function
// of the sequence lengths, the requested number of samples, the sequence length and the seed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel_core/data/dataset_split.h"
#include "parallel_core/data/indexed_dataset.h"
#include "parallel_core/data/token_dataset.h"

namespace tapestry::data {

/// Non-negative numbers in 32 bits each where the largest one allows it, else in 64.
class IndexArray {
 public:
  IndexArray() = default;
  IndexArray(int64_t count, bool wide);

  int64_t size() const {
    return static_cast<int64_t>(wide_.empty() ? narrow_.size() : wide_.size());
  }
  int64_t operator[](int64_t i) const {
    const auto at = static_cast<size_t>(i);
    return wide_.empty() ? int64_t{narrow_[at]} : wide_[at];
  }
  void set(int64_t i, int64_t value);
  /// Calls f with a span over [begin, end), of uint32_t or int64_t.
  template <class F>
  void visit(int64_t begin, int64_t end, F&& f) {
    const auto first = static_cast<size_t>(begin);
    const auto count = static_cast<size_t>(end - begin);
    if (wide_.empty()) {
      f(std::span<uint32_t>(narrow_).subspan(first, count));
    } else {
      f(std::span<int64_t>(wide_).subspan(first, count));
    }
  }

 private:
  std::vector<uint32_t> narrow_;
  std::vector<int64_t> wide_;
};

/// The three tables that define the order of samples.
struct GPTIndices {
  int64_t num_epochs = 1;
  /// Whether the last epoch is shuffled on its own because little of it is used.
  bool separate_last_epoch = false;
  /// Sequence ids, each num_epochs times.
  std::vector<int32_t> document_index;
  /// Entry i, of num_samples() + 1: position in document_index, and offset in that sequence.
  IndexArray sample_documents;
  IndexArray sample_offsets;
  /// Sample k is the tokens from entry shuffle_index[k] to the next one.
  IndexArray shuffle_index;

  int64_t num_samples() const { return shuffle_index.size(); }
};

/// Builds the tables. `lengths` are those of the whole dataset; `num_samples` none means one epoch;
/// `extra_token` is 1 if each sample takes one token more than L so that labels are L long too.
/// `drop_last` false keeps a last sample that is shorter; `shuffle` false leaves sequences and
/// samples in the order of the data, epoch after epoch. ValueError if the range has no tokens, or
/// not enough for one sample when one epoch is asked for.
GPTIndices build_gpt_indices(std::span<const int32_t> lengths,
                             SequenceRange range,
                             std::optional<int64_t> num_samples,
                             int64_t seq_length,
                             int64_t seed,
                             int64_t extra_token = 1,
                             bool drop_last = true,
                             bool shuffle = true);

struct GPTDatasetOptions {
  int64_t seq_length = 0;
  int64_t seed = 1234;
  /// Ids must lie in [0, vocab_size); 0 leaves them unchecked.
  int64_t vocab_size = 0;
  int64_t eod_id = -1;
  /// Labels of this id are masked. -1, or the EOD id, means that no real token is padding.
  int64_t pad_id = -1;
  /// Mask the loss where the input token is EOD.
  bool eod_mask_loss = false;
  /// Positions restart at 0 after each EOD.
  bool reset_position_ids = false;
  /// Tokens after an EOD do not see it nor what is before it: Sample::document_starts is filled.
  bool reset_attention_mask = false;
  bool add_extra_token = true;
  bool drop_last_partial_sample = true;
  /// False: samples in the order of the data.
  bool shuffle = true;
};

/// Samples of one part of one indexed dataset.
class GPTDataset final : public TokenDataset {
 public:
  /// ValueError for impossible options (an EOD option without an EOD id, seq_length below 1) and
  /// as build_gpt_indices.
  GPTDataset(std::shared_ptr<const IndexedDataset> dataset,
             SequenceRange range,
             std::optional<int64_t> num_samples,
             const GPTDatasetOptions& options);

  int64_t size() const override { return indices_.num_samples(); }
  int64_t seq_length() const override { return options_.seq_length; }
  int64_t tokens_per_epoch() const override { return tokens_per_epoch_; }
  /// ValueError, naming file, sequence, position, id and vocabulary, for a token out of range.
  Sample get(int64_t k) const override;
  RowOrigin origin(int64_t k) const override;
  std::map<std::string, int64_t> documents() const override;
  std::vector<int64_t> samples_with(const std::string& prefix, int64_t document) const override;

  const GPTIndices& indices() const { return indices_; }

 private:
  /// Calls f(position, begin, end) for the tokens [begin, end) of each sequence of document_index
  /// that sample `entry`, in the order before shuffling, is made of.
  template <class F>
  void each_piece(int64_t entry, F&& f) const;
  std::vector<int64_t> read_tokens(int64_t entry) const;
  DocumentPart document_part(int64_t sequence, int64_t begin, int64_t end) const;
  void append_tokens(int64_t position, int64_t begin, int64_t end, std::vector<int64_t>& out) const;

  std::shared_ptr<const IndexedDataset> dataset_;
  SequenceRange range_;
  GPTDatasetOptions options_;
  int64_t tokens_per_epoch_ = 0;
  GPTIndices indices_;
};

}  // namespace tapestry::data
