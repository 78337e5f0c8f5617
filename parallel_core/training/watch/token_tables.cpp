#include "parallel_core/training/watch/token_tables.h"

#include <algorithm>

#include "nn/layers/embedding.h"
#include "parallel_core/tensor_parallel/layers.h"

namespace tapestry {

std::vector<std::string> token_tables(nn::Module& model) {
  std::vector<const nn::Parameter*> tables;
  for (const nn::Module::NamedModule& entry : model.named_modules()) {
    if (const auto* parallel = dynamic_cast<VocabParallelEmbedding*>(entry.module)) {
      tables.push_back(&parallel->weight());
    } else if (const auto* whole = dynamic_cast<nn::Embedding*>(entry.module)) {
      tables.push_back(&whole->weight());
    }
  }
  std::vector<std::string> names;
  for (const nn::Module::NamedParameter& entry : model.named_parameters()) {
    if (!entry.parameter->flags().shared &&
        std::find(tables.begin(), tables.end(), entry.parameter) != tables.end()) {
      names.push_back(entry.name);
    }
  }
  return names;
}

}  // namespace tapestry
