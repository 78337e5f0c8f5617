#include "diagnosis/accuracy/checklist_data.h"

#include <algorithm>
#include <array>
#include <limits>

#include "autograd/tensor/error.h"
#include "parallel_core/data/blended_dataset.h"
#include "parallel_core/data/data_source.h"
#include "parallel_core/data/step_dataset.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/tokenizer_record.h"

namespace tapestry::accuracy {
namespace checklist_data_file {
namespace {

constexpr int64_t kSteps = 4;
constexpr int64_t kSamples = 4;
constexpr int64_t kMostTokens = 4'000'000;
constexpr int64_t kShifts = 3;
constexpr double kNearlyAll = 0.9;
constexpr size_t kShownTokens = 24;

// Counts for each shift the labels that it explains.
class ShiftCount {
 public:
  void add(const std::vector<int64_t>& tokens,
           const std::vector<int64_t>& labels,
           const std::vector<float>& mask,
           int64_t first,
           int64_t length) {
    for (int64_t t = 0; t + kShifts <= length; ++t) {
      const auto at = static_cast<size_t>(first + t);
      if (mask.empty() || mask[at] > 0) {
        ++compared_;
        for (size_t shift = 0; shift < explained_.size(); ++shift) {
          explained_[shift] += labels[at] == tokens[at + shift] ? 1 : 0;
        }
      }
    }
  }
  // The usual shift goes first, so that constant text has it.
  LabelShift result() const {
    LabelShift found{.compared = compared_};
    for (const int64_t shift : {int64_t{1}, int64_t{0}, int64_t{2}}) {
      if (compared_ > 0 && static_cast<double>(explained_[static_cast<size_t>(shift)]) >=
                               kNearlyAll * static_cast<double>(compared_)) {
        found.shift = shift;
        break;
      }
    }
    return found;
  }

