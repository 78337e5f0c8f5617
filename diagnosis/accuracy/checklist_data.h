// What a checklist finds in the data themselves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "diagnosis/accuracy/checklist_side.h"

namespace tapestry::accuracy {

/// How labels belong to tokens: label[t] is token[t + shift].
struct LabelShift {
  std::optional<int64_t> shift;  ///< 0 to 2; none where no shift explains nine labels of ten
  int64_t compared = 0;          ///< labels that count

  /// "by one", "by nothing: labels are the tokens themselves", "by two: they were shifted twice",
  /// ...
  std::string text() const;
};

struct DataLook {
  std::string source;  ///< what was looked at: a prefix, or a folder of steps
  int64_t tokens = 0;  ///< so many of them
  int64_t lowest_id = 0;
  int64_t highest_id = 0;
  LabelShift labels;
  /// Of an indexed dataset: documents looked at, and how many end with the end-of-document id.
  int64_t documents = 0;
  int64_t documents_with_end = 0;
  std::optional<int64_t> end_id;  ///< eos_token_id, or the tokenizer's
  std::optional<int64_t> begin_id;
  std::optional<int64_t> pad_id;
  std::string begins;              ///< text of a sample's first tokens; empty without a tokenizer
  std::vector<std::string> notes;  ///< what could not be looked at, in words
};

/// Looks at the first steps of recorded data, or at the datasets of data_path (train_data_path):
/// all tokens of small ones, else of sequences evenly spread, and four samples as training sees
/// them. None where the configuration names no data, or they are not there, which a note in
/// `missing` says.
std::optional<DataLook> look_at_data(const AllConfig& config, std::string& missing);

/// The same of a folder of recorded steps (reference 9.4), ids unchecked.
DataLook look_at_steps(const std::string& folder);

}  // namespace tapestry::accuracy
