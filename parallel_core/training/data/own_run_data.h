// Data that a program makes itself, in place of those of dataset_config.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/config/config.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/training/data/data_state.h"
#include "parallel_core/training/data/run_data.h"

namespace tapestry {

/// Sources of a run. A step at BatchPosition {step, first_sample} has the same samples whatever the
/// layout, and whenever it is asked for: so a run that goes on needs no more than the position.
struct OwnData {
  std::unique_ptr<data::DataSource> train;
  std::unique_ptr<data::DataSource> validation = nullptr;  ///< null: nothing is validated
  std::unique_ptr<data::DataSource> test = nullptr;        ///< null: there is no test part
  /// What tells the training data from others: a name with a version, a checksum. Checkpoints keep
  /// it, and a run that goes on with another one is refused, or begins these data with
  /// training_config.new_dataset. Empty: nothing is compared.
  std::string fingerprint = {};
  std::string description = "data of the program's own";  ///< for the log
  /// Their tokenizer as dataset_config.tokenizer_type says, saved beside the weights; or empty.
  std::string tokenizer_model = {};
};

/// For which rank sources are made. Whatever it is, all draw the same samples: micro_batch() is
/// told which of them.
struct DataRank {
  int64_t rank = 0;  ///< of the job
  int64_t ranks = 1;
  int64_t data_parallel_rank = 0;
  int64_t data_parallel_size = 1;
};

/// Makes the sources on every rank. Groups and logs are there, the model is not.
using DataProvider = std::function<OwnData(const AllConfig& config, const DataRank& rank)>;

/// open_data with the provider's sources. ValueError where dataset_config names data beside them,
/// for a missing train source, rows of another length than seq_length, eval_interval without
/// validation data, parts with less than a global batch, fingerprints that differ between ranks,
/// and data that are not those of the checkpoint. Collective.
RunData open_own_data(const AllConfig& config,
                      const DataProvider& provider,
                      ProcessGroup& world,
                      const DataState* resumed = nullptr);

/// The same of the provider that the program has registered as dataset_config.data_source. Its name
/// and its options belong to the fingerprint.
RunData open_registered_data(const AllConfig& config,
                             ProcessGroup& world,
                             const DataState* resumed = nullptr);

}  // namespace tapestry
