// What stands beside weights: the configuration and the tokenizer of a saved model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "interop/architectures/hf_folder.h"
#include "parallel_core/config/config.h"
#include "parallel_core/training/data/run_data.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry {

/// A model that can be asked for text.
struct SavedModel {
  AllConfig config;
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::vector<int32_t> start;  ///< ids before every text: that which begins one, where it has to
  int64_t eod_id = -1;         ///< ends a text; -1: none
  std::string remark;          ///< what was assumed; empty if nothing was
};

/// Opens a folder that holds weights, as resolve_checkpoint gives it: a checkpoint with the
/// config.yaml of its run, or a Hugging Face model, whose config.json says what it is, in float32,
/// with a context of as many tokens as it has positions.
///
/// The tokenizer of the latter is tokenizer.json, or vocab.json with merges.txt, else
/// tokenizer.model (SentencePiece); without any file of a tokenizer the model is one of bytes, if
/// its vocabulary has room for them. What the post-processor of a tokenizer.json puts before texts
/// begins every text.
///
/// IoError or ValueError if the folder lacks what it needs, for a tokenizer that cannot be read,
/// and for one that has more ids than the model.
SavedModel open_saved_model(const std::string& folder);

/// For a run's checkpoints: the ids of its tokenizer, where there is none those that the folder of
/// its weights gives (`weights`, as resolve_checkpoint gives it; empty: none), and what else that
/// folder says. Where the tokenizer there is the run's, or the run does not know its own, other
/// files of a tokenizer there are kept; else a SentencePiece model gets a tokenizer_config.json. A
/// tokenizer of Hugging Face is kept with all its files, those of the folder of the weights if they
/// are the same tokenizer's; then its generation_config.json stays as it came, too. All files are
/// read here, and IoError says which one cannot be.
HfSource hf_source_of(const AllConfig& config, const RunData& data, const std::string& weights);

}  // namespace tapestry
