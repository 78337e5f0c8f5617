#include "parallel_core/data/step_dataset.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/npy.h"
#include "autograd/tensor/error.h"
#include "text/util/checksum.h"
#include "text/util/file.h"

namespace tapestry::data {
namespace {

namespace fs = std::filesystem;

// The sub-folders PREFIX<number> by number. Other names are passed over, unless they look like a
// mistake: PREFIX followed by something else.
std::map<int64_t, std::string> numbered_folders(const std::string& directory,
                                                const std::string& prefix) {
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  check<IoError>(!error, directory, ": the folder cannot be read: ", error.message());
  std::map<int64_t, std::string> folders;
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix)) {
      continue;
    }
    int64_t number = 0;
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + prefix.size(), end, number);
    check<IoError>(parsed.ec == std::errc{} && parsed.ptr == end && number >= 0, directory, ": \"",
                   name, "\" is not ", prefix, "N with a number N");
    check<IoError>(entry.is_directory(error), directory, ": \"", name, "\" is not a folder");
    const bool added = folders.emplace(number, entry.path().string()).second;
    check<IoError>(added, directory, ": ", prefix, number, " is there twice, as \"",
                   fs::path(folders[number]).filename().string(), "\" and \"", name, "\"");
  }
  return folders;
}

void check_no_gap(const std::map<int64_t, std::string>& folders,
                  const std::string& directory,
                  const std::string& prefix) {
  int64_t expected = folders.begin()->first;
  for (const auto& [number, path] : folders) {
    check<IoError>(number == expected, directory, ": ", prefix, expected, " is missing, but ",
                   prefix, number, " is there");
    ++expected;
  }
}

