// GGUF files, version 3: header, metadata, table of tensors, and the tensors one behind the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/tensor/shape.h"
#include "interop/gguf/gguf_types.h"

namespace tapestry {

/// Keys and values in the order in which they are added, as they stand in the file. ValueError for
/// a key that comes twice and for text that is not UTF-8.
class GgufMetadata {
 public:
  void add(const std::string& key, uint32_t value);
  void add(const std::string& key, float value);
  void add(const std::string& key, bool value);
  void add(const std::string& key, std::string_view value);
  void add(const std::string& key, const char* value) { add(key, std::string_view(value)); }
  void add(const std::string& key, std::span<const std::string> values);
  void add(const std::string& key, std::span<const int32_t> values);
  void add(const std::string& key, std::span<const float> values);
  void add(const std::string& key, const std::vector<bool>& values);

  uint64_t count() const { return keys_.size(); }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(const std::string& key, uint32_t type);

  std::set<std::string> keys_;
  std::string bytes_;
};

/// A tensor that a file is to hold; matrices [out, in], as everywhere here.
struct GgufTensorInfo {
  std::string name;
  Shape shape;
  GgufType type = GgufType::kF32;
};

/// Writes one file through an AtomicFile, so that nothing but the piece at hand is in memory.
class GgufWriter {
 public:
  /// Writes everything before the values. ValueError, naming file and tensor: a name twice, empty
  /// or of more than 63 bytes (llama.cpp keeps 64 with a final zero), more than 4 axes, a size
  /// below 1, rows that the type cannot hold. IoError.
  GgufWriter(const std::string& path,
             const GgufMetadata& metadata,
             std::vector<GgufTensorInfo> tensors);

  /// The next values of the tensors, which come in the order of the table; each call gives some of
  /// one of them, for Q8_0 whole blocks. ValueError, naming file, tensor and value, for one that
  /// the type cannot hold (encode_gguf). RuntimeError for more values than the tensor has left.
  /// IoError.
  void write(std::span<const float> values);

  /// The same of values that are in the tensor's type already: whole blocks. RuntimeError for
  /// others, or more than the tensor has left. IoError.
  void write_encoded(std::span<const std::byte> bytes);

  /// RuntimeError if values are missing. IoError.
  void commit();

  uint64_t size() const { return file_.size(); }

 private:
  void pad();
  void count_written(int64_t count);

  AtomicFile file_;
  std::vector<GgufTensorInfo> tensors_;
  size_t current_ = 0;
  int64_t written_ = 0;  // values of the current tensor
  std::vector<std::byte> encoded_;
};

}  // namespace tapestry
