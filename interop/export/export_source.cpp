#include "interop/export/export_source.h"

#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/io/packed_folder.h"
#include "autograd/tensor/error.h"
#include "interop/architectures/file_place.h"
#include "interop/export/grown_tables.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/read/load.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"
#include "text/tokenizers/huggingface/tokenizer_files.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;

AllConfig config_of_hf_folder(const std::string& folder) {
  int64_t positions = 1;
  for (const HfSetting& setting : read_hf_config(folder).settings) {
    if (setting.key == "max_position_embeddings") {
      positions = setting.value.as<int64_t>();
    }
  }
  // What a folder does not say of training has no effect here.
  return init_configs_from_dict({{"training_config", {{"training_iters", 1}}},
                                 {"dataset_config", {{"tokenizer_type", "byte"}}},
                                 {"model_config",
                                  {{"from_hf", folder},
                                   {"seq_length", positions},
                                   {"hidden_dropout", 0.0},
                                   {"attention_dropout", 0.0}}},
                                 {"optimizer_config", {{"learning_rate", 1.0}}}});
}

}  // namespace

ExportSource open_export_source(const std::string& path) {
  check<IoError>(folder_exists(path), path,
                 ": is no folder; name a run's folder, a checkpoint, that of a Hugging Face model, "
                 "or a GGUF file");
  ExportSource source;
  source.folder = resolve_checkpoint(path);
  const bool of_run = fs::exists(fs::path(source.folder) / "config.yaml");
  const bool of_hf = path_exists(source.folder + "/config.json");
  check<IoError>(of_run || of_hf, source.folder,
                 ": has neither config.yaml, as a checkpoint of pretrain_gpt has, nor config.json, "
                 "as a Hugging Face model has");
  if (of_run) {
    source.config = init_configs_from_yaml(source.folder + "/config.yaml");
    source.tokenizer_type = source.config.dataset_config.tokenizer_type;
  } else {
    source.config = config_of_hf_folder(source.folder);
  }
  if (of_hf) {
    source.token_ids = read_hf_config(source.folder).token_ids;
  }
  return source;
}

std::unique_ptr<data::Tokenizer> tokenizer_of_folder(const std::string& folder) {
  const bool json = data::huggingface::has_tokenizer_files(folder);
  const std::string pieces = folder + "/tokenizer.model";
  check<IoError>(json || path_exists(pieces), folder,
                 ": has neither tokenizer.json, nor vocab.json with merges.txt, nor "
                 "tokenizer.model, so there are no ids to grow the model's vocabulary for");
  return json ? data::make_tokenizer("huggingface", folder)
              : data::make_tokenizer("sentencepiece", pieces);
}

int64_t grow_vocabulary(ExportSource& source) {
  return add_rows(source, tokenizer_of_folder(source.folder)->vocab_size());
}

int64_t add_rows(ExportSource& source, int64_t rows) {
  int64_t& known = source.config.model_config.vocab_size;
  source.added_rows = std::max<int64_t>(0, rows - known);
  known += source.added_rows;
  return source.added_rows;
}

std::unique_ptr<TensorSource> open_source_weights(const ExportSource& source) {
  std::unique_ptr<TensorSource> files = open_weights(source.folder);
  if (source.added_rows == 0) {
    return files;
  }
  const TransformerConfig& model = source.config.model_config;
  const std::vector<std::string> list = files->names();
  const FileNames names(name_scheme(std::set<std::string>(list.begin(), list.end())), model);
  const Shape shape{model.vocab_size, model.hidden_size};
  std::vector<std::string> tables;
  for (const char* logical : {"tok_embeddings.weight", "lm_head.weight"}) {
    tables.push_back(file_place(names, logical, shape).name);
  }
  return std::make_unique<GrownTables>(std::move(files), tables, model.vocab_size);
}

}  // namespace tapestry
