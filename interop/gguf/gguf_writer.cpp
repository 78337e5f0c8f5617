#include "interop/gguf/gguf_writer.h"

#include <bit>
#include <cstring>
#include <utility>

#include "autograd/tensor/error.h"
#include "text/util/utf8.h"

namespace tapestry {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr uint32_t kGgufVersion = 3;
constexpr uint64_t kGgufAlignment = 32;  // that of files that do not say another
constexpr size_t kGgufMaxName = 63;
constexpr int64_t kGgufMaxDims = 4;

// Numbers of value types.
enum GgufValue : uint32_t {
  kGgufU32 = 4,
  kGgufI32 = 5,
  kGgufF32 = 6,
  kGgufBool = 7,
  kGgufString = 8,
  kGgufArray = 9
};

template <class T>
void append_raw(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void append_gguf_string(std::string& bytes, std::string_view text) {
  append_raw<uint64_t>(bytes, text.size());
  bytes += text;
}

void check_gguf_text(const std::string& key, std::string_view text) {
  check<ValueError>(data::is_valid_utf8(text), "GGUF: ", key, ": \"",
                    data::replace_invalid_utf8(text),
                    "\" is not UTF-8, which texts in such a file are");
}

uint64_t gguf_padding(uint64_t size) {
  return (kGgufAlignment - size % kGgufAlignment) % kGgufAlignment;
}

void check_gguf_tensor(const std::string& path, const GgufTensorInfo& tensor) {
  check<ValueError>(!tensor.name.empty() && tensor.name.size() <= kGgufMaxName, path, ": tensor \"",
                    tensor.name, "\": its name has ", tensor.name.size(), " bytes, expected 1 .. ",
                    kGgufMaxName);
  check<ValueError>(tensor.shape.size() >= 1 && tensor.shape.size() <= kGgufMaxDims, path,
                    ": tensor ", tensor.name, ": has ", tensor.shape.size(),
                    " axes, expected 1 .. ", kGgufMaxDims);
  for (const int64_t size : tensor.shape) {
    check<ValueError>(size >= 1, path, ": tensor ", tensor.name, ": a size is ", size,
                      ", expected 1 or more");
  }
  const int64_t row = tensor.shape[tensor.shape.size() - 1];
  check<ValueError>(gguf_can_hold(tensor.type, row), path, ": tensor ", tensor.name, ": rows of ",
                    row, " values are no whole blocks of ", kQ8Block, ", as ", name_of(tensor.type),
                    " has");
}

}  // namespace

void GgufMetadata::begin(const std::string& key, uint32_t type) {
  check_gguf_text("a key", key);
  check<ValueError>(keys_.insert(key).second, "GGUF: the key ", key, " is given twice");
  append_gguf_string(bytes_, key);
  append_raw(bytes_, type);
}

void GgufMetadata::add(const std::string& key, uint32_t value) {
  begin(key, kGgufU32);
  append_raw(bytes_, value);
}

void GgufMetadata::add(const std::string& key, float value) {
  begin(key, kGgufF32);
  append_raw(bytes_, value);
}

void GgufMetadata::add(const std::string& key, bool value) {
  begin(key, kGgufBool);
  append_raw<uint8_t>(bytes_, value ? 1 : 0);
}

void GgufMetadata::add(const std::string& key, std::string_view value) {
  check_gguf_text(key, value);
  begin(key, kGgufString);
  append_gguf_string(bytes_, value);
}

void GgufMetadata::add(const std::string& key, std::span<const std::string> values) {
  for (const std::string& value : values) {
    check_gguf_text(key, value);
  }
  begin(key, kGgufArray);
  append_raw<uint32_t>(bytes_, kGgufString);
  append_raw<uint64_t>(bytes_, values.size());
  for (const std::string& value : values) {
    append_gguf_string(bytes_, value);
  }
}

void GgufMetadata::add(const std::string& key, std::span<const int32_t> values) {
  begin(key, kGgufArray);
  append_raw<uint32_t>(bytes_, kGgufI32);
  append_raw<uint64_t>(bytes_, values.size());
  bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

void GgufMetadata::add(const std::string& key, std::span<const float> values) {
  begin(key, kGgufArray);
  append_raw<uint32_t>(bytes_, kGgufF32);
  append_raw<uint64_t>(bytes_, values.size());
  bytes_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

void GgufMetadata::add(const std::string& key, const std::vector<bool>& values) {
  begin(key, kGgufArray);
  append_raw<uint32_t>(bytes_, kGgufBool);
  append_raw<uint64_t>(bytes_, values.size());
  for (const bool value : values) {
    append_raw<uint8_t>(bytes_, value ? 1 : 0);
  }
}

GgufWriter::GgufWriter(const std::string& path,
                       const GgufMetadata& metadata,
                       std::vector<GgufTensorInfo> tensors)
    : file_(path), tensors_(std::move(tensors)) {
  std::string head = "GGUF";
  append_raw(head, kGgufVersion);
  append_raw<uint64_t>(head, tensors_.size());
  append_raw<uint64_t>(head, metadata.count());
  head += metadata.bytes();
  std::set<std::string> names;
  uint64_t offset = 0;
  for (const GgufTensorInfo& tensor : tensors_) {
    check_gguf_tensor(path, tensor);
    check<ValueError>(names.insert(tensor.name).second, path, ": tensor ", tensor.name,
                      " comes twice");
    append_gguf_string(head, tensor.name);
    append_raw(head, static_cast<uint32_t>(tensor.shape.size()));
    for (int64_t axis = tensor.shape.size() - 1; axis >= 0; --axis) {  // the fastest first
      append_raw(head, static_cast<uint64_t>(tensor.shape[axis]));
    }
    append_raw(head, static_cast<uint32_t>(tensor.type));
    append_raw(head, offset);
    const uint64_t bytes = gguf_bytes(tensor.type, tensor.shape.numel());
    offset += bytes + gguf_padding(bytes);
  }
  file_.write(head);
  pad();
}

void GgufWriter::pad() {
  const std::string zeros(gguf_padding(file_.size()), '\0');
  file_.write(zeros);
}

void GgufWriter::write(std::span<const float> values) {
  if (values.empty()) {
    return;
  }
  check<RuntimeError>(current_ < tensors_.size(), file_.path(), ": values after the last tensor");
  const GgufTensorInfo& tensor = tensors_[current_];
  const auto count = static_cast<int64_t>(values.size());
  check<RuntimeError>(gguf_can_hold(tensor.type, count) && count <= tensor.shape.numel() - written_,
                      file_.path(), ": tensor ", tensor.name, ": ", count, " values behind ",
                      written_, " of ", tensor.shape.numel(), " do not fit");
  encoded_.resize(gguf_bytes(tensor.type, count));
  if (const auto bad = encode_gguf(tensor.type, values, encoded_.data())) {
    throw ValueError(concat(
        file_.path(), ": tensor ", tensor.name, ": ", name_of(tensor.type), " cannot hold ",
        values[*bad], tensor.type == GgufType::kQ8_0 ? ", or another value of its block" : "",
        "; choose ", tensor.type == GgufType::kBF16 ? "F32" : "BF16 or F32",
        ", which have room for larger ones, unless the weights are not finite"));
  }
  file_.write(encoded_.data(), encoded_.size());
  count_written(count);
}

void GgufWriter::write_encoded(std::span<const std::byte> bytes) {
  check<RuntimeError>(current_ < tensors_.size(), file_.path(), ": bytes after the last tensor");
  const GgufTensorInfo& tensor = tensors_[current_];
  const GgufBlock block = gguf_block(tensor.type);
  const auto count = static_cast<int64_t>(bytes.size() / block.bytes) * block.values;
  check<RuntimeError>(bytes.size() % block.bytes == 0 && count <= tensor.shape.numel() - written_,
                      file_.path(), ": tensor ", tensor.name, ": ", bytes.size(), " bytes behind ",
                      written_, " values of ", tensor.shape.numel(), " do not fit");
  file_.write(bytes.data(), bytes.size());
  count_written(count);
}

void GgufWriter::count_written(int64_t count) {
  written_ += count;
  if (written_ == tensors_[current_].shape.numel()) {
    pad();
    ++current_;
    written_ = 0;
  }
}

void GgufWriter::commit() {
  check<RuntimeError>(current_ == tensors_.size(), file_.path(), ": values of tensor ",
                      current_ < tensors_.size() ? tensors_[current_].name : "", " are missing");
  file_.commit();
}

}  // namespace tapestry
