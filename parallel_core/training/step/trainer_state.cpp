#include "parallel_core/training/step/trainer_state.h"

#include <cmath>
#include <limits>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

using nlohmann::json;

// Reads members of an object, with their path for messages.
class Members {
 public:
  Members(const json& object, const std::string& source, std::string path)
      : object_(object), source_(source), path_(std::move(path)) {
    check<IoError>(object_.is_object(), source_, ": ", path_.empty() ? "the state" : path_,
                   " is not an object");
  }

  bool has(const char* name) const { return object_.contains(name); }
  const json& at(const char* name) const {
    const auto found = object_.find(name);
    check<IoError>(found != object_.end(), source_, ": has no member ", path_of(name));
    return *found;
  }
  int64_t count(const char* name) const {
    const json& value = at(name);
    // Unsigned ones beyond 63 bits become negative.
    check<IoError>(value.is_number_integer() && value.get<int64_t>() >= 0, source_, ": ",
                   path_of(name), " is ", value.dump(), ", expected a number from 0 on");
    return value.get<int64_t>();
  }
  float single(const char* name) const {
    const double value = number(name);
    check<IoError>(std::abs(value) <= std::numeric_limits<float>::max(), source_, ": ",
                   path_of(name), " is ", value, ", beyond the range of float32");
    return static_cast<float>(value);
  }
  double number(const char* name) const { return number_of(at(name), name); }
  std::vector<double> numbers(const char* name) const {
    const json& list = at(name);
    check<IoError>(list.is_array(), source_, ": ", path_of(name), " is ", list.dump(),
                   ", expected a list of numbers");
    std::vector<double> values;
    for (const json& value : list) {
      values.push_back(number_of(value, name));
    }
    return values;
  }
  std::string text(const char* name) const {
    const json& value = at(name);
    check<IoError>(value.is_string(), source_, ": ", path_of(name), " is ", value.dump(),
                   ", expected a text");
    return value.get<std::string>();
  }
  Members members(const char* name) const { return {at(name), source_, path_of(name)}; }

 private:
  double number_of(const json& value, const char* name) const {
    check<IoError>(value.is_number() && std::isfinite(value.get<double>()), source_, ": ",
                   path_of(name), " is ", value.dump(), ", expected a number");
    return value.get<double>();
  }
  std::string path_of(const char* name) const {
    return path_.empty() ? std::string(name) : path_ + "." + name;
  }

  const json& object_;
  const std::string& source_;
  std::string path_;
};

}  // namespace

std::string trainer_state_json(const TrainerState& state) {
  nlohmann::ordered_json out;
  out["position"] = {{"applied", state.position.applied}, {"seen", state.position.seen}};
  if (state.position.skipped > 0) {
    out["position"]["skipped"] = state.position.skipped;
  }
  if (state.position.samples) {
    out["position"]["samples"] = *state.position.samples;
  }
  out["loss_scaler"] = {{"scale", state.scaler.scale}, {"good_steps", state.scaler.good_steps}};
  out["generator"] = {{"seed", state.generator.seed}, {"offset", state.generator.offset}};
  out["schedule"] = state.schedule.empty() ? nlohmann::ordered_json()
                                           : nlohmann::ordered_json::parse(state.schedule);
  out["data"] =
      state.data.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json::parse(state.data);
  out["best"] = nlohmann::ordered_json();
  if (state.best) {
    out["best"] = {
        {"metric", state.best->metric}, {"value", state.best->value}, {"step", state.best->step}};
  }
  if (state.norm_spikes) {
    out["norm_spikes"] = {{"count", state.norm_spikes->count}, {"norms", state.norm_spikes->norms}};
  }
  if (state.autopsy) {
    const PastOfAutopsy& past = *state.autopsy;
    out["bad_steps"] = {{"in_a_row", past.bad_in_a_row}, {"last", past.last_bad_step}};
    if (past.losses) {
      out["loss_spikes"] = {{"count", past.losses->count}, {"losses", past.losses->norms}};
    }
  }
  if (state.divergence) {
    out["nonfinite_steps"] = {{"in_a_row", state.divergence->in_a_row},
                              {"last_finite_step", state.divergence->last_finite_step},
                              {"last_finite_lr", state.divergence->last_finite_lr}};
  }
  if (!state.task.empty()) {
    out["task"] = nlohmann::ordered_json::parse(state.task);
  }
  out["tokens"] = state.tokens;
  out["train_seconds"] = state.train_seconds;
  out["layout"] = state.layout;
  return out.dump();
}

TrainerState parse_trainer_state(const std::string& text, const std::string& source) {
  const json content = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Members all(content, source, "");
  const Members position = all.members("position");
  const Members scaler = all.members("loss_scaler");
  const Members generator = all.members("generator");
  TrainerState state;
  state.position = {
      .applied = position.count("applied"),
      .seen = position.count("seen"),
      .skipped = position.has("skipped") ? position.count("skipped") : 0,
      .samples = position.has("samples") ? std::optional(position.count("samples")) : std::nullopt};
  state.scaler = {.scale = scaler.single("scale"), .good_steps = scaler.count("good_steps")};
  state.generator = {.seed = static_cast<uint64_t>(generator.count("seed")),
                     .offset = static_cast<uint64_t>(generator.count("offset"))};
  const json& schedule = all.at("schedule");
  state.schedule = schedule.is_null() ? std::string() : schedule.dump();
  state.data = all.at("data").is_null() ? std::string() : all.at("data").dump();
  if (!all.at("best").is_null()) {
    const Members best = all.members("best");
    state.best = {
        .metric = best.text("metric"), .value = best.number("value"), .step = best.count("step")};
  }
  if (all.has("norm_spikes")) {
    const Members spikes = all.members("norm_spikes");
    state.norm_spikes = {.count = spikes.count("count"), .norms = spikes.numbers("norms")};
  }
  if (all.has("bad_steps")) {
    const Members bad = all.members("bad_steps");
    state.autopsy = PastOfAutopsy{.losses = std::nullopt,
                                  .bad_in_a_row = bad.count("in_a_row"),
                                  .last_bad_step = bad.count("last")};
    if (all.has("loss_spikes")) {
      const Members spikes = all.members("loss_spikes");
      state.autopsy->losses =
          NormSpikes::State{.count = spikes.count("count"), .norms = spikes.numbers("losses")};
    }
  }
  if (all.has("nonfinite_steps")) {
    const Members steps = all.members("nonfinite_steps");
    state.divergence = PastOfDivergence{.in_a_row = steps.count("in_a_row"),
                                        .last_finite_step = steps.count("last_finite_step"),
                                        .last_finite_lr = steps.number("last_finite_lr")};
  }
  state.task = all.has("task") ? all.at("task").dump() : std::string();
  state.tokens = all.count("tokens");
  state.train_seconds = all.number("train_seconds");
  state.layout = all.text("layout");
  return state;
}

}  // namespace tapestry
