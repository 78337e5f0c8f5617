// The learning-rate and weight-decay schedule of a run, as its checkpoints keep it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "optim/lr_scheduler.h"
#include "parallel_core/config/config.h"

namespace tapestry {

/// The schedule that a configuration asks for, with all lengths that it follows from, as one JSON
/// object: {"type": "...", NAME: VALUE, ...}.
std::string schedule_state(const AllConfig& config, int64_t data_parallel_size);

/// The schedule of such a text. IoError, naming `source` and the member, for anything else.
std::unique_ptr<optim::Schedule> schedule_from_state(const std::string& state,
                                                     const std::string& source);

/// What a resumed run goes by.
struct ResumedSchedule {
  std::unique_ptr<optim::Schedule> schedule;
  std::string state;   ///< of it, for the next checkpoint
  std::string remark;  ///< where the configuration asks for another one than is used; else empty
};

/// The stored schedule with use_checkpoint_opt_param_scheduler, the configured one with
/// override_opt_param_scheduler; with neither of them both have to be the same, else ValueError
/// with what differs. An empty `stored` is of a run without a schedule: then the configured one.
ResumedSchedule resume_schedule(const AllConfig& config,
                                int64_t data_parallel_size,
                                const std::string& stored,
                                const std::string& source);

}  // namespace tapestry
