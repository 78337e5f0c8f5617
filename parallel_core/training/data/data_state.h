// What a checkpoint keeps of a run's data: how far it has read them, and what makes sample k the
// sample that it is.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/data/data_source.h"
#include "parallel_core/data/dataset_fingerprint.h"
#include "text/sources/text_source.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry {

/// A data set of a blend, or a run's only one.
struct DatasetShare {
  std::optional<double> weight;
  data::DatasetFingerprint files;
  bool operator==(const DatasetShare&) const = default;
};

/// Steps that were recorded beforehand (dataset_config.step_data_dir).
struct RecordedSteps {
  std::string directory;
  int64_t steps = 0;        ///< that were there
  std::string crc64;        ///< StepDataSource::fingerprint of these
  bool as_samples = false;  ///< StepDataSource::Options::as_samples
  bool operator==(const RecordedSteps&) const = default;
};

/// A file of examples for fine-tuning.
struct ExampleSource {
  std::optional<double> weight;
  data::TextFile file;

  bool same_content(const ExampleSource& other) const {
    return weight == other.weight && file.bytes == other.file.bytes &&
           file.crc64 == other.file.crc64;
  }
  bool operator==(const ExampleSource&) const = default;
};

/// Examples (dataset_config.sft_data_path), and what makes rows of tokens of them.
struct ExampleState {
  std::vector<ExampleSource> files;
  bool packing = true;
  std::string long_examples;
  std::string loss;
  int64_t eod = -1;            ///< the token that ends a text, or -1
  std::string template_crc64;  ///< of the template and its tokens; empty: there is none
  std::string chat_date;       ///< YYYY-MM-DD, where the template asks for the day; else empty
  bool operator==(const ExampleState&) const = default;
};

/// Examples of a task (post_training_config.data), and what makes sequences of them.
struct TaskDataState {
  std::string task;
  std::vector<data::TextFile> files;
  int64_t max_length = 0;      ///< most tokens of a prompt with its completion
  std::string long_sequences;  ///< what becomes of longer ones
  int64_t eod = -1;            ///< the token that ends a text, or -1
  std::string template_crc64;  ///< as in ExampleState
  std::string chat_date;
  int64_t group = 0;      ///< examples of a step, with which epochs end; 0: none
  std::string ids_crc64;  ///< of all tokens of the training part
  bool operator==(const TaskDataState&) const = default;
};

/// Data that the program has made itself (OwnData).
struct OwnDataState {
  std::string fingerprint;  ///< empty: it says none
  bool operator==(const OwnDataState&) const = default;
};

struct DataState {
  /// Of the run, when it began to read these data: {0, 0} unless new_dataset gave it others.
  data::BatchPosition begun;
  /// In these data, of the next step.
  data::BatchPosition position;

  int64_t seq_length = 0;
  /// Recorded steps; then nothing below is used.
  std::optional<RecordedSteps> recorded;
  /// Data of the program's own; then nothing below is used either.
  std::optional<OwnDataState> own = std::nullopt;

  /// Examples; then there are no data sets and no plan, as row k is what it is whatever was asked
  /// for.
  std::optional<ExampleState> examples;
  /// Examples of a task; the same holds.
  std::optional<TaskDataState> task = std::nullopt;
  /// Data sets of training, validation and test; with a `split` all of them are the first's.
  std::array<std::vector<DatasetShare>, 3> datasets;
  std::string split;  ///< empty where each part has its own data sets
  int64_t seed = 0;
  bool shuffle = true;
  data::TokenizerIdentity tokenizer;  ///< without vocab_size and checksum where it is not known
  data::SamplePlan plan;              ///< the numbers of samples that the data sets were built with

  /// Where it was read, for messages; not written.
  std::string source;

  /// Of the run: steps and samples since its first start.
  data::BatchPosition in_run() const {
    return {begun.step + position.step, begun.first_sample + position.first_sample};
  }
};

/// One JSON object: {"format_version": 1, "begun": {"step", "sample"}, "position": {...}, ...}.
std::string data_state_json(const DataState& state);

/// Reads what data_state_json has written. IoError, naming `source` and the member, for anything
/// else: another version, members that are missing, unknown or of another type, numbers out of
/// range.
DataState parse_data_state(const std::string& json, const std::string& source);

/// What differs between the data of a resumed run and those that it has now, each with the key, the
/// value now and the one then; empty if training goes on with the same samples. The names of data
/// sets and files may differ, their content may not. The data sets of validation and test, where
/// they have their own, are not compared.
std::vector<std::string> data_differences(const DataState& now, const DataState& then);

}  // namespace tapestry
