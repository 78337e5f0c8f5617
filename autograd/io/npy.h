// NumPy's .npy files, versions 1 to 3.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "autograd/kernels/machine/dtype.h"
#include "autograd/tensor/shape.h"

namespace tapestry {

/// An array in row-major order.
struct NpyArray {
  DType dtype = kFloat32;
  Shape shape;
  std::vector<std::byte> bytes;  // numel * size_of(dtype)
};

/// Reads f2 f4 f8 b1 i1 u1 i4 i8 as they are; i2 u2 become int32, u4 and u8 int64. Big-endian
/// values are swapped, column-major ones transposed.
///
/// IoError, naming file, offset and field: malformed or truncated file, bytes after the data, a
/// bool that is neither 0 nor 1, a u8 value above 2^63 - 1, more than kMaxDims axes. TypeError:
/// element types that have no DType (objects, structures, strings, complex, raw V2).
NpyArray read_npy(const std::string& path);

/// The shape that the header says, without reading the elements. Errors of the header as read_npy.
Shape read_npy_shape(const std::string& path);

/// Writes version 1, little-endian, row-major, data aligned to 64 bytes, through an AtomicFile.
/// TypeError for bfloat16, which has no NumPy name; ValueError for a negative size; IoError.
void write_npy(const std::string& path, DType dtype, const Shape& shape, const void* data);

/// What such a file has before its elements. TypeError and ValueError as write_npy.
std::string npy_header(DType dtype, const Shape& shape);

}  // namespace tapestry
