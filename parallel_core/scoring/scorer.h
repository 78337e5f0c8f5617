// Rows shared among equal copies of a model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "parallel_core/comm/process_group.h"
#include "parallel_core/inference/log_likelihood.h"
#include "parallel_core/inference/open_model.h"

namespace tapestry {

/// A model on the ranks of `world`: as many copies as it has room for, each in a layout of
/// tensor_parallel times pipeline_parallel ranks that follow each other.
class Scorer {
 public:
  /// Opens the model. Collective over `world`. ValueError if its size is no multiple of the
  /// layout's, and for contexts outside [1, the model's]; errors of open_model. `context` 0: the
  /// model's.
  Scorer(const OpenModelOptions& options,
         std::shared_ptr<ProcessGroup> world,
         int64_t context = 0,
         int64_t tokens_per_pass = 1024);

  /// The sum of the log-probabilities of each row's scored tokens. Each copy takes some of the
  /// rows, which `make_row` makes one after the other, and all ranks of the world get all sums.
  /// Collective.
  std::vector<double> sums(int64_t rows, const std::function<ScoredRow(int64_t row)>& make_row);

  const OpenModel& opened() const { return opened_; }
  const data::Tokenizer& tokenizer() const { return *opened_.saved.tokenizer; }
  int64_t context() const { return context_; }
  int copies() const { return copies_; }

 private:
  std::shared_ptr<ProcessGroup> world_;
  int copies_ = 1;
  int copy_ = 0;        // this rank's
  bool speaks_ = true;  // for its copy
  OpenModel opened_;
  int64_t context_ = 0;
  LogLikelihoodOptions options_;
};

}  // namespace tapestry
