// What a checkpoint holds of a model and its optimizer: which tensors, and which parts of them each
// rank has.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "autograd/tensor/dtype.h"
#include "nn/module.h"
#include "optim/optimizer.h"

namespace tapestry {

/// A state of the optimizer, of one logical tensor.
struct StoredState {
  DType dtype = kFloat32;
  Shape shape;  ///< the logical tensor's, or that of statistics of its rows or columns
};

/// A logical tensor of the model, whichever rank has it; also a buffer with a logical name, which
/// has no updates.
struct StoredTensor {
  std::string name;
  Shape shape;
  DType dtype = kFloat32;                     ///< of its weights on disk: float32 masters
  int64_t updates = 0;                        ///< of the parameter that it is part of
  std::map<std::string, StoredState> states;  ///< empty before the first update
};

/// A buffer of a module, without a logical name.
struct StoredBuffer {
  std::string name;
  Shape shape;
  DType dtype = kFloat32;
};

struct StoredTensors {
  std::vector<StoredTensor> tensors;  ///< in the order of stages, parameters and experts
  std::vector<StoredBuffer> buffers;
};

/// Which tensors a checkpoint holds.
enum class StoredPart : uint8_t {
  kAll,
  kTrained,  ///< those that want gradients: of a model beside an adapter the rest stays as it is
};

/// Those of all stages of the pipeline and of all experts, on every rank. Collective over the
/// pipeline and over ranks with other experts. `optimizer` may be null: then weights alone, in the
/// parameters' dtypes.
StoredTensors stored_tensors(const nn::Module& model,
                             const optim::Optimizer* optimizer,
                             StoredPart part = StoredPart::kAll);

/// Whether a checkpoint holds a parameter; further copies of a tensor that another stage owns are
/// held there.
bool is_stored(const nn::Parameter& parameter, StoredPart part);

/// "NAME.STATE", under which a state of a logical tensor is saved.
std::string state_tensor_name(const std::string& logical, const std::string& state);
/// Under which a module's buffer is saved.
std::string buffer_tensor_name(const std::string& path);

/// The shape that a state is saved in of a logical tensor of its parameter, the `index`th; empty
/// for statistics of another one.
std::optional<Shape> stored_shape(const optim::Optimizer::StateEntry& entry,
                                  const nn::LogicalTensor& logical,
                                  size_t index);

/// True if, of the ranks of the tensor-parallel group (for an expert the expert-tensor-parallel
/// one) that hold this rank's slice, this one writes it.
bool writes_slice(const nn::LogicalTensor& logical, bool of_expert);

}  // namespace tapestry