template <class From, class To>
std::vector<To> convert(const NpyArray& array) {
  std::vector<To> values(static_cast<size_t>(array.shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    From value;
    std::memcpy(&value, array.bytes.data() + i * sizeof(From), sizeof(From));
    values[i] = static_cast<To>(value);
  }
  return values;
}

std::vector<int64_t> read_ids(const std::string& path, Shape& shape) {
  const NpyArray array = read_npy(path);
  check<ValueError>(is_integral(array.dtype), path, ": holds ", name_of(array.dtype),
                    ", expected integers");
  check<ValueError>(array.shape.size() == 2, path, ": has shape ", array.shape,
                    ", expected [rows, seq]");
  shape = array.shape;
  switch (array.dtype) {
    case DType::kInt8:
      return convert<int8_t, int64_t>(array);
    case DType::kUInt8:
      return convert<uint8_t, int64_t>(array);
    case DType::kInt32:
      return convert<int32_t, int64_t>(array);
    default:
      return convert<int64_t, int64_t>(array);
  }
}

std::vector<float> read_mask(const std::string& path, Shape& shape) {
  const NpyArray array = read_npy(path);
  shape = array.shape;
  switch (array.dtype) {
    case DType::kFloat32:
      return convert<float, float>(array);
    case DType::kFloat64:
      return convert<double, float>(array);
    case DType::kFloat16:
      return convert<Float16, float>(array);
    case DType::kBool:
      return convert<uint8_t, float>(array);
    case DType::kInt8:
      return convert<int8_t, float>(array);
    case DType::kUInt8:
      return convert<uint8_t, float>(array);
    case DType::kInt32:
      return convert<int32_t, float>(array);
    case DType::kInt64:
      return convert<int64_t, float>(array);
    default:
      throw ValueError(
          concat(path, ": holds ", name_of(array.dtype), ", expected a mask of float32"));
  }
}

void check_ids(const std::string& path,
               const std::vector<int64_t>& ids,
               int64_t seq,
               int64_t vocab_size) {
  for (size_t i = 0; vocab_size > 0 && i < ids.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    check<ValueError>(ids[i] >= 0 && ids[i] < vocab_size, path, ": row ", at / seq, ", position ",
                      at % seq, ": id ", ids[i], " is outside the vocabulary of ", vocab_size);
  }
}

// Which keys are hidden, [rows, S, S]; nothing if that is the causal mask in every row.
std::vector<uint8_t> read_attention_mask(const std::string& path, int64_t rows, int64_t seq) {
  Shape shape;
  const std::vector<float> mask = read_mask(path, shape);
  const bool shared = shape == Shape{seq, seq};
  check<ValueError>(shared || shape == Shape{rows, seq, seq} || shape == Shape{rows, 1, seq, seq},
                    path, ": has shape ", shape, ", expected [", seq, ", ", seq, "], [", rows, ", ",
                    seq, ", ", seq, "] or [", rows, ", 1, ", seq, ", ", seq, "]");
  const auto square = static_cast<size_t>(seq * seq);
  std::vector<uint8_t> hidden(static_cast<size_t>(rows) * square);
  bool causal = true;
  for (size_t i = 0; i < hidden.size(); ++i) {
    hidden[i] = mask[shared ? i % square : i] != 0 ? 1 : 0;
    const auto query = static_cast<int64_t>(i % square) / seq;
    const auto key = static_cast<int64_t>(i % square) % seq;
    causal = causal && (hidden[i] != 0) == (key > query);
  }
  if (causal) {
    hidden.clear();
  }
  return hidden;
}

Batch read_rank(const std::string& folder, int64_t vocab_size) {
  Shape shape;
  Shape label_shape;
  Shape mask_shape;
  const std::string tokens_path = folder + "/tokens.npy";
  const std::string labels_path = folder + "/labels.npy";
  const std::string mask_path = folder + "/loss_mask.npy";
  Batch batch;
  batch.tokens = read_ids(tokens_path, shape);
  batch.labels = read_ids(labels_path, label_shape);
  if (fs::exists(mask_path)) {
    batch.loss_mask = read_mask(mask_path, mask_shape);
  } else {
    mask_shape = label_shape;
    for (const int64_t label : batch.labels) {
      batch.loss_mask.push_back(label < 0 ? 0.0F : 1.0F);
    }
  }
  check<ValueError>(shape.numel() > 0, tokens_path, ": has shape ", shape,
                    ", expected at least one row of one token");
  check<ValueError>(label_shape == shape, labels_path, ": has shape ", label_shape,
                    ", but tokens.npy has ", shape);
  check<ValueError>(mask_shape == shape, mask_path, ": has shape ", mask_shape,
                    ", but tokens.npy has ", shape);
  batch.batch = shape[0];
  batch.seq = shape[1];
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    check<ValueError>(
        batch.loss_mask[i] >= 0 && batch.loss_mask[i] < std::numeric_limits<float>::infinity(),
        mask_path, ": value ", i, " is ", batch.loss_mask[i],
        ", expected a finite number of at least 0");
    if (batch.labels[i] < 0 && batch.loss_mask[i] == 0) {
      batch.labels[i] = 0;
    }
  }
  check_ids(tokens_path, batch.tokens, batch.seq, vocab_size);
  check_ids(labels_path, batch.labels, batch.seq, vocab_size);
  const std::string attention_path = folder + "/attention_mask.npy";
  if (fs::exists(attention_path)) {
    batch.attention_mask = read_attention_mask(attention_path, batch.batch, batch.seq);
  }
  return batch;
}

std::vector<uint8_t> causal_masks(int64_t rows, int64_t seq) {
  std::vector<uint8_t> hidden;
  hidden.reserve(static_cast<size_t>(rows * seq * seq));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t query = 0; query < seq; ++query) {
      for (int64_t key = 0; key < seq; ++key) {
        hidden.push_back(key > query ? 1 : 0);
      }
    }
  }
  return hidden;
}

