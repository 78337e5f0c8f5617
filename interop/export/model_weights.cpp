#include "interop/export/model_weights.h"

#include <cstring>
#include <set>
#include <vector>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "nn/parameter.h"
#include "parallel_core/dist_checkpointing/part_io.h"

namespace tapestry {

ModelWeights::ModelWeights(std::unique_ptr<TensorSource> files, const TransformerConfig& config)
    : files_(std::move(files)) {
  const std::vector<std::string> list = files_->names();
  const std::set<std::string> names(list.begin(), list.end());
  names_ = FileNames(names, config);
}

void ModelWeights::check_tensor(const std::string& logical, const Shape& shape) const {
  const FilePlace place = file_place(names_, logical, shape);
  const std::vector<std::string> list = files_->names();
  const std::string source = list.empty() ? "the weights" : files_->file_of(list.front());
  check<IoError>(files_->contains(place.name), source, ": there is no tensor ", place.name,
                 ", which the model has by its configuration");
  check<IoError>(files_->shape(place.name) == place.shape, files_->file_of(place.name), ": tensor ",
                 place.name, " has the shape ", files_->shape(place.name).str(), ", expected ",
                 place.shape.str(), " by the model's configuration");
  check<IoError>(is_floating(files_->dtype(place.name)), files_->file_of(place.name), ": tensor ",
                 place.name, " is ", name_of(files_->dtype(place.name)),
                 ", expected a floating type");
}

void ModelWeights::read(const std::string& logical,
                        const Shape& shape,
                        int64_t first,
                        std::span<float> out) const {
  const nn::LogicalTensor tensor{
      .name = logical, .shape = shape, .view_shape = shape, .begin = 0, .end = shape[0]};
  const Tensor values = empty({static_cast<int64_t>(out.size())}, kFloat32);
  read_part(tensor, file_place(names_, logical, shape), *files_,
            {.values = values, .first = first});
  std::memcpy(out.data(), values.raw(), out.size_bytes());
}

}  // namespace tapestry
