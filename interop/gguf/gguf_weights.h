// The weights in a GGUF file, by their logical names: as if they stood in safetensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/io/tensor_source.h"
#include "autograd/kernels/gemm/quantized_blocks.h"
#include "interop/gguf/gguf_config.h"
#include "interop/gguf/gguf_file.h"

namespace tapestry {

using kernels::BlockFormat;

/// Gives out what the model of the file has under logical names ("layers.0.attention.wq.weight"),
/// in its order of rows: those of queries and keys are turned back, experts and joined matrices
/// taken apart, gains have their 1 subtracted. F32, F16 and BF16 keep their type; blocks are
/// widened to float32 as they are read, and never as a whole.
class GgufWeights final : public TensorSource {
 public:
  /// IoError and ValueError as GgufFile and read_gguf_config.
  explicit GgufWeights(const std::string& path);

  const GgufFile& file() const { return file_; }
  const GgufModel& model() const { return model_; }
  const TransformerConfig& config() const { return config_; }

  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override { return places_.contains(name); }
  const Shape& shape(const std::string& name) const override { return place(name).shape; }
  DType dtype(const std::string& name) const override { return place(name).dtype; }
  const std::string& file_of(const std::string& name) const override;
  void read(const std::string& name, void* destination) const override;
  void read_bytes(const std::string& name,
                  uint64_t offset,
                  size_t bytes,
                  void* destination) const override;

  /// The type in which a tensor lies in the file.
  GgufType stored_type(const std::string& name) const;
  /// That in which a matrix can be kept as it lies, by copying its blocks; none for other types.
  std::optional<BlockFormat> block_format(const std::string& name) const;
  /// Whether a tensor is a matrix whose blocks can be copied as they lie, row by row.
  bool holds_blocks(const std::string& name) const;
  /// The blocks of elements [first, first + count) of such a matrix, whole blocks, in the model's
  /// order. RuntimeError where holds_blocks() is false or there are no such blocks; IoError.
  void read_blocks(const std::string& name, int64_t first, int64_t count, std::byte* out) const;

 private:
  // A logical tensor in one of the file's, or spread over the heads of two.
  struct Part {
    const GgufTensor* tensor = nullptr;
    GgufType type = GgufType::kF32;
    int64_t begin = 0;      // its first element in the file's tensor
    int64_t head_size = 0;  // of rows that are paired; 0: rows lie in the model's order
  };
  struct Place {
    Shape shape;
    DType dtype = kFloat32;
    std::vector<Part> parts;      // one, or what each head's rows come from
    std::optional<float> number;  // of the metadata
  };

  const Place& place(const std::string& name) const;
  void add(const std::string& logical, const Shape& shape, const Part& part);
  int64_t row_in_file(const Place& place, int64_t row) const;
  void read_elements(const Place& place, int64_t first, int64_t count, std::byte* out) const;
  void read_run(const Part& part, DType dtype, int64_t first, int64_t count, std::byte* out) const;
  void read_heads(const Place& place, int64_t first, int64_t count, float* out) const;

  GgufFile file_;
  TransformerConfig config_;
  GgufModel model_;
  std::map<std::string, Place> places_;
};

/// A file that was opened as weights, if it is one of GGUF; nullptr for all others.
const GgufWeights* as_gguf(const TensorSource& source);

/// The format in which a file has all matrices that lora_config.base_dtype keeps in blocks, so that
/// they stay what they are; none if there is no such format.
std::optional<BlockFormat> base_blocks(const GgufWeights& weights);

/// How many matrices of a file have each quantised type, and what becomes of them, for the log:
/// "DIR/m.gguf: 14 matrices of Q4_K are widened". Empty where none has one. `kept`: whether those
/// of a format stay in blocks.
std::string gguf_types_text(const GgufWeights& weights,
                            const std::function<bool(BlockFormat)>& kept);

}  // namespace tapestry
