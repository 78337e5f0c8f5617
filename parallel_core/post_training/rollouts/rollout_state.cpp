#include "parallel_core/post_training/rollouts/rollout_state.h"

#include <cmath>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"

namespace tapestry::post_training {

namespace {

using nlohmann::json;

json values_json(std::span<const double> values) {
  json out = json::array();
  for (const double value : values) {
    out.push_back(std::isnan(value) ? json() : json(value));
  }
  return out;
}

std::vector<double> values_from(const json& list) {
  std::vector<double> out;
  for (const json& value : list) {
    out.push_back(value.is_null() ? kNoReward : value.get<double>());
  }
  return out;
}

RolloutState state_from(const json& content) {
  RolloutState state;
  state.number = content.at("number").get<int64_t>();
  for (const json& one : content.at("completions")) {
    state.completions.push_back({.ids = one.at("ids").get<std::vector<int32_t>>(),
                                 .log_probs = values_from(one.at("log_probs")),
                                 .truncated = one.at("truncated").get<bool>()});
    const SampledCompletion& read = state.completions.back();
    check<ValueError>(!read.ids.empty() && read.ids.size() == read.log_probs.size(),
                      "a completion has ", read.ids.size(), " ids and ", read.log_probs.size(),
                      " log-probabilities");
    if (one.contains("ref_log_probs")) {
      const std::vector<double> reference = values_from(one.at("ref_log_probs"));
      check<ValueError>(reference.size() == read.ids.size(), "a completion has ", read.ids.size(),
                        " ids and ", reference.size(), " log-probabilities of the reference");
      state.ref_log_probs.add(reference);
    }
  }
  for (const json& function : content.at("rewards")) {
    state.reward_names.push_back(function.at("name").get<std::string>());
    state.rewards.push_back(values_from(function.at("values")));
    check<ValueError>(state.rewards.back().size() == state.completions.size(), "there are ",
                      state.rewards.back().size(), " rewards for ", state.completions.size(),
                      " completions");
  }
  return state;
}

}  // namespace

std::string rollout_state_json(const RolloutState& state) {
  json out;
  out["number"] = state.number;
  out["completions"] = json::array();
  for (size_t i = 0; i < state.completions.size(); ++i) {
    const SampledCompletion& one = state.completions[i];
    json entry = {
        {"ids", one.ids}, {"log_probs", values_json(one.log_probs)}, {"truncated", one.truncated}};
    if (!state.ref_log_probs.empty()) {
      entry["ref_log_probs"] = values_json(state.ref_log_probs.of(static_cast<int64_t>(i)));
    }
    out["completions"].push_back(std::move(entry));
  }
  out["rewards"] = json::array();
  for (size_t f = 0; f < state.rewards.size(); ++f) {
    out["rewards"].push_back(
        {{"name", state.reward_names[f]}, {"values", values_json(state.rewards[f])}});
  }
  return out.dump();
}

RolloutState parse_rollout_state(const std::string& text, const std::string& source) {
  try {
    return state_from(json::parse(text));
  } catch (const std::exception& error) {  // the library's, or a check's
    throw IoError(concat(source, ": completions that are trained on: ", error.what()));
  }
}

}  // namespace tapestry::post_training
