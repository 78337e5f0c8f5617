// Tensors in .npy and safetensors files. See npy.h and safetensors.h for the formats and errors.
#pragma once

#include <map>
#include <string>

#include "autograd/tensor/tensor.h"

namespace tapestry {

/// Names and tensors, in the order of the names.
using NamedTensorMap = std::map<std::string, Tensor>;

/// IoError, TypeError as read_npy.
Tensor load_npy(const std::string& path);
/// Writes the values in row-major order, whatever the strides. TypeError for bfloat16; ValueError
/// if the tensor is undefined; IoError.
void save_npy(const std::string& path, const Tensor& tensor);

/// All tensors of a file. TypeError, naming file and tensor, if one has a dtype that Tapestry does
/// not have; IoError as SafetensorsReader.
NamedTensorMap load_safetensors(const std::string& path);
/// One tensor of a file. ValueError, naming both, if it is not there.
Tensor load_safetensor(const std::string& path, const std::string& name);
/// Writes the values in row-major order, whatever the strides. ValueError, naming it, for an
/// undefined tensor, and as write_safetensors; IoError.
void save_safetensors(const std::string& path,
                      const NamedTensorMap& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace tapestry
