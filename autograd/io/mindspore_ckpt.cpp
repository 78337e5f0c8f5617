#include "autograd/io/mindspore_ckpt.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "autograd/io/safetensors_header.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

using safetensors::json_string;

constexpr size_t kMaxName = 4096;
constexpr size_t kMaxType = 64;

struct MindsporeType {
  std::string_view name;
  int64_t width;
  std::optional<DType> dtype = std::nullopt;
};

constexpr std::array kTypes = {
    MindsporeType{"Float64", 8, kFloat64}, MindsporeType{"Float32", 4, kFloat32},
    MindsporeType{"Float16", 2, kFloat16}, MindsporeType{"BFloat16", 2, kBFloat16},
    MindsporeType{"Int64", 8, kInt64}, MindsporeType{"Int32", 4, kInt32},
    MindsporeType{"Int8", 1, kInt8}, MindsporeType{"UInt8", 1, kUInt8},
    MindsporeType{"Bool", 1, kBool},
    // Without a DType: known for their width only.
    MindsporeType{"Int16", 2}, MindsporeType{"UInt16", 2}, MindsporeType{"UInt32", 4},
    MindsporeType{"UInt64", 8}};

const MindsporeType* find_type(std::string_view name) {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                   [&](const MindsporeType& type) { return type.name == name; });
  return found == kTypes.end() ? nullptr : found;
}

std::string_view type_name(DType dtype) {
  return std::find_if(kTypes.begin(), kTypes.end(),
                      [&](const MindsporeType& type) { return type.dtype == dtype; })
      ->name;
}

// Kinds of protobuf's fields.
enum Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// The first field of a checkpoint, a Value.
constexpr uint64_t kValueKey = 1U << 3U | kBytes;

// Reads numbers and short texts of a message, bytes [at, end) of a file.
class ProtoReader {
 public:
  ProtoReader(const InputFile& file, uint64_t begin, uint64_t end)
      : file_(file), at_(begin), end_(end) {}

  uint64_t at() const { return at_; }
  bool done() const { return at_ == end_; }

  uint64_t varint(std::string_view field) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = next_byte(field);
      value |= static_cast<uint64_t>(byte & 0x7fU) << shift;
      if (byte < 0x80U) {
        return value;
      }
    }
    fail(field, "a number of more than ten bytes");
  }
  // The length of what follows, which lies within the message.
  uint64_t length(std::string_view field) {
    const uint64_t bytes = varint(field);
    if (bytes > end_ - at_) {
      fail(field, bytes, " bytes expected, but what holds it ends after ", end_ - at_,
           end_ == file_.size() ? " (truncated?)" : "");
    }
    return bytes;
  }
  std::string text(std::string_view field, size_t most) {
    const uint64_t bytes = length(field);
    if (bytes > most) {
      fail(field, "a text of ", bytes, " bytes; at most ", most, " are read");
    }
    std::string out(bytes, '\0');
    file_.read_at(at_, out.data(), out.size(), field);
    at_ += bytes;
    return out;
  }
  // Passes over bytes that the message holds.
  void skip(uint64_t bytes) { at_ += bytes; }
  void skip_field(uint64_t key, std::string_view field) {
    switch (key & 7U) {
      case kVarint:
        (void)varint(field);
        return;
      case kFixed64:
        return skip_fixed(8, field);
      case kBytes:
        return skip(length(field));
      case kFixed32:
        return skip_fixed(4, field);
      default:
        fail(field, "a field of the unknown kind ", key & 7U);
    }
  }
  template <class... Args>
  [[noreturn]] void fail(std::string_view field, const Args&... reason) const {
    file_.fail(at_, field, reason...);
  }

 private:
  uint8_t next_byte(std::string_view field) {
    if (at_ == end_) {
      fail(field, "what holds it ends here", end_ == file_.size() ? " (truncated?)" : "");
    }
    if (at_ < held_from_ || at_ >= held_from_ + held_) {
      held_from_ = at_;
      held_ = std::min<uint64_t>(buffer_.size(), end_ - at_);
      file_.read_at(at_, buffer_.data(), held_, field);
    }
    return buffer_[at_++ - held_from_];
  }
  void skip_fixed(uint64_t bytes, std::string_view field) {
    if (bytes > end_ - at_) {
      fail(field, "what holds it ends before it does");
    }
    skip(bytes);
  }

  const InputFile& file_;
  uint64_t at_;
  uint64_t end_;
  std::array<uint8_t, 64> buffer_{};
  uint64_t held_from_ = 0;
  uint64_t held_ = 0;
};

struct ValueMessage {
  std::string tag;
  bool has_tensor = false;
  std::string type;
  bool has_content = false;
  std::vector<int64_t> dims;
  uint64_t content = 0;  // where it begins
  uint64_t bytes = 0;
};

void add_dim(const ProtoReader& reader, uint64_t size, ValueMessage& value) {
  if (size > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    reader.fail("dims", size, " is above 2^63 - 1");
  }
  if (value.dims.size() == kMaxDims) {
    reader.fail("dims", "more than ", kMaxDims, " axes are not supported");
  }
  value.dims.push_back(static_cast<int64_t>(size));
}

