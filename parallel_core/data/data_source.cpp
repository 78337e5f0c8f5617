#include "parallel_core/data/data_source.h"

#include <algorithm>
#include <map>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/data/blended_dataset.h"
#include "parallel_core/data/segmented_dataset.h"

namespace tapestry::data {
namespace {

constexpr const char* kSplitNames[] = {"train", "valid", "test"};

// Opens each prefix once, however many parts and blends use it.
class DatasetCache {
 public:
  const std::shared_ptr<const IndexedDataset>& open(const std::string& prefix) {
    auto& dataset = datasets_[prefix];
    if (!dataset) {
      dataset = std::make_shared<const IndexedDataset>(prefix);
    }
    return dataset;
  }
  // The dataset's division, with a remark if it is one by tokens.
  const DatasetSplit& split(const std::string& prefix,
                            const std::string& split,
                            int64_t sample_tokens) {
    const auto known = splits_.find(prefix);
    if (known != splits_.end()) {
      return known->second;
    }
    const IndexedDataset& dataset = *open(prefix);
    const auto lengths = dataset.sequence_lengths();
    const DatasetSplit made = split_dataset(split, lengths, sample_tokens);
    if (made.by_tokens) {
      std::string text = concat(prefix, ": ", dataset.num_sequences(),
                                dataset.num_sequences() == 1 ? " document is" : " documents are",
                                " too few for split ", split, ", so it cuts tokens:");
      for (size_t part = 0; part < made.parts.size(); ++part) {
        text += concat(part > 0 ? ", " : " ", kSplitNames[part], " ",
                       made.parts[part] ? count_tokens(lengths, *made.parts[part]) : 0);
      }
      remarks_.push_back(text);
    }
    return splits_.emplace(prefix, made).first->second;
  }
  std::vector<std::string>& remarks() { return remarks_; }

