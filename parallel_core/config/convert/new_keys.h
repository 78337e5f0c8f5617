// A configuration's values under the keys of MindFormers 2.0.
#pragma once

#include "parallel_core/config/config.h"
#include "parallel_core/config/convert/tree.h"

namespace tapestry::config {

/// Puts what the keys of MindFormers 2.0 can say of the configuration. There is a section `model`
/// only if one of its families is this model's.
void put_new_keys(Tree& tree, const AllConfig& config, int64_t data_parallel_size);

}  // namespace tapestry::config
