#include "parallel_core/post_training/distil/score_texts.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "autograd/ops/indexing.h"
#include "autograd/tape/grad_mode.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/inference/head_rows.h"
#include "parallel_core/inference/top_log_probs.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/post_training/rows/pack_sequences.h"

namespace tapestry::post_training {

namespace {

// The texts in passes, in their order, in rows of one length each.
std::vector<data::Batch> passes_of(const SequenceSet& texts, const TextScoringOptions& options) {
  std::vector<data::Batch> out;
  std::vector<int64_t> numbers;
  int64_t tokens = 0;
  const auto finish = [&] {
    int64_t longest = 1;
    for (const int64_t number : numbers) {
      longest = std::max<int64_t>(longest, std::ssize(texts.ids(number)));
    }
    out.push_back(pack_sequences(
        texts, numbers,
        {.seq_length = std::min(options.most_tokens, std::max(longest, options.tokens_per_pass))}));
    numbers.clear();
    tokens = 0;
  };
  for (int64_t number = 0; number < texts.size(); ++number) {
    const int64_t count = std::ssize(texts.ids(number));
    check<ValueError>(count <= options.most_tokens, "text ", number + 1, " has ", count,
                      " tokens with its answer, the model has room for ", options.most_tokens,
                      "; leave it out, or allow more with --context");
    if (!numbers.empty() && tokens + count > options.tokens_per_pass) {
      finish();
    }
    numbers.push_back(number);
    tokens += count;
  }
  if (!numbers.empty()) {
    finish();
  }
  return out;
}

// The positions of a batch that count, row by row, as numbers among the rows before the head.
struct RowsBeforeHead {
  std::vector<int64_t> labels;  // in the order before the head
  std::vector<int64_t> rows;    // of position j, by row and column

  RowsBeforeHead(const data::Batch& batch, bool sequence_first) {
    std::vector<std::pair<int64_t, int64_t>> places;  // in whole rows, before the head
    for (int64_t i = 0; i < batch.batch * batch.seq; ++i) {
      const int64_t at = sequence_first ? i % batch.batch * batch.seq + i / batch.batch : i;
      if (batch.loss_mask[static_cast<size_t>(at)] > 0) {
        places.emplace_back(at, std::ssize(places));
        labels.push_back(batch.labels[static_cast<size_t>(at)]);
      }
    }
    std::sort(places.begin(), places.end());
    for (const auto& [at, row] : places) {
      rows.push_back(row);
    }
  }
};

void write_scores(const data::Batch& batch,
                  const HeadRows& head,
                  const GPTModel& model,
                  const TextScoringOptions& options,
                  TeacherFileWriter* writer) {
  const RowsBeforeHead counted(batch, model.sequence_axis() == 0);
  const auto count = std::ssize(counted.rows);
  const ScoredTop scored = top_log_probs(
      head, tensor(counted.labels, {count}),
      {.k = options.top_k, .temperature = options.temperature, .vocabulary = options.vocabulary},
      model.tensor_layout());
  if (writer == nullptr) {
    return;
  }
  const NoGradGuard guard;
  const Tensor order = tensor(counted.rows, {count});
  const TopLogProbs top = {.ids = index_select(scored.top.ids, 0, order),
                           .log_probs = index_select(scored.top.log_probs, 0, order)};
  const Tensor own = index_select(scored.log_probs, 0, order);
  int64_t first = 0;
  for (const auto& row : batch.sequences) {
    for (const data::RowSequence& sequence : row) {
      writer->write(sequence.number, top, own, first);
      first += scored_positions(sequence.tokens, sequence.prompt);
    }
  }
}

}  // namespace

bool writes_scores(const GPTModel& model) {
  return model.stage().is_last(model.stage().num_chunks() - 1) && model.tensor_layout().rank == 0;
}

void score_texts(GPTModel& model,
                 const SequenceSet& texts,
                 const TextScoringOptions& options,
                 TeacherFileWriter* writer) {
  const std::vector<data::Batch> passes = passes_of(texts, options);
  // As many at a time as keep all stages at work.
  const auto together = static_cast<size_t>(model.stage().size > 1 ? 4 * model.stage().size : 1);
  for (size_t begin = 0; begin < passes.size(); begin += together) {
    const size_t end = std::min(passes.size(), begin + together);
    const std::vector<data::Batch> batches(passes.begin() + static_cast<std::ptrdiff_t>(begin),
                                           passes.begin() + static_cast<std::ptrdiff_t>(end));
    const std::vector<HeadRows> rows = head_rows(model, batches);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].logits) {
        write_scores(batches[i], rows[i], model, options, writer);
      }
    }
  }
}

}  // namespace tapestry::post_training
