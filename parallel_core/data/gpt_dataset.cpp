#include "parallel_core/data/gpt_dataset.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "autograd/tensor/error.h"
#include "parallel_core/data/numpy_random.h"

namespace tapestry::data {
namespace {

int64_t checked_mul(int64_t a, int64_t b, std::string_view what) {
  int64_t product = 0;
  check<ValueError>(!__builtin_mul_overflow(a, b, &product), "GPT dataset: ", what, ", ", a, " x ",
                    b, ", is out of range");
  return product;
}

int64_t checked_add(int64_t a, int64_t b, std::string_view what) {
  int64_t sum = 0;
  check<ValueError>(!__builtin_add_overflow(a, b, &sum), "GPT dataset: ", what, ", ", a, " + ", b,
                    ", is out of range");
  return sum;
}

void build_document_index(SequenceRange range,
                          std::optional<NumpyRandomState>& random,
                          GPTIndices& indices) {
  const auto once = static_cast<size_t>(range.end - range.begin);
  const auto total = static_cast<size_t>(
      checked_mul(indices.num_epochs, range.end - range.begin, "length of the document index"));
  auto& documents = indices.document_index;
  documents.resize(total);
  for (size_t i = 0; i < total; i += once) {
    const auto first = documents.begin() + static_cast<std::ptrdiff_t>(i);
    std::iota(first, first + static_cast<std::ptrdiff_t>(once), static_cast<int32_t>(range.begin));
  }
  if (!random) {
    return;
  }
  const std::span<int32_t> all(documents);
  if (indices.separate_last_epoch) {
    random->shuffle(all.first(total - once));
    random->shuffle(all.last(once));
  } else {
    random->shuffle(all);
  }
}

// Walks through the documents; neighbouring samples share `extra` tokens, and a boundary at the
// very end of a document stays in it.
void build_sample_index(std::span<const int32_t> lengths,
                        int64_t num_samples,
                        int64_t seq_length,
                        int64_t extra,
                        bool drop_last,
                        GPTIndices& indices) {
  const auto& documents = indices.document_index;
  const auto num_documents = static_cast<int64_t>(documents.size());
  // A short last sample may end in an empty document, at offset -1: only 64 bits hold that.
  const bool wide = !drop_last || num_documents > int64_t{std::numeric_limits<uint32_t>::max()};
  indices.sample_documents = IndexArray(num_samples + 1, wide);
  indices.sample_offsets = IndexArray(num_samples + 1, wide);
  int64_t document = 0;
  int64_t offset = 0;
  for (int64_t sample = 1; sample <= num_samples; ++sample) {
    int64_t need = seq_length + extra;
    while (true) {
      const int64_t length = lengths[static_cast<size_t>(documents[static_cast<size_t>(document)])];
      const int64_t available = length - offset;
      need -= available;
      if (need <= 0) {
        offset += need + available - extra;
        break;
      }
      if (document + 1 == num_documents) {
        offset = length - extra;
        break;
      }
      ++document;
      offset = 0;
    }
    indices.sample_documents.set(sample, document);
    indices.sample_offsets.set(sample, offset);
  }
}

void build_shuffle_index(int64_t num_samples,
                         int64_t first_of_last_epoch,
                         std::optional<NumpyRandomState>& random,
                         GPTIndices& indices) {
  const bool wide = num_samples >= int64_t{std::numeric_limits<uint32_t>::max()} - 1;
  IndexArray& order = indices.shuffle_index;
  order = IndexArray(num_samples, wide);
  order.visit(0, num_samples, [](auto values) {
    std::iota(values.begin(), values.end(), typename decltype(values)::value_type{0});
  });
  if (!random) {
    return;
  }
  const int64_t border = indices.separate_last_epoch ? first_of_last_epoch : num_samples;
  const auto shuffle = [&random](auto values) { random->shuffle(values); };
  order.visit(0, border, shuffle);
  order.visit(border, num_samples, shuffle);
}

}  // namespace

IndexArray::IndexArray(int64_t count, bool wide) {
  const auto n = static_cast<size_t>(count);
  if (wide) {
    wide_.resize(n);
  } else {
    narrow_.resize(n);
  }
}

void IndexArray::set(int64_t i, int64_t value) {
  const auto at = static_cast<size_t>(i);
  if (wide_.empty()) {
    narrow_[at] = static_cast<uint32_t>(value);
  } else {
    wide_[at] = value;
  }
}

GPTIndices build_gpt_indices(std::span<const int32_t> all_lengths,
                             SequenceRange range,
                             std::optional<int64_t> num_samples,
                             int64_t seq_length,
                             int64_t seed,
                             int64_t extra_token,
                             bool drop_last,
                             bool shuffle) {
  const auto num_sequences = static_cast<int64_t>(all_lengths.size());
  check<ValueError>(range.begin >= 0 && range.begin <= range.end && range.end <= num_sequences,
                    "GPT dataset: the range ", range.begin, " .. ", range.end,
                    " is not inside the ", num_sequences, " sequences");
  check<ValueError>(range.end <= std::numeric_limits<int32_t>::max(), "GPT dataset: ", range.end,
                    " sequences are more than the 2147483647 that the document index can number");
  check<ValueError>(seq_length >= 1, "GPT dataset: seq_length: ", seq_length,
                    ", expected at least 1");
  check<ValueError>(!num_samples || *num_samples >= 0,
                    "GPT dataset: number of samples: ", num_samples.value_or(0),
                    ", expected at least 0");
  std::optional<NumpyRandomState> random;  // none: nothing is shuffled
  if (shuffle) {
    random.emplace(seed);
  }
  std::vector<int32_t> cut;  // only where a range begins or ends inside a sequence
  if (range.skip > 0 || range.drop > 0) {
    cut.assign(all_lengths.begin(), all_lengths.end());
    for (const int64_t i : {range.begin, range.end - 1}) {
      cut[static_cast<size_t>(i)] = static_cast<int32_t>(tokens_of_sequence(all_lengths, range, i));
    }
  }
  const std::span<const int32_t> lengths = cut.empty() ? all_lengths : cut;
  const int64_t tokens = count_tokens(all_lengths, range);
  check<ValueError>(tokens > 0, "GPT dataset: the ", range.end - range.begin,
                    " sequences of this split have no tokens; give it a larger share of `split`");

  GPTIndices indices;
  int64_t of_last_epoch_before = 0;  // samples that end before the last epoch
  if (num_samples) {
    const int64_t need = checked_add(checked_mul(*num_samples, seq_length, "requested tokens"),
                                     extra_token, "requested tokens");
    indices.num_epochs = std::max<int64_t>(1, need / tokens + (need % tokens != 0 ? 1 : 0));
  }
  const int64_t total = checked_mul(indices.num_epochs, tokens, "tokens of all epochs");
  if (indices.num_epochs > 1) {
    of_last_epoch_before = ((indices.num_epochs - 1) * tokens - extra_token) / seq_length;
    const int64_t from_last = *num_samples - of_last_epoch_before;
    const int64_t per_epoch = (tokens - extra_token) / seq_length;
    check<RuntimeError>(from_last >= 0 && from_last <= per_epoch + 1, "GPT dataset: ", from_last,
                        " samples from the last epoch, expected 0 .. ", per_epoch + 1);
    constexpr double kShareOfEpoch = 0.80;
    indices.separate_last_epoch =
        from_last < static_cast<int64_t>(kShareOfEpoch * static_cast<double>(per_epoch));
  }
  int64_t count = (total - extra_token) / seq_length;
  if (!drop_last) {
    // Single precision is what the original computes with; beyond 2^24 tokens it shows.
    count = static_cast<int64_t>(
        std::ceil(static_cast<float>(total - extra_token) / static_cast<float>(seq_length)));
  }
  check<ValueError>(count >= 1, "GPT dataset: the split has ", tokens,
                    " tokens, too few for one sample of ", seq_length + extra_token,
                    "; use more text, a larger share of `split` or a shorter seq_length");

  build_document_index(range, random, indices);
  build_sample_index(lengths, count, seq_length, extra_token, drop_last, indices);
  build_shuffle_index(count, of_last_epoch_before, random, indices);
  return indices;
}

GPTDataset::GPTDataset(std::shared_ptr<const IndexedDataset> dataset,
                       SequenceRange range,
                       std::optional<int64_t> num_samples,
                       const GPTDatasetOptions& options)
    : dataset_(std::move(dataset)), range_(range), options_(options) {
  const bool needs_eod =
      options.eod_mask_loss || options.reset_position_ids || options.reset_attention_mask;
  check<ValueError>(!needs_eod || options.eod_id >= 0, dataset_->prefix(),
                    ": eod_mask_loss, reset_position_ids and reset_attention_mask need a tokenizer "
                    "with an end-of-document id, or dataset_config.eos_token_id");
  if (options_.pad_id == options_.eod_id) {
    options_.pad_id = -1;
  }
  try {
    indices_ = build_gpt_indices(dataset_->sequence_lengths(), range, num_samples,
                                 options.seq_length, options.seed, options.add_extra_token ? 1 : 0,
                                 options.drop_last_partial_sample, options.shuffle);
  } catch (const ValueError& error) {
    throw ValueError(concat(dataset_->prefix(), ": ", error.what()));
  }
  tokens_per_epoch_ = count_tokens(dataset_->sequence_lengths(), range);
}

void GPTDataset::append_tokens(int64_t position,
                               int64_t begin,
                               int64_t end,
                               std::vector<int64_t>& out) const {
  const int64_t sequence = indices_.document_index[static_cast<size_t>(position)];
  const size_t first = out.size();
  dataset_->read(sequence, begin + (sequence == range_.begin ? range_.skip : 0), end - begin, out);
  if (options_.vocab_size <= 0) {
    return;
  }
  for (size_t i = first; i < out.size(); ++i) {
    check<ValueError>(out[i] >= 0 && out[i] < options_.vocab_size, dataset_->prefix(),
                      ".bin: sequence ", sequence, ", position ",
                      begin + static_cast<int64_t>(i - first), ": token id ", out[i],
                      " is outside the vocabulary of ", options_.vocab_size,
                      "; set vocab_size to that of the tokenizer that made the data, or more");
  }
}

template <class F>
void GPTDataset::each_piece(int64_t entry, F&& f) const {
  const int64_t extra = options_.add_extra_token ? 1 : 0;
  const int64_t first = indices_.sample_documents[entry];
  const int64_t begin = indices_.sample_offsets[entry];
  const int64_t last = indices_.sample_documents[entry + 1];
  const int64_t end = indices_.sample_offsets[entry + 1] + extra;
  for (int64_t d = first; d < last; ++d) {
    const int32_t sequence = indices_.document_index[static_cast<size_t>(d)];
    f(d, d == first ? begin : 0,
      tokens_of_sequence(dataset_->sequence_lengths(), range_, sequence));
  }
  f(last, first == last ? begin : 0, end);
}

std::vector<int64_t> GPTDataset::read_tokens(int64_t entry) const {
  std::vector<int64_t> tokens;
  tokens.reserve(static_cast<size_t>(options_.seq_length + 1));
  each_piece(entry, [&](int64_t position, int64_t begin, int64_t end) {
    append_tokens(position, begin, end, tokens);
  });
  return tokens;
}

Sample GPTDataset::get(int64_t k) const {
  check<IndexError>(k >= 0 && k < size(), dataset_->prefix(), ": sample ", k, " of ", size());
  const auto length = static_cast<size_t>(options_.seq_length);
  std::vector<int64_t> text = read_tokens(indices_.shuffle_index[k]);
  // A short last sample is filled up, and the label after the last token without extra token.
  const size_t real = text.size();
  text.resize(length + 1, options_.pad_id);
  const auto is_pad = [&](size_t i) {
    return i >= real || (options_.pad_id >= 0 && text[i] == options_.pad_id);
  };
  Sample sample;
  sample.tokens.assign(text.begin(), text.end() - 1);
  sample.labels.assign(text.begin() + 1, text.end());
  sample.loss_mask.assign(length, 1.0F);
  for (size_t i = 0; i < length; ++i) {
    if (is_pad(i + 1) || (options_.eod_mask_loss && text[i] == options_.eod_id)) {
      sample.loss_mask[i] = 0.0F;
    }
    sample.tokens[i] = is_pad(i) ? 0 : text[i];
    sample.labels[i] = is_pad(i + 1) ? 0 : text[i + 1];
  }
  if (options_.reset_position_ids) {
    sample.position_ids.resize(length);
  }
  if (options_.reset_attention_mask) {
    sample.document_starts.push_back(0);
  }
  int64_t position = 0;
  for (size_t i = 0; i < length && (options_.reset_position_ids || options_.reset_attention_mask);
       ++i) {
    if (options_.reset_position_ids) {
      sample.position_ids[i] = position++;
    }
    if (i < real && text[i] == options_.eod_id) {
      position = 0;
      if (options_.reset_attention_mask && i + 1 < length) {
        sample.document_starts.push_back(static_cast<int64_t>(i) + 1);
      }
    }
  }
  return sample;
}

DocumentPart GPTDataset::document_part(int64_t sequence, int64_t begin, int64_t end) const {
  const auto boundaries = dataset_->document_boundaries();
  // Of several with the same boundary all but the last one are empty.
  const auto after = std::upper_bound(boundaries.begin(), boundaries.end(), sequence);
  const int64_t document = after - boundaries.begin() - 1;
  const auto lengths = dataset_->sequence_lengths();
  int64_t first = begin + (sequence == range_.begin ? range_.skip : 0);
  for (int64_t s = boundaries[static_cast<size_t>(document)]; s < sequence; ++s) {
    first += lengths[static_cast<size_t>(s)];
  }
  return {document, first, end - begin};
}

RowOrigin GPTDataset::origin(int64_t k) const {
  check<IndexError>(k >= 0 && k < size(), dataset_->prefix(), ": sample ", k, " of ", size());
  RowOrigin origin{.dataset = dataset_->prefix()};
  each_piece(indices_.shuffle_index[k], [&](int64_t position, int64_t begin, int64_t end) {
    if (begin >= end) {
      return;
    }
    const int64_t sequence = indices_.document_index[static_cast<size_t>(position)];
    const DocumentPart part = document_part(sequence, begin, end);
    auto& parts = origin.documents;
    // The next sequence of the same document.
    if (!parts.empty() && parts.back().document == part.document &&
        parts.back().first + parts.back().count == part.first) {
      parts.back().count += part.count;
    } else {
      parts.push_back(part);
    }
  });
  return origin;
}

std::map<std::string, int64_t> GPTDataset::documents() const {
  return {{dataset_->prefix(), dataset_->num_documents()}};
}

std::vector<int64_t> GPTDataset::samples_with(const std::string& prefix, int64_t document) const {
  if (prefix != dataset_->prefix()) {
    return {};
  }
  check<IndexError>(document >= 0 && document < dataset_->num_documents(), prefix, ": document ",
                    document, " of ", dataset_->num_documents());
  const auto boundaries = dataset_->document_boundaries();
  const int64_t begin = boundaries[static_cast<size_t>(document)];
  const int64_t end = boundaries[static_cast<size_t>(document) + 1];
  std::vector<bool> holds(static_cast<size_t>(size()), false);  // in the order before shuffling
  int64_t entry = 0;
  const auto positions = static_cast<int64_t>(indices_.document_index.size());
  for (int64_t position = 0; position < positions; ++position) {
    const int64_t sequence = indices_.document_index[static_cast<size_t>(position)];
    if (sequence < begin || sequence >= end) {
      continue;
    }
    while (entry < size() && indices_.sample_documents[entry + 1] < position) {
      ++entry;
    }
    for (int64_t at = entry; at < size() && indices_.sample_documents[at] <= position; ++at) {
      each_piece(at, [&](int64_t piece, int64_t first, int64_t last) {
        if (piece == position && first < last) {
          holds[static_cast<size_t>(at)] = true;
        }
      });
    }
  }
  std::vector<int64_t> samples;
  for (int64_t k = 0; k < size(); ++k) {
    if (holds[static_cast<size_t>(indices_.shuffle_index[k])]) {
      samples.push_back(k);
    }
  }
  return samples;
}

}  // namespace tapestry::data
