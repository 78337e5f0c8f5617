#include "parallel_core/post_training/distil/teacher.h"

#include <algorithm>
#include <limits>

#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/inference/head_rows.h"

namespace tapestry::post_training {

namespace {

// A position of a micro-batch as one of a text's.
struct TextPosition {
  int64_t text = 0;
  int64_t position = 0;
  int64_t label = 0;
};

TextPosition text_position(const data::Batch& batch, int64_t at) {
  const int64_t row = at / batch.seq;
  const int64_t column = at % batch.seq;
  const auto& sequences = batch.sequences[static_cast<size_t>(row)];
  const auto next = std::upper_bound(
      sequences.begin(), sequences.end(), column,
      [](int64_t value, const data::RowSequence& sequence) { return value < sequence.first; });
  check<ValueError>(next != sequences.begin(), "distil: position ", column, " of row ", row,
                    " counts, but belongs to no text");
  const data::RowSequence& sequence = *(next - 1);
  return {.text = sequence.number,
          .position = column + 1 - sequence.first - std::max<int64_t>(sequence.prompt, 1),
          .label = batch.labels[static_cast<size_t>(at)]};
}

}  // namespace

void ModelTeacher::begin_step(const std::vector<data::Batch>& micro_batches) {
  rows_.clear();  // before the next ones need memory
  rows_ = head_rows(*model_, micro_batches);
}

DivergenceTarget ModelTeacher::target(int64_t micro_batch,
                                      const std::vector<int64_t>& /*positions*/) const {
  return rows_[static_cast<size_t>(micro_batch)];
}

void FileTeacher::begin_step(const std::vector<data::Batch>& micro_batches) {
  micro_batches_ = &micro_batches;
}

DivergenceTarget FileTeacher::target(int64_t micro_batch,
                                     const std::vector<int64_t>& positions) const {
  const data::Batch& batch = (*micro_batches_)[static_cast<size_t>(micro_batch)];
  const int64_t k = file_->header().top_k;
  const auto count = static_cast<int64_t>(positions.size());
  const bool with_own = k == 1 && beta_ > 0;
  const int64_t width = with_own && beta_ < 1 ? 2 : k;
  const TopLogProbs out = {.ids = empty({count, width}, kInt32),
                           .log_probs = empty({count, width}, kFloat32)};
  std::vector<int32_t> ids(static_cast<size_t>(count * k));
  std::vector<float> log_probs(ids.size());
  std::vector<float> own(positions.size());
  std::vector<TextPosition> places;
  for (const int64_t at : positions) {
    places.push_back(text_position(batch, at));
  }
  // Positions of one text mostly follow one another.
  for (size_t i = 0; i < places.size();) {
    size_t end = i + 1;
    while (end < places.size() && places[end].text == places[i].text &&
           places[end].position == places[end - 1].position + 1) {
      ++end;
    }
    const size_t at = i * static_cast<size_t>(k);
    file_->read(places[i].text, places[i].position, static_cast<int64_t>(end - i), k, &ids[at],
                &log_probs[at], &own[i]);
    i = end;
  }
  auto* to_ids = out.ids.data<int32_t>();
  auto* to_log_probs = out.log_probs.data<float>();
  if (!with_own) {
    std::copy(ids.begin(), ids.end(), to_ids);
    std::copy(log_probs.begin(), log_probs.end(), to_log_probs);
    return out;
  }
  for (size_t i = 0; i < places.size(); ++i) {
    const auto label = static_cast<int32_t>(places[i].label);
    if (width == 2) {
      *to_ids++ = ids[i];
      *to_log_probs++ = log_probs[i];
    }
    const bool is_same = width == 2 && label == ids[i];
    *to_ids++ = label;
    *to_log_probs++ = is_same ? -std::numeric_limits<float>::infinity() : own[i];
  }
  return out;
}

}  // namespace tapestry::post_training
