#include "parallel_core/estimates/step_memory.h"

#include <gtest/gtest.h>

namespace tapestry {
namespace {

// Two layers that keep 10 each, with gradients of 100 each, between a table of 1,000 and a head.
StepMemory two_layers() {
  StepMemory step;
  const LayerMemory layer{.kept = 10, .transient = 3, .workspace = 5, .gradients = 100};
  step.chunks = {{.layers = {layer, layer}, .kept = 1, .first_gradients = 1000}};
  step.has_head = true;
  step.head = {.kept = 2,
               .forward = 50,
               .backward = 4,
               .gradient = 300,
               .in_forward = true,
               .is_given = true};
  step.gradients = 1500;
  return step;
}

TEST(StepMemory, GradientsTakeTheRoomOfActivations) {
  StepMemory step = two_layers();
  // All gradients, and in an evaluation then the values of one layer.
  EXPECT_EQ(most_at_once(step).bytes, 1500 + 1 + 10 + 3);
  step.chunks[0].first_gradients = 0;
  step.gradients = 500;
  step.head.forward = 700;
  // While the loss is made only the head's gradient exists.
  EXPECT_EQ(most_at_once(step).bytes, 2 * 10 + 1 + 2 + 300 + 700);
}

TEST(StepMemory, LaterMicroBatchesFindAllGradients) {
  StepMemory step = two_layers();
  step.pipeline.micro_batches = 2;
  // The head's is made beside its sum.
  EXPECT_EQ(most_at_once(step).bytes, 1500 + 2 * 10 + 1 + 2 + 300 + 50);
  step.pipeline.micro_batches = 1;
  step.places = GradientPlaces::kStay;
  EXPECT_EQ(most_at_once(step).bytes, 1500 + 2 * 10 + 1 + 2 + 300 + 50);
}

// A head's gradient in float32 becomes part of a sum of 16 bits.
TEST(StepMemory, ASumMayTakeLessThanAGradient) {
  StepMemory step = two_layers();
  step.pipeline.micro_batches = 2;
  const double all = most_at_once(step).bytes;
  step.head.less = 150;
  step.gradients -= 150;
  EXPECT_EQ(most_at_once(step).bytes, all - 150);
}

TEST(StepMemory, OneGradientAtATime) {
  StepMemory step = two_layers();
  step.places = GradientPlaces::kOneByOne;
  step.gradients = 0;
  EXPECT_EQ(most_at_once(step).bytes, 2 * 10 + 1 + 2 + 300 + 50);
  step.head.forward = 0;
  step.head_is_first = true;  // the gradient of the table waits for what the embedding adds
  step.chunks[0].layers[0].workspace = 100;
  EXPECT_EQ(most_at_once(step).bytes, 300 + 10 + 1 + 3 + 100);
}

TEST(StepMemory, RecomputedValuesComeAgainOneLayerAtATime) {
  StepMemory step = two_layers();
  step.has_head = false;
  step.gradients = 0;
  step.places = GradientPlaces::kStay;
  EXPECT_EQ(most_at_once(step).bytes, 2 * 10 + 1 + 3 + 5);
}

// The first of four stages has four micro-batches in flight when it first runs backwards, and then
// no gradients yet.
TEST(StepMemory, StagesKeepWhatIsInFlight) {
  StepMemory step = two_layers();
  step.has_head = false;
  step.pipeline = {.stages = 4, .chunks = 1, .micro_batches = 4};
  step.chunks[0].first_gradients = 0;
  step.gradients = 200;
  const StepPeak four = most_at_once(step);
  EXPECT_EQ(four.passes, 4);
  EXPECT_EQ(four.bytes, 3 * 21 + 200 + 3 + 5);  // the second, with three that are left
  step.pipeline.micro_batches = 8;              // a fifth follows the first gradients
  EXPECT_EQ(most_at_once(step).bytes, 4 * 21 + 200 + 3 + 5);
}

TEST(StepMemory, EvaluationsAndUpdatesComeAfterTheGradients) {
  StepMemory step = two_layers();
  step.evaluation = 5000;
  EXPECT_EQ(most_at_once(step).bytes, 1500 + 5000);
  step.update = 6000;
  EXPECT_EQ(most_at_once(step).bytes, 1500 + 6000);
}

}  // namespace
}  // namespace tapestry
