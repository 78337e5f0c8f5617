#include "diagnosis/verify/injection/reference_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/tensor_io.h"
#include "autograd/tensor/error.h"
#include "diagnosis/verify/injection/injection.h"
#include "tests/diagnosis/verify/injection/injection_testing.h"

namespace tapestry {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::State;
using testing::Trainer;

template <class E, class F>
std::string message_of(const F& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

accuracy::NameMap map_of(const std::string& folder, const std::string& text) {
  dump::write_text(folder + "/map.yaml", text);
  return accuracy::NameMap(folder + "/map.yaml");
}

TEST(ReferenceState, ADumpGivesWhatItsFirstStepBeganWithAndGradients) {
  const testing::OneProcess groups;
  const std::string folder = dump::fresh_folder();
  const State start = testing::moved_weights({});
  Trainer trainer(testing::small_config(), start);
  std::vector<State> computed;
  trainer.cell.set_gradient_observer(
      [&](int64_t) { computed.push_back(logical_gradients(*trainer.model)); });
  testing::run_steps(trainer, {.steps = 2, .dump = folder + "/dump"});
  EXPECT_TRUE(is_dump_folder(folder + "/dump"));
  EXPECT_FALSE(is_dump_folder(folder));
  testing::expect_states_equal(dumped_start_weights(folder + "/dump", {}), start);

  const ReferenceGradients gradients(folder + "/dump", {});
  EXPECT_THAT(gradients.steps(), ElementsAre(1, 2));
  testing::expect_states_equal(*gradients.of_step(2), computed[1]);
  EXPECT_FALSE(gradients.of_step(3).has_value());
}

TEST(ReferenceState, WeightsAfterAnUpdateAloneAreRefused) {
  const std::string folder = dump::fresh_folder();
  dump::DumpWriter writer(dump::config_in(folder), 0, 0);
  writer.begin_iteration(0);
  dump::DumpedTensor weight{.op_type = "Parameter", .op_name = "final_norm.weight"};
  weight.value = dump::numbered({4});
  weight.pass = "optimizer";
  writer.write(weight);
  writer.end_iteration();
  EXPECT_THAT(message_of<ValueError>([&] { dumped_start_weights(folder, {}); }),
              HasSubstr("not Updates/final_norm.weight"));
}

// As other programs dump what a step begins with.
TEST(ReferenceState, WeightsOfAnotherPassAreThoseAtTheStart) {
  const std::string folder = dump::fresh_folder();
  dump::DumpWriter writer(dump::config_in(folder), 0, 0);
  writer.begin_iteration(0);
  dump::DumpedTensor weight{.op_type = "Parameter", .op_name = "model.norm.weight"};
  weight.value = dump::numbered({4});
  weight.pass = "forward";
  writer.write(weight);
  writer.end_iteration();
  const LogicalState found =
      dumped_start_weights(folder, map_of(folder, "model\\.norm\\.(.*): final_norm.$1\n"));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(testing::same_bits(found.at("final_norm.weight"), dump::numbered({4})));
}

TEST(ReferenceState, GradientsComeFromFilesToo) {
  const std::string folder = dump::fresh_folder();
  save_safetensors(folder + "/grads_step_1.safetensors", {{"a", dump::numbered({3})}});
  save_safetensors(folder + "/grads_step_12.safetensors", {{"a", dump::numbered({3}, 7)}});
  const ReferenceGradients files(folder, {});
  EXPECT_THAT(files.steps(), ElementsAre(1, 12));
  EXPECT_TRUE(testing::same_bits(files.of_step(12)->at("a"), dump::numbered({3}, 7)));

  const std::string arrays = dump::fresh_folder("arrays");
  std::filesystem::create_directories(arrays + "/step_3");
  save_npy(arrays + "/step_3/grad_17.npy", dump::numbered({2, 2}));
  const ReferenceGradients npy(arrays, map_of(arrays, "'17': final_norm.weight\n"));
  EXPECT_THAT(npy.steps(), ElementsAre(3));
  EXPECT_TRUE(testing::same_bits(npy.of_step(3)->at("final_norm.weight"), dump::numbered({2, 2})));
}

TEST(ReferenceState, FlatFilesAreTheGradientsOfTheFirstStep) {
  const std::string folder = dump::fresh_folder();
  save_npy(folder + "/grad_0.npy", dump::numbered({3}));
  save_npy(folder + "/grad_1.npy", dump::numbered({2, 2}));
  dump::write_text(folder + "/notes.txt", "of another program");
  const ReferenceGradients flat(folder, map_of(folder, "'0': a\n'1': b\n"));
  EXPECT_THAT(flat.steps(), ElementsAre(1));
  EXPECT_EQ(flat.of_step(1)->size(), 2);
  EXPECT_TRUE(testing::same_bits(flat.of_step(1)->at("a"), dump::numbered({3})));
  EXPECT_TRUE(testing::same_bits(flat.of_step(1)->at("b"), dump::numbered({2, 2})));
  EXPECT_FALSE(flat.of_step(2).has_value());
  EXPECT_THAT(message_of<ValueError>([&] {
                ReferenceGradients(folder, map_of(folder, "'0': a\n'1': a\n")).of_step(1);
              }),
              HasSubstr("is that of another file too"));
  // Beside folders of steps they would be of no step that anybody could name.
  std::filesystem::create_directories(folder + "/step_3");
  save_npy(folder + "/step_3/grad_0.npy", dump::numbered({3}));
  const ReferenceGradients both(folder, {});
  EXPECT_THAT(both.steps(), ElementsAre(3));
}

TEST(ReferenceState, FoldersWithoutWhatIsAskedForAreRefused) {
  const std::string folder = dump::fresh_folder();
  EXPECT_THAT(message_of<ValueError>([&] { ReferenceGradients(folder, {}); }),
              HasSubstr("grads_step_N.safetensors"));
  EXPECT_THAT(message_of<IoError>([&] { ReferenceGradients(folder + "/none", {}); }),
              HasSubstr("/none"));
  std::filesystem::create_directories(folder + "/step_1");
  const ReferenceGradients empty(folder, {});
  EXPECT_THAT(message_of<ValueError>([&] { empty.of_step(1); }),
              HasSubstr("no gradients of step 1"));
  EXPECT_THAT(message_of<IoError>([&] { injection_overrides({.data = folder + "/none"}); }),
              HasSubstr("inject_data"));
  PretrainOptions options;
  EXPECT_THAT(message_of<ValueError>(
                  [&] { add_injection({.map = "map.yaml"}, testing::small_config(), options); }),
              HasSubstr("has no effect"));
}

}  // namespace
}  // namespace tapestry
