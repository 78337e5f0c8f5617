#include "interop/gguf/gguf_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "autograd/tensor/error.h"
#include "interop/gguf/gguf_texts.h"
#include "parallel_core/config/model_matrices.h"

namespace tapestry {
namespace {

DType dtype_of(const GgufTensor& tensor, GgufType type) {
  if (tensor.added != 0) {
    return kFloat32;
  }
  return type == GgufType::kF16 ? kFloat16 : type == GgufType::kBF16 ? kBFloat16 : kFloat32;
}

int64_t columns_of(const Shape& shape) {
  return shape.size() < 2 ? shape.numel() : shape.numel() / shape[0];
}

}  // namespace

GgufWeights::GgufWeights(const std::string& path) : file_(path) {
  GgufReading reading = read_gguf_config(file_, gguf_token_ids(file_));
  config_ = std::move(reading.config);
  model_ = std::move(reading.model);
  for (const GgufTensor& tensor : model_.tensors) {
    const GgufType type = file_.find(tensor.name)->type;
    int64_t begin = 0;
    for (size_t i = 0; i < tensor.logical.size(); ++i) {
      const Shape& shape = tensor.shapes[i];
      Part part{.tensor = &tensor, .type = type, .begin = begin};
      if (tensor.paired_heads > 0) {
        part.head_size = shape[0] / tensor.paired_heads;
      }
      add(tensor.logical[i], shape, part);
      begin += shape.numel();
    }
  }
  for (const GgufList& list : model_.lists) {
    const std::vector<double> numbers = file_.numbers(list.key);
    for (size_t i = 0; i < list.logical.size(); ++i) {
      Place number{.shape = {1}, .dtype = kFloat32, .parts = {}, .number = {}};
      number.number = static_cast<float>(numbers[i]);
      places_.emplace(list.logical[i], std::move(number));
    }
  }
}

// Rows of heads come in several tensors, in the order of the table.
void GgufWeights::add(const std::string& logical, const Shape& shape, const Part& part) {
  Place& place = places_[logical];
  place.shape = shape;
  place.dtype = part.tensor->split_heads > 0 ? kFloat32 : dtype_of(*part.tensor, part.type);
  place.parts.push_back(part);
}

const GgufWeights::Place& GgufWeights::place(const std::string& name) const {
  const auto found = places_.find(name);
  check<ValueError>(found != places_.end(), file_.path(), ": no tensor is called ", name);
  return found->second;
}

std::vector<std::string> GgufWeights::names() const {
  std::vector<std::string> out;
  for (const auto& [name, place] : places_) {
    out.push_back(name);
  }
  return out;
}

const std::string& GgufWeights::file_of(const std::string& name) const {
  place(name);
  return file_.path();
}

void GgufWeights::read(const std::string& name, void* destination) const {
  const Place& whole = place(name);
  read_elements(whole, 0, whole.shape.numel(), static_cast<std::byte*>(destination));
}

void GgufWeights::read_bytes(const std::string& name,
                             uint64_t offset,
                             size_t bytes,
                             void* destination) const {
  const Place& whole = place(name);
  const auto width = static_cast<uint64_t>(size_of(whole.dtype));
  const uint64_t size = static_cast<uint64_t>(whole.shape.numel()) * width;
  check<IndexError>(offset <= size && bytes <= size - offset, file_.path(), ": tensor ", name, ": ",
                    bytes, " bytes at ", offset, " do not lie within its ", size, " bytes");
  if (bytes == 0) {
    return;
  }
  const uint64_t first = offset / width;
  const uint64_t last = (offset + bytes - 1) / width;
  auto* out = static_cast<std::byte*>(destination);
  if (offset % width == 0 && bytes % width == 0) {
    read_elements(whole, static_cast<int64_t>(first), static_cast<int64_t>(last - first + 1), out);
    return;
  }
  std::vector<std::byte> elements((last - first + 1) * width);
  read_elements(whole, static_cast<int64_t>(first), static_cast<int64_t>(last - first + 1),
                elements.data());
  std::memcpy(out, elements.data() + (offset - first * width), bytes);
}

int64_t GgufWeights::row_in_file(const Place& place, int64_t row) const {
  const Part& part = place.parts.front();
  if (part.head_size == 0) {
    return row;
  }
  const int64_t unturned = part.tensor->unturned;
  const int64_t head = row / part.head_size * part.head_size;
  return head + unpair_rows(row - head, part.head_size - unturned, unturned);
}

void GgufWeights::read_elements(const Place& place,
                                int64_t first,
                                int64_t count,
                                std::byte* out) const {
  if (place.number) {
    std::memcpy(out, &*place.number, count > 0 ? sizeof(float) : 0);
    return;
  }
  const Part& part = place.parts.front();
  if (part.tensor->split_heads > 0) {
    read_heads(place, first, count, reinterpret_cast<float*>(out));
    return;
  }
  if (part.head_size == 0) {
    read_run(part, place.dtype, first, count, out);
    return;
  }
  // Row by row; a vector's rows are its elements.
  const int64_t columns = place.shape.size() == 1 ? 1 : columns_of(place.shape);
  const int64_t width = size_of(place.dtype);
  while (count > 0) {
    const int64_t row = first / columns;
    const int64_t within = first % columns;
    const int64_t piece = std::min(count, columns - within);
    read_run(part, place.dtype, row_in_file(place, row) * columns + within, piece, out);
    first += piece;
    count -= piece;
    out += piece * width;
  }
}

// Elements that lie together in the file, counted from where the part begins.
void GgufWeights::read_run(
    const Part& part, DType dtype, int64_t first, int64_t count, std::byte* out) const {
  const GgufBlock block = gguf_block(part.type);
  const auto bytes_at = [&](int64_t element) {
    return static_cast<uint64_t>(element / block.values) * block.bytes;
  };
  if (!is_quantized(part.type) && (part.type == GgufType::kF32 || dtype != kFloat32)) {
    file_.read_bytes(part.tensor->name, bytes_at(part.begin + first), bytes_at(count), out);
  } else {
    constexpr int64_t kPiece = int64_t{1} << 16U;
    std::vector<std::byte> bytes;
    std::vector<float> values;
    std::byte* to = out;
    const int64_t last = part.begin + first + count;
    for (int64_t at = part.begin + first; at < last;) {
      const int64_t begin = at / block.values * block.values;
      const int64_t piece = std::min(last - at, begin + kPiece - at);
      const int64_t end = (at + piece + block.values - 1) / block.values * block.values;
      bytes.resize(bytes_at(end) - bytes_at(begin));
      values.resize(static_cast<size_t>(end - begin));
      file_.read_bytes(part.tensor->name, bytes_at(begin), bytes.size(), bytes.data());
      decode_gguf(part.type, bytes, values);
      std::memcpy(to, values.data() + (at - begin), static_cast<size_t>(piece) * sizeof(float));
      to += static_cast<size_t>(piece) * sizeof(float);
      at += piece;
    }
  }
  if (part.tensor->added != 0) {
    for (int64_t i = 0; i < count; ++i) {
      float gain = 0;
      std::memcpy(&gain, out + static_cast<size_t>(i) * sizeof(gain), sizeof(gain));
      gain -= part.tensor->added;
      std::memcpy(out + static_cast<size_t>(i) * sizeof(gain), &gain, sizeof(gain));
    }
  }
}

// Heads at a time: a transposed part has a head's rows as its columns.
void GgufWeights::read_heads(const Place& place, int64_t first, int64_t count, float* out) const {
  const int64_t columns = columns_of(place.shape);
  const int64_t heads = place.parts.front().tensor->split_heads;
  const int64_t of_head = place.shape[0] / heads;
  const int64_t size = of_head * columns;
  std::vector<float> head(static_cast<size_t>(size));
  std::vector<float> stored;
  while (count > 0) {
    const int64_t number = first / size;
    for (const Part& part : place.parts) {
      const GgufTensor& tensor = *part.tensor;
      const int64_t rows = tensor.shape[tensor.transposed ? 2 : 1];
      stored.resize(static_cast<size_t>(rows * columns));
      read_run(part, kFloat32, number * rows * columns, rows * columns,
               reinterpret_cast<std::byte*>(stored.data()));
      for (int64_t i = 0; i < rows * columns; ++i) {
        const int64_t row = tensor.transposed ? i % rows : i / columns;
        const int64_t column = tensor.transposed ? i / rows : i % columns;
        head[static_cast<size_t>((tensor.first_row + row) * columns + column)] =
            stored[static_cast<size_t>(i)];
      }
    }
    const int64_t within = first % size;
    const int64_t piece = std::min(count, size - within);
    std::copy_n(head.begin() + within, piece, out);
    out += piece;
    first += piece;
    count -= piece;
  }
}

GgufType GgufWeights::stored_type(const std::string& name) const {
  const Place& found = place(name);
  return found.parts.empty() ? GgufType::kF32 : found.parts.front().type;
}

bool GgufWeights::holds_blocks(const std::string& name) const {
  const Place& found = place(name);
  return found.shape.size() == 2 && !found.number && found.parts.size() == 1 &&
         found.parts.front().tensor->split_heads == 0 && found.parts.front().tensor->added == 0 &&
         is_quantized(found.parts.front().type);
}

void GgufWeights::read_blocks(const std::string& name,
                              int64_t first,
                              int64_t count,
                              std::byte* out) const {
  const Place& whole = place(name);
  check<RuntimeError>(holds_blocks(name), file_.path(), ": ", name, " has no blocks");
  const Part& part = whole.parts.front();
  const int64_t columns = whole.shape[1];
  check<RuntimeError>(first >= 0 && count >= 0 && count <= whole.shape.numel() - first &&
                          gguf_can_hold(part.type, first) && gguf_can_hold(part.type, count),
                      file_.path(), ": ", name, " ", whole.shape.str(),
                      " has no whole blocks of elements ", first, " .. ", first + count);
  while (count > 0) {
    const int64_t row = first / columns;
    // Rows of heads that are turned lie apart.
    const int64_t piece = part.head_size == 0 ? count : std::min(count, columns - first % columns);
    const int64_t begin = part.begin + row_in_file(whole, row) * columns + first % columns;
    const uint64_t bytes = gguf_bytes(part.type, piece);
    file_.read_bytes(part.tensor->name, gguf_bytes(part.type, begin), bytes, out);
    out += bytes;
    first += piece;
    count -= piece;
  }
}

const GgufWeights* as_gguf(const TensorSource& source) {
  return dynamic_cast<const GgufWeights*>(&source);
}

namespace {

// What can be multiplied as it lies.
std::optional<BlockFormat> format_in_memory(GgufType type) {
  return type == GgufType::kQ8_0   ? std::optional(BlockFormat::kQ8_0)
         : type == GgufType::kQ4_0 ? std::optional(BlockFormat::kQ4_0)
                                   : std::nullopt;
}

}  // namespace

std::optional<BlockFormat> GgufWeights::block_format(const std::string& name) const {
  return contains(name) && holds_blocks(name) ? format_in_memory(stored_type(name)) : std::nullopt;
}

std::optional<BlockFormat> base_blocks(const GgufWeights& weights) {
  std::optional<BlockFormat> all;
  for (const ModelMatrix& matrix : model_matrices(weights.config())) {
    if (!matrix.quantizable) {
      continue;
    }
    const auto format = weights.block_format(matrix.name + ".weight");
    if (!format || (all && all != format)) {
      return std::nullopt;
    }
    all = format;
  }
  return all;
}

std::string gguf_types_text(const GgufWeights& weights,
                            const std::function<bool(BlockFormat)>& kept) {
  std::map<GgufType, int64_t> matrices;
  for (const auto& [name, entry] : weights.file().tensors()) {
    if (is_quantized(entry.type)) {
      ++matrices[entry.type];
    }
  }
  std::string text;
  for (const auto& [type, count] : matrices) {
    const auto format = format_in_memory(type);
    text +=
        concat(text.empty() ? weights.file().path() + ": " : "; ", count,
               count == 1 ? " tensor" : " tensors", " of ", name_of(type),
               format && kept(*format) ? " stay in blocks where they are operands of products alone"
                                       : " are widened as they are read");
  }
  return text;
}

}  // namespace tapestry
