// What a completion is worth.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autograd/io/json.h"

namespace tapestry::post_training {

/// A completion that is to be rewarded. All that it names outlives the call.
struct JudgedCompletion {
  /// The object of the prompt's line: the prompt and all columns beside it.
  const nlohmann::ordered_json* line = nullptr;
  std::string text;  ///< of the completion, valid UTF-8, without the token that ends it
  std::span<const int32_t> prompt_ids;
  std::span<const int32_t> ids;  ///< of the completion, with the token that ends it
};

/// The prompt of a line: a text, or messages, under "prompt" or "messages"; null without one.
nlohmann::ordered_json prompt_of(const nlohmann::ordered_json& line);

/// Gives each completion a number, or none.
class RewardFunction {
 public:
  explicit RewardFunction(std::string name) : name_(std::move(name)) {}
  RewardFunction(const RewardFunction&) = delete;
  RewardFunction& operator=(const RewardFunction&) = delete;
  virtual ~RewardFunction() = default;

  /// As metrics call it: rewards/NAME/mean.
  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  /// The column that lines of prompts must have; empty: none in particular.
  virtual std::string_view column() const { return {}; }
  /// True: all ranks of a model-parallel group make the calls. False: the first one alone.
  virtual bool is_collective() const { return false; }
  /// A reward for each completion, kNoReward (rollout_batch.h) where there is none. RewardError
  /// where one cannot be had.
  virtual std::vector<double> rewards(std::span<const JudgedCompletion> completions) = 0;

 private:
  std::string name_;
};

/// The functions of post_training_config.reward_funcs, texts `KIND: ARGUMENT`:
///
/// regex: PATTERN           1 where the pattern is found in the completion, else 0
/// format: PATTERN          1 where it matches the whole of it, else 0
/// exact: COLUMN            1 where the completion is what the column says, else 0; both without
///                          white space around them, numbers as they are written. None where the
///                          column is null.
/// exact: COLUMN PATTERN    the same of the first match of the pattern: its first group, or all of
///                          it where it has none. 0 where it is not found.
/// length: MIN..MAX         1 for so many tokens (with the one that ends it), else 0
/// length: TARGET           1 - |tokens - TARGET| / TARGET, at least 0
/// model: DIR               see model_reward.h; `make_model` makes it
/// program: COMMAND         see reward_program.h; `timeout` in seconds
///
/// Patterns are PCRE2's (text/util/regular_expression.h). The names are the kinds, of a second one
/// of a kind "regex_2" and so on. ValueError, with the text, for another form.
using ModelRewardMaker = std::function<std::unique_ptr<RewardFunction>(const std::string& folder)>;
std::vector<std::unique_ptr<RewardFunction>> make_reward_functions(
    const std::vector<std::string>& texts, double timeout, const ModelRewardMaker& make_model = {});

/// KIND and ARGUMENT of such a text. ValueError for one without a colon or an argument.
struct RewardText {
  std::string kind;
  std::string argument;
};
RewardText split_reward_text(const std::string& text);

}  // namespace tapestry::post_training
