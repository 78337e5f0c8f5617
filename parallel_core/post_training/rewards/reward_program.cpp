#include "parallel_core/post_training/rewards/reward_program.h"

#include <cmath>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/post_training/grpo/rollout_batch.h"
#include "parallel_core/post_training/rewards/reward_error.h"
#include "parallel_core/training/log/logging.h"
#include "text/util/numbers.h"
#include "text/util/utf8.h"

namespace tapestry::post_training {

namespace {

using nlohmann::ordered_json;

std::string request_line(const JudgedCompletion& completion) {
  ordered_json line = *completion.line;
  line["completion"] = completion.text;
  line["completion_ids"] = completion.ids;
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string prompt_text(const ordered_json& line) {
  const ordered_json prompt = prompt_of(line);
  return prompt.is_string() ? prompt.get<std::string>()
                            : prompt.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

void RewardProgram::fail(const std::string& what,
                         std::span<const JudgedCompletion> completions,
                         size_t at) const {
  const JudgedCompletion& one = completions[std::min(at, completions.size() - 1)];
  throw RewardError(concat("reward program ", excerpt_of(command_), " ", what, " (completion ",
                           at + 1, " of the batch's ", completions.size(), ": ",
                           excerpt_of(one.text), " of the prompt ",
                           excerpt_of(prompt_text(*one.line)), ")"));
}

// Turns whole lines of the output into answers.
void RewardProgram::take_answers(std::span<const JudgedCompletion> completions,
                                 std::vector<double>& answers) {
  size_t begin = 0;
  for (size_t end = output_.find('\n'); end != std::string::npos; end = output_.find('\n', begin)) {
    const std::string line = output_.substr(begin, end - begin);
    begin = end + 1;
    if (answers.size() == completions.size()) {
      fail(concat("has written more lines than there were completions; the first one too many is ",
                  excerpt_of(data::replace_invalid_utf8(line))),
           completions, answers.size() - 1);
    }
    const auto value = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (value.is_null()) {
      answers.push_back(kNoReward);
    } else if (value.is_number() && std::isfinite(value.get<double>())) {
      answers.push_back(value.get<double>());
    } else {
      fail(concat("has answered ", excerpt_of(data::replace_invalid_utf8(line)),
                  "; expected a line with one finite number, or null"),
           completions, answers.size());
    }
  }
  output_.erase(0, begin);
}

// The answers to the completions that have none yet; empty, or why there are not all of them.
std::string RewardProgram::failure_of(std::span<const JudgedCompletion> completions,
                                      std::vector<double>& answers) {
  std::string request;
  for (const JudgedCompletion& one : completions.subspan(answers.size())) {
    request += request_line(one);
  }
  std::string_view pending = request;
  const auto wait = std::chrono::duration_cast<ChildProcess::Clock::duration>(
      std::chrono::duration<double>(timeout_));
  const auto log_line = [this](const std::string& line) {
    log_info(concat("reward program ", excerpt_of(command_, 40), ": ",
                    data::replace_invalid_utf8(line)));
  };
  const bool in_time = child_->exchange(
      pending, output_,
      [&] {
        take_answers(completions, answers);
        return answers.size() == completions.size();
      },
      ChildProcess::Clock::now() + wait, log_line);
  take_answers(completions, answers);
  if (answers.size() == completions.size()) {
    return {};
  }
  const std::string had = concat("after ", answers.size(), " of ", completions.size(), " answers");
  if (!in_time) {
    child_.reset();
    return concat("has not answered for ", number_text(timeout_), " s (reward_timeout), ", had,
                  "; does it flush its output after each line?");
  }
  const std::string how = child_->end();
  child_.reset();
  return concat("has ended with ", how, " ", had);
}

// What stands there beyond the answers belongs to no completion.
void RewardProgram::refuse_further_lines(std::span<const JudgedCompletion> completions) {
  std::string_view nothing;
  child_->exchange(
      nothing, output_, [this] { return output_.find('\n') != std::string::npos; },
      ChildProcess::Clock::now(),
      [this](const std::string& line) {
        log_info(concat("reward program ", excerpt_of(command_, 40), ": ",
                        data::replace_invalid_utf8(line)));
      });
  std::vector<double> all(completions.size());
  take_answers(completions, all);
}

std::vector<double> RewardProgram::rewards(std::span<const JudgedCompletion> completions) {
  std::vector<double> answers;
  if (completions.empty()) {
    return answers;
  }
  std::string failure;
  for (int start = 0; start < 2; ++start) {
    if (child_ == nullptr) {
      output_.clear();
      child_ = std::make_unique<ChildProcess>(command_);
    } else {
      refuse_further_lines(completions);  // of the batch before
    }
    failure = failure_of(completions, answers);
    if (failure.empty()) {
      refuse_further_lines(completions);
      return answers;
    }
    if (start == 0) {
      log_warning(concat("reward program ", excerpt_of(command_), " ", failure,
                         "; it is started once more for the rest"));
    }
  }
  fail(failure, completions, answers.size());
}

}  // namespace tapestry::post_training
