// The configuration of MindFormers' tutorial on dynamic-graph parallelism, as it is written there.
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry {
namespace {

using ::testing::HasSubstr;

// Its sections in its order, with its quotes and its spellings of numbers.
constexpr const char* kTutorial =
    "training_config:\n"
    "  seed: 42\n"
    "  output_dir: './output'\n"
    "  training_iters: 10\n"
    "  log_interval: 1\n"
    "  save_interval: null\n"
    "  loss_scale: 4096\n"
    "  grad_clip_kwargs:\n"
    "    grad_clip_type: \"ClipGlobalNorm\"\n"
    "    clip_value: 1.0\n"
    "  loss_reduction: \"mean\"\n"
    "  loss_func_kwargs:\n"
    "    loss_func_type: \"VocabParallelCrossEntropy\"\n"
    "  use_distributed_optimizer: True\n"
    "\n"
    "parallel_config:\n"
    "  tensor_model_parallel_size: 1\n"
    "  pipeline_model_parallel_size: 1\n"
    "  expert_model_parallel_size: 1\n"
    "  virtual_pipeline_model_parallel_size: null\n"
    "  sequence_parallel: False\n"
    "\n"
    "model_config:\n"
    "  params_dtype: \"float32\"\n"
    "  compute_dtype: \"bfloat16\"\n"
    "  position_embedding_type: 'rope'\n"
    "  untie_embeddings_and_output_weights: True\n"
    "  num_layers: 6\n"
    "  hidden_size: 4096\n"
    "  ffn_hidden_size: 11008\n"
    "  num_attention_heads: 32\n"
    "\n"
    "dataset_config:\n"
    "  batch_size: 1\n"
    "  micro_batch_num: 2\n"
    "  dataset_dir: './dataset'\n"
    "  shuffle: False\n"
    "\n"
    "optimizer_config:\n"
    "  optimizer_type: \"AdamW\"\n"
    "  betas:\n"
    "    - 0.9\n"
    "    - 0.95\n"
    "  eps: 1.e-8\n"
    "  learning_rate: 1.25e-6\n"
    "  weight_decay: 1.e-1\n"
    "  learning_rate_scheduler_kwargs:\n"
    "    warmup_steps: 200\n"
    "    decay_steps: 2000\n"
    "    use_cosine: True\n"
    "    end_learning_rate: 1.25e-7\n";

TEST_F(ProgramTest, TheTutorialAsksForWhatItOmits) {
  dir_.write("pretrain_gpt_7B.yaml", kTutorial);
  EXPECT_EQ(pretrain("--config_path pretrain_gpt_7B.yaml"), 2) << said();
  EXPECT_THAT(err_, Says("2 ... faults in the ... configuration:\n"));
  for (const char* part : {"pretrain_gpt_7B.yaml:23:1: model_config.vocab_size ... (integer): ... "
                           "Rows of the token table",
                           "Add it, for example `vocab_size: 50304`",
                           "pretrain_gpt_7B.yaml:23:1: model_config.seq_length ... (integer): ... "
                           "one training sequence.",
                           "Add it, for example `seq_length: 1024`"}) {
    EXPECT_THAT(err_, Says(part)) << said();
  }
}

// Made small, and with a text that is there; all else as it is.
TEST_F(ProgramTest, TheTutorialRuns) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  dir_.write("pretrain_gpt_7B.yaml", kTutorial);
  EXPECT_EQ(pretrain("--config_path pretrain_gpt_7B.yaml"
                     " --set model_config.vocab_size=260 --set model_config.seq_length=16"
                     " --set dataset_config.data_path=text_text_document"
                     " --set dataset_config.tokenizer_type=byte --set dataset_config.split=1,0,0"
                     " --set model_config.num_layers=2 --set model_config.hidden_size=64"
                     " --set model_config.ffn_hidden_size=96 --set training_config.num_threads=1"),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("train: Epoch:0, Step:10, Loss: "));
  EXPECT_THAT(out_, Says("has a learning rate of ... 0"));
  EXPECT_THAT(out_, HasSubstr("Loss_scale: 4096.0, Learning_rate: (5.625000e-08,5.625000e-08,)"));
}

}  // namespace
}  // namespace tapestry
