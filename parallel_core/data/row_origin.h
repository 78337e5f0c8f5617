// Where the tokens of a row come from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tapestry::data {

/// Successive tokens of one document.
struct DocumentPart {
  int64_t document =
      0;              ///< its number in the data set, from 0: as PREFIX.idx has documents, or lines
  int64_t first = 0;  ///< the first of these tokens, counted in the document
  int64_t count = 0;  ///< how many, at least 1
  /// Where a row has documents of several data sets, the one of this; empty: RowOrigin::dataset.
  std::string dataset = {};
  bool operator==(const DocumentPart&) const = default;
};

/// A row of steps that were recorded beforehand.
struct RecordedRow {
  std::string file;  ///< DIR/step_N/rank_R/tokens.npy
  int64_t row = 0;   ///< of that array
  bool operator==(const RecordedRow&) const = default;
};

struct RowOrigin {
  /// Prefix of the indexed data set, the file of examples, or the folder of recorded steps.
  std::string dataset;
  /// In the order of the row. Together they are all tokens that the row is made of: its inputs and,
  /// unless GPTDatasetOptions::add_extra_token is off, one more, the label of the last input; fewer
  /// where the row is padded. So input t is the t-th token of these parts and its label the next.
  /// Empty for recorded steps, which know no documents.
  std::vector<DocumentPart> documents;
  /// Recorded steps alone.
  std::optional<RecordedRow> recorded;
  bool operator==(const RowOrigin&) const = default;
};

}  // namespace tapestry::data
