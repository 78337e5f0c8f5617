// A checkpoint of one or several safetensors files, read as one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/io/safetensors.h"
#include "autograd/io/tensor_source.h"

namespace tapestry {

/// Opens `model.safetensors` in a folder or, if there is none, the shards that
/// `model.safetensors.index.json` names. The path may also be such a file itself.
///
/// IoError, naming the file: neither exists; the index is not valid JSON, has a key twice, or no
/// weight_map of strings; a shard's name is not that of a file in the same folder; a shard lacks a
/// tensor that the map puts there; and all that SafetensorsReader throws.
class SafetensorsDirectory final : public TensorSource {
 public:
  explicit SafetensorsDirectory(const std::string& path);

  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override { return readers_.contains(name); }
  /// The file that holds a tensor. ValueError if none does.
  const SafetensorsReader& reader(const std::string& name) const;

  const SafetensorsEntry& entry(const std::string& name) const { return reader(name).entry(name); }
  const Shape& shape(const std::string& name) const override { return entry(name).shape; }
  DType dtype(const std::string& name) const override { return reader(name).dtype(name); }
  const std::string& file_of(const std::string& name) const override { return reader(name).path(); }
  void read(const std::string& name, void* destination) const override {
    reader(name).read(name, destination);
  }
  void read_bytes(const std::string& name,
                  uint64_t offset,
                  size_t bytes,
                  void* destination) const override {
    reader(name).read_bytes(name, offset, bytes, destination);
  }

  /// Metadata of the files; where two disagree, those of the first by name.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// What is odd but harmless: tensors that the index does not name, a total_size that is wrong.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  void open_index(const std::string& path);
  void add(const std::string& path, const std::vector<std::string>* names);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::map<std::string, const SafetensorsReader*> readers_;
  std::map<std::string, std::string> metadata_;
  std::vector<std::string> warnings_;
};

}  // namespace tapestry
