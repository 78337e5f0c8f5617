#include "parallel_core/post_training/reference/score_sequences.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "autograd/ops/map.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tape/observer.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/inference/cached_pass.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/pipeline_parallel/collect.h"
#include "parallel_core/training/step/forward_step.h"

namespace tapestry::post_training {

namespace {

using Chunk = std::vector<int64_t>;  // numbers of the sequences of a micro-batch

// Sequences of about the same length together, each chunk as many as fit into so many rows. What
// they are depends on the numbers alone, not on who scores them.
std::vector<Chunk> chunks_of(const SequenceSet& set,
                             std::span<const int64_t> numbers,
                             const ScoringOptions& options) {
  std::vector<int64_t> sorted;
  for (const int64_t number : numbers) {
    if (scored_tokens(set, number) > 0) {
      sorted.push_back(number);
    }
  }
  const auto length = [&](int64_t number) { return std::ssize(set.ids(number)); };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](int64_t a, int64_t b) { return length(a) > length(b); });
  std::vector<Chunk> chunks;
  std::vector<int64_t> left;  // room of the rows of the last chunk
  for (const int64_t number : sorted) {
    const int64_t tokens = length(number);
    auto row = options.room.packing
                   ? std::find_if(left.begin(), left.end(), [&](int64_t l) { return l >= tokens; })
                   : left.end();
    if (row == left.end()) {
      if (chunks.empty() || std::ssize(left) >= options.rows) {
        chunks.emplace_back();
        left.clear();
      }
      row = left.insert(left.end(), options.room.seq_length);
    }
    *row -= tokens;
    chunks.back().push_back(number);
  }
  return chunks;
}

// Appends what the scores say of each sequence of a batch, in the order of `chunk`.
void append_values(const data::Batch& batch,
                   const Tensor& log_probs,
                   const Chunk& chunk,
                   std::vector<double>& values) {
  const Tensor rows = dense(log_probs.detach());
  const float* const all = rows.data<float>();
  for (const int64_t number : chunk) {
    for (int64_t row = 0; row < batch.batch; ++row) {
      for (const data::RowSequence& sequence : batch.sequences[static_cast<size_t>(row)]) {
        if (sequence.number == number) {
          // The position before a token tells its probability.
          const int64_t begin = sequence.first + std::max<int64_t>(sequence.prompt, 1) - 1;
          const int64_t end = sequence.first + sequence.tokens - 1;
          values.insert(values.end(), all + row * batch.seq + begin, all + row * batch.seq + end);
        }
      }
    }
  }
}

// Scores chunks, as many as `passes`; those that there are not are the first one again, whose
// values are then let go.
void score_chunks(ParallelModel& model,
                  const SequenceSet& set,
                  const std::vector<Chunk>& chunks,
                  int64_t passes,
                  const ScoringOptions& options,
                  LogProbTable& table) {
  const NoGradGuard guard;
  const EvaluationMode mode(model);
  const TokenScoresRequest request{.temperature = options.temperature, .gradients = false};
  constexpr int64_t kPassesOfStage = 4;  // a pipeline is full, and rows are few in memory
  const int64_t stages = model.stage().size;
  for (int64_t first = 0; first < passes; first += kPassesOfStage * stages) {
    int64_t count = std::min(passes - first, kPassesOfStage * stages);
    if (model.stage().num_chunks() > 1) {  // interleaved stages take turns in whole rounds
      count = (count + stages - 1) / stages * stages;
    }
    std::vector<data::Batch> batches;
    int64_t tokens = 0;
    for (int64_t i = first; i < first + count; ++i) {
      const bool is_own = i < std::ssize(chunks);
      const Chunk& chunk = chunks[static_cast<size_t>(is_own ? i : 0)];
      batches.push_back(pack_sequences(set, chunk, options.room));
      for (const int64_t number : chunk) {
        tokens += is_own ? scored_tokens(set, number) : 0;
      }
    }
    std::vector<double> values;
    values.reserve(static_cast<size_t>(tokens));
    PipelineWork work = pipeline_work(
        model, batches,
        [&](int64_t i, ModelOutput& output) {
          if (first + i < std::ssize(chunks)) {
            append_values(batches[static_cast<size_t>(i)], output.scores->log_probs,
                          chunks[static_cast<size_t>(first + i)], values);
          }
          return StageOutput{};
        },
        &request);
    work.forward_only = true;
    work.messages.overlap = options.overlap_p2p;
    get_forward_backward_func(work.chunks)(work);
    values.resize(static_cast<size_t>(tokens), 0.0);  // the last stage alone has them
    sum_over_pipeline(values);
    auto next = values.begin();
    for (int64_t i = first; i < std::min(first + count, static_cast<int64_t>(chunks.size())); ++i) {
      for (const int64_t number : chunks[static_cast<size_t>(i)]) {
        for (float& value : table.tokens(number)) {
          value = static_cast<float>(*next++);
        }
      }
    }
  }
}

