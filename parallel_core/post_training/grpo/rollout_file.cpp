#include "parallel_core/post_training/grpo/rollout_file.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "text/sources/json_line.h"
#include "text/sources/line_reader.h"

namespace tapestry::post_training {

namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxRolloutLineBytes = uint64_t{256} << 20U;
constexpr int kMaxRolloutNesting = 64;

// A line of the file.
struct Rollout {
  std::vector<int32_t> prompt;
  std::vector<int32_t> completion;
  std::vector<std::string> reward_names;
  std::vector<double> rewards;
  std::optional<std::vector<double>> log_probs;
  bool truncated = false;
};

// The value of a member; null where it is missing.
const Json& member(const Json& object, const char* name) {
  static const Json kMissing;
  const auto found = object.find(name);
  return found == object.end() ? kMissing : *found;
}

class RolloutLine {
 public:
  RolloutLine(const Json& object, const std::string& place, const RolloutFileOptions& options)
      : object_(object), place_(place), options_(options) {}

  Rollout parse() const {
    Rollout rollout;
    const bool has_completion_ids = !member(object_, "completion_ids").is_null();
    rollout.prompt =
        member(object_, "prompt_ids").is_null() ? encoded("prompt") : ids("prompt_ids");
    rollout.completion = has_completion_ids ? ids("completion_ids") : encoded("completion");
    const Json& truncated = member(object_, "truncated");
    check<ValueError>(truncated.is_null() || truncated.is_boolean(), place_,
                      ": \"truncated\" is a JSON ", truncated.type_name(), ", expected a boolean");
    const bool is_cut = truncated.is_boolean() && truncated.get<bool>();
    if (!has_completion_ids && !is_cut && options_.end_id >= 0 && !ends(rollout.completion)) {
      rollout.completion.push_back(static_cast<int32_t>(options_.end_id));
    }
    rollout.truncated = truncated.is_boolean() ? is_cut : !ends(rollout.completion);
    check_tokens(rollout);
    read_rewards(rollout);
    read_log_probs(rollout);
    return rollout;
  }

 private:
  bool ends(const std::vector<int32_t>& ids) const {
    return !ids.empty() && (ids.back() == options_.end_id || ids.back() == options_.pad_id);
  }

  std::vector<int32_t> ids(const char* name) const {
    const Json& values = member(object_, name);
    check<ValueError>(values.is_array(), place_, ": \"", name, "\" is a JSON ", values.type_name(),
                      ", expected an array of token ids");
    std::vector<int32_t> result;
    for (const Json& value : values) {
      check<ValueError>(value.is_number_integer(), place_, ": \"", name, "\" has the entry ",
                        value.dump(), ", expected token ids");
      const auto id = value.get<int64_t>();
      check<ValueError>(id >= 0 && id < options_.vocab_size, place_, ": \"", name,
                        "\" has the token id ", id, ", the vocabulary has 0 to ",
                        options_.vocab_size - 1,
                        "; completions have to be of the model that is trained");
      result.push_back(static_cast<int32_t>(id));
    }
    return result;
  }

  std::vector<int32_t> encoded(const char* name) const {
    const Json& text = member(object_, name);
    check<ValueError>(text.is_string(), place_, ": ",
                      text.is_null()
                          ? concat("neither \"", name, "_ids\" nor \"", name, "\" is there")
                          : concat("\"", name, "\" is a JSON ", text.type_name()),
                      ", expected \"", name, "_ids\" (token ids) or \"", name, "\" (a text)");
    check<ValueError>(options_.tokenizer != nullptr, place_, ": \"", name,
                      "\" is a text, and the run has no tokenizer; name one with "
                      "dataset_config.tokenizer_model, or give \"",
                      name, "_ids\"");
    std::vector<int32_t> result = options_.tokenizer->encode(text.get_ref<const std::string&>());
    for (const int32_t id : result) {
      check<ValueError>(id < options_.vocab_size, place_, ": \"", name, "\" has the token id ", id,
                        ", the model's vocabulary ends with ", options_.vocab_size - 1,
                        "; use the model's own tokenizer");
    }
    return result;
  }

  void check_tokens(const Rollout& rollout) const {
    check<ValueError>(!rollout.prompt.empty(), place_,
                      ": the prompt is empty; nothing would give the completion's first token a "
                      "probability");
    check<ValueError>(!rollout.completion.empty(), place_,
                      ": the completion is empty; it has at least the token that ends it");
    const auto count = std::ssize(rollout.prompt) + std::ssize(rollout.completion);
    check<ValueError>(count <= options_.max_tokens, place_, ": a prompt of ", rollout.prompt.size(),
                      " and a completion of ", rollout.completion.size(), " tokens do not fit in ",
                      options_.max_tokens,
                      ", the tokens of a row; raise model_config.seq_length, or leave the line's "
                      "group out with dataset_config.skip_bad_lines");
  }

  double number(const Json& value, const std::string& what) const {
    check<ValueError>(value.is_number(), place_, ": ", what, " is ",
                      value.is_null() ? "null (or was NaN or infinite)" : value.dump(),
                      ", expected a number");
    return value.get<double>();
  }

  void read_rewards(Rollout& rollout) const {
    const Json& rewards = member(object_, "rewards");
    check<ValueError>(
        (rewards.is_array() || rewards.is_object()) && !rewards.empty(), place_,
        ": \"rewards\" is ",
        rewards.empty() && !rewards.is_null() ? "empty" : concat("a JSON ", rewards.type_name()),
        ", expected a number of each reward function: [1.0, 0.5], or "
        "{\"name\": 1.0}");
    for (const auto& [name, value] : rewards.items()) {
      rollout.reward_names.push_back(
          rewards.is_object() ? name : concat("reward_", rollout.reward_names.size() + 1));
      rollout.rewards.push_back(
          value.is_null() ? kNoReward
                          : number(value, concat("the reward ", rollout.reward_names.back())));
    }
  }

