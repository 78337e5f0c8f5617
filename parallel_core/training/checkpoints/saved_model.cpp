#include "parallel_core/training/checkpoints/saved_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "autograd/io/input_file.h"
#include "autograd/io/json.h"
#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/read_hf_config.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "text/tokenizers/huggingface/tokenizer_files.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/kinds/sentencepiece_tokenizer.h"

namespace tapestry {

namespace {

namespace fs = std::filesystem;

void check_vocabulary(const SavedModel& model, const std::string& folder) {
  check<ValueError>(
      model.tokenizer->vocab_size() <= model.config.model_config.vocab_size, folder,
      ": the model's vocab_size is ", model.config.model_config.vocab_size,
      ", but beside it is the ", model.tokenizer->describe(),
      "; if tokens were added to "
      "the tokenizer, `export --resize_embeddings --to hf` makes a model with a row for "
      "each, else it is not the tokenizer of this model");
}

SavedModel open_checkpoint(const std::string& folder) {
  SavedModel model;
  model.config =
      init_configs_from_yaml(folder + "/config.yaml", {.overrides = base_overrides(folder)});
  const std::string& type = model.config.dataset_config.tokenizer_type;
  const bool json = type == "huggingface";
  const std::string file = type == "byte" ? "" : json ? folder : folder + "/tokenizer.model";
  const bool there = json ? data::huggingface::has_tokenizer_files(folder) : path_exists(file);
  check<IoError>(type == "byte" || there, json ? folder + "/tokenizer.json" : file,
                 ": is missing; the run that saved the checkpoint had no "
                 "dataset_config.tokenizer_model, put the tokenizer of its text there");
  model.tokenizer = data::make_tokenizer(type, file);
  model.start = model.tokenizer->ids_before();
  model.eod_id = model.tokenizer->eod_id();
  check_vocabulary(model, folder);
  return model;
}

SavedModel open_hf_model(const std::string& folder) {
  const HfConfig hf = read_hf_config(folder);
  const int64_t positions = longest_text(hf);
  int64_t vocabulary = 0;
  for (const HfSetting& setting : hf.settings) {
    if (setting.key == "vocab_size") {
      vocabulary = setting.value.as<int64_t>();
    }
  }
  SavedModel model;
  model.remark = hf.remark;
  const std::string file = folder + "/tokenizer.model";
  // Where there are both, tokenizer.json has the tokens that were added as well.
  const std::string type = data::huggingface::has_tokenizer_files(folder) ? "huggingface"
                           : path_exists(file)                            ? "sentencepiece"
                                                                          : "byte";
  if (type == "byte") {
    check<ValueError>(vocabulary > data::ByteTokenizer::kEod, folder,
                      ": has neither tokenizer.json, nor vocab.json with merges.txt, nor "
                      "tokenizer.model, and the vocabulary of ",
                      vocabulary, " has no room for the ", data::ByteTokenizer::kEod + 1,
                      " ids of a model of bytes");
    model.remark += concat(model.remark.empty() ? "" : "; ", folder,
                           ": has no tokenizer; its ids are taken for bytes");
  }
  // What a folder does not say of training has no effect here.
  model.config = init_configs_from_dict({{"training_config", {{"training_iters", 1}}},
                                         {"dataset_config", {{"tokenizer_type", type}}},
                                         {"model_config",
                                          {{"from_hf", folder},
                                           {"seq_length", positions},
                                           {"hidden_dropout", 0.0},
                                           {"attention_dropout", 0.0}}},
                                         {"optimizer_config", {{"learning_rate", 1.0}}}});
  model.tokenizer = data::make_tokenizer(type, type == "huggingface"     ? folder
                                               : type == "sentencepiece" ? file
                                                                         : "");
  check_vocabulary(model, folder);
  model.eod_id = model.tokenizer->eod_id();
  if (!hf.token_ids.eos.empty() && hf.token_ids.eos.front() < vocabulary) {
    model.eod_id = hf.token_ids.eos.front();
  }
  model.start = model.tokenizer->ids_before();
  return model;
}

std::optional<int64_t> id_or_none(int32_t id) {
  return id < 0 ? std::nullopt : std::optional<int64_t>(id);
}

// For the transformers library, which would begin every text with an id of its own and a space:
// the texts of a run have neither.
std::string tokenizer_config_json(const data::SentencePieceTokenizer& tokenizer,
                                  int64_t max_length) {
  const auto piece = [&](int32_t id) {
    return id < 0 ? nlohmann::json() : nlohmann::json(tokenizer.piece(id));
  };
  const nlohmann::json json = {{"tokenizer_class", "LlamaTokenizer"},
                               {"add_bos_token", false},
                               {"add_eos_token", false},
                               {"add_prefix_space", false},
                               {"legacy", false},
                               {"clean_up_tokenization_spaces", false},
                               {"bos_token", piece(tokenizer.bos_id())},
                               {"eos_token", piece(tokenizer.eod_id())},
                               {"unk_token", piece(tokenizer.unk_id())},
                               {"pad_token", piece(tokenizer.pad_id())},
                               {"model_max_length", max_length}};
  return json.dump(2) + "\n";
}

// The tokenizer of the run's text; null where it is not known.
std::unique_ptr<data::Tokenizer> tokenizer_of(const AllConfig& config, const RunData& data) {
  const DatasetConfig& d = config.dataset_config;
  const bool has_no_text = d.step_data_dir || (data.opened.own && data.tokenizer_model.empty());
  return has_no_text || (d.tokenizer_type != "byte" && data.tokenizer_model.empty())
             ? nullptr
             : data::make_tokenizer(d.tokenizer_type, data.tokenizer_model);
}

TokenIds ids_of(const data::Tokenizer& tokenizer) {
  TokenIds ids{
      .bos = id_or_none(tokenizer.bos_id()), .eos = {}, .pad = id_or_none(tokenizer.pad_id())};
  if (tokenizer.eod_id() >= 0) {
    ids.eos.push_back(tokenizer.eod_id());
  }
  return ids;
}

}  // namespace

SavedModel open_saved_model(const std::string& folder) {
  check<IoError>(folder_exists(folder), folder,
                 ": is no folder; name the folder of a checkpoint or of a Hugging Face model, or a "
                 "GGUF file");
  if (fs::exists(folder + "/config.yaml")) {
    return open_checkpoint(folder);
  }
  check<IoError>(path_exists(folder + "/config.json"), folder,
                 ": has neither config.yaml, as a checkpoint of pretrain_gpt has, nor config.json, "
                 "as a Hugging Face model has");
  return open_hf_model(folder);
}

namespace {

HfSource source_of_run(const AllConfig& config,
                       const data::Tokenizer* tokenizer,
                       const RunData& data,
                       const std::string& weights) {
  HfSource source;
  const bool has_folder = !weights.empty() && folder_exists(weights);
  if (has_folder) {
    source = read_hf_source(weights);
  }
  source.trained_ends = data.trained_ends;
  const auto take_ids_of_folder = [&] {
    source.token_ids = parse_hf_config(source.config_json, weights + "/config.json").token_ids;
  };
  if (tokenizer != nullptr && config.dataset_config.tokenizer_type == "huggingface") {
    const bool same =
        has_folder && data::huggingface::has_tokenizer_files(weights) &&
        data::huggingface::tokenizer_checksum(data::huggingface::find_tokenizer_files(weights)) ==
            tokenizer->identity().checksum;
    for (const auto& [name, path] :
         data::huggingface::tokenizer_files_to_copy(same ? weights : data.tokenizer_model)) {
      source.files[name] = read_file(path);
    }
    source.keeps_generation_config = same;
    if (same && !source.config_json.empty()) {
      take_ids_of_folder();
    } else {
      source.token_ids = ids_of(*tokenizer);
    }
    return source;
  }
  if (has_folder) {
    const std::string theirs = weights + "/tokenizer.model";
    const bool same = tokenizer != nullptr && !data.tokenizer_model.empty() &&
                      path_exists(theirs) && read_file(theirs) == read_file(data.tokenizer_model);
    if (tokenizer == nullptr || same) {
      for (const std::string& path : tokenizer_files_in(weights)) {
        source.files[fs::path(path).filename().string()] = read_file(path);
      }
    }
    if (tokenizer == nullptr && path_exists(theirs)) {
      source.files["tokenizer.model"] = read_file(theirs);
    }
  }
  if (!data.tokenizer_model.empty() && config.dataset_config.tokenizer_type != "huggingface") {
    source.files["tokenizer.model"] = read_file(data.tokenizer_model);
  }
  if (tokenizer != nullptr) {
    source.token_ids = ids_of(*tokenizer);
  } else if (!source.config_json.empty()) {
    take_ids_of_folder();
  }
  const auto* pieces = dynamic_cast<const data::SentencePieceTokenizer*>(tokenizer);
  if (pieces != nullptr) {
    for (const std::string& file : pieces->files_beside()) {
      const std::string name = fs::path(file).filename().string();
      if (!source.files.contains(name)) {
        source.files[name] = read_file(file);
      }
    }
  }
  if (pieces != nullptr && !source.files.contains("tokenizer_config.json")) {
    source.files["tokenizer_config.json"] =
        tokenizer_config_json(*pieces, config.model_config.max_position_embeddings.value_or(1));
  }
  return source;
}

// The id that rows of texts are filled up with, at which no value is taken.
std::optional<int64_t> pad_of_texts(const AllConfig& config, const data::Tokenizer& tokenizer) {
  const DatasetConfig& d = config.dataset_config;
  const std::optional<int64_t> end =
      d.eos_token_id ? d.eos_token_id : id_or_none(tokenizer.eod_id());
  const std::optional<int64_t> own =
      d.pad_token_id ? d.pad_token_id : id_or_none(tokenizer.pad_id());
  return own ? own : end;
}

}  // namespace

HfSource hf_source_of(const AllConfig& config, const RunData& data, const std::string& weights) {
  const auto tokenizer = tokenizer_of(config, data);
  HfSource source = source_of_run(config, tokenizer.get(), data, weights);
  if (config.model_config.score_head && tokenizer != nullptr) {
    source.token_ids.pad = pad_of_texts(config, *tokenizer);
  }
  return source;
}

}  // namespace tapestry
