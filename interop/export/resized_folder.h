// A Hugging Face model with a row of its tables for each id of a tokenizer.
#pragma once

#include <cstdint>
#include <string>

#include "parallel_core/config/config.h"

namespace tapestry {

/// Where a run that is started with --resize_embeddings keeps the model that it starts from.
std::string resized_folder_of(const std::string& output_dir);

/// Ids of the tokenizer that a run from the folder of a Hugging Face model has: that of
/// dataset_config, else the folder's. IoError and ValueError for one that is missing or cannot be
/// read.
int64_t ids_of_run(const AllConfig& config, const std::string& from_hf);

/// The folder of a model with `rows` rows in its tables of tokens: `from_hf` itself if they have as
/// many or more. Otherwise `output`, which is written: the same weights, each in its dtype, new
/// rows as GrownTables makes them, config.json with the new vocab_size, and the tokenizer's files.
/// A folder of that name goes to `output`.old.N with `replaces`, else it is a ValueError, unless
/// nothing is in it. ValueError and IoError for a model that cannot be read.
std::string resized_folder(const std::string& from_hf,
                           int64_t rows,
                           const std::string& output,
                           bool replaces);

}  // namespace tapestry
