#include "interop/export/gguf_adapter.h"

#include <filesystem>
#include <map>
#include <memory>
#include <string_view>

#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "interop/architectures/file_place.h"
#include "interop/gguf/gguf_model.h"
#include "interop/gguf/gguf_writer.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/checkpoint_folder.h"

namespace tapestry {
namespace {

constexpr std::string_view kWeightPart = ".weight";
constexpr std::string_view kDownPart = ".lora_A.weight";
constexpr std::string_view kUpPart = ".lora_B.weight";

// A module of the adapter and the base's tensor that it is beside.
struct GgufLora {
  std::string path;  // "model.layers.0.self_attn.q_proj"
  const GgufTensor* tensor = nullptr;
  bool has_down = false;
  bool has_up = false;
  int64_t rank = 0;
  double alpha = 0;  // the scale times the rank
};

std::string without_weight(const std::string& name) {
  return name.substr(0, name.size() - kWeightPart.size());
}

class LoraFile {
 public:
  LoraFile(const ExportSource& base, std::string folder)
      : folder_(std::move(folder)),
        model_(gguf_model(base.config.model_config)),
        files_(open_adapter(folder_)),
        modules_(read_peft_config(folder_), concat(folder_, "/", kAdapterConfigFile)) {
    check<ValueError>(model_.takes_adapters, folder_,
                      ": llama.cpp passes over adapters of the architecture ", model_.architecture,
                      "; merge the adapter (--merge)");
    const PeftConfig& config = modules_.config();
    check<ValueError>(!config.use_dora, folder_, "/", kAdapterConfigFile,
                      ": use_dora: is true, which GGUF cannot say; merge the adapter (--merge)");
    check<ValueError>(config.modules_to_save.empty(), folder_, "/", kAdapterConfigFile,
                      ": modules_to_save: is not empty: whole tensors are no part of a GGUF "
                      "adapter; merge the adapter (--merge)");
    check<ValueError>(!config.trains_biases, folder_, "/", kAdapterConfigFile,
                      ": bias: is lora_only, and biases are no part of a GGUF adapter; merge the "
                      "adapter (--merge)");
    check<ValueError>(config.parameters.empty(), folder_, "/", kAdapterConfigFile,
                      ": target_parameters: adapters of stacked experts are no part of a GGUF "
                      "adapter here; merge the adapter (--merge)");
    find_modules(base.config.model_config);
    read_names();
  }

  void write(const std::string& path, GgufType type) const {
    const auto name = std::filesystem::absolute(folder_).lexically_normal().filename().string();
    // A scale of its own is a factor of B.
    const double alpha = loras_.begin()->second.alpha;
    GgufMetadata metadata;
    metadata.add("general.architecture", model_.architecture);
    metadata.add("general.type", "adapter");
    metadata.add("general.name", name);
    metadata.add("general.file_type", gguf_file_type(type));
    metadata.add("adapter.type", "lora");
    metadata.add("adapter.lora.alpha", static_cast<float>(alpha));
    std::vector<GgufTensorInfo> infos;
    for (const auto& [module, lora] : loras_) {
      for (const bool down : {true, false}) {
        const GgufTensor tensor{.name = concat(lora.tensor->name, down ? ".lora_a" : ".lora_b"),
                                .shape = shape_of(lora, down)};
        infos.push_back({tensor.name, tensor.shape, type_in_file(tensor, type)});
      }
    }
    GgufWriter writer(path, metadata, infos);
    for (const auto& [module, lora] : loras_) {
      writer.write(read(lora, /*down=*/true));
      std::vector<float> up = read(lora, /*down=*/false);
      const double factor = lora.alpha / alpha;
      if (factor != 1.0) {
        for (float& value : up) {
          value = static_cast<float>(value * factor);
        }
      }
      if (lora.tensor->paired_heads > 0) {
        pair(up, lora);
      }
      writer.write(up);
    }
    writer.commit();
  }

