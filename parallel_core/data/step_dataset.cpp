#include "parallel_core/data/step_dataset.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <map>
#include <span>
#include <system_error>
#include <utility>

#include "autograd/io/atomic_file.h"
#include "autograd/io/npy.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/batch_rows.h"
#include "parallel_core/data/recorded_rank.h"
#include "text/sources/text_files.h"
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

// The rows of a step up to those of a rank.
struct RankEnd {
  std::string file;
  int64_t end = 0;
};

// Rows [first, first + count) of rows whose first one is sample `sample`.
Batch micro_batch_of(const Batch& all, int64_t sample, int64_t first, int64_t count) {
  Batch batch = part_of(all, first, count);
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
    : directory_(std::move(directory)), options_{.vocab_size = vocab_size, .ranks = ranks} {
  const auto folders = numbered_folders(directory_, "step_");
  if (folders.empty()) {
    const auto there = foreign_data(directory_, /*texts=*/true);
    throw IoError(concat(directory_,
                         ": has no folders step_N, expected step_1/rank_0/tokens.npy and so on",
                         there ? concat("; ", there->name, " ", there->remedy) : std::string()));
  }
  check<IoError>(folders.begin()->first <= 1, directory_, ": begins with step_",
                 folders.begin()->first, ", expected step_0 or step_1");
  check_no_gap(folders, directory_, "step_");
  for (const auto& [number, path] : folders) {
    const auto ranks_of_step = numbered_folders(path, "rank_");
    check<IoError>(!ranks_of_step.empty() && ranks_of_step.begin()->first == 0, path,
                   ": rank_0 is missing");
    check_no_gap(ranks_of_step, path, "rank_");
    for (const auto& [rank, rank_path] : ranks_of_step) {
      for (const char* name : {"tokens.npy", "labels.npy"}) {
        check<IoError>(fs::exists(fs::path(rank_path) / name), rank_path, ": ", name,
                       " is missing");
      }
    }
    steps_.push_back({path, static_cast<int64_t>(ranks_of_step.size())});
  }
}

StepDataSource::StepDataSource(std::string directory, const Options& options)
    : StepDataSource(std::move(directory), options.vocab_size, options.ranks) {
  options_ = options;
  int64_t rows = 0;
  for (StepFolder& step : steps_) {
    for (const auto& [rank, path] : numbered_folders(step.path, "rank_")) {
      step.rows += recorded_rows(path);
    }
    rows += step.rows;
    ends_.push_back(rows);
  }
  copies_ = options.as_samples ? copies_by_content()
            : options.batch > 0
                ? copies_for(steps_.front().rows, steps_.front().ranks, options.batch)
                : 1;
}

void StepDataSource::keep_first(int64_t steps) {
  check<IndexError>(steps >= 1 && steps <= num_steps(), directory_, ": ", steps, " of ",
                    num_steps(), " step folders");
  steps_.resize(static_cast<size_t>(steps));
  ends_.resize(std::min(ends_.size(), steps_.size()));
}

int64_t StepDataSource::rows_until(int64_t steps) const {
  return steps == 0 ? 0 : ends_[static_cast<size_t>(steps - 1)] / copies_;
}

// All rows of a step's folders.
std::shared_ptr<const Batch> StepDataSource::load_all(int64_t step) const {
  check<IndexError>(step >= 0 && step < num_steps(), directory_, ": step ", step + 1,
                    " is asked for, but there are ", num_steps(),
                    " step folders; train for fewer steps or record more");
  if (all_.step == step) {
    return all_.rows;
  }
  const StepFolder& folder = steps_[static_cast<size_t>(step)];
  auto all = std::make_shared<Batch>();
  auto ends = std::make_shared<std::vector<RankEnd>>();
  for (const auto& [rank, path] : numbered_folders(folder.path, "rank_")) {
    Batch rows = read_recorded_rank(path, options_.vocab_size);
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
    append_rows(*all, rows);
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
  all_ = {step, 1, std::move(all)};
  return all_.rows;
}

// How often each row is there, if `rows` of them in so many folders are a step of `wanted` ones.
int64_t StepDataSource::copies_for(int64_t rows, int64_t folders, int64_t wanted) {
  const int64_t copies = rows % wanted == 0 ? rows / wanted : 1;
  return folders % copies == 0 && rows % folders == 0 ? copies : 1;
}

// The same where nothing says how many rows a step has: the layout of this job if the first step
// agrees with it, or as often as each of its folders is there again.
int64_t StepDataSource::copies_by_content() const {
  const StepFolder& first = steps_.front();
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<const Batch> all = load_all(0);
  if (first.ranks == 1 || all->batch % first.ranks != 0) {
    return 1;
  }
  const int64_t size = all->batch / first.ranks;
  int64_t copies = 0;
  for (int64_t rank = 0; rank < first.ranks; ++rank) {
    copies += same_rows(*all, 0, rank * size, size) ? 1 : 0;
  }
  const bool divides = first.ranks % copies == 0;
  return divides && !distinct_folders(*all, first.ranks, copies).empty() ? copies : 1;
}

// The folders whose rows count, in their order. Those of one model have to agree.
std::vector<int64_t> StepDataSource::folders_that_count(int64_t step,
                                                        const Batch& all,
                                                        int64_t copies,
                                                        int64_t dp_size) const {
  const StepFolder& folder = steps_[static_cast<size_t>(step)];
  const auto& [neighbours, stages] = options_.ranks;
  if (copies != neighbours * stages || folder.ranks != dp_size * copies) {
    return distinct_folders(all, folder.ranks, copies);
  }
  const int64_t rows = all.batch / folder.ranks;
  std::vector<int64_t> firsts;
  for (int64_t dp_rank = 0; dp_rank < dp_size; ++dp_rank) {
    const int64_t first = dp_rank * neighbours;
    for (int64_t i = 0; i < copies; ++i) {
      const int64_t rank = (i / neighbours * dp_size + dp_rank) * neighbours + i % neighbours;
      check<ValueError>(same_rows(all, first * rows, rank * rows, rows), folder.path, ": rank_",
                        rank, " has other rows than rank_", first,
                        ", but by the layout both belong to one model; expected the same rows, or "
                        "folders of the ",
                        dp_size, " data-parallel ranks alone");
    }
    firsts.push_back(first);
  }
  return firsts;
}

// The rows of a step, each once.
std::shared_ptr<const Batch> StepDataSource::load_step(int64_t step,
                                                       int64_t copies,
                                                       int64_t dp_size) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (copies == 1) {
    return load_all(step);
  }
  if (loaded_.step == step && loaded_.copies == copies) {
    return loaded_.rows;
  }
  const std::shared_ptr<const Batch> all = load_all(step);
  const StepFolder& folder = steps_[static_cast<size_t>(step)];
  check<ValueError>(folder.ranks % copies == 0 && all->batch % folder.ranks == 0, folder.path,
                    ": has ", all->batch, " rows in ", folder.ranks,
                    " folders, but in the first step the folders of ", copies,
                    " ranks have the same rows");
  const std::vector<int64_t> ranks = folders_that_count(step, *all, copies, dp_size);
  if (ranks.empty()) {
    return nullptr;
  }
  const int64_t size = all->batch / folder.ranks;
  auto rows = std::make_shared<Batch>();
  std::vector<int64_t> sources;
  for (const int64_t rank : ranks) {
    append_rows(*rows, part_of(*all, rank * size, size));
    for (int64_t row = 0; row < size; ++row) {
      sources.push_back(rank * size + row);
    }
  }
  rows->batch = std::ssize(sources);
  rows->seq = all->seq;
  rows->origin = [of_step = all->origin, sources](int64_t row) {
    internal::check_row(row, std::ssize(sources));
    return of_step(sources[static_cast<size_t>(row)]);
  };
  loaded_ = {step, copies, std::move(rows)};
  return loaded_.rows;
}

// Samples [first, first + count), of which each epoch has the rows of all steps.
Batch StepDataSource::rows_as_samples(int64_t first, int64_t count, int64_t dp_size) const {
  const int64_t all = rows_until(num_steps());
  check<IndexError>(options_.repeats || first + count <= all, directory_, ": sample ",
                    first + count, " is asked for, but there are ", all, " rows");
  Batch batch;
  std::vector<std::function<RowOrigin(int64_t)>> origins;
  std::vector<int64_t> rows;
  for (int64_t sample = first; sample < first + count;) {
    const int64_t row = sample % all;
    const auto after = std::upper_bound(ends_.begin(), ends_.end(), row * copies_);
    const int64_t step = after - ends_.begin();
    const std::shared_ptr<const Batch> of_step = load_step(step, copies_, dp_size);
    check<ValueError>(of_step != nullptr, steps_[static_cast<size_t>(step)].path,
                      ": in the first step each of the ranks' rows is there ", copies_,
                      " times, which makes them folders of a whole job; here they are not");
    check<ValueError>(batch.seq == 0 || batch.seq == of_step->seq,
                      steps_[static_cast<size_t>(step)].path, ": has rows of ", of_step->seq,
                      " tokens, but the step before has ", batch.seq);
    const int64_t begin = row - rows_until(step);
    const int64_t taken = std::min(first + count - sample, of_step->batch - begin);
    Batch piece = part_of(*of_step, begin, taken);
    if (!piece.attention_mask.empty() && batch.attention_mask.empty()) {
      batch.attention_mask = causal_masks(batch.batch, of_step->seq);
    } else if (piece.attention_mask.empty() && !batch.attention_mask.empty()) {
      piece.attention_mask = causal_masks(taken, of_step->seq);
    }
    append_rows(batch, piece);
    batch.seq = of_step->seq;
    batch.batch += taken;
    for (int64_t i = 0; i < taken; ++i, ++sample) {
      batch.sample_ids.push_back(sample);
      origins.push_back(of_step->origin);
      rows.push_back(begin + i);
    }
  }
  batch.origin = [origins, rows](int64_t row) {
    internal::check_row(row, std::ssize(rows));
    return origins[static_cast<size_t>(row)](rows[static_cast<size_t>(row)]);
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
  const int64_t first = (dp_rank * micro_batch_num + micro_index) * micro_batch_size;
  if (options_.as_samples) {
    return rows_as_samples(position.first_sample + first, micro_batch_size, dp_size);
  }
  const int64_t step = options_.repeats ? position.step % num_steps() : position.step;
  const int64_t wanted = micro_batch_num * micro_batch_size * dp_size;
  const std::shared_ptr<const Batch> all = load_step(step, 1, dp_size);
  const int64_t copies = copies_for(all->batch, steps_[static_cast<size_t>(step)].ranks, wanted);
  const std::shared_ptr<const Batch> rows = load_step(step, copies, dp_size);
  check<ValueError>(rows != nullptr && rows->batch == wanted,
                    steps_[static_cast<size_t>(step)].path, ": has ", all->batch,
                    " rows, but the run needs ", wanted, " = ", micro_batch_num,
                    " micro-batches x ", micro_batch_size, " rows x ", dp_size,
                    " data-parallel ranks; dataset_config.step_data_as_samples: True takes rows "
                    "one after the other, whatever step they were recorded in");
  return micro_batch_of(*rows, position.first_sample, first, micro_batch_size);
}

int64_t StepDataSource::seq_length() const { return load_step(0, 1, 1)->seq; }

int64_t StepDataSource::size_in_samples() const {
  constexpr int64_t kBeyondAnyRun = int64_t{1} << 53;
  return options_.repeats ? kBeyondAnyRun
         : ends_.empty()  ? load_step(0, 1, 1)->batch * num_steps()
                          : rows_until(num_steps());
}

int64_t StepDataSource::epoch(int64_t first_sample) const {
  return options_.repeats ? first_sample / rows_until(num_steps()) : 0;
}

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
  const std::shared_ptr<const Batch> first = load_step(0, 1, 1);
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
