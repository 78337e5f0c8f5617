// Which documents the steps of a run train on, and which steps train on a document. Answered from
// configuration, data and checkpoint alone: no model is made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/data/document_sources.h"
#include "parallel_core/training/data/run_data.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry {

/// Steps of a run, from 1.
struct StepRange {
  int64_t first = 1;
  int64_t last = 1;
  bool operator==(const StepRange&) const = default;
};

/// "12" or "10-20". ValueError for anything else, and for a range that ends before it begins.
StepRange parse_step_range(const std::string& text);

/// A document of a data set, as PREFIX.idx counts them from 0.
struct DocumentId {
  std::string prefix;
  int64_t document = 0;
  bool operator==(const DocumentId&) const = default;
};

/// "PREFIX:DOCUMENT"; the prefix may have colons. ValueError for anything else.
DocumentId parse_document_id(const std::string& text);

/// Ranks that one data-parallel rank stands for: tensor x pipeline x context.
int64_t ranks_of_model(const ModelParallelConfig& config);

/// Characters of a row's text that are shown.
inline constexpr int64_t kShownCharacters = 200;

/// What a run of `ranks` ranks draws from its data. Resumed runs go on where their checkpoint says,
/// so every answer is what the run trains on if it is started now.
class WhichData {
 public:
  using LineSink = std::function<void(const std::string& line)>;

  /// Opens the data as the run does; a text that becomes tokens on first use is prepared.
  /// ValueError for ranks that the layout does not divide, else as require_supported,
  /// find_resume_point and open_data. The sizes of a checkpoint's files are checked, not their
  /// checksums.
  WhichData(const AllConfig& config, int64_t ranks);

  /// The steps that can be asked for. They begin at 1, unless the run was resumed after steps with
  /// other data or another global batch.
  StepRange steps() const { return steps_; }

  /// One JSON object for each row of each step, by step, dp_rank, micro_batch and row:
  ///   {"step", "dp_rank", "micro_batch", "row", "sample", "dataset",
  ///    "documents": [{"id", "first", "count", "file", "offset", "bytes"}, ...], "text"}
  /// Steps count from 1, all else from 0. `documents` are those of RowOrigin; `file` (a path from
  /// the current folder), `offset` and `bytes` are null where nothing is known of the data set's
  /// texts. `text` is that of the row's inputs (row_text, kShownCharacters), null where there is no
  /// tokenizer. Rows of recorded steps have "file" and "file_row" behind "dataset", and no
  /// documents. ValueError for steps outside steps().
  void rows(StepRange range, const LineSink& print);

  /// One JSON object for each row with tokens of a document, by sample: the members of rows() but
  /// text, and of the documents this one alone. ValueError for a prefix that the training data do
  /// not have, a document that the data set does not have, and for recorded steps.
  void rows_with(const DocumentId& id, const LineSink& print);

  /// What the reader should know, as far as it has turned up.
  std::vector<std::string> remarks() const;

 private:
  data::BatchPosition position(int64_t step) const;
  int64_t micro_batches(int64_t step) const;  // of each data-parallel rank
  void check_inside(StepRange range) const;

  AllConfig config_;
  int64_t data_parallel_size_ = 1;
  RunData data_;
  std::string goes_on_from_;  // checkpoint; empty for a run that starts at its beginning
  StepRange steps_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  data::DocumentFinder finder_;
  std::vector<std::string> remarks_;
};

}  // namespace tapestry
