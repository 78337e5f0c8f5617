// Which part of an indexed dataset is for training, validation and test.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tapestry::data {

/// Part of a dataset: sequences [begin, end), of the first one without its first `skip` tokens and
/// of the last one without its last `drop` tokens.
struct SequenceRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t skip = 0;
  int64_t drop = 0;
};

/// The parts of train, valid and test.
using Split = std::array<std::optional<SequenceRange>, 3>;

/// Tokens of sequence `i` of a range that belong to it; `lengths` are those of the whole dataset.
int64_t tokens_of_sequence(std::span<const int32_t> lengths, SequenceRange range, int64_t i);
/// Tokens of a range.
int64_t count_tokens(std::span<const int32_t> lengths, SequenceRange range);

/// Applies a split such as "969,30,1" to `num_sequences` sequences, as Megatron does: the numbers,
/// missing ones 0, are divided by their sum and each boundary is rounded half to even. A part of
/// weight 0 does not exist. ValueError for a text that is not up to three non-negative numbers, or
/// if all are 0.
Split split_sequences(std::string_view split, int64_t num_sequences);

/// Applies a split to the tokens of the sequences one after the other; boundaries are rounded down
/// and may lie inside a sequence. A validation part that is smaller than `sample_tokens` gets as
/// many, from training, if training keeps as many.
Split split_tokens(std::string_view split, std::span<const int32_t> lengths, int64_t sample_tokens);

/// What a dataset is divided into.
struct DatasetSplit {
  Split parts;
  bool by_tokens = false;
};

/// By sequences, unless training or validation then lack the `sample_tokens` tokens of one sample
/// and have them with split_tokens. The decision hangs on the text and on `split` alone, not on who
/// asks for which part, so that no run trains on what another one validates on.
DatasetSplit split_dataset(std::string_view split,
                           std::span<const int32_t> lengths,
                           int64_t sample_tokens);

/// What can be done where training or validation lacks the tokens of one sample: a change of the
/// configuration that works.
std::string split_advice(std::string_view split,
                         std::span<const int32_t> lengths,
                         int64_t sample_tokens);

}  // namespace tapestry::data
