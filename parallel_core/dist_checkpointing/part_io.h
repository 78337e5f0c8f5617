// Streams a rank's part of a parameter, or of a tensor of its shape, to and from files that hold
// whole logical tensors.
#pragma once

#include <cstdint>

#include "autograd/io/range_file.h"
#include "autograd/io/safetensors.h"
#include "autograd/tensor/tensor.h"
#include "nn/parameter.h"
#include "parallel_core/dist_checkpointing/file_place.h"

namespace tapestry {

/// Elements [first, first + values.numel()) of a tensor of a parameter's shape; contiguous.
struct Part {
  Tensor values;
  int64_t first = 0;
};

/// Bytes of a part that are in memory a second time while it is written or read.
inline constexpr int64_t kStagingBytes = int64_t{8} << 20U;

/// Writes what the part has of a logical tensor, in the part's dtype, to its place in a tensor that
/// begins at byte `begin` of the file. With `only_finite`, RuntimeError with the logical name if a
/// value is not; StorageError, IoError.
void write_part(const nn::LogicalTensor& logical,
                const FilePlace& place,
                const Part& part,
                bool only_finite,
                uint64_t begin,
                RangeFile& file);

/// Reads it from the tensor place.name of a file, converting dtypes. IoError; TypeError for a
/// tensor of a dtype that Tapestry does not have; IndexError unless the file's tensor has
/// place.shape.
void read_part(const nn::LogicalTensor& logical,
               const FilePlace& place,
               const SafetensorsReader& file,
               const Part& part);

}  // namespace tapestry