void read_tensor(const InputFile& file, uint64_t begin, uint64_t end, ValueMessage& value) {
  constexpr uint64_t kDims = 1U << 3U | kVarint;
  constexpr uint64_t kPackedDims = 1U << 3U | kBytes;
  constexpr uint64_t kType = 2U << 3U | kBytes;
  constexpr uint64_t kContent = 3U << 3U | kBytes;
  ProtoReader reader(file, begin, end);
  while (!reader.done()) {
    const uint64_t key = reader.varint("tensor");
    if (key == kDims) {
      add_dim(reader, reader.varint("dims"), value);
    } else if (key == kPackedDims) {
      const uint64_t last = reader.length("dims") + reader.at();
      while (reader.at() < last) {
        add_dim(reader, reader.varint("dims"), value);
      }
    } else if (key == kType) {
      value.type = reader.text("tensor_type", kMaxType);
    } else if (key == kContent) {
      if (value.has_content) {
        reader.fail("tensor_content", "comes twice");
      }
      value.has_content = true;
      value.bytes = reader.length("tensor_content");
      value.content = reader.at();
      reader.skip(value.bytes);
    } else {
      reader.skip_field(key, "tensor");
    }
  }
}

ValueMessage read_value(const InputFile& file, uint64_t begin, uint64_t end) {
  constexpr uint64_t kTag = 1U << 3U | kBytes;
  constexpr uint64_t kTensor = 2U << 3U | kBytes;
  ValueMessage value;
  ProtoReader reader(file, begin, end);
  while (!reader.done()) {
    const uint64_t key = reader.varint("value");
    if (key == kTag) {
      value.tag = reader.text("tag", kMaxName);
    } else if (key == kTensor) {
      if (value.has_tensor) {
        reader.fail("tensor", "comes twice");
      }
      value.has_tensor = true;
      const uint64_t bytes = reader.length("tensor");
      read_tensor(file, reader.at(), reader.at() + bytes, value);
      reader.skip(bytes);
    } else {
      reader.skip_field(key, "value");
    }
  }
  if (value.tag.empty()) {
    reader.fail("tag", "missing or empty");
  }
  return value;
}

// A scalar has the dims [0], which one element fills.
Shape shape_of_dims(const std::vector<int64_t>& dims, bool has_content) {
  return dims.size() == 1 && dims[0] == 0 && has_content ? Shape()
                                                         : Shape(std::span<const int64_t>(dims));
}

// Bytes of a tensor; empty if they do not fit into memory.
std::optional<uint64_t> bytes_of(const Shape& shape, int64_t width) {
  int64_t bytes = width;
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return static_cast<uint64_t>(bytes);
}

void put_varint(uint64_t value, std::string& out) {
  while (value >= 0x80U) {
    out.push_back(static_cast<char>(value | 0x80U));
    value >>= 7U;
  }
  out.push_back(static_cast<char>(value));
}

size_t varint_size(uint64_t value) {
  std::string text;
  put_varint(value, text);
  return text.size();
}

void put_text(unsigned field, std::string_view text, std::string& out) {
  put_varint(field << 3U | kBytes, out);
  put_varint(text.size(), out);
  out += text;
}

// All of a Value that comes before its content.
std::string value_head(const TensorInfo& tensor, uint64_t content) {
  std::string before;  // in the TensorProto
  const auto put_dim = [&](int64_t size) {
    put_varint(1U << 3U | kVarint, before);
    put_varint(static_cast<uint64_t>(size), before);
  };
  if (tensor.shape.size() == 0) {
    put_dim(0);
  }
  for (const int64_t size : tensor.shape) {
    put_dim(size);
  }
  put_text(2, type_name(tensor.dtype), before);
  put_varint(3U << 3U | kBytes, before);
  put_varint(content, before);
  const uint64_t tensor_bytes = before.size() + content;
  std::string tag;
  put_text(1, tensor.name, tag);
  std::string head;
  put_varint(kValueKey, head);
  put_varint(tag.size() + 1 + varint_size(tensor_bytes) + tensor_bytes, head);
  head += tag;
  put_varint(2U << 3U | kBytes, head);
  put_varint(tensor_bytes, head);
  return head + before;
}

}  // namespace

