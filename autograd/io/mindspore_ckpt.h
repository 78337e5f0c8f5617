// MindSpore's checkpoint files: one protobuf message
//   message Checkpoint { repeated Value value = 1; }
//   message Value { required string tag = 1; required TensorProto tensor = 2; }
//   message TensorProto { repeated int64 dims = 1; required string tensor_type = 2;
//                         required bytes tensor_content = 3; }
// A tensor of more than 512 MiB is several Values of the same tag, one behind the other, each with
// the dims of the whole. Contents are raw little-endian, row-major. Source: checkpoint.proto and
// train/serialization.py of MindSpore.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "autograd/io/file_range.h"
#include "autograd/io/input_file.h"
#include "autograd/io/safetensors.h"
#include "autograd/io/tensor_source.h"

namespace tapestry {

/// Content of one Value at most.
inline constexpr uint64_t kMindsporeSliceBytes = uint64_t{512} << 20U;

/// Opens a file, reads all of it but the contents, and reads tensors on request. What is not a
/// tensor (texts, states of random generators, tables of maps) is passed over, as are fields that
/// the format does not have.
///
/// The constructor throws IoError, naming file, offset and field, for what is not such a file: an
/// encrypted one or another program's, sizes that do not add up, a tag that comes again elsewhere,
/// more than kMaxDims axes; for a file that ends before its last Value does; and for an empty one.
class MindsporeCkptReader final : public TensorSource {
 public:
  explicit MindsporeCkptReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override { return entries_.contains(name); }
  const Shape& shape(const std::string& name) const override { return entry(name).shape; }
  DType dtype(const std::string& name) const override;
  const std::string& file_of(const std::string& /*name*/) const override { return file_.path(); }
  void read(const std::string& name, void* destination) const override;
  void read_bytes(const std::string& name,
                  uint64_t offset,
                  size_t bytes,
                  void* destination) const override;

 private:
  struct Entry {
    std::string type;            // "Float32"
    std::optional<DType> dtype;  // empty for a type that Tapestry does not compute with
    Shape shape;
    uint64_t bytes = 0;
    FileRanges ranges;
  };
  const Entry& entry(const std::string& name) const;

  InputFile file_;
  std::map<std::string, Entry> entries_;
};

/// A file before its values are there.
struct MindsporeCkptPlan {
  /// What is not values: texts and where in the file they begin.
  std::vector<std::pair<uint64_t, std::string>> fixed;
  std::map<std::string, FileRanges> ranges;  ///< of each tensor
  uint64_t file_size = 0;
};

/// Gives every tensor its place, in the order in which they come, cut into Values of at most
/// `slice_bytes`, rounded down to a multiple of 8. A tensor without axes has the dims [0], as
/// MindSpore writes it. ValueError, naming `path`: a name twice or empty, more than 4096 bytes in a
/// name, negative sizes.
MindsporeCkptPlan plan_mindspore_ckpt(const std::string& path,
                                      std::span<const TensorInfo> tensors,
                                      uint64_t slice_bytes = kMindsporeSliceBytes);

}  // namespace tapestry
