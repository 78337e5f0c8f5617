#include "parallel_core/post_training/rows/pack_sequences.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/sft/packing.h"

namespace tapestry::post_training {

namespace {

// Which of the sequences share a row, as places in the list of numbers.
sft::RowLists rows_of(const std::vector<int64_t>& lengths, const RowRoom& room) {
  if (room.packing && !counts_padding(room)) {
    return sft::pack_rows(lengths, room.seq_length);
  }
  sft::RowLists rows;
  for (int32_t i = 0; i < std::ssize(lengths); ++i) {
    rows.add_row(std::span(&i, 1));
  }
  return rows;
}

// Writes a sequence into a row, from position `first` on.
void write_sequence(data::Batch& batch,
                    size_t row,
                    int64_t first,
                    int64_t number,
                    const SequenceSet& set,
                    const RowRoom& room) {
  const std::span<const int32_t> ids = set.ids(number);
  const int64_t prompt = set.prompt_tokens(number);
  const auto count = std::ssize(ids);
  for (int64_t t = 0; t < count; ++t) {
    const auto at = static_cast<size_t>(static_cast<int64_t>(row) * batch.seq + first + t);
    batch.tokens[at] = ids[static_cast<size_t>(t)];
    batch.position_ids[at] = t;
    if (t + 1 < count) {
      batch.labels[at] = ids[static_cast<size_t>(t + 1)];
      const bool counts = t + 1 >= prompt || room.counted != CountedPositions::kCompletions;
      batch.loss_mask[at] = counts ? 1.0F : 0.0F;
    }
  }
  if (!counts_padding(room)) {
    batch.document_starts[row].push_back(first);
  }
  batch.sequences[row].push_back(
      {.number = number, .first = first, .tokens = count, .prompt = prompt});
}

// Fills a row up from `first` on with what is a document, too.
void fill_up(data::Batch& batch, size_t row, int64_t first) {
  if (first < batch.seq) {
    batch.document_starts[row].push_back(first);
    for (int64_t t = first; t < batch.seq; ++t) {
      batch.position_ids[row * static_cast<size_t>(batch.seq) + static_cast<size_t>(t)] = t - first;
    }
  }
}

// The same with padding that goes on with the sequence's positions and sees what it sees, but is
// seen by nobody. All of the first `counted` positions count.
void fill_up_padded(data::Batch& batch, size_t row, int64_t first, int64_t counted) {
  const auto start = static_cast<int64_t>(row) * batch.seq;
  for (int64_t t = first; t < batch.seq; ++t) {
    batch.position_ids[static_cast<size_t>(start + t)] = t;
    batch.attention_mask[static_cast<size_t>(start + t)] = 1;
  }
  std::fill_n(batch.loss_mask.begin() + start, counted, 1.0F);
}

data::Batch row_of_padding(const RowRoom& room) {
  const auto length = static_cast<size_t>(room.unit);
  data::Batch batch;
  batch.batch = 1;
  batch.seq = room.unit;
  batch.tokens.assign(length, room.pad_id);
  batch.labels.assign(length, room.pad_id);
  batch.loss_mask.assign(length, 0.0F);
  batch.sample_ids = {0};
  batch.sequences.resize(1);
  return batch;
}

}  // namespace

data::Batch pack_sequences(const SequenceSet& set,
                           std::span<const int64_t> numbers,
                           const RowRoom& room,
                           int64_t longest) {
  if (numbers.empty()) {
    return row_of_padding(room);
  }
  std::vector<int64_t> lengths;
  for (const int64_t number : numbers) {
    lengths.push_back(std::max<int64_t>(std::ssize(set.ids(number)), 1));
    check<ValueError>(lengths.back() <= room.seq_length, "sequence ", number, " has ",
                      lengths.back(), " tokens, a row has room for ", room.seq_length);
  }
  const sft::RowLists rows = rows_of(lengths, room);
  const auto length_of = [&](int64_t k) {
    const auto of_row = rows.row(k);
    return std::accumulate(of_row.begin(), of_row.end(), int64_t{0}, [&](int64_t sum, int32_t i) {
      return sum + lengths[static_cast<size_t>(i)];
    });
  };
  data::Batch batch;
  batch.batch = rows.size();
  for (int64_t k = 0; k < rows.size(); ++k) {
    batch.seq = std::max(batch.seq, length_of(k));
  }
  if (counts_padding(room)) {
    batch.seq = std::max(batch.seq, longest);
  }
  const int64_t counted =
      batch.seq - (room.counted == CountedPositions::kPaddedRowsButLast ? 1 : 0);
  batch.seq = (batch.seq + room.unit - 1) / room.unit * room.unit;
  const auto elements = static_cast<size_t>(batch.batch * batch.seq);
  batch.tokens.assign(elements, room.pad_id);
  batch.labels.assign(elements, room.pad_id);
  batch.loss_mask.assign(elements, 0.0F);
  batch.position_ids.assign(elements, 0);
  if (counts_padding(room)) {
    batch.attention_mask.assign(elements, 0);
  } else {
    batch.document_starts.resize(static_cast<size_t>(batch.batch));
  }
  batch.sequences.resize(static_cast<size_t>(batch.batch));
  for (int64_t k = 0; k < rows.size(); ++k) {
    const auto row = static_cast<size_t>(k);
    int64_t at = 0;
    for (const int32_t i : rows.row(k)) {
      const int64_t number = numbers[static_cast<size_t>(i)];
      write_sequence(batch, row, at, number, set, room);
      at += lengths[static_cast<size_t>(i)];
    }
    if (counts_padding(room)) {
      fill_up_padded(batch, row, at, counted);
    } else {
      fill_up(batch, row, at);
    }
    batch.sample_ids.push_back(batch.sequences[row].front().number);
  }
  return batch;
}

}  // namespace tapestry::post_training
