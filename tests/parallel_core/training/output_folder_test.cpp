#include "parallel_core/training/files/output_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "autograd/tensor/error.h"
#include "parallel_core/comm/thread_ranks.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::output_folder_test {
namespace {

namespace fs = std::filesystem;
using data::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunLockTest : public ::testing::Test {
 protected:
  std::string path() const { return dir_.file("run.lock"); }
  TempDir dir_;
  LockHolder holder_;
};

TEST_F(RunLockTest, SaysWhoHoldsItAndGoesWithItsHolder) {
  {
    const auto lock = RunLock::take(path(), holder_);
    ASSERT_NE(lock, nullptr);
    EXPECT_FALSE(lock->previous());
    const auto named = read_lock(path());
    ASSERT_TRUE(named);
    EXPECT_EQ(named->pid, ::getpid());
    EXPECT_EQ(named->host, LockHolder::self().host);
    EXPECT_FALSE(named->started.empty());
    EXPECT_TRUE(named->is_reachable());
    // Another one, in the same process or not.
    EXPECT_EQ(RunLock::take(path(), holder_), nullptr);
    EXPECT_EQ(holder_.pid, ::getpid());
    EXPECT_THAT(holder_.describe(),
                AllOf(Says(std::to_string(::getpid())), Says(holder_.host), Says(holder_.started)));
  }
  EXPECT_FALSE(fs::exists(path()));
  EXPECT_NE(RunLock::take(path(), holder_), nullptr);
}

TEST_F(RunLockTest, WhatAKilledProcessLeavesIsStale) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto lock = RunLock::take(path(), holder_);
    ::_exit(lock != nullptr ? 0 : 1);  // without destructors, as by kill -9
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  ASSERT_TRUE(fs::exists(path()));
  EXPECT_FALSE(read_lock(path())->is_reachable());
  const auto lock = RunLock::take(path(), holder_);
  ASSERT_NE(lock, nullptr);
  ASSERT_TRUE(lock->previous());
  EXPECT_EQ(lock->previous()->pid, child);
  EXPECT_EQ(read_lock(path())->pid, ::getpid());
}

// What the locks of a network file system may not show.
TEST_F(RunLockTest, AHolderOnAnotherMachineIsBelieved) {
  dir_.write("run.lock",
             "host: far.away\npid: 12\nstarted: 2026-01-02 03:04:05\ncommand: train\n"
             "boot_id: another\nprocess_start: 7\n");
  EXPECT_EQ(RunLock::take(path(), holder_), nullptr);
  EXPECT_EQ(holder_.host, "far.away");
  EXPECT_FALSE(holder_.is_reachable());
  EXPECT_THAT(dir_.read("run.lock"), HasSubstr("far.away"));
}

// Sets a variable of the environment for a while.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

// Whoever starts a job again knows that its earlier start is over, though its machine is gone.
TEST_F(RunLockTest, AnEarlierStartOfTheSameJobOnAnotherMachineIsStale) {
  const std::string far =
      "host: far.away\npid: 12\nstarted: 2026-01-02 03:04:05\nboot_id: another\n";
  const Variable job("TAPESTRY_JOB", "a-7");
  for (const char* start : {"1", "3", "4"}) {
    const Variable count("TAPESTRY_JOB_START", "3");
    dir_.write("run.lock", far + "job: a-7\njob_start: " + start + "\n");
    const auto lock = RunLock::take(path(), holder_);
    EXPECT_EQ(lock != nullptr, std::string(start) == "1") << start;
    if (lock) {
      EXPECT_EQ(lock->previous()->host, "far.away");
      EXPECT_EQ(read_lock(path())->job, "a-7");
      EXPECT_EQ(read_lock(path())->job_start, 3);
    }
  }
  const Variable count("TAPESTRY_JOB_START", "3");
  dir_.write("run.lock", far + "job: b-8\njob_start: 1\n");
  EXPECT_EQ(RunLock::take(path(), holder_), nullptr);
  dir_.write("run.lock", far + "job_start: 1\n");
  EXPECT_EQ(RunLock::take(path(), holder_), nullptr);
}

TEST_F(RunLockTest, SlurmsRequeueIsALaterStartOfTheSameJob) {
  ::unsetenv("TAPESTRY_JOB");
  const Variable job("SLURM_JOB_ID", "41");
  EXPECT_EQ(LockHolder::self().job, "slurm-41");
  EXPECT_EQ(LockHolder::self().job_start, 0);
  const LockHolder first = LockHolder::self();
  const Variable count("SLURM_RESTART_COUNT", "1");
  EXPECT_TRUE(first.is_earlier_start_of(LockHolder::self()));
  EXPECT_FALSE(LockHolder::self().is_earlier_start_of(first));
}

