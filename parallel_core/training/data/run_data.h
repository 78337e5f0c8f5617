// Where the samples of a run come from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/data/default_text.h"
#include "parallel_core/training/data/data_state.h"

namespace tapestry {

struct RunData {
  std::unique_ptr<data::DataSource> train;       ///< null for an evaluation alone
  std::unique_ptr<data::DataSource> validation;  ///< null if nothing is to be validated
  std::unique_ptr<data::DataSource> test;        ///< null if there is no test part
  std::string tokenizer_model;                   ///< file; empty for bytes and for recorded steps
  std::string description;                       ///< for the log
  std::vector<std::string> remarks;              ///< what is not as one might expect
  std::vector<int64_t> trained_ends;             ///< ids that end what examples have to say
  data::BatchPosition start;                     ///< of the first step, in these data
  DataState opened;                              ///< at the start

  /// What a checkpoint keeps when the next step is the one at `next` in these data.
  DataState state(data::BatchPosition next) const;
};

/// Steps of the whole run if `done` are behind it: training_iters, or what is left of train_samples
/// in global batches of the present size; 0 where epochs alone limit it.
int64_t total_steps(const AllConfig& config, data::BatchPosition done);

/// Largest SentencePiece vocabulary that a text is cut into on first use; a model's vocabulary may
/// exceed its tokenizer's.
inline constexpr int64_t kDefaultTextMaxVocab = 8000;

/// ValueError for a run from the folder of a Hugging Face model that has no tokenizer, and names no
/// other: whatever tokenizer is made of the text, its ids are not those of the weights.
void check_tokenizer_of_weights(const AllConfig& config);

/// Of a run that trains on a text or the default text: ValueError where dataset_dir, which has been
/// chosen, holds other data (data::foreign_data; of a text recorded steps and data sets alone are
/// other data), with the key that takes them. Of the default folder that
/// is the remark that comes back, but for MindRecord files.
std::string check_dataset_dir(const DatasetConfig& config);

/// Folders that a run writes into, each with a slash at its end, which are no texts where they lie
/// in a folder of texts.
std::vector<std::string> own_folders(const AllConfig& config);

/// How a text becomes tokens on first use.
data::CorpusOptions corpus_options(const AllConfig& config);

enum class DataUse {
  kTraining,    ///< training; validation if there is an eval_interval; test if there is such a part
  kEvaluation,  ///< validation and test, as far as there are such parts, with the same samples
};

/// False for a run that was gone on with at its end.
bool has_steps_left(const AllConfig& config, const RunData& data);

/// Opens step_data_dir, data_path, the data paths of the parts, the files of `text`, or the default
/// text; the latter two are prepared on first use. The tokenizer that the data were made with, as
/// the record beside them says, has to be the run's.
/// ValueError or IoError for data that do not fit the configuration.
///
/// With the state that a checkpoint has kept, sample k is the one that it was, for every k that the
/// run had planned to draw then, whatever has become of training_iters, eval_interval, eval_iters
/// and the global batch; samples beyond continue the plan (data::SamplePlan), which the state then
/// says. ValueError, with both values, if the data are others: unless training_config.new_dataset,
/// which begins any data at their first sample, or for an evaluation, which then does as without a
/// state.
RunData open_data(const AllConfig& config,
                  DataUse use = DataUse::kTraining,
                  const DataState* resumed = nullptr);

/// The same on every rank of a job, also data_source (open_registered_data); what is prepared on
/// first use is prepared by rank 0, the others find it. Collective.
RunData open_data(const AllConfig& config,
                  ProcessGroup& world,
                  DataUse use = DataUse::kTraining,
                  const DataState* resumed = nullptr);

/// What to say where the tokenizer.model beside weights, a file or folder as resolve_checkpoint
/// gives it, is not the tokenizer of the data: to such weights the ids are other text. Empty where
/// it is, where there is none, and for recorded steps.
std::string other_tokenizer_remark(const AllConfig& config,
                                   const RunData& data,
                                   const std::string& weights);

}  // namespace tapestry
