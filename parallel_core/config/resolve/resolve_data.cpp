// Rules of data and tokenizer.
#include <filesystem>
#include <string>

#include "autograd/io/packed_folder.h"
#include "parallel_core/config/resolve/resolve.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace {

// The one source that the data come from.
void resolve_data_source(Resolution& r) {
  const auto& data = r.config().dataset_config;
  constexpr const char* kTrain = "dataset_config.train_data_path";
  std::string first;
  for (const auto& [key, is_given] :
       {std::pair{"data_path", data.data_path.has_value()},
        std::pair{"train_data_path", data.train_data_path.has_value()},
        std::pair{"text", data.text.has_value()},
        std::pair{"sft_data_path", data.sft_data_path.has_value()},
        std::pair{"step_data_dir", data.step_data_dir.has_value()},
        std::pair{"data_source", data.data_source.has_value()}}) {
    if (is_given && !first.empty()) {
      r.error(concat("dataset_config.", key),
              concat("given beside ", first, "; keep the one that is meant"));
    }
    first = is_given ? key : first;
  }
  for (const auto& [key, path] : {std::pair{"valid_data_path", &data.valid_data_path},
                                  std::pair{"test_data_path", &data.test_data_path}}) {
    if (*path && !data.train_data_path) {
      r.error(concat("dataset_config.", key), "needs train_data_path beside it");
    }
  }
  if (data.train_data_path &&
      r.asked_beside("dataset_config.train_data_path", "dataset_config", "split")) {
    r.error("dataset_config.split",
            "divides data_path, but each part has data of its own in train_data_path; leave one "
            "of them out");
  }
  if (data.train_data_path && !data.valid_data_path && r.config().training_config.eval_interval &&
      r.sound({kTrain, "dataset_config.valid_data_path"})) {
    r.error("training_config.eval_interval",
            "is set, but there is no dataset_config.valid_data_path beside train_data_path; name "
            "the validation data, or set eval_interval to null");
  }
}

// Files that the tokenizer `huggingface` is read from.
bool has_huggingface_tokenizer(const std::string& folder) {
  return path_exists(folder + "/tokenizer.json") ||
         (path_exists(folder + "/vocab.json") && path_exists(folder + "/merges.txt"));
}

// Data that are there already say themselves what they were made with.
bool makes_tokens(const DatasetConfig& data) {
  return !data.data_path && !data.train_data_path && !data.step_data_dir && !data.data_source;
}

// A folder that has a SentencePiece model alone.
void take_pieces_of_folder(Resolution& r, const std::string& folder) {
  auto& data = r.config().dataset_config;
  const std::string pieces = folder + "/tokenizer.model";
  if (makes_tokens(data) && data.tokenizer_type == "sentencepiece" && path_exists(pieces)) {
    data.tokenizer_model = pieces;
    r.derived("dataset_config.tokenizer_model", "model_config.from_hf");
  }
}

// A run that starts from the folder of a model has its tokenizer, unless it names another. Data
// that are there already say themselves what they were made with, where the folder has two.
void take_tokenizer_of_folder(Resolution& r) {
  auto& data = r.config().dataset_config;
  const auto& from_hf = r.config().model_config.from_hf;
  constexpr const char* kType = "dataset_config.tokenizer_type";
  constexpr const char* kModel = "dataset_config.tokenizer_model";
  if (!from_hf || data.step_data_dir || data.data_source || data.tokenizer_model) {
    return;
  }
  if (!has_huggingface_tokenizer(*from_hf)) {
    take_pieces_of_folder(r, *from_hf);
    return;
  }
  if (!r.given(kType)) {
    const bool has_pieces = path_exists(*from_hf + "/tokenizer.model");
    if (has_pieces && (data.data_path || data.train_data_path)) {
      return;
    }
    data.tokenizer_type = "huggingface";
    r.derived(kType, "model_config.from_hf");
  }
  if (data.tokenizer_type == "huggingface") {
    data.tokenizer_model = *from_hf;
    r.derived(kModel, "model_config.from_hf");
  }
}

void resolve_tokenizer(Resolution& r) {
  take_tokenizer_of_folder(r);
  const auto& data = r.config().dataset_config;
  constexpr const char* kCoverage = "dataset_config.character_coverage";
  if (data.tokenizer_type == "byte" && data.tokenizer_model) {
    r.error("dataset_config.tokenizer_model", "the byte tokenizer has no model file");
  }
  if (data.tokenizer_type == "huggingface" && !data.tokenizer_model && !data.data_path &&
      !data.train_data_path && !data.step_data_dir && !data.data_source) {
    r.error("dataset_config.tokenizer_model",
            "is not given, and the tokenizer `huggingface` is not made of a text; name a "
            "tokenizer.json, or the folder of a model");
  }
  if (!data.character_coverage) {
    return;
  }
  if (data.tokenizer_type != "sentencepiece") {
    r.error(kCoverage, concat("has no effect with tokenizer_type ", data.tokenizer_type));
  } else if (data.data_path || data.train_data_path || data.step_data_dir || data.sft_data_path ||
             data.tokenizer_model || r.config().post_training_config.task) {
    r.error(kCoverage,
            "has no effect: no tokenizer is trained here; preprocess_data has an option of this "
            "name");
  }
}

}  // namespace

void resolve_data(Resolution& r) {
  const auto& data = r.config().dataset_config;
  resolve_data_source(r);
  resolve_tokenizer(r);
  resolve_examples(r);
  if (data.step_data_dir && data.step_data_dir->empty()) {
    r.error("dataset_config.step_data_dir", "is empty; give a folder or leave the key out");
  }
  if (data.shuffle.value_or(false) && data.step_data_dir) {
    r.error("dataset_config.shuffle",
            "is True, but recorded steps are replayed in order; leave the key out, or train on a "
            "data set in place of step_data_dir");
  }
  constexpr const char* kNotRead[] = {"split",
                                      "shuffle",
                                      "pad_token_id",
                                      "eos_token_id",
                                      "eod_mask_loss",
                                      "reset_attention_mask",
                                      "reset_position_ids"};
  for (const char* key : kNotRead) {
    if (data.data_source && differs_from_default(r.config(), "dataset_config", key)) {
      r.error(concat("dataset_config.", key),
              concat("has no effect on data_source ", *data.data_source,
                     ", which makes its rows itself; hand it over in data_source_kwargs"));
    }
  }
  if (data.step_data_as_samples && !data.step_data_dir) {
    r.error("dataset_config.step_data_as_samples",
            "has no effect without step_data_dir, whose rows it speaks of; name that folder, or "
            "leave the key out");
  }
  if (data.skip_bad_lines && !data.text && !data.sft_data_path &&
      !r.config().post_training_config.task) {
    r.error("dataset_config.skip_bad_lines",
            "has no effect: only text, sft_data_path and the examples of a task are read line by "
            "line");
  }
  const auto recorded = [&](bool given, const char* key) {
    if (given && data.step_data_dir) {
      r.error(key,
              "has no effect on recorded steps, which have loss_mask.npy and "
              "attention_mask.npy of their own; leave the key out");
    }
  };
  recorded(data.eod_mask_loss, "dataset_config.eod_mask_loss");
  recorded(data.reset_attention_mask, "dataset_config.reset_attention_mask");
  recorded(data.reset_position_ids, "dataset_config.reset_position_ids");
  recorded(data.pad_token_id.has_value(), "dataset_config.pad_token_id");
}

}  // namespace tapestry::config
