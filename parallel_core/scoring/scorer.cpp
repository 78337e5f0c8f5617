#include "parallel_core/scoring/scorer.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/parallel_state.h"

namespace tapestry {

namespace {

constexpr int64_t kRowsAtATime = 256;  // of a copy: what is in memory of a long file

// The ranks of the copy that this rank belongs to. Where there are several copies, they are what
// the groups call data-parallel.
std::shared_ptr<ProcessGroup> group_of_copy(const std::shared_ptr<ProcessGroup>& world,
                                            const OpenModelOptions& options) {
  const int64_t ranks = options.tensor_parallel * options.pipeline_parallel;
  check<ValueError>(world->size() % ranks == 0, "tensor_parallel x pipeline_parallel = ", ranks,
                    " does not divide the ", world->size(),
                    " processes that there are; start a multiple of ", ranks, " with mpirun -n");
  if (ranks == world->size()) {
    return world;
  }
  ModelParallelSizes sizes;
  sizes.tensor_model_parallel_size = static_cast<int>(options.tensor_parallel);
  sizes.pipeline_model_parallel_size = static_cast<int>(options.pipeline_parallel);
  initialize_model_parallel(sizes, world);
  // The groups live as long as the rank.
  return {std::shared_ptr<ProcessGroup>(), &get_model_parallel_group()};
}

}  // namespace

Scorer::Scorer(const OpenModelOptions& options,
               std::shared_ptr<ProcessGroup> world,
               int64_t context,
               int64_t tokens_per_pass)
    : world_(std::move(world)) {
  check<ValueError>(options.tensor_parallel > 0 && options.pipeline_parallel > 0,
                    "tensor_parallel and pipeline_parallel must be positive, got ",
                    options.tensor_parallel, " and ", options.pipeline_parallel);
  const std::shared_ptr<ProcessGroup> group = group_of_copy(world_, options);
  copies_ = world_->size() / group->size();
  copy_ = copies_ > 1 ? get_data_parallel_rank() : 0;
  speaks_ = group->rank() == 0;
  opened_ = open_model(options, group);
  const int64_t most = opened_.saved.config.model_config.seq_length;
  context_ = context == 0 ? most : context;
  check<ValueError>(context_ >= 1 && context_ <= most, "the context is ", context_,
                    ", expected 1 to the model's ", most, " tokens");
  options_ = {.vocab_size = tokenizer().vocab_size(),
              .tokens_per_pass = tokens_per_pass,
              .exact = opened_.saved.config.training_config.exact};
}

std::vector<double> Scorer::sums(int64_t rows,
                                 const std::function<ScoredRow(int64_t row)>& make_row) {
  // Zeros where others score: their sum over the ranks is what each of them has found.
  const Tensor found = zeros({std::max<int64_t>(rows, 1)}, kFloat64);
  auto* sums = found.data<double>();
  for (int64_t begin = copy_; begin < rows; begin += kRowsAtATime * copies_) {
    std::vector<ScoredRow> part;
    std::vector<int64_t> places;
    for (int64_t row = begin; row < std::min(rows, begin + kRowsAtATime * copies_);
         row += copies_) {
      part.push_back(make_row(row));
      places.push_back(row);
    }
    const std::vector<RowScores> scores = log_likelihood(*opened_.model, part, options_);
    // All ranks of a copy know its scores; one of them tells the others.
    for (size_t i = 0; (speaks_ || copies_ == 1) && i < places.size(); ++i) {
      sums[places[i]] = scores[i].sum();
    }
  }
  if (copies_ > 1) {
    world_->all_reduce(found);
  }
  return {sums, sums + rows};
}

}  // namespace tapestry