TEST_F(RunLockTest, AFileThatNamesNobodyIsTakenOver) {
  for (const char* content : {"", "pid: none\n", "\xff\xfe"}) {
    dir_.write("run.lock", content);
    const auto lock = RunLock::take(path(), holder_);
    ASSERT_NE(lock, nullptr) << content;
    EXPECT_FALSE(lock->previous());
  }
}

// The number is that of a living process, but of another one.
TEST_F(RunLockTest, ANumberThatWasGivenAgainIsNotReachable) {
  LockHolder other = LockHolder::self();
  EXPECT_TRUE(other.is_reachable());
  other.process_start += 1;
  EXPECT_FALSE(other.is_reachable());
}

TEST_F(RunLockTest, NeedsItsFolder) {
  EXPECT_ERROR(RunLock::take(dir_.file("none/run.lock"), holder_), IoError, "none/run.lock");
}

class OutputFolderTest : public ::testing::Test {
 protected:
  static constexpr const char* kMetrics = "{\"step\":1}\n{\"step\":12,\"loss\":2}\n";
  void write_run() const {
    dir_.write("out/metrics.jsonl", kMetrics);
    dir_.write("out/config.yaml", "seed: 1\n");
    dir_.write("out/checkpoint/step_00000012/model.safetensors", "weights");
    dir_.write("out/weights_step_3.safetensors", "dumped");
    dir_.write("out/log/rank_0/info.log", "lines\n");
    dir_.write("out/mine.txt", "of the user");
  }
  std::string out() const { return dir_.file("out"); }
  std::vector<std::string> names(const std::string& folder) const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(dir_.file(folder))) {
      found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  TempDir dir_;
  std::shared_ptr<ProcessGroup> alone_ = single_process_group();
};

TEST_F(OutputFolderTest, AFreshFolderIsMadeAndLocked) {
  {
    OutputFolder folder(out(), {}, *alone_);
    EXPECT_THAT(names("out"), ElementsAre("run.lock"));
    EXPECT_THAT(folder.earlier().files, IsEmpty());
    EXPECT_EQ(folder.move_earlier_aside(), "");
    EXPECT_ERROR(OutputFolder(out(), {}, *alone_), ValueError, "is in use by process");
    EXPECT_ERROR(OutputFolder(out(), {.overwrite = true}, *alone_), ValueError, "--replace");
  }
  EXPECT_THAT(names("out"), IsEmpty());
  dir_.write("file", "x");
  EXPECT_ERROR(OutputFolder(dir_.file("file"), {}, *alone_), IoError, "output_dir");
}

TEST_F(OutputFolderTest, WhatIsNoRunIsNotInTheWay) {
  dir_.write("out/log/rank_0/info.log", "of a run that found its data missing\n");
  dir_.write("out/metrics.jsonl", "");
  dir_.write("out/config.yaml", "seed: 1\n");
  fs::create_directories(dir_.file("out/checkpoint"));
  OutputFolder folder(out(), {}, *alone_);
  EXPECT_THAT(folder.earlier().files, IsEmpty());
}

TEST_F(OutputFolderTest, ARunIsRefusedWithWhatIsThere) {
  write_run();
  for (const char* said : {"holds a run already", "12 steps", "step_00000012", "--overwrite",
                           "resume_training", "output_dir"}) {
    EXPECT_ERROR(OutputFolder(out(), {}, *alone_), ValueError, said);
  }
  EXPECT_EQ(dir_.read("out/metrics.jsonl"), kMetrics);
  EXPECT_FALSE(fs::exists(dir_.file("out/run.lock")));
  // Each of these alone is a run.
  for (const char* name : {"metrics.jsonl", "checkpoint", "weights_step_3.safetensors"}) {
    TempDir other;
    fs::create_directories(other.file("out"));
    fs::copy(dir_.file(std::string("out/") + name), other.file(std::string("out/") + name),
             fs::copy_options::recursive);
    EXPECT_ERROR(OutputFolder(other.file("out"), {}, *alone_), ValueError, "holds a run") << name;
  }
}

TEST_F(OutputFolderTest, OverwritingMovesTheFilesAside) {
  write_run();
  OutputFolder folder(out(), {.overwrite = true}, *alone_);
  EXPECT_EQ(folder.earlier().last_step, 12);
  EXPECT_EQ(dir_.read("out/metrics.jsonl"), kMetrics);  // not yet
  EXPECT_EQ(folder.move_earlier_aside(), dir_.file("out/old/run_1"));
  EXPECT_THAT(names("out"), ElementsAre("log", "mine.txt", "old", "run.lock"));
  EXPECT_THAT(names("out/old/run_1"), ElementsAre("checkpoint", "config.yaml", "metrics.jsonl",
                                                  "weights_step_3.safetensors"));
  EXPECT_EQ(dir_.read("out/old/run_1/metrics.jsonl"), kMetrics);
  EXPECT_EQ(folder.move_earlier_aside(), "");
}

