#include "interop/export/gguf_export.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "interop/architectures/gguf_scaling.h"
#include "interop/export/gguf_tokenizer.h"
#include "interop/export/model_weights.h"
#include "interop/gguf/gguf_model.h"
#include "interop/gguf/gguf_weights.h"
#include "interop/gguf/gguf_writer.h"
#include "parallel_core/dist_checkpointing/tensor_files.h"

namespace tapestry {
namespace {

constexpr int64_t kPieceValues = int64_t{4} << 20U;

// Brings the rows of whole heads into the file's order.
void pair_heads(std::span<float> rows, int64_t head_size, int64_t unturned, int64_t columns) {
  std::vector<float> head(static_cast<size_t>(head_size * columns));
  for (size_t begin = 0; begin < rows.size(); begin += head.size()) {
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(begin), head.size(), head.begin());
    for (int64_t row = 0; row < head_size; ++row) {
      std::copy_n(head.begin() + pair_rows(row, head_size - unturned, unturned) * columns, columns,
                  rows.begin() + static_cast<std::ptrdiff_t>(begin) + row * columns);
    }
  }
}

// Some rows of each head.
void write_head_rows(const GgufTensor& tensor, const ModelWeights& weights, GgufWriter& writer) {
  const Shape& whole = tensor.shapes.front();
  const int64_t columns = whole[1];
  const int64_t of_head = whole[0] / tensor.split_heads;
  const int64_t rows = tensor.shape[tensor.transposed ? 2 : 1];
  std::vector<float> values(static_cast<size_t>(rows * columns));
  std::vector<float> turned(values.size());
  for (int64_t head = 0; head < tensor.split_heads; ++head) {
    weights.read(tensor.logical.front(), whole, (head * of_head + tensor.first_row) * columns,
                 values);
    for (int64_t i = 0; tensor.transposed && i < rows * columns; ++i) {
      turned[static_cast<size_t>(i % columns * rows + i / columns)] =
          values[static_cast<size_t>(i)];
    }
    writer.write(tensor.transposed ? turned : values);
  }
}

void write_gguf_tensor(const GgufTensor& tensor, const ModelWeights& weights, GgufWriter& writer) {
  if (tensor.logical.empty()) {
    writer.write(tensor.values);
    return;
  }
  if (tensor.split_heads > 0) {
    write_head_rows(tensor, weights, writer);
    return;
  }
  std::vector<float> values;
  for (size_t part = 0; part < tensor.logical.size(); ++part) {
    const Shape& shape = tensor.shapes[part];
    const int64_t rows = shape[0];
    const int64_t columns = shape.numel() / rows;
    const int64_t head_size = tensor.paired_heads > 0 ? rows / tensor.paired_heads : 1;
    // Whole rows of the file, and whole heads of what is permuted. A vector is one row.
    const int64_t unit = shape.size() == 1 ? rows : head_size;
    const int64_t step = std::min(rows, std::max<int64_t>(kPieceValues / columns / unit, 1) * unit);
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t count = std::min(step, rows - row);
      values.resize(static_cast<size_t>(count * columns));
      weights.read(tensor.logical[part], shape, row * columns, values);
      if (tensor.paired_heads > 0) {
        pair_heads(values, head_size, tensor.unturned, columns);
      }
      for (float& value : values) {
        value += tensor.added;
      }
      writer.write(values);
    }
  }
}

// The tensor of a GGUF file as it lies there, if that is what the new file is to hold.
bool copy_stored(const GgufWeights* file,
                 const GgufModel& model,
                 const GgufTensorInfo& tensor,
                 GgufWriter& writer) {
  const GgufEntry* entry = file == nullptr ? nullptr : file->file().find(tensor.name);
  if (entry == nullptr || file->model().architecture != model.architecture ||
      entry->type != tensor.type || entry->shape != tensor.shape) {
    return false;
  }
  const GgufBlock block = gguf_block(tensor.type);
  const uint64_t step = (uint64_t{4} << 20U) / block.bytes * block.bytes;
  std::vector<std::byte> bytes;
  for (uint64_t at = 0; at < entry->bytes; at += step) {
    bytes.resize(std::min(step, entry->bytes - at));
    file->file().read_bytes(tensor.name, at, bytes.size(), bytes.data());
    writer.write_encoded(bytes);
  }
  return true;
}

// What the model is called: as it was in a GGUF file, else as its folder.
std::string name_of_source(const ExportSource& source, const GgufWeights* file) {
  if (file != nullptr && file->file().has("general.name")) {
    return file->file().text("general.name");
  }
  const std::filesystem::path folder = std::filesystem::absolute(source.folder).lexically_normal();
  return (file != nullptr ? folder.stem() : folder.filename()).string();
}

}  // namespace

std::vector<std::string> export_gguf(const ExportSource& given,
                                     const std::string& path,
                                     const GgufOptions& options) {
  ExportSource source = given;
  source.config.model_config.mtp_num_layers = 0;  // for training alone
  const GgufModel model = gguf_model(source.config.model_config);
  const ModelWeights weights(open_source_weights(source), source.config.model_config);
  std::vector<GgufTensorInfo> infos;
  for (const GgufTensor& tensor : model.tensors) {
    for (size_t part = 0; part < tensor.logical.size(); ++part) {
      weights.check_tensor(tensor.logical[part], tensor.shapes[part]);
    }
    infos.push_back({tensor.name, tensor.shape, type_in_file(tensor, options.type)});
  }
  for (const GgufList& list : model.lists) {
    for (const std::string& logical : list.logical) {
      weights.check_tensor(logical, {1});
    }
  }
  GgufTokenizer tokenizer =
      read_gguf_tokenizer(source.folder, {.type = source.tokenizer_type,
                                          .ids = source.token_ids,
                                          .rows = source.config.model_config.vocab_size});
  const GgufWeights* file = as_gguf(weights.files());
  const std::string name = options.name.empty() ? name_of_source(source, file) : options.name;
  GgufMetadata metadata;
  add_model_metadata(source.config.model_config, model, name, options.type, metadata);
  for (const GgufList& list : model.lists) {
    std::vector<float> numbers(list.logical.size());
    for (size_t i = 0; i < numbers.size(); ++i) {
      weights.read(list.logical[i], {1}, 0, std::span(&numbers[i], 1));
    }
    metadata.add(list.key, std::span<const float>(numbers));
  }
  add_tokenizer_metadata(tokenizer, metadata);
  GgufWriter writer(path, metadata, infos);
  for (size_t i = 0; i < infos.size(); ++i) {
    if (!copy_stored(file, model, infos[i], writer)) {
      write_gguf_tensor(model.tensors[i], weights, writer);
    }
  }
  writer.commit();
  std::vector<std::string> remarks = std::move(tokenizer.remarks);
  for (std::string& remark : architectures::departures_of_scaling(source.config.model_config)) {
    remarks.push_back(std::move(remark));
  }
  return remarks;
}

}  // namespace tapestry
