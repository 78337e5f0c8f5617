#include "autograd/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/safetensors_header.h"
#include "autograd/tensor/error.h"

namespace tapestry {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

using safetensors::json_string;

SafetensorsReader::SafetensorsReader(const std::string& path) : file_(path) {
  uint64_t length = 0;
  file_.read_at(0, &length, sizeof(length), "header length");
  if (length > safetensors::kMaxHeaderBytes) {
    file_.fail(0, "header length", length, " is above the limit of ", safetensors::kMaxHeaderBytes,
               "; not a safetensors file?");
  }
  data_offset_ = safetensors::kHeaderOffset + length;
  if (data_offset_ > file_.size()) {
    file_.fail(0, "header length", "a header of ", length, " bytes does not fit into a file of ",
               file_.size(), " (truncated?)");
  }
  std::string text(length, '\0');
  file_.read_at(safetensors::kHeaderOffset, text.data(), text.size(), "header");
  safetensors::Header header = safetensors::parse_header(file_, text);
  safetensors::check_coverage(file_, header, file_.size() - data_offset_);
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
}

const SafetensorsEntry& SafetensorsReader::entry(const std::string& name) const {
  const auto it = entries_.find(name);
  check<ValueError>(it != entries_.end(), path(), ": no tensor is called ", json_string(name));
  return it->second;
}

DType SafetensorsReader::dtype(const std::string& name) const {
  const SafetensorsEntry& found = entry(name);
  check<TypeError>(
      found.dtype.has_value(), path(), ": tensor ", json_string(name), " has dtype ",
      found.dtype_name,
      ", which is not supported; expected BOOL, I8, U8, I32, I64, F16, BF16, F32 or F64");
  return *found.dtype;
}

void SafetensorsReader::read(const std::string& name, void* destination) const {
  const DType type = dtype(name);
  const SafetensorsEntry& found = entry(name);
  read_bytes(name, 0, found.end - found.begin, destination);
  if (type == kBool) {
    const auto* first = static_cast<const unsigned char*>(destination);
    const auto* last = first + (found.end - found.begin);
    const auto* bad = std::find_if(first, last, [](unsigned char value) { return value > 1; });
    if (bad != last) {
      file_.fail(data_offset_ + found.begin + static_cast<uint64_t>(bad - first), json_string(name),
                 "a bool is ", static_cast<int>(*bad), ", neither 0 nor 1");
    }
  }
}

void SafetensorsReader::read_bytes(const std::string& name,
                                   uint64_t offset,
                                   size_t bytes,
                                   void* destination) const {
  const SafetensorsEntry& found = entry(name);
  const uint64_t size = found.end - found.begin;
  check<IndexError>(offset <= size && bytes <= size - offset, path(), ": tensor ",
                    json_string(name), ": ", bytes, " bytes at ", offset, " do not lie within its ",
                    size, " bytes");
  file_.read_at(data_offset_ + found.begin + offset, destination, bytes, json_string(name));
}

uint64_t SafetensorsPlan::begin_of(const std::string& name) const {
  const auto found = entries.find(name);
  check<ValueError>(found != entries.end(), "safetensors: no tensor ", json_string(name),
                    " is planned");
  return prologue.size() + found->second.begin;
}

SafetensorsPlan plan_safetensors(const std::string& path,
                                 std::span<const TensorInfo> tensors,
                                 const std::map<std::string, std::string>& metadata) {
  // Wide elements first, so that each tensor is aligned to its own element size.
  std::vector<const TensorInfo*> order;
  order.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) {
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::forward_as_tuple(-size_of(a->dtype), a->name) <
           std::forward_as_tuple(-size_of(b->dtype), b->name);
  });

  safetensors::Header header;
  header.metadata = metadata;
  header.metadata.emplace("format", "pt");
  uint64_t offset = 0;
  for (const TensorInfo* tensor : order) {
    check<ValueError>(tensor->name != safetensors::kMetadataKey, "write_safetensors: ", path, ": ",
                      safetensors::kMetadataKey, " cannot be the name of a tensor");
    int64_t bytes = size_of(tensor->dtype);
    for (const int64_t size : tensor->shape) {
      check<ValueError>(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes),
                        "write_safetensors: ", path, ": tensor ", json_string(tensor->name), ": ",
                        tensor->shape, " is not the shape of a tensor in memory");
    }
    const uint64_t end = offset + static_cast<uint64_t>(bytes);
    const bool is_new =
        header.entries
            .emplace(tensor->name,
                     SafetensorsEntry{std::string(safetensors::dtype_name(tensor->dtype)),
                                      tensor->dtype, tensor->shape, offset, end})
            .second;
    check<ValueError>(is_new, "write_safetensors: ", path, ": two tensors are called ",
                      json_string(tensor->name));
    offset = end;
  }

  const std::string text = safetensors::format_header(header);
  check<ValueError>(text.size() <= safetensors::kMaxHeaderBytes, "write_safetensors: ", path,
                    ": the header takes ", text.size(), " bytes, the format allows ",
                    safetensors::kMaxHeaderBytes, "; use fewer or shorter names");
  const uint64_t length = text.size();
  SafetensorsPlan plan;
  plan.prologue.append(reinterpret_cast<const char*>(&length), sizeof(length)).append(text);
  plan.entries = std::move(header.entries);
  plan.file_size = plan.prologue.size() + offset;
  return plan;
}

void write_safetensors(const std::string& path,
                       std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorInfo> infos;
  std::vector<const TensorView*> order;
  for (const TensorView& tensor : tensors) {
    infos.push_back({tensor.name, tensor.dtype, tensor.shape});
    order.push_back(&tensor);
  }
  const SafetensorsPlan plan = plan_safetensors(path, infos, metadata);
  const auto entry = [&](const TensorView* tensor) -> const SafetensorsEntry& {
    return plan.entries.at(tensor->name);
  };
  for (const TensorView* tensor : order) {
    check<ValueError>(entry(tensor).begin == entry(tensor).end || tensor->data != nullptr,
                      "write_safetensors: ", path, ": tensor ", json_string(tensor->name),
                      " has no data");
  }
  std::sort(order.begin(), order.end(), [&](const TensorView* a, const TensorView* b) {
    return std::pair(entry(a).begin, entry(a).end) < std::pair(entry(b).begin, entry(b).end);
  });
  AtomicFile file(path);
  file.write(plan.prologue);
  for (const TensorView* tensor : order) {
    file.write(tensor->data, entry(tensor).end - entry(tensor).begin);
  }
  file.commit();
}

}  // namespace tapestry