TEST_F(OutputFolderTest, ThePlaceOfAnotherIsNotTaken) {
  write_run();
  dir_.write("out/old/run_1/metrics.jsonl", "first\n");
  OutputFolder folder(out(), {.overwrite = true}, *alone_);
  EXPECT_EQ(folder.move_earlier_aside(), dir_.file("out/old/run_2"));
  EXPECT_EQ(dir_.read("out/old/run_1/metrics.jsonl"), "first\n");
}

TEST_F(OutputFolderTest, WhatTheRunNeedsStays) {
  write_run();
  OutputFolder folder(out(), {.overwrite = true}, *alone_);
  const std::string needed = dir_.file("out/checkpoint/step_00000012/tokenizer.model");
  EXPECT_ERROR(folder.move_earlier_aside({needed}), ValueError, "tokenizer.model");
  EXPECT_EQ(dir_.read("out/metrics.jsonl"), kMetrics);
  EXPECT_EQ(folder.move_earlier_aside({"", out() + "/mine.txt"}), dir_.file("out/old/run_1"));
}

TEST_F(OutputFolderTest, ARunThatIsGoneOnWithStaysWhereItIs) {
  {
    OutputFolder nothing(out(), {.resume = true}, *alone_);
    EXPECT_THAT(nothing.earlier().files, IsEmpty());
    EXPECT_EQ(nothing.move_earlier_aside(), "");
  }
  write_run();
  const std::vector<std::string> before = names("out");
  for (const bool replace : {false, true}) {
    OutputFolder folder(out(), {.replace = replace, .resume = true}, *alone_);
    EXPECT_EQ(folder.earlier().last_step, 12);
    EXPECT_EQ(folder.move_earlier_aside(), "");
    EXPECT_EQ(folder.move_later_aside(dir_.file("out/checkpoint/step_00000012")), "");
  }
  EXPECT_EQ(names("out"), before);
  EXPECT_EQ(dir_.read("out/metrics.jsonl"), kMetrics);
  // Going on with another folder's run where a run is to be overwritten.
  OutputFolder folder(out(), {.overwrite = true, .resume = true}, *alone_);
  EXPECT_EQ(folder.move_earlier_aside(), dir_.file("out/old/run_1"));
}

TEST_F(OutputFolderTest, WhatIsLaterThanTheCheckpointGoesAside) {
  write_run();
  for (const char* name :
       {"checkpoint/step_00000004/model.safetensors", "checkpoint/step_00000008/model.safetensors",
        "checkpoint/diverged_step_9/model.safetensors", "checkpoint/step_100000000/torn",
        "checkpoint/step_last/model.safetensors", "checkpoint/mine.txt", "grads_step_8.safetensors",
        "grads_step_9.safetensors", "acts_step_10.safetensors", "weights_step_mine.safetensors"}) {
    dir_.write(std::string("out/") + name, name);
  }
  OutputFolder folder(out(), {.resume = true}, *alone_);
  EXPECT_EQ(folder.move_later_aside(out() + "/checkpoint/step_100000000"), "");
  EXPECT_EQ(folder.move_later_aside(dir_.file("elsewhere/checkpoint/step_00000004")), "");
  EXPECT_EQ(folder.move_later_aside(out() + "/checkpoint"), "");
  EXPECT_EQ(folder.move_later_aside(out() + "/checkpoint/step_00000008/"),
            dir_.file("out/old/run_1"));
  EXPECT_THAT(names("out/checkpoint"),
              ElementsAre("mine.txt", "step_00000004", "step_00000008", "step_last"));
  EXPECT_THAT(names("out/old/run_1/checkpoint"),
              ElementsAre("diverged_step_9", "step_00000012", "step_100000000"));
  EXPECT_THAT(names("out/old/run_1"),
              ElementsAre("acts_step_10.safetensors", "checkpoint", "config.yaml",
                          "grads_step_9.safetensors", "metrics.jsonl"));
  EXPECT_EQ(dir_.read("out/old/run_1/metrics.jsonl"), kMetrics);
  EXPECT_EQ(dir_.read("out/metrics.jsonl"), kMetrics);  // MetricsWriter's business
  EXPECT_EQ(dir_.read("out/old/run_1/checkpoint/step_100000000/torn"),
            "checkpoint/step_100000000/torn");
  EXPECT_THAT(names("out"),
              ElementsAre("checkpoint", "config.yaml", "grads_step_8.safetensors", "log",
                          "metrics.jsonl", "mine.txt", "old", "run.lock",
                          "weights_step_3.safetensors", "weights_step_mine.safetensors"));
  EXPECT_EQ(folder.move_later_aside(out() + "/checkpoint/step_00000008"), "");
}

