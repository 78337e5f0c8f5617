// The weights of a stored model by their logical names, whatever files and names they are stored
// in, a few rows at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "autograd/io/tensor_source.h"
#include "interop/architectures/file_place.h"
#include "parallel_core/config/config.h"

namespace tapestry {

class ModelWeights {
 public:
  /// ValueError for files that hold the experts of a layer in one tensor.
  ModelWeights(std::unique_ptr<TensorSource> files, const TransformerConfig& config);

  const TensorSource& files() const { return *files_; }
  const FileNames& names() const { return names_; }

  /// IoError, naming file and tensor, unless it is there with this shape, in a floating dtype.
  void check_tensor(const std::string& logical, const Shape& shape) const;

  /// Elements [first, first + out.size()) of a logical tensor of that shape, in float32. IoError.
  void read(const std::string& logical,
            const Shape& shape,
            int64_t first,
            std::span<float> out) const;

 private:
  std::unique_ptr<TensorSource> files_;
  FileNames names_;
};

}  // namespace tapestry
