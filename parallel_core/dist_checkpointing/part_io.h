// Streams a rank's part of a parameter, or of a tensor of its shape, to and from files that hold
// whole logical tensors.
#pragma once

#include <cstdint>

#include "autograd/io/file_range.h"
#include "autograd/io/range_file.h"
#include "autograd/io/tensor_source.h"
#include "autograd/tensor/tensor.h"
#include "interop/architectures/file_place.h"
#include "nn/parameter.h"

namespace tapestry {

/// Elements [first, first + values.numel()) of a tensor of a parameter's shape; contiguous.
struct Part {
  Tensor values;
  int64_t first = 0;
};

/// Bytes of a part that are in memory a second time while it is written or read.
inline constexpr int64_t kStagingBytes = int64_t{8} << 20U;

/// Writes what the part has of a logical tensor, in the part's dtype, to its place in a tensor that
/// lies in these ranges of the file. With `only_finite`, RuntimeError with the logical name if a
/// value is not; StorageError, IoError.
void write_part(const nn::LogicalTensor& logical,
                const FilePlace& place,
                const Part& part,
                bool only_finite,
                const FileRanges& ranges,
                RangeFile& file);

/// The same of bytes [offset, offset + bytes) of the tensor.
void write_ranges(
    const FileRanges& ranges, uint64_t offset, const void* data, size_t bytes, RangeFile& file);

/// Reads it from the tensor place.name of files, converting dtypes. IoError; TypeError for a
/// tensor of a dtype that Tapestry does not have; IndexError unless the file's tensor has
/// place.shape.
void read_part(const nn::LogicalTensor& logical,
               const FilePlace& place,
               const TensorSource& files,
               const Part& part);

}  // namespace tapestry
