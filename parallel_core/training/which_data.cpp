#include "parallel_core/training/which_data.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <utility>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/batch_rampup.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/checkpoints/resume.h"
#include "parallel_core/training/pretrain.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/row_text.h"

namespace tapestry {

namespace {

using Json = nlohmann::ordered_json;

// A decimal number of at least `low`, and nothing else.
std::optional<int64_t> whole_number(std::string_view text, int64_t low) {
  int64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size();
  return whole && number >= low ? std::optional(number) : std::nullopt;
}

int64_t data_parallel_size_of(const AllConfig& config, int64_t ranks) {
  const int64_t model = ranks_of_model(config.parallel_config);
  check<ValueError>(ranks >= 1 && ranks <= std::numeric_limits<int>::max() && ranks % model == 0,
                    "a job of ", ranks, ranks == 1 ? " rank" : " ranks", ": the layout of ",
                    "parallel_config (tensor x pipeline x context) needs ", model,
                    ", or a multiple of it");
  check_expert_ranks(config, static_cast<int>(ranks));
  return ranks / model;
}

// The same samples in every step, drawn by one data-parallel rank.
AllConfig for_one_rank(AllConfig config, int64_t data_parallel_size) {
  config.dataset_config.micro_batch_num *= data_parallel_size;
  config.training_config.crc_check = false;
  return config;
}

// The last step, counted from 1: the run ends when its steps or its epochs are over.
int64_t last_step(const AllConfig& config, const RunData& data, const BatchSchedule& schedule) {
  const data::BatchPosition done = data.opened.in_run();
  const int64_t total = total_steps(config, done);
  int64_t left = std::max<int64_t>(0, total - done.step);
  if (const auto& epochs = config.training_config.epochs) {
    const int64_t samples =
        data::batches_until_epoch(*data.train, data.start.first_sample, 1, *epochs);
    const int64_t batches = schedule.steps_until(done.first_sample + samples, done.first_sample);
    left = total > 0 ? std::min(left, batches) : batches;
  }
  return done.step + left;
}

// The first step whose samples are known. Those before a checkpoint are if every step before it has
// drawn as many samples as one now.
int64_t first_step(const DataState& opened, const BatchSchedule& schedule) {
  const int64_t begun = opened.begun.first_sample;
  const bool same_batch =
      opened.position.first_sample == schedule.consumed_after(opened.position.step, begun) - begun;
  return same_batch ? opened.begun.step + 1 : opened.in_run().step + 1;
}

// Names of files need not be UTF-8.
std::string line_of(const Json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// As one of those that there are, however it is written.
std::string known_prefix(const std::map<std::string, int64_t>& documents, const std::string& name) {
  const auto plain = [](const std::string& path) {
    return std::filesystem::path(path).lexically_normal();
  };
  std::string there;
  for (const auto& [prefix, count] : documents) {
    if (plain(prefix) == plain(name)) {
      return prefix;
    }
    there += concat(there.empty() ? "" : ", ", prefix, " (", count,
                    count == 1 ? " document)" : " documents)");
  }
  throw ValueError(
      concat("--which_steps: the run does not train on a data set ", name, "; there is ", there));
}

}  // namespace

int64_t ranks_of_model(const ModelParallelConfig& config) {
  return config.tensor_model_parallel_size * config.pipeline_model_parallel_size *
         config.context_parallel_size;
}

StepRange parse_step_range(const std::string& text) {
  const size_t dash = text.find('-');
  const auto first = whole_number(std::string_view(text).substr(0, dash), 1);
  const auto last =
      dash == std::string::npos ? first : whole_number(std::string_view(text).substr(dash + 1), 1);
  check<ValueError>(first && last && *first <= *last, "--which_data is '", text,
                    "'; expected a step, such as 12, or steps, such as 10-20; they count from 1");
  return {*first, *last};
}

DocumentId parse_document_id(const std::string& text) {
  const size_t colon = text.rfind(':');
  const auto document = colon == std::string::npos
                            ? std::nullopt
                            : whole_number(std::string_view(text).substr(colon + 1), 0);
  check<ValueError>(document && colon > 0, "--which_steps is '", text,
                    "'; expected PREFIX:DOCUMENT, such as data/books_text_document:12; documents "
                    "count from 0");
  return {text.substr(0, colon), *document};
}

WhichData::WhichData(const AllConfig& config, int64_t ranks) {
  require_supported(config);
  data_parallel_size_ = data_parallel_size_of(config, ranks);
  check_rampup(config, data_parallel_size_);
  config_ = for_one_rank(config, data_parallel_size_);
  if (!model_parallel_is_initialized()) {
    initialize_model_parallel(ModelParallelSizes{}, single_process_group());
  }
  const auto note = [this](const std::string& remark) { remarks_.push_back(remark); };
  const std::optional<ResumePoint> resume = find_resume_point(
      config_, *single_process_group(), is_started_again(config_.training_config), note);
  if (resume) {
    goes_on_from_ = resume->checkpoint;
    note(concat("the run goes on after step ", resume->trainer.position.seen, " with ",
                resume->checkpoint, ", which was written by ", resume->trainer.layout));
  }
  data_ = open_data(config_, DataUse::kTraining, resume && resume->data ? &*resume->data : nullptr);
  remarks_.insert(remarks_.end(), data_.remarks.begin(), data_.remarks.end());
  const BatchSchedule schedule(config_, 1);
  steps_ = {first_step(data_.opened, schedule), last_step(config_, data_, schedule)};
  const DatasetConfig& d = config_.dataset_config;
  if (d.step_data_dir) {
    return;
  }
  if (d.tokenizer_type == "byte" || !data_.tokenizer_model.empty()) {
    tokenizer_ = data::make_tokenizer(d.tokenizer_type, data_.tokenizer_model);
  } else {
    note(
        "the tokenizer of the data is not known, so rows have no text; name it with "
        "dataset_config.tokenizer_model");
  }
}

data::BatchPosition WhichData::position(int64_t step) const {
  const BatchSchedule schedule(config_, 1);
  const DataState& opened = data_.opened;
  const data::BatchPosition done = opened.in_run();
  // Steps before a checkpoint are counted from where these data were begun.
  const data::BatchPosition from = step > done.step ? done : opened.begun;
  const int64_t samples = schedule.consumed_after(step - 1 - from.step, from.first_sample);
  return {step - 1 - opened.begun.step, samples - opened.begun.first_sample};
}

int64_t WhichData::micro_batches(int64_t step) const {
  return BatchSchedule(config_, 1)
             .micro_batches_at(position(step).first_sample + data_.opened.begun.first_sample) /
         data_parallel_size_;
}

void WhichData::check_inside(StepRange range) const {
  const bool empty = steps_.last < steps_.first;
  std::string why;
  if (range.first < steps_.first) {
    why = concat("; those before it were trained with another global batch or other data, as ",
                 goes_on_from_,
                 " says: ask with the configuration of that time and without resume_training");
  }
  check<ValueError>(range.first >= steps_.first && range.last <= steps_.last, "--which_data ",
                    range.first, range.last > range.first ? concat("-", range.last) : std::string(),
                    ": ",
                    empty ? concat("the run has no step left after step ", steps_.first - 1)
                          : concat("the run has steps ", steps_.first, " to ", steps_.last),
                    why);
}

void WhichData::rows(StepRange range, const LineSink& print) {
  check_inside(range);
  const int64_t size = config_.dataset_config.batch_size;
  for (int64_t step = range.first; step <= range.last; ++step) {
    const int64_t count = micro_batches(step);
    for (int64_t rank = 0; rank < data_parallel_size_; ++rank) {
      for (int64_t micro = 0; micro < count; ++micro) {
        const data::Batch batch =
            data_.train->micro_batch(position(step), micro, count, size, rank, data_parallel_size_);
        for (int64_t row = 0; row < batch.batch; ++row) {
          const data::RowOrigin origin = batch.origin(row);
          Json json = {{"step", step},
                       {"dp_rank", rank},
                       {"micro_batch", micro},
                       {"row", row},
                       {"sample", batch.sample_ids[static_cast<size_t>(row)]},
                       {"dataset", origin.dataset}};
          if (origin.recorded) {
            json["file"] = origin.recorded->file;
            json["file_row"] = origin.recorded->row;
          }
          json["documents"] = data::documents_json(origin, finder_);
          const std::span<const int64_t> ids(batch.tokens);
          json["text"] = tokenizer_
                             ? Json(data::row_text(*tokenizer_,
                                                   ids.subspan(static_cast<size_t>(row * batch.seq),
                                                               static_cast<size_t>(batch.seq)),
                                                   kShownCharacters))
                             : Json();
          print(line_of(json));
        }
      }
    }
  }
}

void WhichData::rows_with(const DocumentId& id, const LineSink& print) {
  const data::TokenDataset* samples = data_.train->samples();
  check<ValueError>(samples != nullptr, "--which_steps: ",
                    config_.dataset_config.step_data_dir.value_or("the source of data"),
                    " holds recorded steps, which know no documents; --which_data STEP names file "
                    "and row");
  const std::map<std::string, int64_t> documents = samples->documents();
  const std::string prefix = known_prefix(documents, id.prefix);
  const int64_t count = documents.at(prefix);
  check<ValueError>(id.document < count, "--which_steps: ", prefix, " has documents 0 to ",
                    count - 1, ", not ", id.document);
  const int64_t size = config_.dataset_config.batch_size;
  const int64_t chunk = size * data_parallel_size_;
  const BatchSchedule schedule(config_, 1);
  const int64_t begin = position(steps_.first).first_sample;
  const int64_t end = position(steps_.last + 1).first_sample;
  bool found = false;
  for (const int64_t sample : samples->samples_with(prefix, id.document)) {
    if (sample < begin || sample >= end) {
      continue;
    }
    found = true;
    data::RowOrigin origin = samples->origin(sample);
    std::erase_if(origin.documents, [&](const data::DocumentPart& part) {
      const std::string& set = part.dataset.empty() ? origin.dataset : part.dataset;
      return part.document != id.document || set != prefix;
    });
    const int64_t from = begin + data_.opened.begun.first_sample;
    const auto before = schedule.reach(from, BatchSchedule::kNoLimit, from + sample - begin);
    const int64_t in_step = from + sample - begin - before.consumed;
    Json json = {{"step", steps_.first + before.steps},
                 {"dp_rank", in_step % chunk / size},
                 {"micro_batch", in_step / chunk},
                 {"row", in_step % size},
                 {"sample", sample},
                 {"dataset", prefix}};
    json["documents"] = data::documents_json(origin, finder_);
    print(line_of(json));
  }
  if (!found) {
    remarks_.push_back(concat("no row of steps ", steps_.first, " to ", steps_.last,
                              " has tokens of document ", id.document, " of ", prefix,
                              "; it may be empty, or belong to validation or test"));
  }
}

std::vector<std::string> WhichData::remarks() const {
  std::vector<std::string> all = remarks_;
  all.insert(all.end(), finder_.remarks().begin(), finder_.remarks().end());
  return all;
}

}  // namespace tapestry