  void read_log_probs(Rollout& rollout) const {
    const Json& values = member(object_, "logprobs");
    if (values.is_null()) {
      return;
    }
    check<ValueError>(values.is_array(), place_, ": \"logprobs\" is a JSON ", values.type_name(),
                      ", expected an array of numbers");
    check<ValueError>(values.size() == rollout.completion.size(), place_, ": \"logprobs\" has ",
                      values.size(), " numbers, the completion has ", rollout.completion.size(),
                      " tokens; there is one for each");
    std::vector<double>& log_probs = rollout.log_probs.emplace();
    for (size_t t = 0; t < values.size(); ++t) {
      log_probs.push_back(number(values[t], concat("logprobs[", t, "]")));
    }
  }

  const Json& object_;
  const std::string& place_;
  const RolloutFileOptions& options_;
};

// A line with its place, and what is wrong with it.
struct ReadLine {
  std::string place;
  Rollout rollout;
  std::string error;  // empty: nothing
};

class Groups {
 public:
  explicit Groups(const RolloutFileOptions& options) : options_(options) {
    file_.all.num_generations = options.num_generations;
  }

  void add(ReadLine line) {
    group_.push_back(std::move(line));
    if (std::ssize(group_) == options_.num_generations) {
      end_group();
    }
  }

  RolloutFile finish(const data::LineReader& reader, const std::string& path) {
    if (!group_.empty()) {
      const std::string message = concat(
          group_.front().place, ": the last group has ", group_.size(), " of the ",
          options_.num_generations,
          " lines of post_training_config.num_generations; successive lines are a group, so that "
          "the file has a multiple of that");
      check<ValueError>(options_.skip_bad_lines, message);
      file_.bad_lines.add(message);
    }
    check<ValueError>(file_.all.completions.size() > 0, path, ": no group of ",
                      options_.num_generations, " completions",
                      file_.bad_lines.count > 0 ? concat("; ", file_.bad_lines.text()) : "");
    file_.file = reader.file();
    return std::move(file_);
  }

 private:
  // What is wrong with the group's lines beside each other and the groups before.
  void check_group() {
    const Rollout& first = group_.front().rollout;
    for (const ReadLine& line : group_) {
      check<ValueError>(line.error.empty(), line.error);
      check<ValueError>(line.rollout.prompt == first.prompt, line.place,
                        ": the prompt is not that of ", group_.front().place,
                        ", with which it forms a group of post_training_config.num_generations ",
                        options_.num_generations, " lines");
      const bool is_first = file_.all.reward_names.empty();
      const std::vector<std::string>& names =
          is_first ? first.reward_names : file_.all.reward_names;
      check<ValueError>(line.rollout.reward_names == names, line.place, ": has ",
                        line.rollout.reward_names.size(), " rewards (",
                        listed(line.rollout.reward_names), "), the lines before have ",
                        names.size(), " (", listed(names), ")");
      const bool has_log_probs = line.rollout.log_probs.has_value();
      const bool had = is_first ? first.log_probs.has_value() : !file_.all.old_log_probs.empty();
      check<ValueError>(has_log_probs == had, line.place, ": has ", has_log_probs ? "" : "no ",
                        "\"logprobs\", the lines before have ", had ? "such" : "none",
                        "; all lines have them, or none has");
    }
  }

  static std::string listed(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) {
      text += (text.empty() ? "" : ", ") + name;
    }
    return text;
  }

  void end_group() {
    try {
      check_group();
      for (const ReadLine& line : group_) {
        append(line.rollout);
      }
    } catch (const ValueError& error) {
      if (!options_.skip_bad_lines) {
        throw;
      }
      file_.bad_lines.add(concat(error.what(), " (its group of ", group_.size(), " lines)"));
    }
    group_.clear();
  }

  void append(const Rollout& rollout) {
    RolloutBatch& all = file_.all;
    if (all.reward_names.empty()) {
      all.reward_names = rollout.reward_names;
      all.rewards.resize(rollout.rewards.size());
    }
    all.completions.add(rollout.prompt, rollout.completion);
    all.truncated.push_back(rollout.truncated);
    for (size_t f = 0; f < all.rewards.size(); ++f) {
      all.rewards[f].push_back(rollout.rewards[f]);
    }
    if (rollout.log_probs) {
      all.old_log_probs.add(*rollout.log_probs);
    }
  }

  const RolloutFileOptions& options_;
  RolloutFile file_;
  std::vector<ReadLine> group_;
};

}  // namespace

RolloutFile read_rollouts(const std::string& path, const RolloutFileOptions& options) {
  data::LineReader reader(path, kMaxRolloutLineBytes);
  Groups groups(options);
  std::string text;
  while (reader.next(text)) {
    if (data::is_blank(text)) {
      continue;
    }
    ReadLine line{.place = concat(path, ":", reader.number()), .rollout = {}, .error = {}};
    try {
      const data::JsonLine json = data::parse_json_line(text, line.place, kMaxRolloutNesting);
      line.rollout = RolloutLine(json.value, line.place, options).parse();
    } catch (const ValueError& error) {
      if (!options.skip_bad_lines) {
        throw;
      }
      line.error = error.what();
    }
    groups.add(std::move(line));
  }
  return groups.finish(reader, path);
}

}  // namespace tapestry::post_training
