#include "parallel_core/optimizer/schedule_state.h"

#include <cmath>
#include <optional>
#include <utility>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/optimizer/get_optimizer.h"
#include "parallel_core/optimizer/own_schedule.h"

namespace tapestry {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kConstant = "constant";
constexpr const char* kByUpdates = "learning_rate_scheduler_kwargs";
constexpr const char* kBySamples = "lr_decay_style";

// Calls visit(name, member) for what a schedule is made of.
template <class Options, class Visit>
void visit_by_updates(Options& o, Visit&& visit) {
  visit("learning_rate", o.learning_rate);
  visit("end_learning_rate", o.end_learning_rate);
  visit("warmup_steps", o.warmup_steps);
  visit("decay_steps", o.decay_steps);
  visit("power", o.power);
  visit("use_cosine", o.use_cosine);
  visit("weight_decay", o.weight_decay);
}
template <class Options, class Visit>
void visit_by_samples(Options& o, Visit&& visit) {
  visit("learning_rate", o.learning_rate);
  visit("min_lr", o.min_lr);
  visit("lr_warmup_init", o.lr_warmup_init);
  visit("lr_decay_style", o.lr_decay_style);
  visit("lr_wsd_decay_style", o.lr_wsd_decay_style);
  visit("weight_decay", o.weight_decay);
  visit("start_weight_decay", o.start_weight_decay);
  visit("end_weight_decay", o.end_weight_decay);
  visit("weight_decay_incr_style", o.weight_decay_incr_style);
  visit("lr_warmup_fraction", o.lr_warmup_fraction);
  visit("global_batch_size", o.global_batch_size);
  visit("training_iters", o.training_iters);
  visit("lr_warmup_iters", o.lr_warmup_iters);
  visit("lr_decay_iters", o.lr_decay_iters);
  visit("lr_wsd_decay_iters", o.lr_wsd_decay_iters);
  visit("train_samples", o.train_samples);
  visit("lr_warmup_samples", o.lr_warmup_samples);
  visit("lr_decay_samples", o.lr_decay_samples);
  visit("lr_wsd_decay_samples", o.lr_wsd_decay_samples);
  // Older checkpoints lack these.
  visit.may_lack();
  visit("lr_num_cycles", o.lr_num_cycles);
  visit("lr_decay_power", o.lr_decay_power);
  visit("final_lr", o.final_lr);
  visit("lr_keep_iters", o.lr_keep_iters);
  visit("lr_final_iters", o.lr_final_iters);
  visit("lr_restart_iters", o.lr_restart_iters);
  visit("lr_restart_mult", o.lr_restart_mult);
}

struct Writer {
  ordered_json& out;
  void may_lack() const {}
  template <class T>
  void operator()(const char* name, const T& value) const {
    out[name] = value;
  }
  template <class T>
  void operator()(const char* name, const std::optional<T>& value) const {
    out[name] = value ? ordered_json(*value) : ordered_json();
  }
};

// Members of one object, each of which has to be there once, but for those that may lack.
struct Reader {
  const json& in;
  const std::string& source;
  size_t members = 1;  // "type"
  bool lacks = false;

  void may_lack() { lacks = true; }
  bool has(const char* name) {
    const bool found = in.contains(name);
    members += found ? 1 : 0;
    if (!found && !lacks) {
      fail(name);
    }
    return found;
  }

  [[noreturn]] void fail(const char* name) const {
    throw IoError(concat(source, ": schedule: the member ", name,
                         in.contains(name) ? concat(" is ", in[name].dump()) : " is missing"));
  }
  void take(const json& value, const char* name, double& out) const {
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      fail(name);
    }
    out = value.get<double>();
  }
  void take(const json& value, const char* name, int64_t& out) const {
    const bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX;
    if (!value.is_number_integer() || !fits) {
      fail(name);
    }
    out = value.get<int64_t>();
  }
  void take(const json& value, const char* name, bool& out) const {
    if (!value.is_boolean()) {
      fail(name);
    }
    out = value.get<bool>();
  }
  void take(const json& value, const char* name, std::string& out) const {
    if (!value.is_string()) {
      fail(name);
    }
    out = value.get<std::string>();
  }
  template <class T>
  void operator()(const char* name, T& out) {
    if (has(name)) {
      take(in[name], name, out);
    }
  }
  template <class T>
  void operator()(const char* name, std::optional<T>& out) {
    if (has(name) && !in[name].is_null()) {
      take(in[name], name, out.emplace());
    }
  }
  void finish() const {
    check<IoError>(in.size() == members, source, ": schedule: has ", in.size(),
                   " members, expected ", members);
  }
};

