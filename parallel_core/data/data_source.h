// Where the training loop gets its micro-batches from.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/data/gpt_dataset.h"
#include "parallel_core/data/row_origin.h"
#include "parallel_core/data/row_sequences.h"
#include "parallel_core/data/token_dataset.h"

namespace tapestry::data {

/// Rows of tokens, [batch, seq] row-major.
struct Batch {
  int64_t batch = 0;
  int64_t seq = 0;
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;
  std::vector<float> loss_mask;
  /// Empty means 0 .. seq-1 in every row.
  std::vector<int64_t> position_ids;
  /// Number of each row among all samples of the run, the same for every parallel layout.
  std::vector<int64_t> sample_ids;
  /// First positions of each row's documents, if attention must not cross them; else empty.
  std::vector<std::vector<int64_t>> document_starts;
  /// [batch, seq, seq], 1 where a key (last axis) is hidden from a query; [batch, seq], where it is
  /// from all queries, beside those that causality hides. Empty means causal.
  std::vector<uint8_t> attention_mask;
  /// The prompts with completions that each row holds, for objectives that speak of them; else
  /// empty. Rows of different micro-batches may then have different lengths.
  std::vector<std::vector<RowSequence>> sequences;
  /// Where row `row` of this batch comes from, found out when it is asked for: documents of data
  /// sets, or a row of recorded steps. Takes 0 .. batch - 1, IndexError for others. Empty for rows
  /// that come from nowhere, as those that tests make up.
  std::function<RowOrigin(int64_t row)> origin;
};

/// Where a step begins in the data. Numbered samples go by `first_sample`, so that a run whose
/// global batch changes goes on at the next one; recorded steps go by `step`.
struct BatchPosition {
  int64_t step = 0;          ///< steps drawn before
  int64_t first_sample = 0;  ///< samples drawn before, which is the number of the step's first one
  bool operator==(const BatchPosition&) const = default;
};

/// Gives every rank its rows. A step's global batch has micro_batch_num * micro_batch_size *
/// dp_size rows, and a step covers the same samples however they are shared out.
class DataSource {
 public:
  virtual ~DataSource() = default;

  /// Micro-batch `micro_index` (of `micro_batch_num`) of data-parallel rank `dp_rank` in the step
  /// at `position`. ValueError for a layout that cannot be, IndexError beyond the last sample.
  virtual Batch micro_batch(BatchPosition position,
                            int64_t micro_index,
                            int64_t micro_batch_num,
                            int64_t micro_batch_size,
                            int64_t dp_rank,
                            int64_t dp_size) = 0;
  virtual int64_t seq_length() const = 0;
  /// Samples that can be drawn.
  virtual int64_t size_in_samples() const = 0;
  /// How many times the text was read completely before sample `first_sample`.
  virtual int64_t epoch(int64_t first_sample) const = 0;
  /// The numbered samples that rows are taken from; null where there are none, as with recorded
  /// steps.
  virtual const TokenDataset* samples() const { return nullptr; }
};

/// How many batches of so many samples, the first of which begins at `first_sample`, begin before
/// `epochs` epochs are over and before the samples end.
int64_t batches_until_epoch(const DataSource& source,
                            int64_t first_sample,
                            int64_t batch,
                            int64_t epochs);

/// Micro-batches from numbered samples: chunk m of a step is micro_batch_size * dp_size consecutive
/// samples, of which rank r takes the r-th part.
class TokenDataSource final : public DataSource {
 public:
  explicit TokenDataSource(std::shared_ptr<const TokenDataset> dataset);

  Batch micro_batch(BatchPosition position,
                    int64_t micro_index,
                    int64_t micro_batch_num,
                    int64_t micro_batch_size,
                    int64_t dp_rank,
                    int64_t dp_size) override;
  int64_t seq_length() const override { return dataset_->seq_length(); }
  int64_t size_in_samples() const override { return dataset_->size(); }
  int64_t epoch(int64_t first_sample) const override { return dataset_->epoch(first_sample); }
  const TokenDataset* samples() const override { return dataset_.get(); }

 private:
  std::shared_ptr<const TokenDataset> dataset_;
};

/// Samples that training, validation and test ask for.
struct SampleCounts {
  int64_t train = 0;
  int64_t valid = 0;
  int64_t test = 0;
};

/// train_iters * G, (train_iters / eval_interval + 1) * eval_iters * G, eval_iters * G; without an
/// eval_interval (0) nothing is validated. They influence the order of samples.
SampleCounts sample_counts(int64_t train_iters,
                           int64_t eval_interval,
                           int64_t eval_iters,
                           int64_t global_batch_size);

/// The numbers of samples that a run has asked for from its first start on: one for each part, and
/// a larger one whenever a resumed run needed more. They decide the order: sample k of a list
/// n0 < n1 < ... is that of the list n0 alone as long as that has one.
struct SamplePlan {
  std::vector<int64_t> train;
  std::vector<int64_t> valid;
  std::vector<int64_t> test;
  bool operator==(const SamplePlan&) const = default;
};

/// The plan with `counts` as its last numbers where these are larger.
SamplePlan extend_plan(SamplePlan plan, const SampleCounts& counts);

struct GPTDatasetsConfig {
  /// A prefix, several, or weights and prefixes in turn: see parse_data_path. Divided by `split`.
  std::vector<std::string> data_path;
  std::string split = "969,30,1";
  /// Instead of data_path and split: whole datasets for each purpose.
  std::vector<std::string> train_data_path;
  std::vector<std::string> valid_data_path;
  std::vector<std::string> test_data_path;
  SampleCounts counts;
  /// What the run has asked for before; `counts` extend it (extend_plan).
  SamplePlan earlier;
  GPTDatasetOptions options;
  /// Share of additional samples that each dataset of a weighted blend is built with.
  double blend_surplus = 0.005;
};

/// A part is null if its share of the split is 0 or no samples of it are wanted; `test` also if
/// `split` leaves it too few tokens for one sample.
struct GPTDatasets {
  std::shared_ptr<const TokenDataset> train;
  std::shared_ptr<const TokenDataset> valid;
  std::shared_ptr<const TokenDataset> test;
  /// For the log: datasets that were divided by tokens.
  std::vector<std::string> remarks;
};

/// Opens and, where there are several, blends the datasets. Each is divided as split_dataset does.
/// A data set that holds fewer samples than a later number of the plan asks of it goes on with a
/// further build for what is missing, whose seed is `options.seed` + 1 for the first of these, + 2
/// for the next (modulo 2^32); samples in the order of the data need no such thing.
/// ValueError, with a remedy, for a part that is wanted and lacks the tokens of one sample, and for
/// impossible configurations; IoError for malformed files.
GPTDatasets build_gpt_datasets(const GPTDatasetsConfig& config);

namespace internal {

/// ValueError unless the arguments of DataSource::micro_batch describe a layout.
void check_layout(BatchPosition position,
                  int64_t micro_index,
                  int64_t micro_batch_num,
                  int64_t micro_batch_size,
                  int64_t dp_rank,
                  int64_t dp_size);

/// IndexError unless a batch of so many rows has this one.
void check_row(int64_t row, int64_t rows);

}  // namespace internal
}  // namespace tapestry::data
