#include "parallel_core/optimizer/own_schedule.h"

#include <cmath>
#include <utility>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

using config::Value;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kType = "registered";

ordered_json json_of(const Value& value) {
  if (value.is<Value::List>()) {
    ordered_json list = ordered_json::array();
    for (const Value& item : value.as<Value::List>()) {
      list.push_back(json_of(item));
    }
    return list;
  }
  if (value.is<Value::Map>()) {
    ordered_json map = ordered_json::object();
    for (const auto& [name, item] : value.as<Value::Map>()) {
      map[name] = json_of(item);
    }
    return map;
  }
  return value.is<bool>()          ? ordered_json(value.as<bool>())
         : value.is<int64_t>()     ? ordered_json(value.as<int64_t>())
         : value.is<double>()      ? ordered_json(value.as<double>())
         : value.is<std::string>() ? ordered_json(value.as<std::string>())
                                   : ordered_json();
}

Value value_of(const json& state) {
  if (state.is_array()) {
    Value::List list;
    for (const json& item : state) {
      list.push_back(value_of(item));
    }
    return {std::move(list)};
  }
  if (state.is_object()) {
    Value::Map map;
    for (const auto& [name, item] : state.items()) {
      map.emplace_back(name, value_of(item));
    }
    return {std::move(map)};
  }
  return state.is_boolean()          ? Value{state.get<bool>()}
         : state.is_number_integer() ? Value{state.get<int64_t>()}
         : state.is_number()         ? Value{state.get<double>()}
         : state.is_string()         ? Value{state.get<std::string>()}
                                     : Value{};
}

const json& member(const json& state,
                   const char* name,
                   bool (json::*has_kind)() const noexcept,
                   const std::string& source) {
  check<IoError>(state.contains(name) && (state[name].*has_kind)(), source,
                 ": schedule: the member ", name,
                 state.contains(name) ? concat(" is ", state[name].dump()) : " is missing");
  return state[name];
}

}  // namespace

std::optional<OwnSchedule> own_schedule(const AllConfig& config, int64_t data_parallel_size) {
  const OptimizerConfig& o = config.optimizer_config;
  if (!o.lr_decay_style || o.learning_rate_scheduler_kwargs ||
      !ModuleRegistry::has_item(ModuleType::kLrScheduler, *o.lr_decay_style)) {
    return std::nullopt;
  }
  return OwnSchedule{
      .name = *o.lr_decay_style,
      .settings = {.learning_rate = o.learning_rate,
                   .weight_decay = o.weight_decay,
                   .training_iters = total_training_iters(config, data_parallel_size),
                   .global_batch_size = global_batch_size(config, data_parallel_size),
                   .options = o.lr_schedule_kwargs}};
}

std::unique_ptr<optim::Schedule> make_own_schedule(const OwnSchedule& schedule) {
  auto made = ModuleRegistry::get_item<ModuleType::kLrScheduler>(schedule.name)(schedule.settings);
  check<ValueError>(made != nullptr, "lr_decay_style ", schedule.name,
                    ": what is registered makes no schedule");
  return made;
}

std::string own_schedule_state(const OwnSchedule& schedule) {
  const ScheduleSettings& s = schedule.settings;
  ordered_json state;
  state["type"] = kType;
  state["name"] = schedule.name;
  state["learning_rate"] = s.learning_rate;
  state["weight_decay"] = s.weight_decay;
  state["training_iters"] = s.training_iters;
  state["global_batch_size"] = s.global_batch_size;
  state["options"] = ordered_json::object();
  for (const auto& [name, value] : s.options.values) {
    state["options"][name] = json_of(value);
  }
  return state.dump();
}

bool is_own_schedule(const json& state) { return state["type"] == kType; }

OwnSchedule own_schedule_of(const json& state, const std::string& source) {
  OwnSchedule schedule;
  schedule.name = member(state, "name", &json::is_string, source).get<std::string>();
  ScheduleSettings& s = schedule.settings;
  s.learning_rate = member(state, "learning_rate", &json::is_number, source).get<double>();
  s.weight_decay = member(state, "weight_decay", &json::is_number, source).get<double>();
  s.training_iters =
      member(state, "training_iters", &json::is_number_integer, source).get<int64_t>();
  s.global_batch_size =
      member(state, "global_batch_size", &json::is_number_integer, source).get<int64_t>();
  for (const auto& [name, value] : member(state, "options", &json::is_object, source).items()) {
    s.options.values[name] = value_of(value);
  }
  return schedule;
}

}  // namespace tapestry