// "min_lr 1e-05 (configured 2e-05)" for what differs.
std::string differences(const json& stored, const json& configured) {
  if (stored["type"] != configured["type"]) {
    return concat("type ", stored["type"].dump(), " (configured ", configured["type"].dump(), ")");
  }
  std::string text;
  for (const auto& [name, value] : stored.items()) {
    if (configured.contains(name) && configured[name] != value) {
      text += concat(text.empty() ? "" : ", ", name, " ", value.dump(), " (configured ",
                     configured[name].dump(), ")");
    }
  }
  return text;
}

OptimizerParamSchedulerOptions read_by_samples(Reader& reader) {
  OptimizerParamSchedulerOptions options;
  visit_by_samples(options, reader);
  reader.finish();
  return options;
}

// A stored schedule with all members that one of today has.
json completed_state(const std::string& stored, const std::string& source) {
  json content = json::parse(stored);
  if (content["type"] != kBySamples) {
    return content;
  }
  Reader reader{content, source};
  const OptimizerParamSchedulerOptions options = read_by_samples(reader);
  ordered_json all;
  all["type"] = kBySamples;
  visit_by_samples(options, Writer{all});
  return json::parse(all.dump());
}

}  // namespace

std::string schedule_state(const AllConfig& config, int64_t data_parallel_size) {
  ordered_json state;
  if (const auto by_updates = learning_rate_scheduler_options(config)) {
    state["type"] = kByUpdates;
    visit_by_updates(*by_updates, Writer{state});
  } else if (const auto own = own_schedule(config, data_parallel_size)) {
    return own_schedule_state(*own);
  } else if (const auto by_samples = param_scheduler_options(config, data_parallel_size)) {
    state["type"] = kBySamples;
    visit_by_samples(*by_samples, Writer{state});
  } else {
    state["type"] = kConstant;
    state["learning_rate"] = config.optimizer_config.learning_rate;
    state["weight_decay"] = config.optimizer_config.weight_decay;
  }
  return state.dump();
}

static std::unique_ptr<optim::Schedule> read_schedule(const std::string& state,
                                                      const std::string& source) {
  const json content = json::parse(state, nullptr, /*allow_exceptions=*/false);
  check<IoError>(content.is_object() && content.contains("type"), source,
                 ": schedule: is not an object with a type");
  if (is_own_schedule(content)) {
    return make_own_schedule(own_schedule_of(content, source));
  }
  Reader reader{content, source};
  if (content["type"] == kByUpdates) {
    optim::LearningRateSchedulerOptions options;
    visit_by_updates(options, reader);
    reader.finish();
    return std::make_unique<optim::LearningRateScheduler>(options);
  }
  if (content["type"] == kBySamples) {
    return std::make_unique<OptimizerParamScheduler>(read_by_samples(reader));
  }
  check<IoError>(content["type"] == kConstant, source, ": schedule: the type ",
                 content["type"].dump(), " is not known");
  double learning_rate = 0;
  double weight_decay = 0;
  reader("learning_rate", learning_rate);
  reader("weight_decay", weight_decay);
  reader.finish();
  return std::make_unique<optim::ConstantSchedule>(learning_rate, weight_decay);
}

std::unique_ptr<optim::Schedule> schedule_from_state(const std::string& state,
                                                     const std::string& source) {
  try {
    return read_schedule(state, source);
  } catch (const ValueError& error) {  // the schedule's own, which speaks of keys
    throw IoError(concat(source, ": schedule: ", error.what()));
  }
}

ResumedSchedule resume_schedule(const AllConfig& config,
                                int64_t data_parallel_size,
                                const std::string& stored,
                                const std::string& source) {
  const OptimizerConfig& o = config.optimizer_config;
  if (stored.empty()) {
    return {.schedule = get_optimizer_param_scheduler(config, data_parallel_size),
            .state = schedule_state(config, data_parallel_size),
            .remark = concat("the schedule is the configured one: ", source,
                             " is of a program that trained without")};
  }
  std::unique_ptr<optim::Schedule> of_checkpoint = schedule_from_state(stored, source);
  const std::string configured = schedule_state(config, data_parallel_size);
  const std::string other = differences(completed_state(stored, source), json::parse(configured));
  if (o.override_opt_param_scheduler || other.empty()) {
    return {.schedule = get_optimizer_param_scheduler(config, data_parallel_size),
            .state = configured,
            .remark = other.empty() ? std::string()
                                    : concat("the schedule is the configured one "
                                             "(override_opt_param_scheduler), not that of ",
                                             source, ": ", other)};
  }
  check<ValueError>(o.use_checkpoint_opt_param_scheduler, source,
                    ": its schedule is not the configured one: ", other,
                    "; set optimizer_config.use_checkpoint_opt_param_scheduler: True to go on with "
                    "it, or override_opt_param_scheduler: True to take the configured one");
  return {.schedule = std::move(of_checkpoint),
          .state = stored,
          .remark =
              concat("the schedule is that of ", source, ": ", other,
                     "; to take the configured one, set use_checkpoint_opt_param_scheduler: False "
                     "and override_opt_param_scheduler: True")};
}

}  // namespace tapestry