// Rank 0 decides; the others say the same.
TEST_F(OutputFolderTest, AllRanksHearTheSame) {
  std::vector<std::string> heard(3);
  const auto enter = [&](const OutputFolderOptions& options) {
    run_thread_ranks(3, [&](const std::shared_ptr<ProcessGroup>& world) {
      std::string& mine = heard[static_cast<size_t>(world->rank())];
      try {
        const OutputFolder folder(out(), options, *world);
        world->barrier();
        mine = "in";
      } catch (const ValueError& error) {
        mine = error.what();
      }
    });
  };
  enter({});
  EXPECT_THAT(heard, ElementsAre("in", "in", "in"));
  write_run();
  enter({});
  EXPECT_THAT(heard[0], HasSubstr("holds a run already"));
  EXPECT_EQ(heard[1], heard[0]);
  EXPECT_EQ(heard[2], heard[0]);
}

TEST_F(OutputFolderTest, AStaleLockIsMentioned) {
  dir_.write("out/run.lock", "host: " + LockHolder::self().host + "\npid: 999999999\n");
  const OutputFolder folder(out(), {}, *alone_);
  EXPECT_THAT(folder.remarks(), ElementsAre(HasSubstr("stale")));
}

// A process that is in the folder until it is asked to leave.
TEST_F(OutputFolderTest, ReplacingEndsTheOneThatIsThere) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    sigset_t asked;
    sigemptyset(&asked);
    sigaddset(&asked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &asked, nullptr);
    {
      const OutputFolder folder(out(), {}, *alone_);
      int signal = 0;
      const char letter = 'x';
      if (::write(ready[1], &letter, 1) != 1 || ::sigwait(&asked, &signal) != 0) {
        ::_exit(1);
      }
      dir_.write("out/metrics.jsonl", kMetrics);  // its last words
    }
    ::_exit(0);
  }
  char letter = 0;
  ASSERT_EQ(::read(ready[0], &letter, 1), 1);
  OutputFolder folder(out(), {.replace = true}, *alone_);
  EXPECT_THAT(folder.remarks(), ElementsAre(Says(std::to_string(child))));
  EXPECT_EQ(folder.move_earlier_aside(), dir_.file("out/old/run_1"));
  EXPECT_EQ(dir_.read("out/old/run_1/metrics.jsonl"), kMetrics);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(ready[0]);
  ::close(ready[1]);
}

// The processes of a job's start may take a while to end when the next one begins.
TEST_F(OutputFolderTest, AnEarlierStartOfTheSameJobIsWaitedFor) {
  int ready[2];
  int leave[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(leave), 0);
  const Variable job("TAPESTRY_JOB", "a-7");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  char letter = 'x';
  if (child == 0) {
    ::setenv("TAPESTRY_JOB_START", "1", 1);
    {
      const OutputFolder folder(out(), {}, *alone_);
      if (::write(ready[1], &letter, 1) != 1 || ::read(leave[0], &letter, 1) != 1) {
        ::_exit(1);
      }
    }
    ::_exit(0);
  }
  ASSERT_EQ(::read(ready[0], &letter, 1), 1);
  const Variable count("TAPESTRY_JOB_START", "2");
  int asked = 0;
  const auto stop_requested = [&] {
    EXPECT_TRUE(asked > 0 || ::write(leave[1], &letter, 1) == 1);
    ++asked;
    return false;
  };
  const OutputFolder folder(out(), {.stop_requested = stop_requested}, *alone_);
  EXPECT_THAT(folder.remarks(), ElementsAre(AllOf(Says("an earlier start of this job"),
                                                  Says(std::to_string(child)))));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const int end : {ready[0], ready[1], leave[0], leave[1]}) {
    ::close(end);
  }
}

TEST_F(OutputFolderTest, AWaitForAnEarlierStartEndsOnRequest) {
  const Variable job("TAPESTRY_JOB", "a-7");
  const Variable count("TAPESTRY_JOB_START", "1");
  const OutputFolder first(out(), {}, *alone_);
  const Variable later("TAPESTRY_JOB_START", "2");
  EXPECT_ERROR(OutputFolder(out(), {.stop_requested = [] { return true; }}, *alone_), ValueError,
               "stopped while waiting for the end of");
}

TEST_F(OutputFolderTest, NobodyElsewhereIsReplaced) {
  dir_.write("out/run.lock",
             "host: far.away\npid: 12\nstarted: 2026-01-02 03:04:05\nboot_id: another\n");
  EXPECT_ERROR(OutputFolder(out(), {.replace = true}, *alone_), ValueError,
               "--replace ... cannot end from here");
}

}  // namespace
}  // namespace tapestry::output_folder_test
