#include "parallel_core/data/dataset_split.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "autograd/tensor/error.h"

namespace tapestry::data {
namespace {

// The share of each part.
std::array<double, 3> shares_of(std::string_view split) {
  constexpr std::string_view kDigits = ".0123456789";
  constexpr std::string_view kSeparators = ", /:;\t[]";
  std::array<double, 3> weights{};
  size_t count = 0;
  for (size_t at = 0; at < split.size();) {
    if (kSeparators.find(split[at]) != std::string_view::npos) {
      ++at;
      continue;
    }
    const size_t end = std::min(split.find_first_not_of(kDigits, at), split.size());
    double value = 0;
    const auto parsed = std::from_chars(split.data() + at, split.data() + end, value);
    check<ValueError>(end > at && parsed.ec == std::errc{} && parsed.ptr == split.data() + end,
                      "split: \"", split, "\" is not a list of numbers such as \"969,30,1\"");
    check<ValueError>(count < weights.size(), "split: \"", split,
                      "\" has more than three numbers (train, valid, test)");
    weights[count++] = value;
    at = end;
  }
  const double sum = weights[0] + weights[1] + weights[2];
  check<ValueError>(sum > 0 && std::isfinite(sum), "split: \"", split,
                    "\" needs at least one number above 0");
  for (double& weight : weights) {
    weight /= sum;
  }
  return weights;
}

// The tokens [first, last) of all sequences one after the other.
SequenceRange range_of_tokens(std::span<const int32_t> lengths, int64_t first, int64_t last) {
  SequenceRange range;
  int64_t start = 0;
  bool inside = false;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t end = start + lengths[i];
    if (!inside && end > first) {
      range.begin = static_cast<int64_t>(i);
      range.skip = first - start;
      inside = true;
    }
    if (inside && end >= last) {
      range.end = static_cast<int64_t>(i) + 1;
      range.drop = end - last;
      break;
    }
    start = end;
  }
  return range;
}

// Whether training and validation have a sample each, as far as the split has them at all.
bool are_usable(const Split& parts, std::span<const int32_t> lengths, int64_t sample_tokens) {
  return std::all_of(parts.begin(), parts.begin() + 2, [&](const auto& part) {
    return !part || count_tokens(lengths, *part) >= sample_tokens;
  });
}

}  // namespace

int64_t tokens_of_sequence(std::span<const int32_t> lengths, SequenceRange range, int64_t i) {
  int64_t tokens = lengths[static_cast<size_t>(i)];
  if (i == range.begin) {
    tokens -= range.skip;
  }
  if (i + 1 == range.end) {
    tokens -= range.drop;
  }
  return tokens;
}

int64_t count_tokens(std::span<const int32_t> lengths, SequenceRange range) {
  int64_t tokens = -range.skip - range.drop;
  for (int64_t i = range.begin; i < range.end; ++i) {
    tokens += lengths[static_cast<size_t>(i)];
  }
  return tokens;
}

Split split_sequences(std::string_view split, int64_t num_sequences) {
  const std::array<double, 3> shares = shares_of(split);
  Split parts;
  double begin = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const double end = begin + shares[i];
    if (end > begin) {
      const auto n = static_cast<double>(num_sequences);
      const auto last = static_cast<int64_t>(std::nearbyint(end * n));
      parts[i] = SequenceRange{.begin = static_cast<int64_t>(std::nearbyint(begin * n)),
                               .end = std::min(last, num_sequences)};
    }
    begin = end;
  }
  return parts;
}

Split split_tokens(std::string_view split,
                   std::span<const int32_t> lengths,
                   int64_t sample_tokens) {
  const std::array<double, 3> shares = shares_of(split);
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::array<int64_t, 4> bounds = {0, 0, 0, tokens};
  double end = 0;
  for (size_t i = 0; i + 1 < shares.size(); ++i) {
    end += shares[i];
    bounds[i + 1] = std::min(tokens, static_cast<int64_t>(end * static_cast<double>(tokens)));
    if (shares[i + 1] == 0 && (i + 2 == shares.size() || shares[i + 2] == 0)) {
      bounds[i + 1] = tokens;  // whatever the sum of the shares has been rounded to
    }
  }
  const int64_t enough = bounds[2] - sample_tokens;
  if (shares[0] > 0 && shares[1] > 0 && bounds[1] > enough && enough >= sample_tokens) {
    bounds[1] = enough;
  }
  Split parts;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (shares[i] > 0) {
      parts[i] = range_of_tokens(lengths, bounds[i], bounds[i + 1]);
    }
  }
  return parts;
}

DatasetSplit split_dataset(std::string_view split,
                           std::span<const int32_t> lengths,
                           int64_t sample_tokens) {
  DatasetSplit result{split_sequences(split, static_cast<int64_t>(lengths.size()))};
  if (are_usable(result.parts, lengths, sample_tokens)) {
    return result;
  }
  const Split parts = split_tokens(split, lengths, sample_tokens);
  if (are_usable(parts, lengths, sample_tokens)) {
    result = {parts, /*by_tokens=*/true};
  }
  return result;
}

std::string split_advice(std::string_view split,
                         std::span<const int32_t> lengths,
                         int64_t sample_tokens) {
  const auto works = [&](std::string_view other, int64_t wanted) {
    return are_usable(split_dataset(other, lengths, wanted).parts, lengths, wanted);
  };
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  // One token more than needed: a boundary may be rounded down.
  const std::string shares = concat(tokens - sample_tokens - 1, ",", sample_tokens + 1);
  if (tokens > 2 * sample_tokens && works(shares, sample_tokens)) {
    return concat("use dataset_config.split ", shares);
  }
  for (int64_t seq_length = (sample_tokens - 1) / 2; seq_length >= 1; seq_length /= 2) {
    if (works(split, seq_length + 1)) {
      return concat("use more text or model_config.seq_length ", seq_length);
    }
  }
  return "use more text";
}

}  // namespace tapestry::data
