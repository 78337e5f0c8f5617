#include "parallel_core/optimizer/schedule_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "tests/message_of.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Overrides;
using testing::small_config;

AllConfig of_style(const std::string& style, Overrides more = {}) {
  more.push_back("optimizer_config.lr_decay_style=" + style);
  more.push_back("optimizer_config.min_lr=0.001");
  return small_config(more);
}

// The members that older versions did not write.
std::string older(const std::string& state) {
  nlohmann::json content = nlohmann::json::parse(state);
  for (const char* name : {"lr_num_cycles", "lr_decay_power", "final_lr", "lr_keep_iters",
                           "lr_final_iters", "lr_restart_iters", "lr_restart_mult"}) {
    EXPECT_EQ(content.erase(name), 1U) << name;
  }
  return content.dump();
}

TEST(ScheduleState, GivesTheSameSchedule) {
  const std::string o = "optimizer_config.";
  for (const AllConfig& config :
       {of_style("cosine", {o + "lr_num_cycles=1.5"}),
        of_style("cosine_restarts", {o + "lr_num_cycles=3"}),
        of_style("polynomial", {o + "lr_decay_power=2"}), of_style("cosine_annealing"),
        of_style("cooldown", {o + "lr_keep_iters=3", o + "lr_final_iters=2", o + "final_lr=0.002",
                              o + "lr_decay_iters=12", o + "lr_warmup_iters=2"}),
        of_style("warm_restarts", {o + "lr_restart_iters=4", o + "lr_restart_mult=2"})}) {
    SCOPED_TRACE(*config.optimizer_config.lr_decay_style);
    const auto configured = get_optimizer_param_scheduler(config, 1);
    const auto stored = schedule_from_state(schedule_state(config, 1), "test");
    for (int64_t step = 0; step < 40; ++step) {
      EXPECT_EQ(stored->learning_rate({.applied = step, .seen = step}),
                configured->learning_rate({.applied = step, .seen = step}));
    }
  }
}

TEST(ScheduleState, OfAnOlderCheckpoint) {
  const AllConfig config = of_style("cosine");
  const std::string stored = older(schedule_state(config, 1));
  EXPECT_THAT(resume_schedule(config, 1, stored, "old").remark, IsEmpty());
  const AllConfig other = of_style("cosine", {"optimizer_config.lr_num_cycles=2"});
  const ResumedSchedule resumed = resume_schedule(other, 1, stored, "old");
  EXPECT_THAT(resumed.remark, HasSubstr("lr_num_cycles null (configured 2.0)"));
  EXPECT_NEAR(resumed.schedule->learning_rate({.applied = 10, .seen = 10}), 0.0055, 1e-12);
}

TEST(ScheduleState, WrongMembers) {
  const auto message = [](const char* name, const nlohmann::json& value) {
    nlohmann::json content = nlohmann::json::parse(schedule_state(of_style("cosine"), 1));
    content[name] = value;
    return message_of<IoError>([&] { schedule_from_state(content.dump(), "damaged"); });
  };
  EXPECT_THAT(message("lr_num_cycles", "two"), HasSubstr("the member lr_num_cycles is \"two\""));
  EXPECT_THAT(message("lr_keep_iters", 1.5), HasSubstr("lr_keep_iters is 1.5"));
  EXPECT_THAT(message("lr_restart_mult", 0), HasSubstr("lr_restart_mult must be 1 or more"));
  EXPECT_THAT(message("lr_cycles", 1), HasSubstr("has 28 members, expected 27"));
}

}  // namespace
}  // namespace tapestry
