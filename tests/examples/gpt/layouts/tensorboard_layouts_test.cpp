// TensorBoard's event files under mpirun.
#include <cmath>
#include <map>
#include <numeric>

#include "tests/examples/gpt/run_program.h"
#include "tests/parallel_core/tensorboard/event_reader.h"

namespace tapestry {
namespace {

using report::ReadValue;

class TensorBoardLayoutsTest : public ProgramTest {
 protected:
  // Of the only event file of rank 0: values by tag and step, with the kind.
  std::map<std::string, ReadValue> values(const std::string& folder,
                                          const std::string& kind) const {
    std::map<std::string, ReadValue> found;
    const std::vector<std::string> files = report::event_files_in(dir_.file(folder + "/rank_0"));
    EXPECT_EQ(files.size(), 1U);
    for (const report::ReadEvent& event : report::read_records(
             dir_.read(std::filesystem::relative(files.at(0), dir_.path()).string()))) {
      for (const ReadValue& value : event.values) {
        if (value.kind == kind) {
          EXPECT_TRUE(found.emplace(value.tag + "@" + std::to_string(event.step), value).second)
              << value.tag;
        }
      }
    }
    return found;
  }
};

TEST_F(TensorBoardLayoutsTest, HistogramsAndCountsAreThoseOfOneProcess) {
  prepare_text();
  dir_.write("run.yaml",
             replaced(replaced(kTinyRun, "training_iters: 3", "training_iters: 2"), "num_layers: 1",
                      "num_layers: 2\n  normalization: RMSNorm\n"
                      // the gradient of a key's bias is zero, but for rounding
                      "  qkv_has_bias: False") +
                 "tensorboard:\n  histogram_interval: 2\n");
  const std::string options =
      " --config_path run.yaml --set dataset_config.batch_size=1 "
      "--set training_config.save_last=False ";
  ASSERT_EQ(pretrain(options + "--set dataset_config.micro_batch_num=4 "
                               "--set training_config.output_dir=one "
                               "--set tensorboard.tensorboard_dir=one/board"),
            0)
      << said();
  ASSERT_EQ(run(std::string(TAPESTRY_MPIEXEC) + " --oversubscribe -n 8 " TAPESTRY_PRETRAIN_GPT,
                options + "--set dataset_config.micro_batch_num=2 "
                          "--set parallel_config.tensor_model_parallel_size=2 "
                          "--set parallel_config.pipeline_model_parallel_size=2 "
                          "--set parallel_config.zero_level=z3 "
                          "--set training_config.output_dir=many "
                          "--set tensorboard.tensorboard_dir=many/board"),
            0)
      << said();
  EXPECT_FALSE(std::filesystem::exists(dir_.file("many/board/rank_1")));
  const auto expected = values("one/board", "histogram");
  const auto found = values("many/board", "histogram");
  EXPECT_GT(expected.size(), 20U);
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [tag, value] : expected) {
    ASSERT_EQ(found.count(tag), 1U) << tag;
    const ReadValue& other = found.at(tag);
    ASSERT_EQ(other.moments.size(), 5U);
    EXPECT_EQ(other.moments[2], value.moments[2]) << tag;  // how many
    const double size = std::max(std::abs(value.moments[0]), std::abs(value.moments[1]));
    const double spread = std::sqrt(value.moments[4]);
    EXPECT_NEAR(other.moments[0], value.moments[0], 1e-4 * size) << tag;
    EXPECT_NEAR(other.moments[1], value.moments[1], 1e-4 * size) << tag;
    EXPECT_NEAR(std::sqrt(other.moments[4]), spread, 1e-4 * spread) << tag;
    EXPECT_NEAR(std::accumulate(other.counts.begin(), other.counts.end(), 0.0), value.moments[2],
                1e-6)
        << tag;
  }
  EXPECT_EQ(expected.count("weights/tok_embeddings.weight@2") +
                expected.count("gradients/tok_embeddings.weight@2"),
            2U);
  const auto batches = values("many/board", "scalar");
  EXPECT_EQ(batches.at("batch-size@2").scalar, 4);
  EXPECT_EQ(batches.at("loss vs samples@8").scalar, batches.at("loss@2").scalar);
}

}  // namespace
}  // namespace tapestry
