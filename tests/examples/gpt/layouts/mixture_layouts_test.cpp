// Mixtures of experts under mpirun: saved in one layout and gone on with in another, and made of a
// dense model.
#include <cmath>

#include "autograd/io/tensor_io.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

class MixtureLayoutsTest : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(prepare_text());
    std::string text = replaced(kTinyRun, "training_iters: 3",
                                "training_iters: 4\n  save_interval: 2\n  dump_weight_steps: [4]");
    text = replaced(text, "num_layers: 1", "num_layers: 2\n  hidden_act: swiglu");
    text = replaced(text, "num_attention_heads: 2",
                    "num_attention_heads: 4\n  hidden_dropout: 0.1\n"
                    "  qkv_has_bias: False");  // the gradient of a key's bias is zero, but for
                                               // rounding
    dir_.write("dense.yaml",
               replaced(text, "learning_rate: 1e-3", "learning_rate: 1e-3\n  eps: 1e-6"));
    dir_.write("run.yaml", dir_.read("dense.yaml") +
                               "moe_config:\n  num_experts: 4\n"
                               "  moe_router_load_balancing_type: aux_loss\n"
                               "  moe_aux_loss_coeff: 0.01\n"
                               "  moe_shared_expert_intermediate_size: 16\n");
  }
  // Two micro-batches of two samples, which is what a router balances, on so many ranks.
  static std::string options(const std::string& file,
                             const std::string& output,
                             int data_parallel) {
    return " --config_path " + file + " --set training_config.output_dir=" + output +
           " --set dataset_config.micro_batch_num=" + std::to_string(2 / data_parallel) + " ";
  }
  void train(int ranks, const std::string& arguments) {
    ASSERT_EQ(run(std::string(TAPESTRY_MPIEXEC) + " --oversubscribe -n " + std::to_string(ranks) +
                      " " TAPESTRY_PRETRAIN_GPT,
                  arguments),
              0)
        << said();
  }
  void expect_same_end(const std::string& output, const std::string& reference) const {
    const auto found = steps(output);
    const auto expected = steps(reference);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].at("step"), expected[i].at("step"));
      for (const char* field : {"loss", "grad_norm", "aux_loss"}) {
        const double value = expected[i].at(field);
        EXPECT_NEAR(found[i].at(field).get<double>(), value, 1e-4 * std::abs(value))
            << field << " of step " << i + 1;
      }
    }
    const auto weights = [&](const std::string& folder) {
      return load_safetensors(dir_.file(folder + "/weights_step_4.safetensors"));
    };
    const auto own = weights(output);
    const auto others = weights(reference);
    ASSERT_EQ(own.size(), others.size());
    for (const auto& [name, tensor] : others) {
      EXPECT_LE(testing::distance(own.at(name), tensor), 1e-4) << name;
    }
  }

  const std::string tp2_ep2_ =
      "--set parallel_config.tensor_model_parallel_size=2 "
      "--set parallel_config.expert_model_parallel_size=2 ";
};

TEST_F(MixtureLayoutsTest, AnotherLayoutGoesOn) {
  ASSERT_EQ(pretrain(options("run.yaml", "one", 1)), 0) << said();
  ASSERT_NO_FATAL_FAILURE(train(4, options("run.yaml", "whole", 2) + tp2_ep2_));
  expect_same_end("whole", "one");
  // The same run once more, which ends after step 2 and goes on with two stages.
  ASSERT_NO_FATAL_FAILURE(train(4, options("run.yaml", "parts", 2) + tp2_ep2_ +
                                       "--set training_config.training_iters=2 "
                                       "--set training_config.dump_weight_steps=[]"));
  ASSERT_NO_FATAL_FAILURE(train(2, options("run.yaml", "parts", 1) +
                                       "--set training_config.resume_training=True "
                                       "--set parallel_config.pipeline_model_parallel_size=2"));
  EXPECT_NE(out_.find("going on after step 2"), std::string::npos) << said();
  expect_same_end("parts", "whole");
}

// Of a dense model, on ranks that have parts of it: the loss of the first step is the dense one's.
TEST_F(MixtureLayoutsTest, AMixtureStartsAsTheDenseModel) {
  const std::string once =
      "--set training_config.training_iters=1 --set training_config.dump_weight_steps=[] "
      "--set model_config.hidden_dropout=0 ";
  ASSERT_EQ(
      pretrain(options("dense.yaml", "dense", 1) +
               "--set training_config.seed=8 --set optimizer_config.learning_rate=1e-30 " + once),
      0)
      << said();
  ASSERT_EQ(pretrain(options("dense.yaml", "again", 1) + once +
                     "--set training_config.load_checkpoint=dense"),
            0)
      << said();
  const double dense = steps("again").front().at("loss");
  const std::string mixture = once + "--set moe_config.upcycle_from=dense ";
  struct Layout {
    const char* name;
    int ranks;
    std::string arguments;
  };
  for (const auto& [name, ranks, arguments] :
       {Layout{"tp2_ep2", 4, tp2_ep2_},
        Layout{"ep2_z3", 2,
               "--set parallel_config.expert_model_parallel_size=2 "
               "--set parallel_config.zero_level=z3 "},
        Layout{"pp2", 2, "--set parallel_config.pipeline_model_parallel_size=2 "}}) {
    const int copies = name == std::string("pp2") ? 1 : 2;
    const std::string layout = options("run.yaml", name, copies) + arguments;
    ASSERT_NO_FATAL_FAILURE(train(ranks, layout + mixture + "--dry_run"));
    EXPECT_NE(out_.find("parameters, whose MLPs become experts"), std::string::npos) << said();
    ASSERT_NO_FATAL_FAILURE(train(ranks, layout + mixture));
    EXPECT_NEAR(steps(name).front().at("loss").get<double>(), dense, 1e-5 * dense) << name;
  }
  // What was saved is a mixture, which any layout takes as it is.
  ASSERT_NO_FATAL_FAILURE(train(2, options("run.yaml", "next", 2) +
                                       "--set parallel_config.expert_model_parallel_size=2 "
                                       "--set training_config.load_checkpoint=pp2 --dry_run"));
  EXPECT_NE(out_.find("weights: pp2/checkpoint/step_00000001, "), std::string::npos) << said();
}

}  // namespace
}  // namespace tapestry
