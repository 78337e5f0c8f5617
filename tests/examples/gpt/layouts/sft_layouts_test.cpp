// Fine-tuning on packed examples under mpirun: whatever the layout, the curve of one process.
#include <cmath>

#include "autograd/io/json.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/examples/gpt/sft_examples.h"

namespace tapestry::sft_layouts_test {
namespace {

struct Layout {
  const char* name;
  int ranks;
  int batch_size;
  int micro_batch_num;
  const char* arguments;
};

class SftLayoutsTest : public ProgramTest, public ::testing::WithParamInterface<Layout> {
 protected:
  void SetUp() override {
    dir_.write("train.jsonl", sft_examples(60));
    dir_.write("chat.jinja", kChatTemplate);
    std::string run = replaced(sft_run(), "num_layers: 1", "num_layers: 4");
    run = replaced(run, "num_attention_heads: 2",
                   "num_attention_heads: 4\n  hidden_dropout: 0.1\n  attention_dropout: 0.1\n"
                   "  position_embedding_type: rope");
    dir_.write("run.yaml",
               replaced(run, "learning_rate: 1e-3", "learning_rate: 1e-3\n  eps: 1e-6"));
  }
  std::string options(const std::string& output, int batch_size, int micro_batch_num) const {
    return " --config_path run.yaml --set training_config.output_dir=" + output +
           " --set dataset_config.batch_size=" + std::to_string(batch_size) +
           " --set dataset_config.micro_batch_num=" + std::to_string(micro_batch_num) + " ";
  }
};

TEST_P(SftLayoutsTest, GiveTheCurveOfOneProcess) {
  const Layout& layout = GetParam();
  ASSERT_EQ(pretrain(options("one", 4, 2)), 0) << said();
  const auto many = [&](const std::string& more) {
    return run(
        std::string(TAPESTRY_MPIEXEC) + " --oversubscribe -n " + std::to_string(layout.ranks) +
            " " TAPESTRY_PRETRAIN_GPT,
        options("many", layout.batch_size, layout.micro_batch_num) + layout.arguments + more);
  };
  // In two parts, the second one from the first one's checkpoint.
  ASSERT_EQ(many(" --set training_config.training_iters=3"), 0) << said();
  ASSERT_EQ(many(" --set training_config.resume_training=True"), 0) << said();
  const auto found = steps("many");
  const auto expected = steps("one");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    for (const char* field : {"step", "epoch", "loss_tokens", "tokens"}) {
      EXPECT_EQ(found[i].at(field), expected[i].at(field)) << field;
    }
    const auto near = [&](const char* field, double bound) {
      const double value = expected[i].at(field);
      EXPECT_NEAR(found[i].at(field).get<double>(), value, bound * value) << field << " " << i;
    };
    near("loss", 1e-5);
    near("grad_norm", 1e-4);
    if (expected[i].contains("eval_loss")) {
      near("eval_loss", 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Mpirun,
    SftLayoutsTest,
    ::testing::Values(Layout{"dp2_z2", 2, 2, 2, "--set parallel_config.zero_level=z2"},
                      Layout{"tp2_sp", 2, 4, 2,
                             "--set parallel_config.tensor_model_parallel_size=2 "
                             "--set parallel_config.sequence_parallel=True"},
                      Layout{"pp2_vpp2", 2, 1, 8,
                             "--set parallel_config.pipeline_model_parallel_size=2 "
                             "--set parallel_config.virtual_pipeline_model_parallel_size=2"},
                      Layout{"cp2_dp2", 4, 4, 1, "--set parallel_config.context_parallel_size=2"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tapestry::sft_layouts_test