 private:
  std::map<std::string, std::shared_ptr<const IndexedDataset>> datasets_;
  std::map<std::string, DatasetSplit> splits_;
  std::vector<std::string> remarks_;
};

int64_t sample_tokens(const GPTDatasetOptions& options) {
  return options.seq_length + (options.add_extra_token ? 1 : 0);
}

std::shared_ptr<const TokenDataset> open_part(DatasetCache& cache,
                                              const std::string& prefix,
                                              const std::string* split,
                                              size_t part,
                                              std::optional<int64_t> num_samples,
                                              const GPTDatasetOptions& options) {
  const auto& dataset = cache.open(prefix);
  SequenceRange range{.begin = 0, .end = dataset->num_sequences()};
  if (split != nullptr) {
    const int64_t needed = sample_tokens(options);
    range = *cache.split(prefix, *split, needed).parts[part];
    const int64_t tokens = count_tokens(dataset->sequence_lengths(), range);
    if (tokens < needed) {
      throw ValueError(
          concat(prefix, ": the ", kSplitNames[part], " part has ", tokens, " of its ",
                 dataset->num_tokens(), " tokens with split \"", *split, "\", one sample needs ",
                 needed, "; ", split_advice(*split, dataset->sequence_lengths(), needed),
                 part == 1 ? ", or no evaluation: training_config.eval_interval null" : ""));
    }
  }
  return std::make_shared<GPTDataset>(dataset, range, num_samples, options);
}

// The samples of one dataset for all numbers of a plan, each not below the one before. Every build
// but the first has what those before it lack.
std::shared_ptr<const TokenDataset> open_planned(DatasetCache& cache,
                                                 const std::string& prefix,
                                                 const std::string* split,
                                                 size_t part,
                                                 std::span<const int64_t> plan,
                                                 const GPTDatasetOptions& options) {
  if (!options.shuffle) {
    plan =
        plan.last(1);  // epoch follows epoch: the order of any number begins that of a larger one
  }
  std::vector<std::shared_ptr<const TokenDataset>> builds;
  int64_t size = 0;
  for (const int64_t wanted : plan) {
    if (!builds.empty() && wanted <= size) {
      continue;
    }
    constexpr int64_t kSeeds = int64_t{1} << 32;
    GPTDatasetOptions own = options;
    own.seed = builds.empty() ? options.seed
                              : (options.seed + static_cast<int64_t>(builds.size())) % kSeeds;
    builds.push_back(open_part(cache, prefix, split, part, wanted - size, own));
    size += builds.back()->size();
  }
  return builds.size() == 1 ? builds.front()
                            : std::make_shared<SegmentedDataset>(std::move(builds));
}

// Whether every dataset of a part that nobody has to have holds a sample.
bool has_samples(DatasetCache& cache,
                 const std::vector<BlendEntry>& entries,
                 const std::string& split,
                 size_t part,
                 const GPTDatasetOptions& options) {
  return std::all_of(entries.begin(), entries.end(), [&](const BlendEntry& entry) {
    const int64_t needed = sample_tokens(options);
    const auto& range = cache.split(entry.prefix, split, needed).parts[part];
    return range && count_tokens(cache.open(entry.prefix)->sequence_lengths(), *range) >= needed;
  });
}

// The numbers of `plan` may grow: what is furthest behind its weight does not depend on how many
// samples are drawn, so the shorter blend begins the longer one.
std::shared_ptr<const TokenDataset> open_blend(DatasetCache& cache,
                                               const std::vector<BlendEntry>& entries,
                                               const std::string* split,
                                               size_t part,
                                               std::span<const int64_t> plan,
                                               const GPTDatasetsConfig& config) {
  const bool weighted = entries.front().weight.has_value();
  // One bare prefix is no blend; nor is a single one with its own part of the configuration.
  if (entries.size() == 1 && (!weighted || split == nullptr)) {
    return open_planned(cache, entries.front().prefix, split, part, plan, config.options);
  }
  const int64_t num_samples = plan.back();
  std::vector<std::shared_ptr<const TokenDataset>> datasets;
  if (!weighted) {
    std::vector<double> sizes;
    int64_t total = 0;
    for (const BlendEntry& entry : entries) {
      datasets.push_back(open_part(cache, entry.prefix, split, part, /*num_samples=*/std::nullopt,
                                   config.options));
      sizes.push_back(static_cast<double>(datasets.back()->size()));
      total += datasets.back()->size();
    }
    return std::make_shared<BlendedDataset>(
        std::move(datasets), build_blend_indices(sizes, std::min(num_samples, total)));
  }
  std::vector<double> weights;
  weights.reserve(entries.size());
  for (const BlendEntry& entry : entries) {
    weights.push_back(*entry.weight);
  }
  std::vector<std::vector<int64_t>> built(entries.size());  // for each number of the plan
  for (const int64_t count : plan) {
    const std::vector<int64_t> sizes = blend_dataset_sizes(weights, count, config.blend_surplus);
    for (size_t i = 0; i < entries.size(); ++i) {
      built[i].push_back(sizes[i]);
    }
  }
  const std::vector<int64_t> wanted = blend_dataset_sizes(weights, num_samples, 0.0);
  int64_t size = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    datasets.push_back(
        open_planned(cache, entries[i].prefix, split, part, built[i], config.options));
    size += wanted[i];
  }
  // The original normalises here once more, which can change the last bit.
  return std::make_shared<BlendedDataset>(std::move(datasets),
                                          build_blend_indices(normalize_weights(weights), size));
}

// The list with `count` at its end, unless a number in it is as large.
void extend(std::vector<int64_t>& plan, int64_t count) {
  if (count > 0 && (plan.empty() || count > plan.back())) {
    plan.push_back(count);
  }
}

}  // namespace

namespace internal {

void check_layout(BatchPosition position,
                  int64_t micro_index,
                  int64_t micro_batch_num,
                  int64_t micro_batch_size,
                  int64_t dp_rank,
                  int64_t dp_size) {
  check<ValueError>(position.step >= 0 && position.first_sample >= 0, "micro_batch: step ",
                    position.step, " at sample ", position.first_sample,
                    ", expected at least 0 of both");
  check<ValueError>(micro_batch_num >= 1 && micro_index >= 0 && micro_index < micro_batch_num,
                    "micro_batch: micro-batch ", micro_index, " of ", micro_batch_num);
  check<ValueError>(micro_batch_size >= 1, "micro_batch: micro-batch size ", micro_batch_size,
                    ", expected at least 1");
  check<ValueError>(dp_size >= 1 && dp_rank >= 0 && dp_rank < dp_size,
                    "micro_batch: data-parallel rank ", dp_rank, " of ", dp_size);
}

void check_row(int64_t row, int64_t rows) {
  check<IndexError>(row >= 0 && row < rows, "batch: row ", row, " of ", rows);
}

}  // namespace internal

int64_t batches_until_epoch(const DataSource& source,
                            int64_t first_sample,
                            int64_t batch,
                            int64_t epochs) {
  int64_t low = 0;
  int64_t high =
      std::max<int64_t>(0, (source.size_in_samples() - first_sample + batch - 1) / batch);
  while (low < high) {  // epoch() never falls
    const int64_t middle = low + (high - low) / 2;
    const bool over = source.epoch(first_sample + middle * batch) >= epochs;
    (over ? high : low) = over ? middle : middle + 1;
  }
  return low;
}

