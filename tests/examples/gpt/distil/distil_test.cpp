// Distillation from end to end: `generate --logprobs K --to FILE`, and students that learn from the
// file or from the model itself.
#include <algorithm>
#include <cmath>
#include <sstream>

#include "parallel_core/post_training/distil/teacher_file.h"
#include "tests/examples/gpt/hf_folders.h"
#include "tests/says.h"

namespace tapestry::hf_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kRun =
    "training_config:\n"
    "  training_iters: 2\n"
    "  num_threads: 1\n"
    "model_config:\n"
    "  from_hf: llama\n"
    "  seq_length: 32\n"
    "dataset_config:\n"
    "  tokenizer_type: byte\n"
    "  batch_size: 4\n"
    "  shuffle: False\n"
    "optimizer_config:\n"
    "  learning_rate: 0.01\n"
    "  lr_decay_style: constant\n"
    "  weight_decay: 0.0\n"
    "  clip_grad: 0.0\n";

class DistilTest : public HfTest {
 protected:
  void SetUp() override {
    write_llama("llama", "llama");
    write_llama("teacher", "qwen2");
    dir_.write("pairs.jsonl",
               "{\"prompt\": \"the king\", \"completion\": \" said no\"}\n"
               "{\"prompt\": \"a\", \"completion\": \" man and a dog\"}\n\n"
               "{\"prompt\": \"we\", \"completion\": \" go\"}\n"
               "{\"prompt\": \"so it is\", \"completion\": \", she thought\"}\n");
    dir_.write("prompts.jsonl",
               "{\"prompt\": \"the king\"}\n{\"prompt\": \"looked\", \"max_new_tokens\": 3}\n");
    dir_.write("run.yaml", kRun);
  }

  static std::string on_ranks(const std::string& program, int ranks) {
    return ranks == 1 ? program
                      : std::string(TAPESTRY_MPIEXEC) + " --oversubscribe -n " +
                            std::to_string(ranks) + " " + program;
  }
  int store(const std::string& arguments, int ranks = 1) {
    return run(on_ranks(TAPESTRY_GENERATE, ranks),
               "--checkpoint teacher --threads 1 --context 32 " + arguments);
  }
  int distil(const std::string& output, const std::string& settings, int ranks = 1) {
    return run(on_ranks(TAPESTRY_PRETRAIN_GPT, ranks),
               "--config_path run.yaml --set post_training_config.task=distil --set "
               "training_config.output_dir=" +
                   output + " " + settings);
  }
  void expect_bad_file(const std::string& arguments, const std::string& part) {
    EXPECT_EQ(store(arguments), 2) << said();
    EXPECT_THAT(err_, Says(part));
  }
  void expect_bad_run(const std::string& settings, const std::string& part) {
    EXPECT_NE(distil("bad", settings), 0) << said();
    EXPECT_THAT(said(), Says(part));
  }
};

std::string setting(const std::string& key, const std::string& value) {
  return "--set post_training_config." + key + "=" + value + " ";
}
const std::string kModelTeacher = setting("teacher", "teacher") + setting("data", "pairs.jsonl");

TEST_F(DistilTest, AllStoredTokensTeachAsTheModelDoes) {
  ASSERT_EQ(store("--prompts pairs.jsonl --logprobs 264 --to all.safetensors "
                  "--logprobs_temperature 1.5"),
            0)
      << said();
  EXPECT_THAT(said(), HasSubstr("4 texts (0 answered by the model)"));
  for (const char* beta : {"0.0", "0.3", "1.0"}) {
    const std::string same =
        setting("beta", beta) + setting("temperature", "1.5") + setting("data_loss_weight", "0.25");
    const std::string name = std::string(beta);
    ASSERT_EQ(distil("model" + name, same + kModelTeacher), 0) << said();
    ASSERT_EQ(distil("file" + name, same + setting("teacher_log_probs", "all.safetensors")), 0)
        << said();
    const std::vector<Json> model = steps("model" + name);
    const std::vector<Json> file = steps("file" + name);
    ASSERT_EQ(model.size(), 2U);
    ASSERT_EQ(file.size(), 2U);
    for (size_t i = 0; i < model.size(); ++i) {
      for (const char* key : {"loss", "grad_norm", "divergence", "data_loss", "entropy"}) {
        const double value = model[i].at(key).get<double>();
        EXPECT_NEAR(file[i].at(key).get<double>(), value, 1e-5 * std::max(1.0, value))
            << beta << " step " << i + 1 << " " << key;
      }
      EXPECT_NEAR(model[i].at("loss").get<double>(),
                  0.75 * model[i].at("divergence").get<double>() +
                      0.25 * model[i].at("data_loss").get<double>(),
                  1e-6);
      EXPECT_GT(model[i].at("divergence").get<double>(), 1e-3);
    }
  }
}

