// Rewards that follow from the text of a completion alone.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>

#include "autograd/tensor/error.h"
#include "parallel_core/post_training/grpo/rollout_batch.h"
#include "parallel_core/post_training/rewards/reward_error.h"
#include "parallel_core/post_training/rewards/reward_function.h"
#include "parallel_core/post_training/rewards/reward_program.h"
#include "text/util/regular_expression.h"

namespace tapestry::post_training {

namespace {

constexpr std::string_view kBlanks = " \t\r\n\f\v";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  return first == std::string_view::npos
             ? std::string_view()
             : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// What a pattern says of a text, `otherwise` where that takes it too many steps: some completion
// of a model that learns will find the one text that does.
template <class F>
auto within_steps(F&& f, decltype(f()) otherwise) {
  try {
    return f();
  } catch (const ValueError&) {
    return otherwise;
  }
}

class PatternReward final : public RewardFunction {
 public:
  PatternReward(const RewardText& text, const std::string& what)
      : RewardFunction(text.kind), pattern_(text.argument, what), whole_(text.kind == "format") {}
  std::vector<double> rewards(std::span<const JudgedCompletion> completions) override {
    std::vector<double> out;
    for (const JudgedCompletion& one : completions) {
      const bool found = within_steps(
          [&] { return whole_ ? pattern_.matches(one.text) : pattern_.is_found_in(one.text); },
          false);
      out.push_back(found ? 1 : 0);
    }
    return out;
  }

 private:
  RegularExpression pattern_;
  bool whole_;
};

class ExactReward final : public RewardFunction {
 public:
  ExactReward(const RewardText& text, const std::string& what) : RewardFunction(text.kind) {
    const size_t end = text.argument.find_first_of(kBlanks);
    column_ = text.argument.substr(0, end);
    if (end != std::string::npos) {
      const std::string pattern(trimmed(std::string_view(text.argument).substr(end)));
      const std::string complaint = RegularExpression::complaint(pattern);
      check<ValueError>(complaint.empty(), what, ": '", pattern,
                        "' is no regular expression: ", complaint);
      // The shortest text before it, so that the first match is found.
      pattern_.emplace("(?s:.*?)((?:" + pattern + "))", what);
    }
  }
  std::string_view column() const override { return column_; }
  std::vector<double> rewards(std::span<const JudgedCompletion> completions) override {
    std::vector<double> out;
    for (const JudgedCompletion& one : completions) {
      const auto found = one.line->find(column_);
      if (found == one.line->end() || found->is_null()) {
        out.push_back(kNoReward);
        continue;
      }
      const std::string expected = found->is_string() ? found->get<std::string>() : found->dump();
      const std::optional<std::string> answer = answer_of(one.text);
      out.push_back(answer && trimmed(*answer) == trimmed(expected) ? 1 : 0);
    }
    return out;
  }

 private:
  std::optional<std::string> answer_of(const std::string& text) const {
    if (!pattern_) {
      return text;
    }
    const std::vector<std::string> groups =
        within_steps([&] { return pattern_->groups_at_start(text); }, {});
    if (groups.empty()) {
      return std::nullopt;
    }
    return groups.size() > 2 ? groups[2] : groups[1];
  }

  std::string column_;
  std::optional<RegularExpression> pattern_;
};

std::optional<int64_t> tokens_of(std::string_view text) {
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = parsed.ec == std::errc{} && parsed.ptr == text.data() + text.size();
  return whole && value >= 0 ? std::optional(value) : std::nullopt;
}

class LengthReward final : public RewardFunction {
 public:
  LengthReward(const RewardText& text, const std::string& what) : RewardFunction(text.kind) {
    const std::string_view argument = text.argument;
    const size_t dots = argument.find("..");
    const auto low = tokens_of(trimmed(argument.substr(0, dots)));
    const auto high =
        dots == std::string_view::npos ? low : tokens_of(trimmed(argument.substr(dots + 2)));
    is_range_ = dots != std::string_view::npos;
    check<ValueError>(low && high && *low <= *high && (is_range_ || *low > 0), what, ": '",
                      text.argument,
                      "' is no length; expected MIN..MAX or a TARGET above 0, in tokens");
    low_ = *low;
    high_ = *high;
  }
  std::vector<double> rewards(std::span<const JudgedCompletion> completions) override {
    std::vector<double> out;
    for (const JudgedCompletion& one : completions) {
      const int64_t tokens = std::ssize(one.ids);
      const double miss = static_cast<double>(std::abs(tokens - low_)) /
                          static_cast<double>(std::max<int64_t>(low_, 1));
      out.push_back(is_range_ ? (tokens >= low_ && tokens <= high_ ? 1.0 : 0.0)
                              : std::max(0.0, 1.0 - miss));
    }
    return out;
  }

 private:
  int64_t low_ = 0;
  int64_t high_ = 0;
  bool is_range_ = false;
};

std::unique_ptr<RewardFunction> make_reward_function(const RewardText& text,
                                                     const std::string& what,
                                                     double timeout,
                                                     const ModelRewardMaker& make_model) {
  if (text.kind == "model" && make_model) {
    return make_model(text.argument);
  }
  if (text.kind == "regex" || text.kind == "format") {
    return std::make_unique<PatternReward>(text, what);
  }
  if (text.kind == "exact") {
    return std::make_unique<ExactReward>(text, what);
  }
  if (text.kind == "length") {
    return std::make_unique<LengthReward>(text, what);
  }
  if (text.kind == "program") {
    return std::make_unique<RewardProgram>(text.argument, timeout);
  }
  throw ValueError(concat(what, ": '", text.kind,
                          "' is no kind of reward; expected one of regex, exact, length, format, "
                          "model and program"));
}

}  // namespace

nlohmann::ordered_json prompt_of(const nlohmann::ordered_json& line) {
  for (const char* name : {"prompt", "messages"}) {
    if (const auto found = line.find(name); found != line.end() && !found->is_null()) {
      return *found;
    }
  }
  return {};
}

std::string excerpt_of(std::string_view text, size_t most) {
  const bool cut = text.size() > most;
  std::string out(text.substr(0, most));
  std::replace_if(
      out.begin(), out.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return concat("'", out, cut ? "..." : "", "'");
}

RewardText split_reward_text(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string_view view = text;
  RewardText out;
  if (colon != std::string::npos) {
    out = {.kind = std::string(trimmed(view.substr(0, colon))),
           .argument = std::string(trimmed(view.substr(colon + 1)))};
  }
  check<ValueError>(!out.kind.empty() && !out.argument.empty(),
                    "post_training_config.reward_funcs: '", text,
                    "' is no reward; expected KIND: ARGUMENT, for example 'exact: answer'");
  return out;
}

std::vector<std::unique_ptr<RewardFunction>> make_reward_functions(
    const std::vector<std::string>& texts, double timeout, const ModelRewardMaker& make_model) {
  std::vector<std::unique_ptr<RewardFunction>> out;
  std::map<std::string, int> of_kind;
  for (const std::string& text : texts) {
    const RewardText parts = split_reward_text(text);
    const int number = ++of_kind[parts.kind];
    out.push_back(
        make_reward_function(parts, concat("post_training_config.reward_funcs ", excerpt_of(text)),
                             timeout, make_model));
    if (number > 1) {
      out.back()->set_name(concat(parts.kind, "_", number));
    }
  }
  return out;
}

}  // namespace tapestry::post_training