int64_t most_of_ranks(int64_t count) {
  ProcessGroup& group = get_data_parallel_group();
  if (group.size() == 1) {
    return count;
  }
  const Tensor most = full({1}, static_cast<double>(count), kInt64);
  group.all_reduce(most, ReduceOp::kMax);
  return static_cast<int64_t>(most.item());
}

// Any sequence that a rank without own ones may score, while others have some.
Chunk some_chunk(const SequenceSet& set) {
  for (int64_t number = 0; number < set.size(); ++number) {
    if (scored_tokens(set, number) > 0) {
      return {number};
    }
  }
  return {};
}

}  // namespace

void score_sequences(ParallelModel& model,
                     const SequenceSet& set,
                     std::span<const int64_t> numbers,
                     const ScoringOptions& options,
                     LogProbTable& table) {
  const PhaseScope phase("scoring");
  std::vector<Chunk> chunks = chunks_of(set, numbers, options);
  const int64_t passes = most_of_ranks(std::ssize(chunks));
  if (passes == 0) {
    return;
  }
  if (chunks.empty()) {
    chunks.push_back(some_chunk(set));
    LogProbTable not_wanted(set);
    score_chunks(model, set, chunks, passes, options, not_wanted);
    return;
  }
  score_chunks(model, set, chunks, passes, options, table);
}

void score_shared(ParallelModel& model,
                  const SequenceSet& set,
                  std::span<const int64_t> numbers,
                  const ScoringOptions& options,
                  LogProbTable& table) {
  const PhaseScope phase("scoring");
  const std::vector<Chunk> all = chunks_of(set, numbers, options);
  if (all.empty()) {
    return;
  }
  const auto ranks = static_cast<int64_t>(get_data_parallel_world_size());
  const auto rank = static_cast<int64_t>(get_data_parallel_rank());
  const int64_t passes = (std::ssize(all) + ranks - 1) / ranks;
  std::vector<Chunk> own;
  for (int64_t i = rank; i < std::ssize(all); i += ranks) {
    own.push_back(all[static_cast<size_t>(i)]);
  }
  LogProbTable scored(set);
  const bool has_none = own.empty();
  if (has_none) {
    own.push_back(all.front());
  }
  score_chunks(model, set, own, passes, options, scored);
  if (has_none) {
    scored = LogProbTable(set);
  }
  constexpr size_t kAtOnce = size_t{1} << 20U;  // values that ranks tell each other in one message
  std::vector<double> told;
  std::vector<float*> places;
  const auto tell = [&] {
    sum_over(get_data_parallel_group(), told);
    for (size_t i = 0; i < places.size(); ++i) {
      *places[i] = static_cast<float>(told[i]);
    }
    told.clear();
    places.clear();
  };
  for (const Chunk& chunk : all) {
    for (const int64_t number : chunk) {
      const std::span<const float> values = std::as_const(scored).tokens(number);
      const std::span<float> to = table.tokens(number);
      told.insert(told.end(), values.begin(), values.end());
      for (float& place : to) {
        places.push_back(&place);
      }
    }
    if (told.size() >= kAtOnce) {
      tell();
    }
  }
  tell();
}

}  // namespace tapestry::post_training