TEST_F(DistilTest, LayoutsStoreAndLearnTheSame) {
  const std::string same = "--prompts pairs.jsonl --logprobs 264 --to ";
  ASSERT_EQ(store(same + "one"), 0) << said();
  ASSERT_EQ(store(same + "tensor --tensor_parallel 2", 2), 0) << said();
  ASSERT_EQ(store(same + "stages --pipeline_parallel 2", 2), 0) << said();
  const post_training::TeacherFile one(dir_.file("one"));
  for (const char* other : {"tensor", "stages"}) {
    const post_training::TeacherFile file(dir_.file(other));
    ASSERT_EQ(file.texts()->checksum(), one.texts()->checksum());
    for (int64_t text = 0; text < one.texts()->size(); ++text) {
      const auto probabilities = [&](const post_training::TeacherFile& from) {
        const auto count = static_cast<size_t>(from.positions(text));
        std::vector<int32_t> ids(count * kVocab);
        std::vector<float> log_probs(ids.size());
        std::vector<float> own(count);
        from.read(text, 0, from.positions(text), kVocab, ids.data(), log_probs.data(), own.data());
        std::vector<double> by_id(ids.size());
        for (size_t i = 0; i < ids.size(); ++i) {
          by_id[i / kVocab * kVocab + static_cast<size_t>(ids[i])] = log_probs[i];
        }
        return by_id;
      };
      const std::vector<double> expected = probabilities(one);
      const std::vector<double> found = probabilities(file);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        ASSERT_NEAR(found[i], expected[i], 2e-5) << other << " " << text << " " << i;
      }
    }
  }
  const std::string run = setting("beta", "0.5") + setting("data_loss_weight", "0.5");
  ASSERT_EQ(distil("single", run + kModelTeacher), 0) << said();
  const std::string parallel = "--set parallel_config.";
  for (const auto& [name, settings] :
       {std::pair{"tp", parallel + "tensor_model_parallel_size=2"},
        std::pair{"pp", parallel + "pipeline_model_parallel_size=2"},
        std::pair{"cp", parallel + "context_parallel_size=2"},
        std::pair{"dp", std::string("--set dataset_config.batch_size=2")}}) {
    for (const std::string& teacher : {kModelTeacher, setting("teacher_log_probs", "one")}) {
      const std::string output =
          std::string(name) + (teacher == kModelTeacher ? "_model" : "_file");
      ASSERT_EQ(distil(output, run + teacher + settings, 2), 0) << said();
      for (size_t i = 0; i < 2; ++i) {
        for (const char* key : {"loss", "grad_norm", "divergence", "data_loss", "entropy"}) {
          const double value = steps("single").at(i).at(key).get<double>();
          EXPECT_NEAR(steps(output).at(i).at(key).get<double>(), value, 2e-5 * std::max(1.0, value))
              << output << " step " << i + 1 << " " << key;
        }
      }
    }
  }
}

TEST_F(DistilTest, StudentsLearn) {
  ASSERT_EQ(store("--prompts pairs.jsonl --logprobs 16 --to some.safetensors"), 0) << said();
  const std::string longer = "--set training_config.training_iters=25 " + setting("beta", "0.0");
  ASSERT_EQ(distil("model", longer + kModelTeacher), 0) << said();
  ASSERT_EQ(distil("file", longer + setting("teacher_log_probs", "some.safetensors")), 0) << said();
  for (const char* run : {"model", "file"}) {
    const std::vector<Json> found = steps(run);
    EXPECT_LT(found.back().at("loss").get<double>(), 0.7 * found.front().at("loss").get<double>())
        << run;
  }
}

