// A reader of GGUF files that shares no code with the writer: for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"

namespace tapestry::testing {

struct GgufValue {
  uint32_t type = 0;
  uint32_t element_type = 0;  // of an array
  uint64_t count = 1;
  std::string bytes;  // as they stand in the file
  bool operator==(const GgufValue&) const = default;

  template <class T>
  T as() const {
    check<IoError>(bytes.size() == sizeof(T), "a value of ", bytes.size(), " bytes");
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string text() const { return bytes.substr(8); }
  template <class T>
  std::vector<T> list() const {
    std::vector<T> values(count);
    check<IoError>(bytes.size() == count * sizeof(T), "an array of ", bytes.size(), " bytes");
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> out;
    for (size_t at = 0; at < bytes.size();) {
      uint64_t length = 0;
      std::memcpy(&length, bytes.data() + at, sizeof(length));
      out.push_back(bytes.substr(at + sizeof(length), length));
      at += sizeof(length) + length;
    }
    return out;
  }
};

struct GgufStoredTensor {
  uint32_t type = 0;
  std::vector<uint64_t> dimensions;  // fastest first
  std::string bytes;
  bool operator==(const GgufStoredTensor&) const = default;
};

struct GgufFile {
  std::map<std::string, GgufValue> metadata;
  std::map<std::string, GgufStoredTensor> tensors;
};

/// IoError for what is no GGUF file of version 3, or has a type that is not known here.
class GgufFileReader {
 public:
  explicit GgufFileReader(const std::string& path) : path_(path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    require(file.good(), "cannot be read");
    data_ = content.str();
  }

  GgufFile read() {
    GgufFile out;
    require(take(4) == "GGUF" && number<uint32_t>() == 3, "is no GGUF file of version 3");
    const auto tensors = number<uint64_t>();
    const auto entries = number<uint64_t>();
    for (uint64_t i = 0; i < entries; ++i) {
      const std::string key = text();
      GgufValue value;
      value.type = number<uint32_t>();
      const size_t begin_of_array = at_;
      if (value.type == 9) {
        value.element_type = number<uint32_t>();
        value.count = number<uint64_t>();
      }
      const size_t begin = value.type == 9 ? begin_of_array + 12 : at_;
      for (uint64_t k = 0; k < value.count; ++k) {
        skip(value.type == 9 ? value.element_type : value.type);
      }
      value.bytes = data_.substr(begin, at_ - begin);
      require(out.metadata.emplace(key, value).second, "the key " + key + " comes twice");
    }
    std::vector<std::pair<std::string, uint64_t>> places;
    for (uint64_t i = 0; i < tensors; ++i) {
      const std::string name = text();
      GgufStoredTensor& tensor = out.tensors[name];
      const auto axes = number<uint32_t>();
      for (uint32_t axis = 0; axis < axes; ++axis) {
        tensor.dimensions.push_back(number<uint64_t>());
      }
      tensor.type = number<uint32_t>();
      places.emplace_back(name, number<uint64_t>());
    }
    constexpr size_t kAlignment = 32;
    const size_t base = (at_ + kAlignment - 1) / kAlignment * kAlignment;
    for (const auto& [name, offset] : places) {
      GgufStoredTensor& tensor = out.tensors[name];
      require(offset % kAlignment == 0, name + " is not aligned");
      at_ = base + offset;
      tensor.bytes = take(size_of_tensor(tensor));
    }
    return out;
  }

 private:
  void require(bool condition, const std::string& what) const {
    check<IoError>(condition, path_, ": ", what);
  }
  std::string take(size_t count) {
    require(count <= data_.size() - std::min(at_, data_.size()), "ends too early");
    at_ += count;
    return data_.substr(at_ - count, count);
  }
  template <class T>
  T number() {
    const std::string bytes = take(sizeof(T));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::string text() { return take(number<uint64_t>()); }
  void skip(uint32_t type) {
    constexpr size_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    require(type <= 12 && type != 9, "a value of type " + std::to_string(type));
    if (type == 8) {
      text();
    } else {
      take(kSizes[type]);
    }
  }
  size_t size_of_tensor(const GgufStoredTensor& tensor) const {
    size_t count = 1;
    for (const uint64_t size : tensor.dimensions) {
      count *= size;
    }
    const std::map<uint32_t, size_t> halves = {{0, 8}, {1, 4}, {30, 4}};  // bytes of two values
    require(tensor.type == 8 || halves.contains(tensor.type),
            "a tensor of type " + std::to_string(tensor.type));
    return tensor.type == 8 ? count / 32 * 34 : count * halves.at(tensor.type) / 2;
  }

  std::string path_;
  std::string data_;
  size_t at_ = 0;
};

inline GgufFile read_gguf_file(const std::string& path) { return GgufFileReader(path).read(); }

}  // namespace tapestry::testing