TokenDataSource::TokenDataSource(std::shared_ptr<const TokenDataset> dataset)
    : dataset_(std::move(dataset)) {
  check<ValueError>(dataset_ != nullptr,
                    "data: there is no such dataset; its share of `split` is 0, or no samples of "
                    "it were asked for");
}

Batch TokenDataSource::micro_batch(BatchPosition position,
                                   int64_t micro_index,
                                   int64_t micro_batch_num,
                                   int64_t micro_batch_size,
                                   int64_t dp_rank,
                                   int64_t dp_size) {
  internal::check_layout(position, micro_index, micro_batch_num, micro_batch_size, dp_rank,
                         dp_size);
  const int64_t first =
      position.first_sample + micro_index * micro_batch_size * dp_size + dp_rank * micro_batch_size;
  check<IndexError>(first + micro_batch_size <= size_in_samples(), "data: step ", position.step + 1,
                    " needs samples ", first, " .. ", first + micro_batch_size - 1,
                    ", but the dataset has ", size_in_samples(),
                    "; use more text, give each prefix a weight so that it is repeated, or train "
                    "for fewer steps");
  Batch batch;
  batch.batch = micro_batch_size;
  batch.seq = seq_length();
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (int64_t k = first; k < first + micro_batch_size; ++k) {
    Sample sample = dataset_->get(k);
    append(batch.tokens, sample.tokens);
    append(batch.labels, sample.labels);
    append(batch.loss_mask, sample.loss_mask);
    append(batch.position_ids, sample.position_ids);
    if (!sample.document_starts.empty()) {
      batch.document_starts.push_back(std::move(sample.document_starts));
    }
    batch.sample_ids.push_back(k);
  }
  batch.origin = [dataset = dataset_, first, rows = micro_batch_size](int64_t row) {
    internal::check_row(row, rows);
    return dataset->origin(first + row);
  };
  return batch;
}

SampleCounts sample_counts(int64_t train_iters,
                           int64_t eval_interval,
                           int64_t eval_iters,
                           int64_t global_batch_size) {
  check<ValueError>(
      train_iters >= 0 && eval_interval >= 0 && eval_iters >= 0 && global_batch_size >= 1,
      "sample_counts: train_iters ", train_iters, ", eval_interval ", eval_interval,
      ", eval_iters ", eval_iters, ", global batch ", global_batch_size, ": none may be negative");
  SampleCounts counts;
  counts.train = train_iters * global_batch_size;
  if (eval_interval > 0) {
    counts.valid = (train_iters / eval_interval + 1) * eval_iters * global_batch_size;
  }
  counts.test = eval_iters * global_batch_size;
  return counts;
}

SamplePlan extend_plan(SamplePlan plan, const SampleCounts& counts) {
  extend(plan.train, counts.train);
  extend(plan.valid, counts.valid);
  extend(plan.test, counts.test);
  return plan;
}

GPTDatasets build_gpt_datasets(const GPTDatasetsConfig& config) {
  const std::vector<std::string>* own[] = {&config.train_data_path, &config.valid_data_path,
                                           &config.test_data_path};
  const bool separate =
      std::any_of(std::begin(own), std::end(own), [](const auto* path) { return !path->empty(); });
  check<ValueError>(!separate || config.data_path.empty(),
                    "data_path and the data paths of single parts exclude each other");
  check<ValueError>(separate || !config.data_path.empty(),
                    "data_path: is empty, expected a prefix or weights and prefixes");
  const int64_t counts[] = {config.counts.train, config.counts.valid, config.counts.test};
  const SamplePlan plan = extend_plan(config.earlier, config.counts);
  const std::vector<int64_t>* plans[] = {&plan.train, &plan.valid, &plan.test};
  std::shared_ptr<const TokenDataset> parts[3];
  const Split shares = separate ? Split{} : split_sequences(config.split, 1);
  DatasetCache cache;
  for (size_t part = 0; part < 3; ++part) {
    const bool exists = separate ? !own[part]->empty() : shares[part].has_value();
    if (!exists || counts[part] == 0) {
      continue;
    }
    const auto entries = parse_data_path(separate ? *own[part] : config.data_path);
    constexpr size_t kTest = 2;
    if (part == kTest && !separate &&
        !has_samples(cache, entries, config.split, part, config.options)) {
      continue;
    }
    parts[part] =
        open_blend(cache, entries, separate ? nullptr : &config.split, part, *plans[part], config);
  }
  return {parts[0], parts[1], parts[2], std::move(cache.remarks())};
}

}  // namespace tapestry::data
