// What is exported: a stored model, wherever it came from.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "autograd/io/tensor_source.h"
#include "interop/architectures/read_hf_config.h"
#include "parallel_core/config/config.h"

namespace tapestry {

namespace data {
class Tokenizer;
}

struct ExportSource {
  std::string folder;  ///< which holds the weights, or the GGUF file
  /// Its model_config is of the model, as config.yaml of a checkpoint or config.json of a Hugging
  /// Face folder says.
  AllConfig config;
  /// dataset_config.tokenizer_type of a checkpoint; empty: what the folder's files are.
  std::string tokenizer_type;
  TokenIds token_ids;      ///< of config.json; empty without one
  int64_t added_rows = 0;  ///< see grow_vocabulary
};

/// Opens a checkpoint, a folder of checkpoints or a run's folder (the newest is taken), the folder
/// of a Hugging Face model, or a GGUF file, which stands for one. IoError if there is none or it
/// lacks what it needs; ValueError for a model that cannot be read; ConfigError for a config.yaml
/// that is none.
ExportSource open_export_source(const std::string& path);

/// Gives the tables of tokens a row for each id of the tokenizer beside the model, where they have
/// fewer; returns how many are added. What is exported has them (GrownTables). IoError and
/// ValueError for a tokenizer that is missing or cannot be read.
int64_t grow_vocabulary(ExportSource& source);
/// The same up to so many rows.
int64_t add_rows(ExportSource& source, int64_t rows);
/// The tokenizer beside a model. IoError and ValueError as above.
std::unique_ptr<data::Tokenizer> tokenizer_of_folder(const std::string& folder);

/// The weights in the source's files, with the rows that are added.
std::unique_ptr<TensorSource> open_source_weights(const ExportSource& source);

}  // namespace tapestry