TEST_F(DistilTest, AModelAnswersPromptsItself) {
  ASSERT_EQ(store("--prompts prompts.jsonl --logprobs 3 --to own.safetensors --max_new_tokens 9"),
            0)
      << said();
  EXPECT_THAT(said(), HasSubstr("2 texts (2 answered by the model)"));
  const post_training::TeacherFile file(dir_.file("own.safetensors"));
  EXPECT_EQ(file.texts()->prompt_tokens(0), 8);
  EXPECT_LE(file.positions(0), 9);
  EXPECT_LE(file.positions(1), 3);
  // As the same prompts are answered on the screen.
  ASSERT_EQ(generate("--checkpoint teacher --context 32 --prompts prompts.jsonl --logprobs 3 "
                     "--max_new_tokens 9"),
            0)
      << said();
  std::istringstream lines(out_);
  for (int64_t text = 0; text < 2; ++text) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    const Json answer = Json::parse(line);
    const auto ids = answer.at("tokens").get<std::vector<int32_t>>();
    const auto stored =
        file.texts()->ids(text).subspan(static_cast<size_t>(file.texts()->prompt_tokens(text)));
    ASSERT_GE(stored.size(), ids.size());
    EXPECT_TRUE(std::equal(ids.begin(), ids.end(), stored.begin()));
  }
  ASSERT_EQ(distil("run", setting("teacher_log_probs", "own.safetensors") +
                              "--set dataset_config.batch_size=2"),
            0)
      << said();
  EXPECT_THAT(said(), HasSubstr("2 texts with the 3 likeliest tokens"));
}

TEST_F(DistilTest, SayWhatIsWrongWithAFile) {
  expect_bad_file("--prompts pairs.jsonl --to x", "--to is the file of log-probabilities; add");
  expect_bad_file("--prompt a --logprobs 2 --to x", "--to needs a file of texts");
  expect_bad_file("--prompts pairs.jsonl --logprobs 265 --to x",
                  "--logprobs is 265, expected 1 to the vocabulary's 264 with --to");
  expect_bad_file("--prompts pairs.jsonl --logprobs 0 --to x", "--logprobs is 0, expected 1");
  expect_bad_file("--prompts pairs.jsonl --logprobs 2 --logprobs_temperature 2",
                  "--logprobs_temperature is that of a file; add --to FILE");
  expect_bad_file("--prompts pairs.jsonl --logprobs 2 --to no/x", "no/x ... there is no folder no");
  EXPECT_EQ(generate("--checkpoint teacher --prompts pairs.jsonl --logprobs 2 --to x --context 10"),
            2);
  EXPECT_THAT(err_, Says("text 1 has 17 tokens with its answer, the model has room for 10"));
}

TEST_F(DistilTest, SayWhatIsWrongWithARun) {
  ASSERT_EQ(store("--prompts pairs.jsonl --logprobs 2 --to two.safetensors"), 0) << said();
  const std::string from_file = setting("teacher_log_probs", "two.safetensors");
  expect_bad_run("", "teacher ... task distil needs a teacher");
  expect_bad_run(setting("teacher", "teacher"), "data ... is not given");
  expect_bad_run(from_file + setting("teacher", "teacher"), "stands in place of teacher");
  expect_bad_run(from_file + setting("data", "pairs.jsonl"), "has its own texts");
  expect_bad_run(from_file + setting("truncation_mode", "keep_end"), "expected keep_start");
  expect_bad_run(from_file + setting("beta", "1.5"), "expected 0 (forward divergence) to 1");
  expect_bad_run(from_file + setting("temperature", "2"),
                 "of logits divided by 1, post_training_config.temperature is 2");
  Json other = llama_config("qwen2");
  other["vocab_size"] = kVocab + 1;
  dir_.write("teacher/config.json", other.dump());
  expect_bad_run(kModelTeacher, "has a vocabulary of 265 tokens, the student of 264");
}

}  // namespace
}  // namespace tapestry::hf_test