// The rows of a step up to those of a rank.
struct RankEnd {
  std::string file;
  int64_t end = 0;
};

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <class T>
std::vector<T> part(const std::vector<T>& values, int64_t first, int64_t count, int64_t width) {
  if (values.empty()) {
    return {};
  }
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first * width);
  return {begin, begin + static_cast<std::ptrdiff_t>(count * width)};
}

// Rows [first, first + count) of rows whose first one is sample `sample`.
Batch micro_batch_of(const Batch& all, int64_t sample, int64_t first, int64_t count) {
  Batch batch;
  batch.batch = count;
  batch.seq = all.seq;
  batch.tokens = part(all.tokens, first, count, all.seq);
  batch.labels = part(all.labels, first, count, all.seq);
  batch.loss_mask = part(all.loss_mask, first, count, all.seq);
  batch.attention_mask = part(all.attention_mask, first, count, all.seq * all.seq);
  for (int64_t row = first; row < first + count; ++row) {
    batch.sample_ids.push_back(sample + row);
  }
  batch.origin = [of_step = all.origin, first, rows = count](int64_t row) {
    internal::check_row(row, rows);
    return of_step(first + row);
  };
  return batch;
}

}  // namespace

StepDataSource::StepDataSource(std::string directory, int64_t vocab_size)
    : StepDataSource(std::move(directory), vocab_size, ModelRanks()) {}

StepDataSource::StepDataSource(std::string directory, int64_t vocab_size, ModelRanks ranks)
    : directory_(std::move(directory)), vocab_size_(vocab_size), model_ranks_(ranks) {
  const auto folders = numbered_folders(directory_, "step_");
  check<IoError>(!folders.empty(), directory_,
                 ": has no folders step_N, expected step_1/rank_0/tokens.npy and so on");
  check<IoError>(folders.begin()->first <= 1, directory_, ": begins with step_",
                 folders.begin()->first, ", expected step_0 or step_1");
  check_no_gap(folders, directory_, "step_");
  for (const auto& [number, path] : folders) {
    const auto ranks = numbered_folders(path, "rank_");
    check<IoError>(!ranks.empty() && ranks.begin()->first == 0, path, ": rank_0 is missing");
    check_no_gap(ranks, path, "rank_");
    for (const auto& [rank, rank_path] : ranks) {
      for (const char* name : {"tokens.npy", "labels.npy"}) {
        check<IoError>(fs::exists(fs::path(rank_path) / name), rank_path, ": ", name,
                       " is missing");
      }
    }
    steps_.push_back({path, static_cast<int64_t>(ranks.size())});
  }
}

std::shared_ptr<const Batch> StepDataSource::load_step(int64_t step) const {
  check<IndexError>(step >= 0 && step < num_steps(), directory_, ": step ", step + 1,
                    " is asked for, but there are ", num_steps(),
                    " step folders; train for fewer steps or record more");
  const std::lock_guard<std::mutex> lock(mutex_);
  if (loaded_step_ == step) {
    return loaded_;
  }
  const StepFolder& folder = steps_[static_cast<size_t>(step)];
  const auto ranks = numbered_folders(folder.path, "rank_");
  auto all = std::make_shared<Batch>();
  auto ends = std::make_shared<std::vector<RankEnd>>();
  for (const auto& [rank, path] : ranks) {
    Batch rows = read_rank(path, vocab_size_);
    check<ValueError>(rank == 0 || rows.seq == all->seq, path, ": has rows of ", rows.seq,
                      " tokens, but rank_0 has ", all->seq);
    all->seq = rows.seq;
    // Once one rank has a mask of its own, all rows need one.
    if (!rows.attention_mask.empty() && all->attention_mask.empty()) {
      all->attention_mask = causal_masks(all->batch, rows.seq);
    } else if (rows.attention_mask.empty() && !all->attention_mask.empty()) {
      rows.attention_mask = causal_masks(rows.batch, rows.seq);
    }
    all->batch += rows.batch;
    ends->push_back({path + "/tokens.npy", all->batch});
    append(all->tokens, rows.tokens);
    append(all->labels, rows.labels);
    append(all->loss_mask, rows.loss_mask);
    append(all->attention_mask, rows.attention_mask);
  }
  check<ValueError>(std::any_of(all->loss_mask.begin(), all->loss_mask.end(),
                                [](float weight) { return weight != 0; }),
                    folder.path,
                    ": no label counts (the loss mask is 0 everywhere), so there is "
                    "nothing to learn from this step");
  all->origin = [directory = directory_, ends](int64_t row) {
    internal::check_row(row, ends->back().end);
    const auto rank = std::find_if(ends->begin(), ends->end(),
                                   [row](const RankEnd& each) { return row < each.end; });
    const int64_t begin = rank == ends->begin() ? 0 : std::prev(rank)->end;
    return RowOrigin{.dataset = directory, .recorded = RecordedRow{rank->file, row - begin}};
  };
  loaded_ = std::move(all);
  loaded_step_ = step;
  return loaded_;
}

