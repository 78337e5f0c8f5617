#include "parallel_core/training/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <new>
#include <string>

#include "autograd/tensor/error.h"

namespace tapestry {
namespace {

int run_one(const std::function<void()>& action) {
  std::string name = "/usr/bin/trainer";
  char* words[] = {name.data(), nullptr};
  return run_program(1, words, [&](const std::vector<std::string>&, const Distributed&) {
    action();
    return kFinished;
  });
}

class EndsBySignal : public ::testing::TestWithParam<std::pair<int, const char*>> {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Before a program listens to signals they end it as ever, but it says which.
TEST_P(EndsBySignal, NamedFromTheStart) {
  const auto [signal, name] = GetParam();
  EXPECT_EXIT(run_one([signal = signal] { std::raise(signal); }), ::testing::KilledBySignal(signal),
              std::string("^trainer: ended by ") + name + "\n$");
}

// One that listens is left to save, and to end in good order.
TEST_P(EndsBySignal, ButNotWhereItListens) {
  const int signal = GetParam().first;
  EXPECT_EXIT(std::exit(run_one([signal] {
                const auto stop_requested = stop_on_signals();
                if (stop_requested()) {
                  throw std::runtime_error("no signal has come yet");
                }
                std::raise(signal);
                if (!stop_requested()) {
                  throw std::runtime_error("the signal is lost");
                }
              })),
              ::testing::ExitedWithCode(kFinished), "");
}

// Slurm sends SIGTERM, and srun passes it on once more: the run saves all the same.
TEST_P(EndsBySignal, ASecondOneOfSlurmChangesNothing) {
  const int signal = GetParam().first;
  const auto twice = [signal] {
    const auto stop_requested = stop_on_signals();
    std::raise(signal);
    std::raise(signal);
    if (!stop_requested()) {
      throw std::runtime_error("the signal is lost");
    }
  };
  const bool of_slurm = signal == SIGTERM || signal == SIGUSR1;
  const auto by_srun = [&] {
    ::setenv("SLURM_PROCID", "0", 1);
    ::unsetenv("OMPI_COMM_WORLD_RANK");
    std::exit(run_one(twice));
  };
  const auto by_hand = [&] {
    ::unsetenv("SLURM_PROCID");
    std::exit(run_one(twice));
  };
  if (of_slurm) {
    EXPECT_EXIT(by_srun(), ::testing::ExitedWithCode(kFinished), "");
    EXPECT_EXIT(by_hand(), ::testing::KilledBySignal(signal), "");
  } else if (signal == SIGINT) {
    EXPECT_EXIT(by_srun(), ::testing::KilledBySignal(signal), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Signals,
                         EndsBySignal,
                         ::testing::Values(std::pair{SIGINT, "SIGINT"},
                                           std::pair{SIGTERM, "SIGTERM"},
                                           std::pair{SIGHUP, "SIGHUP"},
                                           std::pair{SIGUSR1, "SIGUSR1"}),
                         [](const auto& info) { return std::string(info.param.second); });

TEST(FailureMessage, SaysThatMemoryRanOut) {
  EXPECT_EQ(failure_message(ValueError("a value")), "a value");
  EXPECT_THAT(failure_message(std::bad_alloc()), ::testing::StartsWith("memory ran out: "));
}

}  // namespace
}  // namespace tapestry
