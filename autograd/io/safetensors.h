// safetensors files: a JSON header and one buffer of raw little-endian, row-major tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "autograd/io/input_file.h"
#include "autograd/kernels/machine/dtype.h"
#include "autograd/tensor/shape.h"

namespace tapestry {

/// One tensor of a file.
struct SafetensorsEntry {
  std::string dtype_name;      // as in the file: "F32", "BF16", "U8", ...
  std::optional<DType> dtype;  // empty for a type of the format that Tapestry does not compute with
  Shape shape;
  uint64_t begin = 0;  // bytes [begin, end) of the data buffer
  uint64_t end = 0;
};

/// Opens a file, validates all of it but the values, and reads tensors on request.
///
/// The constructor throws IoError, naming file, offset and field, for anything that is not exactly
/// a safetensors file: sizes that disagree, overlaps, holes, trailing bytes, duplicate keys,
/// invalid UTF-8 or JSON, members or dtypes that the format does not have; and for more than
/// kMaxDims axes. Reads of one object may run on several threads.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  /// The "__metadata__" member; empty if there is none.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  bool contains(const std::string& name) const { return entries_.contains(name); }
  /// ValueError, naming the file, if there is no such tensor.
  const SafetensorsEntry& entry(const std::string& name) const;
  /// TypeError if the tensor has a dtype that Tapestry does not have, such as U8 or F8_E4M3.
  DType dtype(const std::string& name) const;

  /// Reads a whole tensor, entry.end - entry.begin bytes, in its own dtype. TypeError as dtype();
  /// IoError if the file shrank or a bool is neither 0 nor 1.
  void read(const std::string& name, void* destination) const;

  /// Reads `bytes` bytes that begin `offset` bytes into the tensor, whatever its dtype and values.
  /// IndexError if they do not lie within it.
  void read_bytes(const std::string& name, uint64_t offset, size_t bytes, void* destination) const;

 private:
  InputFile file_;
  uint64_t data_offset_ = 0;  // where the data buffer begins in the file
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor that a file is to hold.
struct TensorInfo {
  std::string name;
  DType dtype = kFloat32;
  Shape shape;
};

/// A file before its values are there.
struct SafetensorsPlan {
  std::string prologue;  ///< the file's first bytes, up to the data buffer
  std::map<std::string, SafetensorsEntry> entries;
  uint64_t file_size = 0;

  /// Where a tensor begins in the file. ValueError if it is not in it.
  uint64_t begin_of(const std::string& name) const;
};

/// Gives every tensor its place: wide dtypes first, then by name; the data buffer begins at a
/// multiple of 8. "format": "pt" joins the metadata unless they have a "format", because some
/// loaders ask for it. `path` is for messages.
///
/// ValueError: a name twice, "__metadata__" as a name, text that is not UTF-8, negative sizes, a
/// header above the format's limit of 100,000,000 bytes.
SafetensorsPlan plan_safetensors(const std::string& path,
                                 std::span<const TensorInfo> tensors,
                                 const std::map<std::string, std::string>& metadata = {});

/// A tensor in row-major memory, to be written.
struct TensorView {
  std::string name;
  DType dtype = kFloat32;
  Shape shape;
  const void* data = nullptr;
};

/// Writes a file as plan_safetensors lays it out through an AtomicFile, each tensor straight from
/// its memory. ValueError as there, and for missing data; IoError: the file cannot be written.
void write_safetensors(const std::string& path,
                       std::span<const TensorView> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tapestry