Batch StepDataSource::rows_of_model(int64_t step,
                                    const Batch& all,
                                    int64_t dp_rank,
                                    int64_t dp_size) const {
  const StepFolder& folder = steps_[static_cast<size_t>(step)];
  const int64_t rows = all.batch / folder.ranks;
  const auto rank_of = [&](int64_t stage, int64_t neighbour) {
    return (stage * dp_size + dp_rank) * model_ranks_.neighbours + neighbour;
  };
  const auto cut = [&](int64_t rank) {
    Batch batch;
    batch.batch = rows;
    batch.seq = all.seq;
    batch.tokens = part(all.tokens, rank * rows, rows, all.seq);
    batch.labels = part(all.labels, rank * rows, rows, all.seq);
    batch.loss_mask = part(all.loss_mask, rank * rows, rows, all.seq);
    batch.attention_mask = part(all.attention_mask, rank * rows, rows, all.seq * all.seq);
    return batch;
  };
  const int64_t first = rank_of(0, 0);
  Batch batch = cut(first);
  for (int64_t stage = 0; stage < model_ranks_.stages; ++stage) {
    for (int64_t neighbour = 0; neighbour < model_ranks_.neighbours; ++neighbour) {
      const int64_t rank = rank_of(stage, neighbour);
      const Batch other = cut(rank);
      check<ValueError>(other.tokens == batch.tokens && other.labels == batch.labels &&
                            other.loss_mask == batch.loss_mask &&
                            other.attention_mask == batch.attention_mask,
                        folder.path, ": rank_", rank, " has other rows than rank_", first,
                        ", but by the layout both belong to one model; expected the same rows, or "
                        "folders of the ",
                        dp_size, " data-parallel ranks alone");
    }
  }
  batch.origin = [of_step = all.origin, begin = first * rows](int64_t row) {
    return of_step(begin + row);
  };
  return batch;
}

Batch StepDataSource::micro_batch(BatchPosition position,
                                  int64_t micro_index,
                                  int64_t micro_batch_num,
                                  int64_t micro_batch_size,
                                  int64_t dp_rank,
                                  int64_t dp_size) {
  internal::check_layout(position, micro_index, micro_batch_num, micro_batch_size, dp_rank,
                         dp_size);
  const std::shared_ptr<const Batch> all = load_step(position.step);
  const int64_t wanted = micro_batch_num * micro_batch_size * dp_size;
  const int64_t of_model = model_ranks_.neighbours * model_ranks_.stages;
  if (of_model > 1 && all->batch == wanted * of_model &&
      steps_[static_cast<size_t>(position.step)].ranks == dp_size * of_model) {
    const auto own =
        std::make_shared<const Batch>(rows_of_model(position.step, *all, dp_rank, dp_size));
    return micro_batch_of(*own, position.first_sample + dp_rank * own->batch,
                          micro_index * micro_batch_size, micro_batch_size);
  }
  check<ValueError>(all->batch == wanted, steps_[static_cast<size_t>(position.step)].path, ": has ",
                    all->batch, " rows, but the run needs ", wanted, " = ", micro_batch_num,
                    " micro-batches x ", micro_batch_size, " rows x ", dp_size,
                    " data-parallel ranks");
  return micro_batch_of(*all, position.first_sample,
                        (dp_rank * micro_batch_num + micro_index) * micro_batch_size,
                        micro_batch_size);
}

