#include "interop/export/hf_export.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/json.h"
#include "autograd/io/packed_folder.h"
#include "autograd/io/range_file.h"
#include "autograd/kernels/reduce.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "interop/architectures/hf_folder.h"
#include "interop/architectures/own_model.h"
#include "interop/architectures/read_hf_config.h"
#include "interop/architectures/registry.h"
#include "interop/export/model_weights.h"
#include "interop/export/new_folder.h"
#include "parallel_core/deferred_values.h"
#include "parallel_core/dist_checkpointing/part_io.h"
#include "parallel_core/dist_checkpointing/shard_files.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"
#include "parallel_core/transformer/gpt_model.h"
#include "text/util/file.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kCopiedBytes = int64_t{8} << 20U;

// Why a model is none of Hugging Face's: what the families that come nearest would have to be.
std::string why_not_hf(const TransformerConfig& config) {
  std::vector<std::pair<std::string, std::vector<architectures::Objection>>> families;
  for (const architectures::Architecture& family : architectures::all()) {
    families.emplace_back(family.model_type, architectures::objections(family, config));
  }
  return concat("the model is none that can be written for the transformers library: ",
                architectures::known_types(), ". Nearest are", architectures::nearest(families));
}

// Whether the folder has the config.json of a family, and so its names.
bool is_of_hf(const ExportSource& source) {
  return path_exists(source.folder + "/config.json") &&
         read_hf_config(source.folder).model_type != architectures::kOwnType;
}

// Layers that predict further tokens are for training alone: of a family that has no place for them
// the model is written without.
ExportSource fitted(ExportSource source) {
  TransformerConfig& config = source.config.model_config;
  if (!is_of_hf(source) && architectures::of(config) == nullptr) {
    config.mtp_num_layers = 0;
  }
  return source;
}

void check_is_of_hf(const ExportSource& source) {
  const bool known = is_of_hf(source) || architectures::of(source.config.model_config) != nullptr;
  check<ValueError>(known, source.folder, ": ", why_not_hf(source.config.model_config));
}

