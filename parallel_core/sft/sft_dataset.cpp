#include "parallel_core/sft/sft_dataset.h"

#include <algorithm>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry::sft {

std::vector<std::vector<int64_t>> lengths_of(const std::vector<ExampleRange>& ranges) {
  std::vector<std::vector<int64_t>> lengths;
  for (const ExampleRange& range : ranges) {
    std::vector<int64_t>& of_range = lengths.emplace_back();
    for (int64_t i = range.begin; i < range.end; ++i) {
      of_range.push_back(std::ssize(range.file->ids(i)));
    }
  }
  return lengths;
}

SftDataset::SftDataset(std::vector<ExampleRange> ranges,
                       std::shared_ptr<const RowOrder> order,
                       int64_t size,
                       int64_t seq_length,
                       int64_t pad_id)
    : ranges_(std::move(ranges)),
      order_(std::move(order)),
      size_(size),
      seq_length_(seq_length),
      pad_id_(pad_id) {
  int64_t end = 0;
  for (const ExampleRange& range : ranges_) {
    end += range.end - range.begin;
    ends_.push_back(end);
    for (int64_t i = range.begin; i < range.end; ++i) {
      tokens_per_epoch_ += std::ssize(range.file->ids(i));
    }
  }
  check<ValueError>(end == order_->num_examples(), "sft: ", end, " examples, but the order has ",
                    order_->num_examples());
  check<ValueError>(pad_id >= 0, "sft: rows are filled up with token ", pad_id,
                    ", expected at least 0");
}

SftDataset::Place SftDataset::place_of(int32_t number) const {
  const auto range =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), number) - ends_.begin());
  const ExampleRange& r = ranges_[range];
  return {r.file.get(), r.end - (ends_[range] - number)};
}

std::span<const int32_t> SftDataset::row(int64_t k) const {
  check<IndexError>(k >= 0 && k < size_, "sft: sample ", k, " of ", size_);
  return k < order_->num_rows() ? order_->row(k) : std::span<const int32_t>();
}

RowFill SftDataset::fill(int64_t k) const {
  RowFill fill;
  for (const int32_t number : order_->row(k)) {
    const auto [file, example] = place_of(number);
    fill.tokens += std::ssize(file->ids(example));
    fill.learned += file->learned(example, example + 1);
  }
  fill.tokens = std::min(fill.tokens, seq_length_);
  return fill;
}

data::Sample SftDataset::get(int64_t k) const {
  const auto length = static_cast<size_t>(seq_length_);
  data::Sample sample;
  sample.tokens.assign(length, pad_id_);
  sample.labels.assign(length, pad_id_);
  sample.loss_mask.assign(length, 0.0F);
  sample.position_ids.assign(length, 0);
  size_t at = 0;
  for (const int32_t number : row(k)) {
    const auto [file, example] = place_of(number);
    const std::span<const int32_t> ids = file->ids(example);
    sample.document_starts.push_back(static_cast<int64_t>(at));
    for (size_t t = 0; t < ids.size(); ++t, ++at) {
      if (at > 0) {
        sample.labels[at - 1] = ids[t];
        const bool learned = t > 0 && file->is_answer(example, static_cast<int64_t>(t));
        sample.loss_mask[at - 1] = learned ? 1.0F : 0.0F;
      }
      if (at < length) {  // the token behind the row's last one is a label alone
        sample.tokens[at] = ids[t];
        sample.position_ids[at] = static_cast<int64_t>(t);
      }
    }
  }
  if (at < length) {
    sample.document_starts.push_back(static_cast<int64_t>(at));
    for (size_t t = at; t < length; ++t) {
      sample.position_ids[t] = static_cast<int64_t>(t - at);
    }
  }
  return sample;
}

data::RowOrigin SftDataset::origin(int64_t k) const {
  data::RowOrigin origin;
  for (const int32_t number : row(k)) {
    const auto [file, example] = place_of(number);
    const std::string& path = file->file().path;
    if (origin.documents.empty()) {
      origin.dataset = path;
    }
    origin.documents.push_back({.document = file->line(example),
                                .first = 0,
                                .count = std::ssize(file->ids(example)),
                                .dataset = path == origin.dataset ? "" : path});
  }
  return origin;
}

std::map<std::string, int64_t> SftDataset::documents() const {
  std::map<std::string, int64_t> lines;
  for (const ExampleRange& range : ranges_) {
    lines.emplace(range.file->file().path, range.file->num_lines());
  }
  return lines;
}

std::vector<int64_t> SftDataset::samples_with(const std::string& prefix, int64_t document) const {
  const std::map<std::string, int64_t> lines = documents();
  const auto known = lines.find(prefix);
  if (known == lines.end()) {
    return {};
  }
  check<IndexError>(document >= 0 && document < known->second, prefix, ": line ", document, " of ",
                    known->second);
  std::vector<int64_t> samples;
  for (int64_t k = 0; k < size_; ++k) {
    const std::span<const int32_t> examples = row(k);
    const bool holds = std::any_of(examples.begin(), examples.end(), [&](int32_t number) {
      const auto [file, example] = place_of(number);
      return file->line(example) == document && file->file().path == prefix;
    });
    if (holds) {
      samples.push_back(k);
    }
  }
  return samples;
}

}  // namespace tapestry::sft
