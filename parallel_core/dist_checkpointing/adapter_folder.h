// The folder of an adapter, as PEFT lays it out: adapter_config.json and adapter_model.safetensors;
// in a checkpoint beside these base_model.json, which says what the adapter belongs to.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/io/tensor_source.h"
#include "parallel_core/dist_checkpointing/peft_config.h"

namespace tapestry {

inline constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";
inline constexpr const char* kPickledAdapterFile = "adapter_model.bin";  ///< not read
inline constexpr const char* kBaseModelFile = "base_model.json";
/// Before the path that a module has in the Hugging Face model.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";
/// What the path of an adapted module has behind it where its own tensors are meant.
inline constexpr std::string_view kBaseLayer = ".base_layer";

/// The model that an adapter belongs to.
struct AdapterBase {
  std::string path;         ///< of its folder or file of weights, absolute; empty: start values
  std::string fingerprint;  ///< weights_fingerprint(path); empty: not known
};

/// Whether a folder has both files of an adapter, and no model's weights, or has had them: a
/// checkpoint of one that has lost its weights counts.
bool holds_adapter(const std::string& folder);

/// Opens adapter_model.safetensors. IoError if it is missing or is not what it should be; for
/// adapter_model.bin, a pickle, it says what helps.
std::unique_ptr<TensorSource> open_adapter(const std::string& folder);

/// A text that differs where weights differ: a checksum of names, dtypes and shapes of all tensors
/// of a folder or file and, of each, of 4 KiB at its beginning, its middle and its end. How the
/// tensors are divided among files does not count. IoError as open_weights.
std::string weights_fingerprint(const std::string& path);

/// Content of base_model.json.
std::string adapter_base_text(const AdapterBase& base);
/// What base_model.json of a checkpoint says; empty if the folder has none, as those of others.
/// IoError for one that adapter_base_text has not written.
std::optional<AdapterBase> read_adapter_base(const std::string& folder);

/// Where the base of an adapter is: `given` if that is not empty, else what base_model.json says,
/// else base_model_name_or_path of adapter_config.json, seen from the current folder or from that
/// of the adapter. Empty for the adapter of a run that has begun with start values in place of
/// somebody's weights. With a fingerprint where the adapter has one, which is not compared yet.
/// IoError that says what to give if there is no such folder or file.
AdapterBase find_adapter_base(const std::string& folder, const std::string& given = {});

/// Overrides ("section.key=value") for the config.yaml of a checkpoint: its base is where
/// base_model.json says, which its model_config.from_hf may say as seen from another folder. Empty
/// for other checkpoints, and where the base is not there or no folder with a config.json.
std::vector<std::string> base_overrides(const std::string& folder);

/// ValueError, naming both, if the weights at `base` are not those that the adapter was trained
/// beside. Nothing for a folder that does not say.
void check_adapter_base(const std::string& folder, const std::string& base);

}  // namespace tapestry
