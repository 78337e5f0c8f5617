#include "parallel_core/post_training/reward_file.h"

#include <algorithm>
#include <limits>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/sum_over.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/post_training/examples/example_reader.h"
#include "text/sources/line_reader.h"
#include "text/sources/text_source.h"

namespace tapestry::post_training {

namespace {

bool holds_pairs(const std::string& file) {
  data::LineReader reader(file, kMaxLineBytes);
  std::string line;
  while (reader.next(line)) {
    if (!data::is_blank(line)) {
      const Json first = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      return first.is_object() && (first.contains("chosen") || first.contains("rejected"));
    }
  }
  throw ValueError(concat(file,
                          ": has no lines; expected JSON with \"chosen\" and \"rejected\", or "
                          "\"prompt\" and \"completion\""));
}

// Each copy of the model judges some of the texts.
std::vector<double> shared_rewards(RewardModel& model,
                                   const std::vector<std::vector<int32_t>>& texts) {
  const bool alone = !model_parallel_is_initialized();
  const auto copies = static_cast<size_t>(alone ? 1 : get_data_parallel_world_size());
  const auto copy = static_cast<size_t>(alone ? 0 : get_data_parallel_rank());
  std::vector<std::vector<int32_t>> own;
  for (size_t i = copy; i < texts.size(); i += copies) {
    own.push_back(texts[i]);
  }
  const std::vector<double> found = model.rewards(own);
  std::vector<double> all(texts.size(), 0);
  for (size_t i = 0; i < found.size(); ++i) {
    all[copy + i * copies] = found[i];
  }
  if (copies > 1) {
    sum_over(get_data_parallel_group(), all);
  }
  return all;
}

}  // namespace

JudgedFile judge_file(RewardModel& model, const std::string& file) {
  JudgedFile judged{.has_pairs = holds_pairs(file)};
  const ReadExamples read = read_examples(
      {file}, {.format = judged.has_pairs ? ExampleFormat::kReward : ExampleFormat::kCompletion,
               .encoding = {.tokenizer = &model.tokenizer(),
                            .format = model.chat_format(),
                            .without_format = "the model's folder has no chat template",
                            .eod = model.eod_id()},
               .long_sequences = LongSequences::kKeepEnd,
               .max_tokens = model.context()});
  std::vector<std::vector<int32_t>> texts;
  for (int64_t i = 0; i < read.sequences.size(); ++i) {
    auto ids = read.sequences.ids(i);
    if (std::ssize(ids) > model.context()) {
      ids = ids.last(static_cast<size_t>(model.context()));
      ++judged.shortened;
    }
    texts.emplace_back(ids.begin(), ids.end());
  }
  const std::vector<double> rewards = shared_rewards(model, texts);
  const auto of_line = static_cast<size_t>(read.sequences.per_unit());
  for (size_t line = 0; line < read.places.size(); ++line) {
    const auto first = rewards.begin() + static_cast<int64_t>(line * of_line);
    judged.lines.push_back({.place = concat(file, ":", read.places[line].line),
                            .rewards = {first, first + static_cast<int64_t>(of_line)}});
  }
  return judged;
}

double JudgedFile::accuracy() const {
  const auto right = std::count_if(lines.begin(), lines.end(), [](const JudgedLine& line) {
    return line.rewards[0] > line.rewards[1];
  });
  return static_cast<double>(right) / static_cast<double>(lines.size());
}

double JudgedFile::mean_lead() const { return mean(0) - mean(1); }

double JudgedFile::mean(int of_pair) const {
  double sum = 0;
  double count = 0;
  for (const JudgedLine& line : lines) {
    for (size_t i = 0; i < line.rewards.size(); ++i) {
      const bool counts = of_pair < 0 || of_pair == static_cast<int>(i);
      sum += counts ? line.rewards[i] : 0;
      count += counts ? 1 : 0;
    }
  }
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace tapestry::post_training
