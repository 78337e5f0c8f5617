#include "diagnosis/profile/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>

#include "autograd/ops/ops.h"
#include "autograd/tape/engine.h"
#include "autograd/tape/op.h"
#include "autograd/tensor/factory.h"
#include "parallel_core/comm/process_group.h"

namespace tapestry::profile {
namespace {

struct Throws {
  static constexpr OpName name = "recorder_test_throws";
  static constexpr bool differentiable = false;
  Tensor forward(const Tensor& /*x*/) { throw std::runtime_error("as it should"); }
};

// name, category; and whether each lies in the one that it should.
std::vector<std::string> names_of(const Recording& recording) {
  std::vector<std::string> out;
  for (const Slice& slice : recording.slices) {
    out.push_back(std::string(name_of(slice.category)) + " " + recording.names[slice.name]);
  }
  return out;
}

TEST(Recorder, OpsOfBothPassesWithTheirWork) {
  Recorder recorder({.ops = true, .memory = false});
  recorder.start_step(7);
  Tensor x = randn({4, 6});
  Tensor w = randn({8, 6});
  w.set_requires_grad();
  {
    const ObserverScope scope(recorder);
    const PhaseScope step("step");
    Tensor y;
    {
      const PhaseScope phase("forward", 2);
      y = linear(x, w);
    }
    const PhaseScope phase("backward", 2);
    const Tensor dy = ones({4, 8});
    backward({&y, 1}, {&dy, 1});
  }
  const Recording recording = recorder.take();
  EXPECT_THAT(names_of(recording), ::testing::IsSupersetOf({"op linear", "phase forward",
                                                            "phase backward", "step step"}));
  EXPECT_EQ(recording.first_step, 7);
  double flops = 0;
  for (const Slice& slice : recording.slices) {
    EXPECT_EQ(slice.step, 7);
    EXPECT_LE(slice.begin, slice.end);
    if (slice.category == Category::kStep) {
      EXPECT_EQ(slice.flops, 2 * 2.0 * 4 * 6 * 8);
    }
    if (slice.category == Category::kPhase) {
      EXPECT_EQ(slice.micro_batch, 2);
    }
    if (slice.category == Category::kOp && recording.names[slice.name] == "linear") {
      EXPECT_EQ(slice.flops, 2.0 * 4 * 6 * 8);  // x wants no gradient
      // Forward x, w, y. Backward dy and dw, and of what was saved at least x.
      const double least = slice.pass == OpPass::kForward ? 4 * (24 + 48 + 32) : 4 * (32 + 48 + 24);
      EXPECT_GE(slice.bytes, least);
      EXPECT_LE(slice.bytes, least + 4 * (24 + 48));
    }
  }
  for (const auto& [key, sum] : recording.work) {
    EXPECT_GE(sum.ns, sum.self_ns);
    flops += sum.flops;
  }
  EXPECT_EQ(flops, 2 * 2.0 * 4 * 6 * 8) << "each counts once, where it was made";
}

TEST(Recorder, ViewsMoveNothing) {
  Recorder recorder({.ops = true});
  const Tensor x = randn({4, 6});
  {
    const ObserverScope scope(recorder);
    reshape(x, {24});
    x + x;
  }
  const Recording recording = recorder.take();
  std::map<std::string, double> bytes;
  for (const Slice& slice : recording.slices) {
    bytes[recording.names[slice.name]] = slice.bytes;
  }
  EXPECT_EQ(bytes.at("view"), 0);
  EXPECT_EQ(bytes.at("add"), 3 * 24 * 4);
}

// What throws has no end, and what began before has no beginning: the rest is as it was.
TEST(Recorder, WhatHasNoEndEndsWithWhatItIsIn) {
  Recorder recorder({.ops = true});
  std::optional<PhaseScope> before(std::in_place, "before");
  {
    const ObserverScope scope(recorder);
    before.reset();
    const PhaseScope phase("forward");
    EXPECT_THROW(apply_op(Throws{}, randn({2})), std::runtime_error);
    const Tensor y = randn({2}) + randn({2});
  }
  const PhaseScope unseen("after");
  const Recording recording = recorder.take();
  const std::vector<std::string> names = names_of(recording);
  EXPECT_THAT(names, ::testing::Contains("op recorder_test_throws"));
  EXPECT_THAT(names, ::testing::Contains("op add"));
  EXPECT_EQ(names.back(), "phase forward");
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("phase before")));
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("phase after")));
  const Slice& phase = recording.slices.back();
  for (const Slice& slice : recording.slices) {
    EXPECT_GE(slice.begin, phase.begin);
    EXPECT_LE(slice.end, phase.end);
  }
}

// Also where there is nobody to exchange with: bytes are those that the group counts.
TEST(Recorder, CollectivesOfAGroupOfOne) {
  Recorder recorder({});
  const auto group = single_process_group();
  {
    const ObserverScope scope(recorder);
    group->all_reduce(randn({5}));
    group->broadcast(randn({3}), 0);
  }
  const Recording recording = recorder.take();
  ASSERT_EQ(recording.exchanges.size(), 2U);
  EXPECT_EQ(recording.exchanges[0].bytes, group->stats().of(Collective::kAllReduce).bytes);
  EXPECT_EQ(recording.names[recording.exchanges[1].kind], "broadcast");
  EXPECT_EQ(recording.exchanges[1].bytes, 12);
  EXPECT_EQ(recording.exchanges[0].waited, 0);
}

}  // namespace
}  // namespace tapestry::profile