// 2 comes before 10.
bool before_by_number(std::string_view a, std::string_view b) {
  const auto digits = [](std::string_view text) {
    return std::min(text.find_first_not_of("0123456789"), text.size());
  };
  while (!a.empty() && !b.empty()) {
    const size_t of_a = digits(a);
    const size_t of_b = digits(b);
    if (of_a > 0 && of_b > 0) {
      if (of_a != of_b) {
        return of_a < of_b;
      }
      if (const int order = a.substr(0, of_a).compare(b.substr(0, of_b)); order != 0) {
        return order < 0;
      }
      a.remove_prefix(of_a);
      b.remove_prefix(of_b);
    } else if (a[0] != b[0]) {
      return a[0] < b[0];
    } else {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

// A tensor of the new files: a stored one under its name, logical ones, or a number.
struct HfTensor {
  TensorInfo info;
  std::vector<std::pair<nn::LogicalTensor, FilePlace>> logical;  // empty: stored as it is
  std::optional<double> number = std::nullopt;
};

class HfWriter {
 public:
  HfWriter(const ModelWeights& weights, const TransformerConfig& config, std::optional<DType> dtype)
      : weights_(weights), dtype_(dtype) {
    const NameScheme scheme = weights.names().scheme;
    if (scheme.table() == nullptr) {
      plan_by_model(config);
    } else {
      plan_as_stored();
    }
    add_fixed_numbers(config);
    std::sort(tensors_.begin(), tensors_.end(), [](const HfTensor& a, const HfTensor& b) {
      return before_by_number(a.info.name, b.info.name);
    });
  }

  void write(const std::string& folder, uint64_t max_shard_bytes) const {
    std::vector<TensorInfo> infos;
    for (const HfTensor& tensor : tensors_) {
      infos.push_back(tensor.info);
    }
    const ShardFiles shards = plan_shards(kWeightsStem, infos, max_shard_bytes);
    for (const PlannedFile& planned : shards.files) {
      const std::string path = (fs::path(folder) / planned.name).string();
      create_range_file(path, planned.size);
      RangeFile file(path);
      for (const auto& [at, text] : planned.fixed) {
        file.write_at(at, text.data(), text.size());
      }
      for (const HfTensor& tensor : tensors_) {
        const auto found = planned.tensors.find(tensor.info.name);
        if (found != planned.tensors.end()) {
          copy(tensor, found->second, file);
        }
      }
      file.sync();
    }
    if (!shards.index.empty()) {
      write_file_atomically((fs::path(folder) / shards.index_name).string(), shards.index);
    }
  }

 private:
  DType dtype_in_file(const std::string& stored, bool constant) const {
    const DType dtype = weights_.files().dtype(stored);
    return dtype_ && is_floating(dtype) && !constant ? *dtype_ : dtype;
  }

  void plan_as_stored() {
    const std::map<std::string, double> numbers = fixed_numbers(weights_.names());
    for (const std::string& name : weights_.files().names()) {
      const bool constant = is_constant(weights_.names().scheme, name) && !numbers.contains(name);
      tensors_.push_back(
          {.info = {name, dtype_in_file(name, constant), weights_.files().shape(name)},
           .logical = {}});
    }
  }

  // Those that files of the family hold, but these, which were written otherwise, do not.
  void add_fixed_numbers(const TransformerConfig& config) {
    const NameScheme stored = weights_.names().scheme;
    const FileNames target(stored.table() != nullptr ? stored : name_scheme(config), config);
    const DType dtype = tensors_.empty() ? kFloat32 : tensors_.front().info.dtype;
    for (const auto& [name, number] : fixed_numbers(target)) {
      if (!weights_.files().contains(name)) {
        tensors_.push_back({.info = {name, dtype, {}}, .logical = {}, .number = number});
      }
    }
  }

  // Files with the names of modules, whose fused matrices are other ones, or with logical names.
  void plan_by_model(const TransformerConfig& config) {
    const DeferInitialValues deferred(DeferInitialValues::Values::kZeros);
    const GPTModel model(config, "BSH");
    const FileNames target(name_scheme(config), config);
    std::map<std::string, HfTensor> by_name;
    std::vector<nn::LogicalTensor> tensors;
    for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
      const std::vector<nn::LogicalTensor>& parts = entry.parameter->logical();
      tensors.insert(tensors.end(), parts.begin(), parts.end());
    }
    for (const nn::Module::NamedBuffer& entry : model.named_buffers()) {
      if (!entry.logical.empty()) {
        tensors.push_back({.name = entry.logical, .shape = entry.buffer.shape()});
      }
    }
    for (const nn::LogicalTensor& logical : tensors) {
      const FilePlace place = file_place(target, logical.name, logical.shape);
      const std::string stored = file_place(weights_.names(), logical.name, logical.shape).name;
      weights_.check_tensor(logical.name, logical.shape);
      HfTensor& tensor = by_name[place.name];
      tensor.info = {place.name, dtype_in_file(stored, /*constant=*/false), place.shape};
      const nn::LogicalTensor whole{.name = logical.name,
                                    .shape = logical.shape,
                                    .view_shape = logical.shape,
                                    .end = logical.shape[0]};
      tensor.logical.emplace_back(whole, place);
      for (const std::string& further : further_names(target, logical.name)) {
        HfTensor copy = by_name.at(place.name);
        copy.info.name = copy.logical.front().second.name = further;
        by_name[further] = std::move(copy);
      }
    }
    for (auto& [name, tensor] : by_name) {
      tensors_.push_back(std::move(tensor));
    }
  }

  void copy(const HfTensor& tensor, const FileRanges& ranges, RangeFile& file) const {
    if (tensor.number) {
      const Tensor value = full({1}, *tensor.number, tensor.info.dtype);
      write_ranges(ranges, 0, value.raw(), static_cast<size_t>(size_of(tensor.info.dtype)), file);
    } else if (tensor.logical.empty()) {
      copy_stored(tensor.info, ranges, file);
    }
    for (const auto& [logical, place] : tensor.logical) {
      const int64_t columns = std::max<int64_t>(logical.shape.numel() / logical.shape[0], 1);
      const int64_t rows =
          std::max<int64_t>(kCopiedBytes / size_of(tensor.info.dtype) / columns, 1);
      const FilePlace from = file_place(weights_.names(), logical.name, logical.shape);
      for (int64_t row = 0; row < logical.shape[0]; row += rows) {
        const int64_t count = std::min(rows, logical.shape[0] - row) * columns;
        const Tensor values = empty({count}, tensor.info.dtype);
        const Part part{.values = values, .first = row * columns};
        read_part(logical, from, weights_.files(), part);
        check_finite(tensor.info, weights_.files().dtype(from.name), values);
        write_part(logical, place, part, /*only_finite=*/false, ranges, file);
      }
    }
  }

  void copy_stored(const TensorInfo& info, const FileRanges& ranges, RangeFile& file) const {
    const DType stored = weights_.files().dtype(info.name);
    const int64_t count = info.shape.numel();
    const int64_t step = kCopiedBytes / std::max(size_of(stored), size_of(info.dtype));
    for (int64_t at = 0; at < count; at += step) {
      const int64_t piece = std::min(step, count - at);
      Tensor values = empty({piece}, stored);
      weights_.files().read_bytes(info.name, static_cast<uint64_t>(at * size_of(stored)),
                                  static_cast<size_t>(piece * size_of(stored)), values.raw());
      if (stored != info.dtype) {
        const Tensor converted = empty({piece}, info.dtype);
        copy_values(values, converted);
        check_finite(info, stored, converted);
        values = converted;
      }
      write_ranges(ranges, static_cast<uint64_t>(at * size_of(info.dtype)), values.raw(),
                   static_cast<size_t>(piece * size_of(info.dtype)), file);
    }
  }

  static void check_finite(const TensorInfo& info, DType stored, const Tensor& values) {
    check<ValueError>(
        stored == info.dtype || kernels::all_finite(info.dtype, values.numel(), values.raw()),
        "tensor ", info.name, ": ", name_of(info.dtype),
        " cannot hold all of its values; choose a type with room for larger ones, BF16 or F32, "
        "unless the weights are not finite");
  }

  const ModelWeights& weights_;
  std::optional<DType> dtype_;
  std::vector<HfTensor> tensors_;
};

// config.json and what stands beside it, by name.
std::map<std::string, std::string> files_beside(const ExportSource& source,
                                                const std::optional<DType>& dtype,
                                                DType stored) {
  const fs::path folder = source.folder;
  std::map<std::string, std::string> files;
  if (!is_of_hf(source)) {
    HfSource texts;
    texts.token_ids = source.token_ids;
    files = hf_files(source.config.model_config, /*named=*/true, dtype.value_or(stored), texts);
  } else {
    const std::string text = data::read_file((folder / "config.json").string());
    files["config.json"] = dtype ? config_json_with_dtype(text, *dtype) : text;
    if (source.added_rows > 0) {
      auto json = nlohmann::ordered_json::parse(files["config.json"]);
      json["vocab_size"] = source.config.model_config.vocab_size;
      files["config.json"] = json.dump(2) + "\n";
    }
  }
  std::vector<std::string> others = tokenizer_files_in(source.folder);
  for (const char* name : {"generation_config.json", "tokenizer.model"}) {
    others.push_back((folder / name).string());
  }
  for (const std::string& file : others) {
    if (path_exists(file)) {
      files[fs::path(file).filename().string()] = data::read_file(file);
    }
  }
  return files;
}

}  // namespace

void export_hf(const ExportSource& given, const std::string& path, const HfExportOptions& options) {
  const ExportSource source = fitted(given);
  check_is_of_hf(source);
  const ModelWeights weights(open_source_weights(source), source.config.model_config);
  const std::vector<std::string> names = weights.files().names();
  check<IoError>(!names.empty(), source.folder, ": the weights have no tensors");
  NewFolder folder(path);
  const DType stored = weights.files().dtype(names.front());
  for (const auto& [name, content] : files_beside(source, options.dtype, stored)) {
    write_file_atomically((fs::path(folder.temporary()) / name).string(), content);
  }
  HfWriter(weights, source.config.model_config, options.dtype)
      .write(folder.temporary(), options.max_shard_bytes);
  folder.commit();
}

}  // namespace tapestry