MindsporeCkptReader::MindsporeCkptReader(const std::string& path) : file_(path) {
  std::string last;  // the tag before
  ProtoReader reader(file_, 0, file_.size());
  if (reader.done()) {
    file_.fail(0, "value", "the file is empty; not a MindSpore checkpoint");
  }
  while (!reader.done()) {
    const uint64_t key = reader.varint("value");
    if (key != kValueKey) {
      file_.fail(reader.at(), "value",
                 "begins with none; the file is not a MindSpore checkpoint, or it is encrypted");
    }
    const uint64_t bytes = reader.length("value");
    const ValueMessage value = read_value(file_, reader.at(), reader.at() + bytes);
    const bool more = value.tag == last;
    last = value.tag;
    reader.skip(bytes);
    const MindsporeType* type = find_type(value.type);
    if (!value.has_tensor || type == nullptr) {
      continue;
    }
    Entry& found = entries_[value.tag];
    const Shape shape = shape_of_dims(value.dims, value.bytes > 0);
    const bool is_new = found.type.empty();
    if (!is_new && (!more || found.type != value.type || found.shape != shape)) {
      file_.fail(reader.at(), json_string(value.tag),
                 more ? "its parts have different shapes or types" : "the tag comes a second time");
    }
    if (is_new) {
      found.type = value.type;
      found.dtype = type->dtype;
      found.shape = shape;
    }
    found.ranges.push_back({.first = found.bytes, .begin = value.content, .bytes = value.bytes});
    found.bytes += value.bytes;
  }
  for (const auto& [name, found] : entries_) {
    const std::optional<uint64_t> expected = bytes_of(found.shape, find_type(found.type)->width);
    if (!expected || *expected != found.bytes) {
      file_.fail(found.ranges.front().begin, json_string(name), "shape ", found.shape, " of ",
                 found.type, " takes ",
                 expected ? concat(*expected, " bytes") : std::string("more than there can be"),
                 ", but the file holds ", found.bytes);
    }
  }
}

std::vector<std::string> MindsporeCkptReader::names() const {
  std::vector<std::string> out;
  out.reserve(entries_.size());
  for (const auto& [name, found] : entries_) {
    out.push_back(name);
  }
  return out;
}

const MindsporeCkptReader::Entry& MindsporeCkptReader::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  check<ValueError>(found != entries_.end(), path(), ": no tensor is called ", json_string(name));
  return found->second;
}

DType MindsporeCkptReader::dtype(const std::string& name) const {
  const Entry& found = entry(name);
  check<TypeError>(found.dtype.has_value(), path(), ": tensor ", json_string(name), " has type ",
                   found.type,
                   ", which is not supported; expected Bool, Int8, UInt8, Int32, Int64, Float16, "
                   "BFloat16, Float32 or Float64");
  return *found.dtype;
}

void MindsporeCkptReader::read(const std::string& name, void* destination) const {
  const bool is_bool = dtype(name) == kBool;
  const Entry& found = entry(name);
  read_bytes(name, 0, found.bytes, destination);
  const auto* values = static_cast<const unsigned char*>(destination);
  check<IoError>(!is_bool || std::all_of(values, values + found.bytes,
                                         [](unsigned char value) { return value <= 1; }),
                 path(), ": tensor ", json_string(name), ": a bool is neither 0 nor 1");
}

void MindsporeCkptReader::read_bytes(const std::string& name,
                                     uint64_t offset,
                                     size_t bytes,
                                     void* destination) const {
  const Entry& found = entry(name);
  check<IndexError>(offset <= found.bytes && bytes <= found.bytes - offset, path(), ": tensor ",
                    json_string(name), ": ", bytes, " bytes at ", offset, " do not lie within its ",
                    found.bytes, " bytes");
  auto* out = static_cast<std::byte*>(destination);
  for_each_range(found.ranges, offset, bytes, [&](uint64_t place, uint64_t at, uint64_t count) {
    file_.read_at(place, out + (at - offset), count, "tensor_content");
  });
}

MindsporeCkptPlan plan_mindspore_ckpt(const std::string& path,
                                      std::span<const TensorInfo> tensors,
                                      uint64_t slice_bytes) {
  const uint64_t most = std::max<uint64_t>(slice_bytes / 8 * 8, 8);
  MindsporeCkptPlan plan;
  for (const TensorInfo& tensor : tensors) {
    check<ValueError>(!tensor.name.empty() && tensor.name.size() <= kMaxName, path, ": ",
                      json_string(tensor.name), " cannot be the name of a tensor");
    const bool sizes =
        std::all_of(tensor.shape.begin(), tensor.shape.end(), [](int64_t s) { return s >= 0; });
    const std::optional<uint64_t> bytes = bytes_of(tensor.shape, size_of(tensor.dtype));
    check<ValueError>(sizes && bytes, path, ": tensor ", json_string(tensor.name), ": ",
                      tensor.shape, " is not the shape of a tensor in memory");
    FileRanges ranges;
    uint64_t first = 0;
    do {
      const uint64_t count = std::min(most, *bytes - first);
      plan.fixed.emplace_back(plan.file_size, value_head(tensor, count));
      const uint64_t begin = plan.file_size + plan.fixed.back().second.size();
      ranges.push_back({.first = first, .begin = begin, .bytes = count});
      plan.file_size = begin + count;
      first += count;
    } while (first < *bytes);
    check<ValueError>(plan.ranges.emplace(tensor.name, std::move(ranges)).second, path,
                      ": two tensors are called ", json_string(tensor.name));
  }
  return plan;
}

}  // namespace tapestry
