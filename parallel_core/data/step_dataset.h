// Batches that were written down beforehand: DIR/step_N/rank_R/{tokens,labels}.npy, loss_mask.npy
// where not all labels count, and attention_mask.npy where attention is not simply causal.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "parallel_core/data/data_source.h"

namespace tapestry::data {

/// Replays step folders in numeric order; the first, step_0 or step_1, feeds the first step. The
/// rows of a step are those of rank_0, rank_1, ... one after the other; data-parallel rank r of P
/// takes the r-th of P equal parts, its micro-batches one after the other. So every layout with the
/// same rows in a step can replay it.
///
/// Where there is a folder for each rank of the job that recorded, each row is there several times,
/// and counts once. This is recognised where a step would have K times the rows that the run needs:
/// with as many folders as this job has ranks those of one model, in the order tp-cp-dp-pp, have to
/// have the same rows; with another number of folders each has to be there K times, whichever they
/// are.
///
/// tokens and labels are integers [rows, S], loss_mask is bool, integer or floating [rows, S];
/// without it labels count that are not negative. A negative label means "none" and is allowed only
/// where the loss mask is 0. attention_mask is
/// [S, S], [rows, S, S] or [rows, 1, S, S], not 0 where a key is hidden from a query.
class StepDataSource final : public DataSource {
 public:
  /// Ranks of one model, for folders by ranks of the job: those of tensor and context parallelism,
  /// which follow each other, and stages of a pipeline.
  struct ModelRanks {
    int64_t neighbours = 1;
    int64_t stages = 1;
  };

  struct Options {
    int64_t vocab_size = 0;  ///< 0 leaves ids unchecked
    ModelRanks ranks = {};
    /// Rows of the run's first step; 0: not known, then each row counts for epochs.
    int64_t batch = 0;
    /// Behind the last step comes the first one again, in a further epoch.
    bool repeats = false;
    /// Rows are samples, which steps take one after the other, as many as they have. Then the
    /// folders of a whole job are recognised by their content alone, that of the first step.
    bool as_samples = false;
  };

  /// Checks the folder names only. IoError if there are no steps or ranks, one is missing or named
  /// twice.
  StepDataSource(std::string directory, int64_t vocab_size);
  StepDataSource(std::string directory, int64_t vocab_size, ModelRanks ranks);
  /// The same, and reads how many rows each step has. ValueError or IoError as micro_batch() for
  /// files that do not say it.
  StepDataSource(std::string directory, const Options& options);

  /// ValueError if no label of the step counts, its rows are not micro_batch_num * micro_batch_size
  /// * dp_size (but for as_samples), folders of one model have other rows, arrays disagree, or an
  /// id is out of range; IndexError beyond the last step, unless they repeat; IoError for bad
  /// files.
  Batch micro_batch(BatchPosition position,
                    int64_t micro_index,
                    int64_t micro_batch_num,
                    int64_t micro_batch_size,
                    int64_t dp_rank,
                    int64_t dp_size) override;
  /// S of the first step.
  int64_t seq_length() const override;
  /// Rows of all steps, each once; of the first step times the number of steps without Options;
  /// beyond any run where they repeat.
  int64_t size_in_samples() const override;
  /// 0 unless the steps repeat.
  int64_t epoch(int64_t first_sample) const override;

  int64_t num_steps() const { return static_cast<int64_t>(steps_.size()); }
  /// Rows of the first `steps` steps, each once. With Options alone.
  int64_t rows_until(int64_t steps) const;
  /// How often each row is there: 1, or the ranks of a model.
  int64_t copies() const { return copies_; }
  /// Leaves out all steps but the first ones. IndexError for more than there are.
  void keep_first(int64_t steps);
  /// CRC-64 (checksum.h) of what tells recordings apart: the sizes of all files of the first
  /// `steps` steps, and the tokens and labels of the first step. IndexError for more than there
  /// are.
  std::string fingerprint(int64_t steps) const;

 private:
  struct StepFolder {
    std::string path;
    int64_t ranks = 0;
    int64_t rows = 0;  // in all folders; 0: not read
  };
  // A step that was read: each row once.
  struct Loaded {
    int64_t step = -1;
    int64_t copies = 0;
    std::shared_ptr<const Batch> rows;
  };

  std::shared_ptr<const Batch> load_all(int64_t step) const;
  std::shared_ptr<const Batch> load_step(int64_t step, int64_t copies, int64_t dp_size) const;
  static int64_t copies_for(int64_t rows, int64_t folders, int64_t wanted);
  int64_t copies_by_content() const;
  std::vector<int64_t> folders_that_count(int64_t step,
                                          const Batch& all,
                                          int64_t copies,
                                          int64_t dp_size) const;
  Batch rows_as_samples(int64_t first, int64_t count, int64_t dp_size) const;

  std::string directory_;
  Options options_;
  int64_t copies_ = 1;
  std::vector<StepFolder> steps_;
  std::vector<int64_t> ends_;  // rows up to and with each step, as often as they are there
  // What was read last: all micro-batches of a step come from the same files.
  mutable std::mutex mutex_;
  mutable Loaded all_;
  mutable Loaded loaded_;
};

/// Rows of one data-parallel rank, [rows, seq] row-major.
struct StepRows {
  int64_t rows = 0;
  int64_t seq = 0;
  std::vector<int64_t> tokens;
  std::vector<int64_t> labels;
  std::vector<float> loss_mask;
};

/// Writes DIR/step_STEP/rank_RANK, which appears under its name when it is complete: int32 ids,
/// float32 mask. ValueError if sizes disagree or an id does not fit, IoError if the folder exists
/// already or cannot be written.
void write_step(const std::string& directory, int64_t step, int64_t rank, const StepRows& rows);

}  // namespace tapestry::data
