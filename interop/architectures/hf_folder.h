// The files beside weights that say what they are of: config.json and generation_config.json, as
// the transformers library writes and reads them, and those of the tokenizer.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/config/read/model_folder.h"

namespace tapestry {

/// What is known of a run's text, and of where its weights came from.
struct HfSource {
  TokenIds token_ids;             ///< of the run's tokenizer
  std::string config_json;        ///< content of the files beside the weights that the run
  std::string generation_config;  ///< started from; empty if there are none
  /// Content of the files of the tokenizer by name: read once, as the place that they come from may
  /// be gone when a checkpoint is written.
  std::map<std::string, std::string> files;
  /// The folder's tokenizer is the run's: what the folder says of ids, such as several that end an
  /// answer, stays as it came.
  bool keeps_generation_config = false;
  /// Ids that examples taught to end an answer: first among those of generation_config.json.
  std::vector<int64_t> trained_ends;
};

/// A generation_config.json whose eos_token_id begins with `ends`; the text as it is where it has
/// them all. IoError, naming `path`, for a text that is no JSON object.
std::string generation_config_with_ends(const std::string& text,
                                        const std::vector<int64_t>& ends,
                                        const std::string& path);
/// The ids of eos_token_id, one or several; none where the file is not there or says none. IoError
/// as above.
std::vector<int64_t> generation_config_ends(const std::string& folder);

/// What is to be kept of the folder that weights were loaded from: config.json and
/// generation_config.json. Nothing for a file, or a folder without them. IoError if one cannot be
/// read.
HfSource read_hf_source(const std::string& path);

/// Files of tokenizers in a folder, tokenizer.model aside, which other programs look for:
/// tokenizer.json, tokenizer_config.json, vocab.json, merges.txt, ...
std::vector<std::string> tokenizer_files_in(const std::string& folder);

/// Content of config.json for weights of `config`, which are stored as `stored`, under the names
/// of `type` (see file_model_type). Where source.config_json describes the same model, that text,
/// with its dtype. Ids that there are not are null.
///
/// A family: what transformers writes for such a model, but for its version. tapestry: sizes under
/// these names and, in "model_config" and "moe_config", the keys that rebuild the model.
std::string model_config_json(const TransformerConfig& config,
                              const std::string& type,
                              DType stored,
                              const HfSource& source = {});

/// The id that fills up rows of a reward model, which config.json has as pad_token_id: where the
/// tokenizer has none the one that ends a text, as TRL's trainer decides. Empty: there is neither.
std::optional<int64_t> score_pad_id(const TokenIds& ids);

/// The text of a language model's config.json as that of its family's model for sequence
/// classification with one label. `pad` is the tokenizer's, if it has one. ValueError, naming
/// `path`, for a family without such a model; errors of parse_hf_config.
std::string score_config_json(const std::string& text,
                              const std::string& path,
                              std::optional<int64_t> pad);

/// The same for a model of one's own: sizes of the configuration that it was given, which may say
/// something else of it, or nothing.
std::string own_model_config_json(const TransformerConfig& config,
                                  DType stored,
                                  const TokenIds& token_ids);

/// The text of a config.json with another dtype of the weights; the same text if it says that one.
std::string config_json_with_dtype(const std::string& text, DType dtype);

/// Content of generation_config.json: source.generation_config if it is kept or has the same ids,
/// else the ids alone.
std::string generation_config_json(const HfSource& source);

/// config.json, generation_config.json and the source's files of a tokenizer, by name. `named`: the
/// weights carry the names of file_model_type(config); else the model is one's own.
std::map<std::string, std::string> hf_files(const TransformerConfig& config,
                                            bool named,
                                            DType stored,
                                            const HfSource& source);

/// ValueError with all of differences() if the folder's config.json is that of another model, and
/// how they can be settled; ValueError or IoError for one that cannot be read. Does nothing for a
/// file, and a folder without a config.json.
void check_hf_config(const TransformerConfig& config, const std::string& path);

}  // namespace tapestry
