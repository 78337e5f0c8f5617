#include "parallel_core/post_training/preference/step_scores.h"

#include <algorithm>
#include <numeric>

#include "parallel_core/post_training/reference/score_sequences.h"

namespace tapestry::post_training {

StepScores::StepScores(ParallelModel& model,
                       const SequenceSet& set,
                       const std::vector<data::Batch>& micro_batches,
                       const RowRoom& room,
                       bool overlap_p2p) {
  SequenceSet own(1);
  int64_t rows = 1;
  for (const data::Batch& batch : micro_batches) {
    rows = std::max(rows, batch.batch);
    for (const auto& row : batch.sequences) {
      for (const data::RowSequence& sequence : row) {
        const int64_t number = sequence.number;
        if (own_.emplace(number, own.size()).second) {
          const auto ids = set.ids(number);
          const auto prompt = static_cast<size_t>(set.prompt_tokens(number));
          own.add(ids.first(prompt), ids.subspan(prompt));
        }
      }
    }
  }
  table_ = LogProbTable(own);
  std::vector<int64_t> numbers(static_cast<size_t>(own.size()));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  score_sequences(model, own, numbers, {.room = room, .rows = rows, .overlap_p2p = overlap_p2p},
                  table_);
}

}  // namespace tapestry::post_training
