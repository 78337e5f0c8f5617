// Which of a model's parameters are token tables.
#pragma once

#include <string>
#include <vector>

#include "nn/module.h"

namespace tapestry {

/// Paths of the weights of the model's VocabParallelEmbedding and nn::Embedding modules, without
/// copies of a tied one that another stage owns. Empty on stages without.
std::vector<std::string> token_tables(nn::Module& model);

}  // namespace tapestry
