// Tensors under another program's names as logical ones.
#pragma once

#include <map>
#include <string>

#include "autograd/tensor/shape.h"
#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/logical_state.h"

namespace tapestry {

/// Whole shapes of a model's logical tensors.
using LogicalShapes = std::map<std::string, Shape>;
LogicalShapes logical_shapes(const nn::Module& model);

/// What a state has of the logical tensors, from whichever of the naming schemes it uses
/// (NameScheme, but for names of modules): fused matrices are cut, transposed ones turned. Names
/// may have a wrapper's prefix ("module.", "_orig_mod."). What belongs to no logical tensor keeps
/// its name; tensors of another shape than the scheme has are left as they are, for whoever
/// compares shapes.
LogicalState in_logical_names(LogicalState state,
                              const LogicalShapes& wanted,
                              const TransformerConfig& config);

}  // namespace tapestry
