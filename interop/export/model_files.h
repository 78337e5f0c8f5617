// What stands beside the weights in the folder of a Hugging Face model, for a model that is written
// from another one's folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "autograd/io/safetensors.h"

namespace tapestry {

/// config.json of a folder, which stays as it came, byte for byte, where nothing is set.
class ModelConfigFile {
 public:
  /// IoError if the folder has none, or one that is no JSON object.
  explicit ModelConfigFile(const std::string& folder);

  /// Whether table of embeddings and output are one matrix: tie_word_embeddings, or what its
  /// absence means for models of the type.
  bool is_tied() const;
  void set_tied(bool tied);
  void set_dtype(DType dtype);
  /// Makes it that of a model for sequence classification with one label (score_config_json). `pad`
  /// is the tokenizer's, if it has one.
  void set_score_head(std::optional<int64_t> pad);
  /// Writes it to another folder. IoError.
  void write(const std::string& folder) const;

 private:
  std::string path_;
  std::string text_;
};

/// Copies a file, which appears complete or not at all. IoError.
void copy_whole_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// Copies every file of a folder but config.json, weights of any program, what belongs to a run of
/// ours (config.yaml, states, manifest), hidden files and folders. IoError.
void copy_other_files(const std::string& from, const std::string& to);

/// Writes model.safetensors.index.json for these files, if the folder `from` has one:
/// `as_it_was`: that one, else a new one.
void write_index(const std::string& from,
                 const std::string& to,
                 const std::map<std::string, std::vector<TensorInfo>>& files,
                 bool as_it_was);

}  // namespace tapestry
