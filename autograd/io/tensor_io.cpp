#include "autograd/io/tensor_io.h"

#include <cstring>
#include <vector>

#include "autograd/io/npy.h"
#include "autograd/io/safetensors.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "autograd/tensor/strided_view.h"

namespace tapestry {

namespace {

// The tensor itself if it is contiguous, else a copy that is.
Tensor row_major(const Tensor& x) {
  if (x.is_contiguous()) {
    return x;
  }
  Tensor out = empty_like(x);
  kernels::copy_strided(x.dtype(), extent_of(x), view_of(x), view_of(out));
  return out;
}

Tensor read(const SafetensorsReader& reader, const std::string& name) {
  Tensor out = empty(reader.entry(name).shape, reader.dtype(name));
  reader.read(name, out.raw());
  return out;
}

}  // namespace

Tensor load_npy(const std::string& path) {
  const NpyArray array = read_npy(path);
  Tensor out = empty(array.shape, array.dtype);
  if (!array.bytes.empty()) {
    std::memcpy(out.raw(), array.bytes.data(), array.bytes.size());
  }
  return out;
}

void save_npy(const std::string& path, const Tensor& tensor) {
  check<ValueError>(tensor.defined(), "save_npy: no tensor for ", path);
  const Tensor dense = row_major(tensor);
  write_npy(path, dense.dtype(), dense.shape(), dense.raw());
}

NamedTensorMap load_safetensors(const std::string& path) {
  const SafetensorsReader reader(path);
  NamedTensorMap out;
  for (const auto& [name, entry] : reader.entries()) {
    out.emplace(name, read(reader, name));
  }
  return out;
}

Tensor load_safetensor(const std::string& path, const std::string& name) {
  return read(SafetensorsReader(path), name);
}

void save_safetensors(const std::string& path,
                      const NamedTensorMap& tensors,
                      const std::map<std::string, std::string>& metadata) {
  TensorList kept;  // copies live until they are written
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    check<ValueError>(tensor.defined(), "save_safetensors: '", name, "' for ", path,
                      " is undefined");
    kept.push_back(row_major(tensor));
    views.push_back({name, tensor.dtype(), tensor.shape(), kept.back().raw()});
  }
  write_safetensors(path, views, metadata);
}

}  // namespace tapestry