 private:
  // The paths that modules have in the Hugging Face model.
  void find_modules(const TransformerConfig& config) {
    const FileNames names(name_scheme(config), config);
    for (const GgufTensor& tensor : model_.tensors) {
      if (tensor.shape.size() != 2) {
        continue;
      }
      const std::string& logical = tensor.logical.front();
      if (logical.starts_with("tok_") || logical.starts_with("pos_")) {
        continue;
      }
      const std::string name = file_place(names, logical, tensor.shape).name;
      tensors_[without_weight(name)] = &tensor;
    }
  }

  void read_names() {
    for (const std::string& name : files_->names()) {
      const std::string_view end = name.ends_with(kDownPart) ? kDownPart : kUpPart;
      check<ValueError>(name.starts_with(kPeftPrefix) && name.ends_with(end), files_->file_of(name),
                        ": tensor ", name,
                        ": a GGUF adapter has "
                        "lora_A.weight and lora_B.weight of linear modules alone; merge the "
                        "adapter (--merge)");
      const std::string path =
          name.substr(kPeftPrefix.size(), name.size() - kPeftPrefix.size() - end.size());
      const auto found = tensors_.find(path);
      check<ValueError>(found != tensors_.end(), files_->file_of(name), ": tensor ", name,
                        ": the base has no linear module ", path);
      GgufLora& lora = loras_[path];
      lora.path = path;
      lora.tensor = found->second;
      (end == kDownPart ? lora.has_down : lora.has_up) = true;
    }
    check<ValueError>(!loras_.empty(), folder_, "/", kAdapterWeightsFile, ": has no tensors");
    for (auto& [path, lora] : loras_) {
      check<ValueError>(lora.has_down && lora.has_up, folder_, "/", kAdapterWeightsFile, ": ", path,
                        ": ", lora.has_down ? "lora_B" : "lora_A", " is missing");
      lora.rank = modules_.rank(path);
      lora.alpha = modules_.scale(path) * static_cast<double>(lora.rank);
      if (!modules_.config().use_rslora) {
        lora.alpha = modules_.alpha(path);  // not rounded by a division
      }
      for (const bool down : {true, false}) {
        const Shape& shape = files_->shape(stored_name(lora, down));
        check<ValueError>(shape == shape_of(lora, down), folder_, "/", kAdapterWeightsFile, ": ",
                          stored_name(lora, down), ": has the shape ", shape.str(), ", expected ",
                          shape_of(lora, down).str());
      }
    }
  }

  static std::string stored_name(const GgufLora& lora, bool down) {
    return concat(kPeftPrefix, lora.path, down ? kDownPart : kUpPart);
  }
  static Shape shape_of(const GgufLora& lora, bool down) {
    return down ? Shape{lora.rank, lora.tensor->shape[1]} : Shape{lora.tensor->shape[0], lora.rank};
  }

  std::vector<float> read(const GgufLora& lora, bool down) const {
    const std::string name = stored_name(lora, down);
    const Tensor stored = empty(files_->shape(name), files_->dtype(name));
    files_->read(name, stored.raw());
    const Tensor values = empty(stored.shape(), kFloat32);
    copy_values(stored, values);
    return values.to_vector<float>();
  }

  static void pair(std::vector<float>& up, const GgufLora& lora) {
    const std::vector<float> rows = up;
    const int64_t head_size = lora.tensor->shape[0] / lora.tensor->paired_heads;
    for (int64_t row = 0; row < lora.tensor->shape[0]; ++row) {
      std::copy_n(
          rows.begin() +
              pair_rows(row, head_size - lora.tensor->unturned, lora.tensor->unturned) * lora.rank,
          lora.rank, up.begin() + row * lora.rank);
    }
  }

  std::string folder_;
  GgufModel model_;
  std::unique_ptr<TensorSource> files_;
  PeftModules modules_;
  std::map<std::string, const GgufTensor*> tensors_;  // by path
  std::map<std::string, GgufLora> loras_;
};

}  // namespace

void export_gguf_adapter(const ExportSource& base,
                         const std::string& adapter,
                         const std::string& path,
                         GgufType type) {
  const std::string folder = resolve_checkpoint(adapter);
  check<IoError>(holds_adapter(folder), folder, ": holds no adapter, ", kAdapterConfigFile, " and ",
                 kAdapterWeightsFile);
  check_adapter_base(folder, base.folder);
  LoraFile(base, folder).write(path, type);
}

}  // namespace tapestry
