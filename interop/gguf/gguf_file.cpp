#include "interop/gguf/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "text/util/utf8.h"

namespace tapestry {

namespace gguf_file {
namespace {

constexpr uint32_t kArrayDepth = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxKey = 65535;                 // by the format
constexpr uint64_t kMaxName = 64;                   // by the format
constexpr uint32_t kMaxAxes = 4;                    // by ggml
constexpr uint64_t kMinEntry = 8 + 4 + 1;           // a key without characters, type, value
constexpr uint64_t kMinTensor = 8 + 4 + 8 + 4 + 8;  // a name without characters, one axis

// Bytes of a value of a type of numbers, or of a boolean; 0 for the others.
uint64_t width_of(GgufValueType type) {
  switch (type) {
    case GgufValueType::kU8:
    case GgufValueType::kI8:
    case GgufValueType::kBool:
      return 1;
    case GgufValueType::kU16:
    case GgufValueType::kI16:
      return 2;
    case GgufValueType::kU32:
    case GgufValueType::kI32:
    case GgufValueType::kF32:
      return 4;
    case GgufValueType::kU64:
    case GgufValueType::kI64:
    case GgufValueType::kF64:
      return 8;
    case GgufValueType::kString:
    case GgufValueType::kArray:
      return 0;
  }
  return 0;
}

template <class T>
T loaded(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// A number at these bytes, as what holds all of its kind.
std::variant<uint64_t, int64_t, double, bool> number_at(GgufValueType type, const char* bytes) {
  switch (type) {
    case GgufValueType::kU8:
      return uint64_t{loaded<uint8_t>(bytes)};
    case GgufValueType::kI8:
      return int64_t{loaded<int8_t>(bytes)};
    case GgufValueType::kU16:
      return uint64_t{loaded<uint16_t>(bytes)};
    case GgufValueType::kI16:
      return int64_t{loaded<int16_t>(bytes)};
    case GgufValueType::kU32:
      return uint64_t{loaded<uint32_t>(bytes)};
    case GgufValueType::kI32:
      return int64_t{loaded<int32_t>(bytes)};
    case GgufValueType::kF32:
      return double{loaded<float>(bytes)};
    case GgufValueType::kBool:
      return bytes[0] != 0;
    case GgufValueType::kU64:
      return loaded<uint64_t>(bytes);
    case GgufValueType::kI64:
      return loaded<int64_t>(bytes);
    default:
      return loaded<double>(bytes);
  }
}

// Reads one thing after the other, and knows how much there is left.
class Cursor {
 public:
  explicit Cursor(const InputFile& file) : file_(file) {}

  uint64_t at() const { return at_; }
  uint64_t left() const { return file_.size() - at_; }

  template <class T>
  T take(std::string_view field) {
    T value;
    read(&value, sizeof(T), field);
    return value;
  }

  // `count` things of at least `each` bytes.
  void check_room(uint64_t count, uint64_t each, std::string_view field, const char* what) const {
    if (count > left() / each) {
      file_.fail(at_, field, count, " ", what, " do not fit into the ", left(),
                 " bytes that the file has left (truncated?)");
    }
  }

  std::string bytes(uint64_t count, std::string_view field) {
    check_room(count, 1, field, "bytes");
    std::string out(count, '\0');
    read(out.data(), out.size(), field);
    return out;
  }

  std::string text(std::string_view field, uint64_t most) {
    const auto length = take<uint64_t>(field);
    check_room(length, 1, field, "bytes of a text");
    if (length > most) {
      file_.fail(at_, field, "a text of ", length, " bytes, expected at most ", most);
    }
    const uint64_t begin = at_;
    std::string out = bytes(length, field);
    if (!data::is_valid_utf8(out)) {
      file_.fail(begin, field, "is not UTF-8: \"", data::replace_invalid_utf8(out.substr(0, 60)),
                 "\"");
    }
    return out;
  }

 private:
  // Small reads come out of a buffer.
  void read(void* out, size_t count, std::string_view field) {
    if (count > left()) {
      file_.fail(at_, field, count, " bytes expected, but the file ends at ", file_.size(),
                 " (truncated?)");
    }
    auto* to = static_cast<char*>(out);
    if (count > buffer_.size()) {
      file_.read_at(at_, to, count, field);
    } else {
      if (at_ < first_ || at_ + count > first_ + held_) {
        first_ = at_;
        held_ = std::min<uint64_t>(buffer_.size(), left());
        file_.read_at(first_, buffer_.data(), held_, field);
      }
      std::memcpy(to, buffer_.data() + (at_ - first_), count);
    }
    at_ += count;
  }

  const InputFile& file_;
  uint64_t at_ = 0;
  std::array<char, size_t{1} << 16U> buffer_;
  uint64_t first_ = 0;
  uint64_t held_ = 0;
};

class Parser {
 public:
  explicit Parser(const InputFile& file) : file_(file), cursor_(file) {}

  void parse(std::map<std::string, GgufValue>& metadata,
             std::map<std::string, GgufEntry>& tensors) {
    check_magic();
    const auto tensor_count = cursor_.take<uint64_t>("tensor count");
    const auto entry_count = cursor_.take<uint64_t>("metadata count");
    cursor_.check_room(entry_count, kMinEntry, "metadata count", "entries of metadata");
    cursor_.check_room(tensor_count, kMinTensor, "tensor count", "tensors");
    for (uint64_t i = 0; i < entry_count; ++i) {
      read_entry(metadata);
    }
    check_parts(metadata);
    cursor_.check_room(tensor_count, kMinTensor, "tensor count", "tensors");
    for (uint64_t i = 0; i < tensor_count; ++i) {
      read_tensor(tensors);
    }
    place(alignment_of(metadata), tensors);
  }

 private:
  void check_magic() {
    constexpr std::string_view kMagic = "GGUF";
    const std::string magic = cursor_.bytes(std::min<uint64_t>(4, cursor_.left()), "magic");
    if (magic != kMagic) {
      file_.fail(0, "magic", "is \"", data::replace_invalid_utf8(magic),
                 "\", expected GGUF: this is no GGUF file");
    }
    const auto version = cursor_.take<uint32_t>("version");
    if (version == 0x02000000 || version == 0x03000000) {
      file_.fail(4, "version", "the file is big-endian, which is not read");
    }
    if (version != 2 && version != 3) {
      file_.fail(4, "version", "is ", version, ", expected 2 or 3",
                 version == 1 ? "; convert the file with a newer llama.cpp" : "");
    }
  }

  GgufValueType take_type(const std::string& field) {
    const uint64_t at = cursor_.at();
    const auto number = cursor_.take<uint32_t>(field);
    if (number > static_cast<uint32_t>(GgufValueType::kF64)) {
      file_.fail(at, field, "a value of the type ", number, ", which the format does not have");
    }
    return static_cast<GgufValueType>(number);
  }

  void check_booleans(std::string_view bytes, uint64_t at, const std::string& field) const {
    const auto* bad =
        std::find_if(bytes.begin(), bytes.end(), [](char c) { return c != '\0' && c != '\1'; });
    if (bad != bytes.end()) {
      file_.fail(at + static_cast<uint64_t>(bad - bytes.begin()), field, "a boolean is ",
                 static_cast<int>(static_cast<uint8_t>(*bad)), ", neither 0 nor 1");
    }
  }

  GgufArray take_array(const std::string& field, uint32_t depth) {
    if (depth > kArrayDepth) {
      file_.fail(cursor_.at(), field, "arrays of arrays go deeper than ", kArrayDepth, " levels");
    }
    GgufArray out;
    out.type = take_type(field);
    out.count = cursor_.take<uint64_t>(field);
    if (out.type == GgufValueType::kString) {
      cursor_.check_room(out.count, sizeof(uint64_t), field, "texts");
      out.texts.reserve(out.count);
      for (uint64_t i = 0; i < out.count; ++i) {
        out.texts.push_back(cursor_.text(field, std::numeric_limits<uint64_t>::max()));
      }
    } else if (out.type == GgufValueType::kArray) {
      cursor_.check_room(out.count, sizeof(uint32_t) + sizeof(uint64_t), field, "arrays");
      for (uint64_t i = 0; i < out.count; ++i) {
        out.arrays.push_back(take_array(field, depth + 1));
      }
    } else {
      const uint64_t width = width_of(out.type);
      cursor_.check_room(out.count, width, field, "elements of an array");
      const uint64_t begin = cursor_.at();
      out.numbers = cursor_.bytes(out.count * width, field);
      if (out.type == GgufValueType::kBool) {
        check_booleans(out.numbers, begin, field);
      }
    }
    return out;
  }

  void read_entry(std::map<std::string, GgufValue>& metadata) {
    const uint64_t begin = cursor_.at();
    const std::string key = cursor_.text("metadata key", kMaxKey);
    if (key.empty()) {
      file_.fail(begin, "metadata key", "is empty");
    }
    GgufValue value{.type = take_type(key), .data = {}};
    if (value.type == GgufValueType::kString) {
      value.data = cursor_.text(key, std::numeric_limits<uint64_t>::max());
    } else if (value.type == GgufValueType::kArray) {
      value.data = take_array(key, 1);
    } else {
      const uint64_t at = cursor_.at();
      const std::string bytes = cursor_.bytes(width_of(value.type), key);
      if (value.type == GgufValueType::kBool) {
        check_booleans(bytes, at, key);
      }
      std::visit([&](auto number) { value.data = number; }, number_at(value.type, bytes.data()));
    }
    if (!metadata.emplace(key, std::move(value)).second) {
      file_.fail(begin, "metadata key", key, " comes twice");
    }
  }

  // Of a model that was split, the first file has the metadata and each some of the tensors.
  void check_parts(const std::map<std::string, GgufValue>& metadata) const {
    const auto parts = metadata.find("split.count");
    const auto* count =
        parts == metadata.end() ? nullptr : std::get_if<uint64_t>(&parts->second.data);
    check<ValueError>(count == nullptr || *count <= 1, file_.path(), ": is one of ",
                      count == nullptr ? 0 : *count,
                      " files of a model (split.count); join them with llama-gguf-split --merge");
  }

  uint64_t alignment_of(const std::map<std::string, GgufValue>& metadata) const {
    const char* const key = "general.alignment";
    const auto found = metadata.find(key);
    if (found == metadata.end()) {
      return kDefaultAlignment;
    }
    const auto* number = std::get_if<uint64_t>(&found->second.data);
    check<ValueError>(found->second.type == GgufValueType::kU32, file_.path(), ": ", key, ": is ",
                      name_of(found->second.type), ", expected u32");
    if (!std::has_single_bit(*number)) {
      file_.fail(0, key, "is ", *number, ", expected a power of two");
    }
    return *number;
  }

  void read_tensor(std::map<std::string, GgufEntry>& tensors) {
    const uint64_t begin = cursor_.at();
    const std::string name = cursor_.text("tensor name", kMaxName);
    if (name.empty()) {
      file_.fail(begin, "tensor name", "is empty");
    }
    const std::string field = "tensor " + name;
    const auto axes = cursor_.take<uint32_t>(field);
    if (axes < 1 || axes > kMaxAxes) {
      file_.fail(begin, field, "has ", axes, " axes, expected 1 .. ", kMaxAxes);
    }
    std::array<int64_t, kMaxAxes> sizes{};  // the fastest first
    uint64_t values = 1;
    for (uint32_t axis = 0; axis < axes; ++axis) {
      const auto size = cursor_.take<uint64_t>(field);
      if (size < 1) {
        file_.fail(begin, field, "size 0 of axis ", axis);
      }
      // Few types take less than a bit a value, and none that is read.
      constexpr uint64_t kMostValues = uint64_t{1} << 60U;
      if (!checked_mul(values, size, values) || values > kMostValues) {
        file_.fail(begin, field, "its sizes have a product that is too large");
      }
      sizes[axis] = static_cast<int64_t>(size);
    }
    GgufEntry entry;
    for (uint32_t axis = axes; axis-- > 0;) {
      entry.shape.push_back(sizes[axis]);
    }
    const auto number = cursor_.take<uint32_t>(field);
    const auto type = gguf_type_of(number);
    if (!type) {
      file_.fail(begin, field, "has the type ", shown_gguf_type(number),
                 ", which is not read; what is: F32, F16, BF16, Q8_0, Q4_0, Q4_K and Q6_K");
    }
    entry.type = *type;
    if (!gguf_can_hold(*type, sizes[0])) {
      file_.fail(begin, field, "rows of ", sizes[0], " values are no whole blocks of ",
                 gguf_block(*type).values, ", as ", name_of(*type), " has");
    }
    entry.begin = cursor_.take<uint64_t>(field);
    entry.bytes = gguf_bytes(*type, static_cast<int64_t>(values));
    if (!tensors.emplace(name, entry).second) {
      file_.fail(begin, field, "comes twice");
    }
  }

  // Offsets count from the end of the padding behind the table.
  void place(uint64_t alignment, std::map<std::string, GgufEntry>& tensors) const {
    const uint64_t table = cursor_.at();
    uint64_t data = 0;
    if (!checked_add(table, (alignment - table % alignment) % alignment, data)) {
      data = std::numeric_limits<uint64_t>::max();
    }
    std::vector<std::pair<const std::string*, const GgufEntry*>> order;
    for (auto& [name, entry] : tensors) {
      const std::string field = "tensor " + name;
      if (entry.begin % alignment != 0) {
        file_.fail(table, field, "its offset ", entry.begin, " is no multiple of the alignment ",
                   alignment);
      }
      uint64_t end = 0;
      if (!checked_add(data, entry.begin, entry.begin) ||
          !checked_add(entry.begin, entry.bytes, end) || end > file_.size()) {
        file_.fail(table, field, "its ", entry.bytes, " bytes end behind the file, which has ",
                   file_.size(), " (truncated?)");
      }
      order.emplace_back(&name, &entry);
    }
    std::sort(order.begin(), order.end(),
              [](const auto& a, const auto& b) { return a.second->begin < b.second->begin; });
    for (size_t i = 1; i < order.size(); ++i) {
      const GgufEntry& before = *order[i - 1].second;
      if (before.begin + before.bytes > order[i].second->begin) {
        file_.fail(order[i].second->begin, "tensor " + *order[i].first, "begins inside the tensor ",
                   *order[i - 1].first);
      }
    }
  }

  const InputFile& file_;
  Cursor cursor_;
};

}  // namespace
}  // namespace gguf_file

std::string_view name_of(GgufValueType type) {
  constexpr std::array<std::string_view, 13> kNames = {"u8",  "i8",  "u16",  "i16",    "u32",
                                                       "i32", "f32", "bool", "string", "array",
                                                       "u64", "i64", "f64"};
  return kNames.at(static_cast<size_t>(type));
}

double GgufArray::number(uint64_t index) const {
  const uint64_t width = gguf_file::width_of(type);
  return std::visit([](auto value) { return static_cast<double>(value); },
                    gguf_file::number_at(type, numbers.data() + index * width));
}

int64_t GgufArray::integer(uint64_t index) const {
  const uint64_t width = gguf_file::width_of(type);
  return std::visit([](auto value) { return static_cast<int64_t>(value); },
                    gguf_file::number_at(type, numbers.data() + index * width));
}

GgufFile::GgufFile(const std::string& path) : file_(path) {
  gguf_file::Parser(file_).parse(metadata_, tensors_);
}

const GgufValue& GgufFile::value(const std::string& key) const {
  const auto found = metadata_.find(key);
  check<ValueError>(found != metadata_.end(), path(), ": the key ", key, " is missing");
  return found->second;
}

void GgufFile::refuse(const std::string& key, const char* expected) const {
  const GgufValue& found = value(key);
  std::string shown(name_of(found.type));
  if (const auto* list = std::get_if<GgufArray>(&found.data)) {
    shown = concat("an array of ", name_of(list->type));
  } else if (const auto* number = std::get_if<double>(&found.data)) {
    shown += concat(" ", *number);
  } else if (const auto* whole = std::get_if<int64_t>(&found.data)) {
    shown += concat(" ", *whole);
  } else if (const auto* natural = std::get_if<uint64_t>(&found.data)) {
    shown += concat(" ", *natural);
  }
  throw ValueError(concat(path(), ": ", key, ": is ", shown, ", expected ", expected));
}

int64_t GgufFile::count(const std::string& key) const {
  const GgufValue& found = value(key);
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (const auto* natural = std::get_if<uint64_t>(&found.data); natural && *natural <= kMost) {
    return static_cast<int64_t>(*natural);
  }
  if (const auto* whole = std::get_if<int64_t>(&found.data); whole && *whole >= 0) {
    return *whole;
  }
  refuse(key, "an integer from 0");
}

double GgufFile::number(const std::string& key) const {
  const GgufValue& found = value(key);
  if (const auto* real = std::get_if<double>(&found.data); real && std::isfinite(*real)) {
    return *real;
  }
  if (const auto* natural = std::get_if<uint64_t>(&found.data)) {
    return static_cast<double>(*natural);
  }
  if (const auto* whole = std::get_if<int64_t>(&found.data)) {
    return static_cast<double>(*whole);
  }
  refuse(key, "a finite number");
}

bool GgufFile::flag(const std::string& key) const {
  if (const auto* found = std::get_if<bool>(&value(key).data)) {
    return *found;
  }
  refuse(key, "bool");
}

const std::string& GgufFile::text(const std::string& key) const {
  if (const auto* found = std::get_if<std::string>(&value(key).data)) {
    return *found;
  }
  refuse(key, "string");
}

const GgufArray& GgufFile::array(const std::string& key) const {
  if (const auto* found = std::get_if<GgufArray>(&value(key).data)) {
    return *found;
  }
  refuse(key, "an array");
}

const std::vector<std::string>& GgufFile::texts(const std::string& key) const {
  const GgufArray& found = array(key);
  if (found.type != GgufValueType::kString) {
    refuse(key, "an array of string");
  }
  return found.texts;
}

std::vector<double> GgufFile::numbers(const std::string& key) const {
  const GgufArray& found = array(key);
  if (gguf_file::width_of(found.type) == 0) {
    refuse(key, "an array of numbers");
  }
  std::vector<double> out(found.count);
  for (uint64_t i = 0; i < found.count; ++i) {
    out[i] = found.number(i);
    check<ValueError>(std::isfinite(out[i]), path(), ": ", key, ": element ", i, " is ", out[i],
                      ", expected finite numbers");
  }
  return out;
}

std::vector<int64_t> GgufFile::integers(const std::string& key) const {
  const GgufArray& found = array(key);
  if (gguf_file::width_of(found.type) == 0 || found.type == GgufValueType::kF32 ||
      found.type == GgufValueType::kF64) {
    refuse(key, "an array of integers");
  }
  std::vector<int64_t> out(found.count);
  for (uint64_t i = 0; i < found.count; ++i) {
    out[i] = found.integer(i);
  }
  return out;
}

const GgufEntry* GgufFile::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void GgufFile::read_bytes(const std::string& name,
                          uint64_t offset,
                          size_t bytes,
                          void* destination) const {
  const GgufEntry* entry = find(name);
  check<ValueError>(entry != nullptr, path(), ": no tensor is called ", name);
  check<IndexError>(offset <= entry->bytes && bytes <= entry->bytes - offset, path(), ": tensor ",
                    name, ": ", bytes, " bytes at ", offset, " do not lie within its ",
                    entry->bytes, " bytes");
  file_.read_at(entry->begin + offset, destination, bytes, "tensor " + name);
}

}  // namespace tapestry