int64_t StepDataSource::seq_length() const { return load_step(0)->seq; }

int64_t StepDataSource::size_in_samples() const { return load_step(0)->batch * num_steps(); }

int64_t StepDataSource::epoch(int64_t /*first_sample*/) const { return 0; }

std::string StepDataSource::fingerprint(int64_t steps) const {
  check<IndexError>(steps >= 1 && steps <= num_steps(), directory_, ": ", steps, " of ",
                    num_steps(), " step folders");
  std::string facts;
  for (const StepFolder& step : std::span(steps_).first(static_cast<size_t>(steps))) {
    for (const auto& [rank, path] : numbered_folders(step.path, "rank_")) {
      for (const char* name : {"tokens.npy", "labels.npy", "loss_mask.npy", "attention_mask.npy"}) {
        std::error_code error;  // only the last one may be missing
        const uintmax_t bytes = fs::file_size(fs::path(path) / name, error);
        facts += concat(rank, " ", error ? 0 : bytes, " ");
      }
    }
    facts += "\n";
  }
  const std::shared_ptr<const Batch> first = load_step(0);
  for (const std::vector<int64_t>* ids : {&first->tokens, &first->labels}) {
    facts.append(reinterpret_cast<const char*>(ids->data()), ids->size() * sizeof(int64_t));
  }
  return crc64(facts);
}

void write_step(const std::string& directory, int64_t step, int64_t rank, const StepRows& rows) {
  const std::string folder = concat(directory, "/step_", step);
  const std::string path = concat(folder, "/rank_", rank);
  check<ValueError>(step >= 0 && rank >= 0 && rows.rows >= 1 && rows.seq >= 1, path,
                    ": step, rank, rows and seq must not be negative, nor the last two 0");
  const auto count = static_cast<size_t>(rows.rows * rows.seq);
  check<ValueError>(
      rows.tokens.size() == count && rows.labels.size() == count && rows.loss_mask.size() == count,
      path, ": ", rows.tokens.size(), " tokens, ", rows.labels.size(), " labels and ",
      rows.loss_mask.size(), " mask values, expected ", rows.rows, " x ", rows.seq);
  const auto narrow = [&](const std::vector<int64_t>& ids) {
    std::vector<int32_t> narrowed;
    narrowed.reserve(ids.size());
    for (const int64_t id : ids) {
      check<ValueError>(std::in_range<int32_t>(id), path, ": id ", id, " does not fit int32");
      narrowed.push_back(static_cast<int32_t>(id));
    }
    return narrowed;
  };
  const std::vector<int32_t> tokens = narrow(rows.tokens);
  const std::vector<int32_t> labels = narrow(rows.labels);
  check<IoError>(!fs::exists(path), path, ": exists already; remove it or choose another folder");
  // Beside the ranks, under a name that the reader passes over.
  const std::string temporary = concat(folder, "/.rank_", rank, ".tmp-", ::getpid());
  make_directories(temporary);
  const Shape shape{rows.rows, rows.seq};
  try {
    write_npy(temporary + "/tokens.npy", kInt32, shape, tokens.data());
    write_npy(temporary + "/labels.npy", kInt32, shape, labels.data());
    write_npy(temporary + "/loss_mask.npy", kFloat32, shape, rows.loss_mask.data());
    std::error_code error;
    fs::rename(temporary, path, error);
    check<IoError>(!error, path, ": cannot be written: ", error.message());
    sync_directory(folder);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
}

}  // namespace tapestry::data
