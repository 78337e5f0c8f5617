// Reads GGUF files: header, metadata, table of tensors, and the bytes of tensors on request.
//
// Source: the format's description (GGUF, versions 2 and 3, which differ in nothing that a file of
// this byte order has).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "autograd/io/input_file.h"
#include "autograd/tensor/shape.h"
#include "interop/gguf/gguf_types.h"

namespace tapestry {

/// Numbers of value types, as they stand in files.
enum class GgufValueType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12
};
/// "u32", "string", "array", ...
std::string_view name_of(GgufValueType type);

struct GgufValue;

/// Elements of one type. Numbers stay as they lie in the file.
struct GgufArray {
  GgufValueType type = GgufValueType::kU8;
  uint64_t count = 0;
  std::string numbers;  ///< count elements; empty for texts and arrays
  std::vector<std::string> texts;
  std::vector<GgufArray> arrays;

  /// An element of a type of numbers or kBool, as a double or, of integer types and kBool, exactly.
  double number(uint64_t index) const;
  int64_t integer(uint64_t index) const;
};

struct GgufValue {
  GgufValueType type = GgufValueType::kU8;
  /// Unsigned types, signed types, floating types, kBool, kString, kArray.
  std::variant<uint64_t, int64_t, double, bool, std::string, GgufArray> data;
};

/// One tensor of a file.
struct GgufEntry {
  Shape shape;  ///< slowest axis first, as everywhere here
  GgufType type = GgufType::kF32;
  uint64_t begin = 0;  ///< bytes [begin, begin + bytes) of the file
  uint64_t bytes = 0;
};

/// Opens a file and validates all of it but the values of tensors.
///
/// The constructor throws IoError, naming file, offset and field, for what is no such file: another
/// magic or version, big-endian ones, counts, lengths, sizes and offsets that the file has no room
/// for, keys and tensors twice, text that is not UTF-8, value types that the format does not have,
/// booleans that are neither 0 nor 1, arrays more than four deep, an alignment that is no power of
/// two, tensors without axes or with more than 4, sizes of 0, rows of partial blocks, tensors that
/// are not aligned, overlap or end behind the file; and for types of tensors that are not read.
/// ValueError for one part of a model that was split into several files. Nothing is allocated that
/// the file is not large enough to hold. Reads of one object may run on several threads.
class GgufFile {
 public:
  explicit GgufFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::map<std::string, GgufEntry>& tensors() const { return tensors_; }

  bool has(const std::string& key) const { return metadata_.contains(key); }
  /// These throw a ValueError, naming file, key and what is there, for a key that is missing or has
  /// another type: integers of any width from 0, finite numbers (integers too), switches, texts,
  /// arrays whose elements are of such a kind.
  int64_t count(const std::string& key) const;
  double number(const std::string& key) const;
  bool flag(const std::string& key) const;
  const std::string& text(const std::string& key) const;
  const GgufArray& array(const std::string& key) const;
  const std::vector<std::string>& texts(const std::string& key) const;
  std::vector<double> numbers(const std::string& key) const;
  std::vector<int64_t> integers(const std::string& key) const;

  /// nullptr if there is none.
  const GgufEntry* find(const std::string& name) const;
  /// Bytes [offset, offset + bytes) of a tensor. IndexError if they do not lie within it; IoError.
  void read_bytes(const std::string& name, uint64_t offset, size_t bytes, void* destination) const;

 private:
  const GgufValue& value(const std::string& key) const;
  [[noreturn]] void refuse(const std::string& key, const char* expected) const;

  InputFile file_;
  std::map<std::string, GgufValue> metadata_;
  std::map<std::string, GgufEntry> tensors_;
};

}  // namespace tapestry
