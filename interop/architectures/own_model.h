// The config.json of a model that no other program has: model_type "tapestry", and the keys of
// model_config and moe_config that rebuild it.
#pragma once

#include "interop/architectures/hf_fields.h"
#include "parallel_core/config/config.h"

namespace tapestry::architectures {

inline constexpr const char* kOwnType = "tapestry";

/// The keys as they are. A file of earlier releases, or of a model class of one's own, has sizes
/// alone, and its out.complete is false.
void read_own_model(hf::Fields& file);

/// Sizes under the names that other programs' files have.
void write_own_sizes(const TransformerConfig& config, hf::Json& json);
/// The same, and the keys that rebuild the model.
void write_own_model(const AllConfig& config, hf::Json& json);

}  // namespace tapestry::architectures
