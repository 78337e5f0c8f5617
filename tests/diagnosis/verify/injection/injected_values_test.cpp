#include "diagnosis/verify/injection/injected_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/diagnosis/verify/injection/injection_testing.h"

namespace tapestry {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::InjectedRun;
using testing::InjectionLayout;
using testing::kLlama;
using testing::Overrides;
using testing::State;
using testing::StepsOfRun;
using testing::Trainer;

/// Of what rounding does to sums in another order; a fault is far above.
constexpr double kRounding = 1e-4;
constexpr double kFault = 1e-2;

// One run without faults, which all others take their values from.
struct ValuesReference {
  Overrides overrides;
  State start;
  std::string folder;
  std::map<std::string, TensorList> values;
};
ValuesReference make_reference(const Overrides& overrides, const std::string& folder) {
  const testing::OneProcess groups;
  ValuesReference out{overrides, testing::moved_weights(overrides), folder, {}};
  Trainer trainer(testing::small_config(overrides), out.start);
  testing::run_steps(trainer, {.dump = folder});
  out.values = testing::dumped(folder);
  EXPECT_TRUE(out.values.contains("layers.0.attention_residual"));
  EXPECT_TRUE(out.values.contains("Gradients/layers.1.mlp"));
  return out;
}

// Two faults that have nothing to do with each other: the weights of an output projection in layer
// 0, and of an MLP's first matrix in layer 1.
State with_two_faults(const State& start) {
  State out = start;
  const NoGradGuard guard;
  for (const char* name : {"layers.0.attention.wo.weight", "layers.1.feed_forward.w_up.weight"}) {
    EXPECT_TRUE(start.contains(name)) << name;
    const Tensor weight = dense_copy(start.at(name));
    auto* values = weight.data<float>();
    for (int64_t i = 0; i < weight.numel(); i += 2) {
      values[i] *= 1.5F;
    }
    out[name] = weight;
  }
  return out;
}

// What a dump differs in from the reference, and by more than rounding.
std::set<std::string> differing(const std::map<std::string, TensorList>& found,
                                const ValuesReference& reference) {
  std::set<std::string> names;
  for (const auto& [name, expected] : reference.values) {
    if (!found.contains(name)) {
      ADD_FAILURE() << name << " was not dumped";
      continue;
    }
    const double distance = testing::distance_of(found.at(name), expected);
    EXPECT_TRUE(distance < kRounding || distance > kFault) << name << " " << distance;
    if (distance > kFault) {
      names.insert(name);
    }
  }
  return names;
}

// What follows from the two faults before it comes to the next point.
const std::set<std::string>& names_of_the_two_faults() {
  static const auto& names = *new std::set<std::string>{
      // Forward: what is made of the wrong weight. Backward: what its transpose makes.
      "layers.0.attention", "layers.0.attention_residual", "Gradients/layers.0.attention.context",
      "layers.1.mlp.up",    "layers.1.mlp.active",         "Gradients/layers.1.ffn_norm"};
  return names;
}

class InjectedValuesIn : public ::testing::TestWithParam<InjectionLayout> {};

TEST_P(InjectedValuesIn, TellTwoFaultsApart) {
  const InjectionLayout& layout = GetParam();
  const std::string folder = dump::fresh_folder();
  const ValuesReference reference = make_reference(kLlama, folder + "/reference");
  const State faulty = with_two_faults(reference.start);
  const auto train = [&](const std::string& inputs, const std::string& name) {
    testing::run_parallel(layout.ranks, layout.sizes, [&] {
      Trainer trainer(testing::small_config(testing::joined(kLlama, layout.overrides)), faulty);
      const StepsOfRun run =
          testing::run_steps(trainer, {.dump = folder + "/" + name, .inputs = inputs});
      EXPECT_EQ(run.failure, "");
    });
    return differing(testing::dumped(folder + "/" + name), reference);
  };
  EXPECT_EQ(train(reference.folder, "injected"), names_of_the_two_faults());
  // Without, everything behind the first fault differs.
  const std::set<std::string> alone = train("", "alone");
  EXPECT_THAT(alone, Contains("layers.1.attention.q"));
  EXPECT_GT(alone.size(), 30U);
}

INSTANTIATE_TEST_SUITE_P(Layouts,
                         InjectedValuesIn,
                         ::testing::ValuesIn(testing::injection_layouts()),
                         [](const auto& info) { return info.param.name; });

// Sequence-first activations, biases, LayerNorm, dropout, a loss that is not fused with the logits.
TEST(InjectedValues, TakeThePlaceOfValuesOfAnyStructure) {
  const std::vector<Overrides> structures = {
      {"dataset_config.data_layout=SBH", "model_config.fused_linear_cross_entropy=False"},
      testing::joined(kLlama, testing::kDropout),
      {"model_config.apply_residual_connection_post_norm=True"},
  };
  for (size_t i = 0; i < structures.size(); ++i) {
    const std::string folder = dump::fresh_folder(concat("structure_", i));
    const ValuesReference reference = make_reference(structures[i], folder + "/reference");
    const testing::OneProcess groups;
    Trainer trainer(testing::small_config(structures[i]), with_two_faults(reference.start));
    testing::run_steps(trainer, {.dump = folder + "/injected", .inputs = reference.folder});
    std::set<std::string> found = differing(testing::dumped(folder + "/injected"), reference);
    EXPECT_TRUE(found.contains("layers.0.attention")) << i;
    EXPECT_FALSE(found.contains("layers.1.attention.q")) << i;
    EXPECT_FALSE(found.contains("Gradients/layers.0.attention_norm")) << i;
    EXPECT_FALSE(found.contains("layers.1.output") != found.contains("layers.1.mlp")) << i;
  }
}

// The loss is that of the reference although every weight is another one, where logits go on.
TEST(InjectedValues, LossFollowsFromTheReferencesLogits) {
  const Overrides overrides = {"model_config.fused_linear_cross_entropy=False"};
  const testing::OneProcess groups;
  const std::string folder = dump::fresh_folder();
  State start = testing::moved_weights(overrides);
  StepsOfRun expected;
  {
    Trainer trainer(testing::small_config(overrides), start);
    expected = testing::run_steps(trainer, {.dump = folder + "/reference"});
  }
  for (auto& [name, weight] : start) {
    weight = weight * 2;
  }
  Trainer trainer(testing::small_config(overrides), start);
  const StepsOfRun found = testing::run_steps(trainer, {.inputs = folder + "/reference"});
  EXPECT_EQ(found.results[0].loss, expected.results[0].loss)
      << ::testing::PrintToString(found.lines);
  EXPECT_THAT(found.lines, Contains(HasSubstr("inject_inputs: in step 1 ")));
}

TEST(InjectedValues, RecomputedLayersAreInjectedToo) {
  const std::string folder = dump::fresh_folder();
  const ValuesReference reference = make_reference(kLlama, folder + "/reference");
  for (const char* recompute : {"parallel_config.recompute_config={recompute: True}",
                                "parallel_config.recompute_config={select_recompute: True}"}) {
    const testing::OneProcess groups;
    const Overrides overrides = testing::joined(kLlama, {recompute});
    Trainer trainer(testing::small_config(overrides), with_two_faults(reference.start));
    const std::string own = dump::fresh_folder("recomputed");
    testing::run_steps(trainer, {.dump = own + "/injected", .inputs = reference.folder});
    EXPECT_EQ(differing(testing::dumped(own + "/injected"), reference), names_of_the_two_faults())
        << recompute;
  }
}

TEST(InjectedValues, ARunThatTakesNothingFails) {
  const std::string folder = dump::fresh_folder();
  make_reference({}, folder + "/reference");
  // Other samples: the reference has none of them.
  const testing::OneProcess groups;
  Trainer trainer(testing::small_config());
  InjectedValues values(trainer.cell, trainer.config,
                        ReferenceValues(folder + "/reference", accuracy::NameMap()));
  values.before(1);
  FinishedStep step{.record = {.step = 1}};
  {
    const PhaseScope phase("step");
    step.result = trainer.cell({testing::make_batch(trainer.config, 2, 100)});
  }
  step.is_last = true;
  values.after(step);
  EXPECT_THAT(step.failure, HasSubstr("nothing was injected"));
  EXPECT_THAT(step.failure, HasSubstr("--inject_data"));
}

TEST(InjectedValues, ValuesOfAnotherShapeAreRefused) {
  const std::string folder = dump::fresh_folder();
  make_reference({}, folder + "/reference");
  const testing::OneProcess groups;
  Trainer trainer(testing::small_config({"model_config.hidden_size=16"}));
  EXPECT_THROW(testing::run_steps(trainer, {.inputs = folder + "/reference"}), ValueError);
  EXPECT_THROW(ReferenceValues(folder + "/nowhere", accuracy::NameMap()), IoError);
}

}  // namespace
}  // namespace tapestry
