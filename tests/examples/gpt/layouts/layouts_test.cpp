// pretrain_gpt under mpirun: whatever the layout, the curve and the files are those of one process.
#include <cmath>

#include "autograd/io/json.h"
#include "autograd/io/tensor_io.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/parallel_core/small_model.h"

namespace tapestry {
namespace {

using Json = nlohmann::json;

struct Layout {
  const char* name;
  int ranks;
  int batch_size;
  int micro_batch_num;
  const char* arguments;
};

const std::string kDataset = "--set dataset_config.";

class LayoutsTest : public ProgramTest, public ::testing::WithParamInterface<Layout> {
 protected:
  void SetUp() override {
    std::string documents;
    for (int i = 0; i < 10; ++i) {
      documents += Json{{"text", sample_text(12 + 5 * i)}}.dump() + "\n";
    }
    dir_.write("text.jsonl", documents);
    ASSERT_EQ(
        preprocess("--input text.jsonl --output_prefix text --tokenizer_type byte --append_eod"), 0)
        << said();
    std::string text = replaced(kTinyRun, "num_layers: 1", "num_layers: 4");
    text = replaced(text, "  batch_size: 2\n",
                    "  batch_size: 2\n  reset_attention_mask: True\n  reset_position_ids: True\n"
                    "  eod_mask_loss: True\n");
    text = replaced(
        text, "num_attention_heads: 2",
        "num_attention_heads: 4\n  hidden_dropout: 0.1\n  attention_dropout: 0.1\n"
        "  qkv_has_bias: False");  // the gradient of a key's bias is zero, but for rounding
    text = replaced(text, "training_iters: 3",
                    "training_iters: 4\n  save_interval: 4\n  eval_interval: 2\n  eval_iters: 1\n"
                    "  log_param_grad_norms: True\n  dump_weight_steps: [4]");
    text = replaced(text, "90,10,0", "70,30,0");
    dir_.write("run.yaml",
               replaced(text, "learning_rate: 1e-3", "learning_rate: 1e-3\n  eps: 1e-6"));
  }
  std::string options(const std::string& output, int batch_size, int micro_batch_num) const {
    return " --config_path run.yaml --set training_config.output_dir=" + output + " " + kDataset +
           "batch_size=" + std::to_string(batch_size) + " " + kDataset +
           "micro_batch_num=" + std::to_string(micro_batch_num) + " ";
  }
  void train(const std::string& output, const Layout& layout, const std::string& more = "") {
    ASSERT_EQ(run(std::string(TAPESTRY_MPIEXEC) + " --oversubscribe -n " +
                      std::to_string(layout.ranks) + " " TAPESTRY_PRETRAIN_GPT,
                  options(output, layout.batch_size, layout.micro_batch_num) + layout.arguments +
                      " " + more),
              0)
        << said();
  }
  void expect_same_run(const std::string& output, const std::string& reference) const {
    const std::vector<Json> found = steps(output);
    const std::vector<Json> expected = steps(reference);
    ASSERT_EQ(found.size(), expected.size());
    const auto expect_near = [](const Json& a, const Json& b, double bound, const std::string& of) {
      EXPECT_NEAR(a.get<double>(), b.get<double>(), bound * std::abs(b.get<double>())) << of;
    };
    for (size_t i = 0; i < found.size(); ++i) {
      for (const char* field : {"step", "epoch", "lr", "loss_tokens", "tokens", "finite"}) {
        EXPECT_EQ(found[i].at(field), expected[i].at(field)) << field;
      }
      expect_near(found[i].at("loss"), expected[i].at("loss"), 1e-5, "loss");
      expect_near(found[i].at("grad_norm"), expected[i].at("grad_norm"), 1e-4, "grad_norm");
      ASSERT_EQ(found[i].at("grad_norms").size(), expected[i].at("grad_norms").size());
      const double norm = expected[i].at("grad_norm");
      for (const auto& [name, value] : expected[i].at("grad_norms").items()) {
        EXPECT_NEAR(found[i].at("grad_norms").at(name).get<double>(), value.get<double>(),
                    1e-4 * norm)
            << name;
      }
      ASSERT_EQ(found[i].contains("eval_loss"), expected[i].contains("eval_loss"));
      if (found[i].contains("eval_loss")) {
        expect_near(found[i].at("eval_loss"), expected[i].at("eval_loss"), 1e-5, "eval_loss");
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
};

TEST_P(LayoutsTest, GiveTheCurveOfOneProcess) {
  const Layout& layout = GetParam();
  ASSERT_EQ(pretrain(options("one", 4, 2)), 0) << said();
  ASSERT_NO_FATAL_FAILURE(train("many", layout));
  expect_same_run("many", "one");

  // What it has saved starts a run in one process, and the other way round.
  ASSERT_EQ(pretrain(options("one_on", 4, 2) +
                     "--set training_config.load_checkpoint=many/checkpoint/step_00000004"),
            0)
      << said();
  ASSERT_NO_FATAL_FAILURE(train(
      "many_on", layout, "--set training_config.load_checkpoint=one/checkpoint/step_00000004"));
  expect_same_run("many_on", "one_on");
}

INSTANTIATE_TEST_SUITE_P(
    Mpirun,
    LayoutsTest,
    ::testing::Values(Layout{"dp2", 2, 4, 1, "--set parallel_config.zero_level=z1"},
                      Layout{"dp2_z3", 2, 2, 2, "--set parallel_config.zero_level=z3"},
                      Layout{"tp2_sp", 2, 4, 2,
                             "--set parallel_config.tensor_model_parallel_size=2 "
                             "--set parallel_config.sequence_parallel=True "
                             "--set model_config.parallel_position_embedding=True"},
                      Layout{"pp2_vpp2", 2, 2, 4,
                             "--set parallel_config.pipeline_model_parallel_size=2 "
                             "--set parallel_config.virtual_pipeline_model_parallel_size=2"},
                      Layout{"cp2", 2, 4, 2, "--set parallel_config.context_parallel_size=2"},
                      Layout{"cp2_tp2_sp_dp2", 8, 2, 2,
                             "--set parallel_config.context_parallel_size=2 "
                             "--set parallel_config.tensor_model_parallel_size=2 "
                             "--set parallel_config.sequence_parallel=True "
                             "--set parallel_config.zero_level=z2"},
                      Layout{"tp2_pp2_dp2", 8, 2, 2,
                             "--set parallel_config.tensor_model_parallel_size=2 "
                             "--set parallel_config.pipeline_model_parallel_size=2"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(ProgramTest, AWorldThatTheLayoutDoesNotDivideIsRefused) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  dir_.write("run.yaml", kTinyRun);
  EXPECT_EQ(run(std::string(TAPESTRY_MPIEXEC) + " --oversubscribe -n 3 " TAPESTRY_PRETRAIN_GPT,
                "--config_path run.yaml --set parallel_config.tensor_model_parallel_size=2"),
            2)
      << said();
  EXPECT_THAT(out_ + err_,
              ::testing::HasSubstr("need 2 ranks, or a multiple of it; this job has 3"));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("output/metrics.jsonl")));
}

// They would train on, and exchange gradients of different losses.
TEST_F(ProgramTest, RanksWithDifferentConfigurationsAreRefused) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  dir_.write("run.yaml", kTinyRun);
  dir_.write("other.yaml", replaced(kTinyRun, "learning_rate: 1e-3", "learning_rate: 2e-3"));
  const std::string one = "-n 1 " TAPESTRY_PRETRAIN_GPT " --config_path ";
  const auto job = [&](const std::string& first, const std::string& rest) {
    return run(std::string(TAPESTRY_MPIEXEC) + " --oversubscribe",
               one + first + " : " + one + rest + " : " + one + rest);
  };
  ASSERT_EQ(job("run.yaml", "other.yaml --set optimizer_config.weight_decay=0.5"), 2) << said();
  for (const char* named : {"the ranks of this job have been given different runs",
                            "optimizer_config.learning_rate: 0.001 on rank 0, 0.002 on ranks 1-2",
                            "optimizer_config.weight_decay: "}) {
    EXPECT_THAT(out_ + err_, ::testing::HasSubstr(named));
  }
  EXPECT_THAT(out_ + err_, ::testing::Not(::testing::HasSubstr("training_config.")));
  // Groups of other sizes would wait for each other.
  ASSERT_EQ(job("run.yaml", "run.yaml --set parallel_config.tensor_model_parallel_size=2"), 2)
      << said();
  EXPECT_THAT(out_ + err_, ::testing::HasSubstr("parallel_config.tensor_model_parallel_size: 1 on "
                                                "rank 0, 2 on ranks 1-2"));
  ASSERT_EQ(job("run.yaml", "run.yaml --set training_config.output_dir=elsewhere"), 2) << said();
  EXPECT_THAT(out_ + err_, ::testing::HasSubstr("training_config.output_dir: " + dir_.path() +
                                                "/output on rank 0, " + dir_.path() +
                                                "/elsewhere on ranks 1-2"));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("output/metrics.jsonl")));
  // One folder by two names, hosts with other numbers of cores: the same run.
  std::filesystem::create_directory_symlink(dir_.path(), dir_.file("link"));
  ASSERT_EQ(job("run.yaml", "link/run.yaml --set training_config.output_dir='" + dir_.path() +
                                "/link/output' --set training_config.num_threads=2"),
            0)
      << said();
  EXPECT_EQ(steps().size(), 3U);
}

// A number of ranks of which each fits the free memory by itself, and all together do not.
TEST_F(ProgramTest, RanksThatShareAHostShareItsMemory) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  const auto text = [](int64_t hidden) {
    return replaced(kTinyRun, "hidden_size: 16", "hidden_size: " + std::to_string(hidden));
  };
  const auto dry_run = [&](const std::string& launcher) {
    return run(launcher + TAPESTRY_PRETRAIN_GPT, "--config_path run.yaml --dry_run");
  };
  int64_t hidden = 1024;
  for (dir_.write("run.yaml", text(hidden)); dry_run("") == 0;
       dir_.write("run.yaml", text(hidden))) {
    hidden += hidden / 4 / 2 * 2;
  }
  EXPECT_THAT(err_, ::testing::HasSubstr("available"));
  hidden = hidden * 3 / 4 / 2 * 2;  // less than half of the memory that is too much
  dir_.write("run.yaml", text(hidden));
  EXPECT_EQ(dry_run(""), 0) << said();
  EXPECT_EQ(dry_run(std::string(TAPESTRY_MPIEXEC) + " --oversubscribe -n 4 "), 2) << said();
}

}  // namespace
}  // namespace tapestry
