// Schedules that a program has registered, and how checkpoints keep them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "autograd/io/json.h"
#include "optim/lr_scheduler.h"
#include "parallel_core/config/config.h"
#include "parallel_core/register.h"

namespace tapestry {

/// A registered name and what its schedule is made with.
struct OwnSchedule {
  std::string name;
  ScheduleSettings settings;
};

/// What lr_decay_style asks for, where that is a registered name.
std::optional<OwnSchedule> own_schedule(const AllConfig& config, int64_t data_parallel_size);

/// ValueError if the program has registered no such name, or what it has makes nothing.
std::unique_ptr<optim::Schedule> make_own_schedule(const OwnSchedule& schedule);

/// One JSON object, and back. IoError, naming `source` and the member, for one that is malformed.
std::string own_schedule_state(const OwnSchedule& schedule);
bool is_own_schedule(const nlohmann::json& state);
OwnSchedule own_schedule_of(const nlohmann::json& state, const std::string& source);

}  // namespace tapestry
