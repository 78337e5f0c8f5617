// examples/gpt/mindformers_tutorial.cpp: the tutorial's program trains what pretrain_gpt trains of
// the same file, in one process and on ranks that share the model.
#include <cmath>

#include "autograd/tensor/error.h"
#include "tests/examples/gpt/run_program.h"

namespace tapestry {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// LayerNorm and biases: much that does not decay, with a decay that would be seen.
constexpr const char* kFile =
    "training_config:\n"
    "  seed: 42\n"
    "  training_iters: 6\n"
    "  num_threads: 1\n"
    "dataset_config:\n"
    "  batch_size: 2\n"
    "  micro_batch_num: 2\n"
    "  data_path: text_text_document\n"
    "  tokenizer_type: byte\n"
    "  split: 90,10,0\n"
    "model_config:\n"
    "  num_layers: 2\n"
    "  hidden_size: 32\n"
    "  ffn_hidden_size: 64\n"
    "  num_attention_heads: 4\n"
    "  vocab_size: 260\n"
    "  seq_length: 16\n"
    "  position_embedding_type: rope\n"
    "  hidden_act: gelu\n"
    "  normalization: LayerNorm\n"
    "  untie_embeddings_and_output_weights: True\n"
    "optimizer_config:\n"
    "  optimizer_type: AdamW\n"
    "  learning_rate: 1.0e-2\n"
    "  weight_decay: 20.0\n";

class MindformersTutorialTest : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    dir_.write("run.yaml", kFile);
  }
  // The loss after the last step, as the program prints it.
  double last_loss() const {
    const size_t arrow = out_.rfind(" -> ");
    EXPECT_NE(arrow, std::string::npos) << said();
    return arrow == std::string::npos ? NAN : std::stod(out_.substr(arrow + 4));
  }
};

TEST_F(MindformersTutorialTest, TrainsWhatTheLibrarysGroupsTrain) {
  ASSERT_EQ(pretrain("--config_path run.yaml"), 0) << said();
  const double expected = steps().back().at("loss").get<double>();
  ASSERT_EQ(pretrain("--config_path run.yaml --set optimizer_config.weight_decay=0 --overwrite"), 0)
      << said();
  const double without_decay = steps().back().at("loss").get<double>();
  constexpr double kLayouts = 1e-5;  // what six steps of float32 in another order may differ by
  EXPECT_GT(std::abs(without_decay / expected - 1), 100 * kLayouts);  // so decay is seen at all
  struct Layout {
    int ranks;
    const char* words;
    const char* line;
  };
  for (const Layout& layout :
       {Layout{1, "", "dp 1 | pp 1 | tp 1 | sp False | vpp None"},
        Layout{2, " --tensor_model_parallel_size 2", "dp 1 | pp 1 | tp 2 | sp False | vpp None"},
        Layout{2, " --pipeline_model_parallel_size 2",
               "dp 1 | pp 2 | tp 1 | sp False | vpp None"}}) {
    const std::string program = layout.ranks == 1
                                    ? std::string(TAPESTRY_MINDFORMERS_TUTORIAL)
                                    : concat(TAPESTRY_MPIEXEC, " --oversubscribe -n ", layout.ranks,
                                             " ", TAPESTRY_MINDFORMERS_TUTORIAL);
    ASSERT_EQ(run(program, concat("--config_path run.yaml", layout.words)), 0) << said();
    EXPECT_THAT(out_, HasSubstr(layout.line));
    EXPECT_THAT(out_, ContainsRegex("[0-9]+ parameters, weight decay 20, learning rate 0.01\n"));
    EXPECT_THAT(out_, ContainsRegex("[0-9]+ parameters, weight decay 0, learning rate 0.01\n"));
    EXPECT_NEAR(last_loss() / expected, 1, kLayouts) << layout.line;
  }
}

// Without a schedule the configuration's shapes nothing.
TEST_F(MindformersTutorialTest, TheLearningRateStays) {
  ASSERT_EQ(run(TAPESTRY_MINDFORMERS_TUTORIAL, "--config_path run.yaml"), 0) << said();
  const double constant = last_loss();
  ASSERT_EQ(run(TAPESTRY_MINDFORMERS_TUTORIAL,
                "--config_path run.yaml --lr_decay_style cosine --lr_warmup_iters 3"),
            0)
      << said();
  EXPECT_EQ(last_loss(), constant);
}

TEST_F(MindformersTutorialTest, SaysWhatIsWrong) {
  EXPECT_EQ(run(TAPESTRY_MINDFORMERS_TUTORIAL, "--config_path run.yaml --hiden_size 3"), 2);
  EXPECT_THAT(err_, HasSubstr("did you mean 'hidden_size'?"));
  EXPECT_EQ(
      run(TAPESTRY_MINDFORMERS_TUTORIAL, "--config_path run.yaml --tensor_model_parallel_size 2"),
      2);
  EXPECT_THAT(err_, HasSubstr("ranks"));
}

}  // namespace
}  // namespace tapestry
