// What config.json says of texts that are longer than those a model was first trained on: the kinds
// `rope_type` of rope_scaling, or of rope_parameters.
#pragma once

#include <string>

#include "interop/architectures/hf_fields.h"
#include "parallel_core/config/config.h"

namespace tapestry::architectures {

/// The scaling of a rotation, and which member says so.
struct RotaryScaling {
  std::string name = "rope_scaling";
  std::string text = "null";
  bool written = false;
  RotaryConfig rotary = {};  ///< rope_type and the keys that it reads, or the linear factor
  double temperature = 0;    ///< llama_4_scaling_beta: queries grow with their position
  double alpha = 1;          ///< of a scaling "dynamic" that only makes the base larger
};

/// Reads the object that stands at the member `name`, or notes what is wrong with it. An object
/// that only gives a base changes nothing.
void read_rotary_scaling(hf::Fields& file,
                         const std::string& name,
                         const hf::Json& object,
                         RotaryScaling& scaling);

/// Makes settings of it: rope_type, what that reads, and seq_len_interpolation_factor.
void set_rotary_scaling(hf::Fields& file, const RotaryScaling& scaling);

/// The value of rope_scaling; null for none.
hf::Json rotary_scaling_json(const TransformerConfig& config);

}  // namespace tapestry::architectures
