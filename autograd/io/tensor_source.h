// Named tensors in files, whatever their format, to be read piece by piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "autograd/kernels/machine/dtype.h"
#include "autograd/tensor/shape.h"

namespace tapestry {

/// Raw little-endian, row-major tensors. Reads of one object may run on several threads.
class TensorSource {
 public:
  TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;
  virtual ~TensorSource() = default;

  /// Names of all tensors, sorted.
  virtual std::vector<std::string> names() const = 0;
  virtual bool contains(const std::string& name) const = 0;
  /// These throw a ValueError, naming the file, if there is no such tensor.
  virtual const Shape& shape(const std::string& name) const = 0;
  /// TypeError, naming file and tensor, for a type that Tapestry does not compute with.
  virtual DType dtype(const std::string& name) const = 0;
  /// The file that holds it.
  virtual const std::string& file_of(const std::string& name) const = 0;
  /// Reads a whole tensor in its own dtype. IoError.
  virtual void read(const std::string& name, void* destination) const = 0;
  /// Reads `bytes` bytes that begin `offset` bytes into the tensor. IndexError if they do not lie
  /// within it; IoError.
  virtual void read_bytes(const std::string& name,
                          uint64_t offset,
                          size_t bytes,
                          void* destination) const = 0;
};

/// Whether two tensors have the same dtype, shape and bytes. Errors as dtype() and read_bytes().
bool same_bytes(const TensorSource& source, const std::string& a, const std::string& b);

}  // namespace tapestry