 private:
  int64_t compared_ = 0;
  std::array<int64_t, kShifts> explained_{};
};

void take_ids(const std::vector<int64_t>& ids, DataLook& look) {
  for (const int64_t id : ids) {
    look.lowest_id = std::min(look.lowest_id, id);
    look.highest_id = std::max(look.highest_id, id);
  }
  look.tokens += static_cast<int64_t>(ids.size());
}

DataLook new_look(const std::string& source) {
  return {.source = source,
          .lowest_id = std::numeric_limits<int64_t>::max(),
          .highest_id = std::numeric_limits<int64_t>::min()};
}

// Ids and ends of documents, of sequences spread over the whole.
void look_at_prefix(const std::string& prefix, DataLook& look) {
  const data::IndexedDataset dataset(prefix);
  const int64_t sequences = dataset.num_sequences();
  const int64_t stride = std::max<int64_t>(1, dataset.num_tokens() / kMostTokens);
  for (int64_t i = 0; i < sequences && look.tokens < 2 * kMostTokens; i += stride) {
    const int64_t length =
        std::min<int64_t>(dataset.sequence_lengths()[static_cast<size_t>(i)], kMostTokens);
    std::vector<int64_t> ids;
    dataset.read(i, 0, length, ids);
    take_ids(ids, look);
    if (!ids.empty()) {
      std::vector<int64_t> last;
      dataset.read(i, dataset.sequence_lengths()[static_cast<size_t>(i)] - 1, 1, last);
      ++look.documents;
      look.documents_with_end += look.end_id && last[0] == *look.end_id ? 1 : 0;
    }
  }
}

std::optional<int64_t> known_id(int32_t id) {
  return id < 0 ? std::nullopt : std::optional<int64_t>(id);
}

std::unique_ptr<data::Tokenizer> recorded_tokenizer(const std::string& prefix, DataLook& look) {
  try {
    const auto record = data::read_tokenizer_record(prefix);
    return record ? data::make_tokenizer(record->tokenizer.type,
                                         data::recorded_model_path(prefix, *record))
                  : nullptr;
  } catch (const Error& error) {
    look.notes.emplace_back(error.what());
    return nullptr;
  }
}

// As training sees them.
void look_at_samples(const AllConfig& config, const data::Tokenizer* tokenizer, DataLook& look) {
  const DatasetConfig& d = config.dataset_config;
  data::GPTDatasetsConfig datasets;
  datasets.data_path = d.data_path.value_or(std::vector<std::string>());
  datasets.train_data_path = d.train_data_path.value_or(std::vector<std::string>());
  datasets.split = d.split;
  datasets.counts.train = kSamples;
  datasets.options.seq_length = config.model_config.seq_length;
  datasets.options.seed = config.training_config.seed;
  datasets.options.shuffle = d.shuffle.value_or(true);
  const data::GPTDatasets built = data::build_gpt_datasets(datasets);
  ShiftCount shifts;
  for (int64_t k = 0; built.train != nullptr && k < std::min(kSamples, built.train->size()); ++k) {
    const data::Sample sample = built.train->get(k);
    shifts.add(sample.tokens, sample.labels, sample.loss_mask, 0,
               static_cast<int64_t>(sample.tokens.size()));
    if (k == 0 && tokenizer != nullptr) {
      const size_t count = std::min(kShownTokens, sample.tokens.size());
      const std::vector<int32_t> ids(sample.tokens.begin(),
                                     sample.tokens.begin() + static_cast<ptrdiff_t>(count));
      look.begins = tokenizer->decode(ids);
    }
  }
  look.labels = shifts.result();
}

DataLook look_at_text(const AllConfig& config, const std::vector<std::string>& paths) {
  const std::vector<data::BlendEntry> entries = data::parse_data_path(paths);
  DataLook look = new_look(entries.front().prefix);
  const auto tokenizer = recorded_tokenizer(entries.front().prefix, look);
  if (tokenizer != nullptr) {
    look.end_id = known_id(tokenizer->eod_id());
    look.begin_id = known_id(tokenizer->bos_id());
    look.pad_id = known_id(tokenizer->pad_id());
  }
  const DatasetConfig& d = config.dataset_config;
  look.end_id = d.eos_token_id ? d.eos_token_id : look.end_id;
  look.pad_id = d.pad_token_id ? d.pad_token_id : look.pad_id;
  for (const data::BlendEntry& entry : entries) {
    look_at_prefix(entry.prefix, look);
  }
  try {
    look_at_samples(config, tokenizer.get(), look);
  } catch (const Error& error) {
    look.notes.emplace_back(error.what());
  }
  return look;
}

}  // namespace
}  // namespace checklist_data_file

std::string LabelShift::text() const {
  if (compared == 0) {
    return "no label counts";
  }
  return !shift        ? "labels are no shifted tokens"
         : *shift == 0 ? "by nothing: labels are the tokens themselves"
         : *shift == 1 ? "by one"
                       : "by two: labels were shifted twice";
}

DataLook look_at_steps(const std::string& folder) {
  using checklist_data_file::kSteps;
  data::StepDataSource source(folder, /*vocab_size=*/0);
  const int64_t rows = source.size_in_samples() / source.num_steps();
  DataLook look = checklist_data_file::new_look(folder);
  checklist_data_file::ShiftCount shifts;
  for (int64_t step = 0; step < std::min(kSteps, source.num_steps()); ++step) {
    const data::Batch batch =
        source.micro_batch({.step = step, .first_sample = step * rows}, 0, 1, rows, 0, 1);
    checklist_data_file::take_ids(batch.tokens, look);
    for (int64_t row = 0; row < batch.batch; ++row) {
      shifts.add(batch.tokens, batch.labels, batch.loss_mask, row * batch.seq, batch.seq);
    }
  }
  look.labels = shifts.result();
  return look;
}

std::optional<DataLook> look_at_data(const AllConfig& config, std::string& missing) {
  const DatasetConfig& d = config.dataset_config;
  try {
    if (d.step_data_dir) {
      DataLook look = look_at_steps(*d.step_data_dir);
      look.end_id = d.eos_token_id;
      look.pad_id = d.pad_token_id;
      return look;
    }
    const auto& paths = d.data_path ? d.data_path : d.train_data_path;
    if (paths) {
      return checklist_data_file::look_at_text(config, *paths);
    }
    missing = "dataset_config names no prepared data";
  } catch (const Error& error) {
    missing = error.what();
  }
  return std::nullopt;
}

}  // namespace tapestry::accuracy
