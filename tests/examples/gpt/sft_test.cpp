// Fine-tuning on examples, through the program: dataset_config.sft_data_path and its keys.
#include <cmath>

#include "autograd/io/json.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/examples/gpt/sft_examples.h"
#include "tests/says.h"

namespace tapestry::sft_program_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

std::string set_data(const std::string& key, const std::string& value) {
  return " --set dataset_config." + key + "=" + value;
}
std::string set_training(const std::string& key, const std::string& value) {
  return " --set training_config." + key + "=" + value;
}

class SftTest : public ProgramTest {
 protected:
  void SetUp() override {
    dir_.write("train.jsonl", sft_examples(60));
    dir_.write("chat.jinja", kChatTemplate);
    dir_.write("run.yaml", sft_run());
  }
  int train(const std::string& more = "", const std::string& output = "output") {
    return pretrain("--config_path run.yaml" + set_training("output_dir", output) + more);
  }
};

TEST_F(SftTest, TrainsEvaluatesAndSaysWhatItTrainsOn) {
  ASSERT_EQ(train(), 0) << said();
  // 48 of 60 lines, of which each third is a conversation, and each conversation one example.
  EXPECT_THAT(out_, HasSubstr("train.jsonl: 60 lines, 48 examples in "));
  EXPECT_THAT(out_, HasSubstr(" rows of 96 ("));
  EXPECT_THAT(out_, HasSubstr("% filled), "));
  EXPECT_THAT(out_, HasSubstr("tokens learned; 12 for validation in "));
  EXPECT_THAT(out_, HasSubstr("eval: Step:6"));
  const auto lines = steps();
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_LT(lines[5]["loss"].get<double>(), lines[0]["loss"].get<double>());
  EXPECT_GT(lines[5]["epoch"].get<int64_t>(), 0);
  EXPECT_LT(lines[0]["loss_tokens"].get<double>(), lines[0]["tokens"].get<double>() / 2);
  // The mean over the learned tokens of a step, as nothing else was asked for.
  EXPECT_THAT(dir_.read("output/config.yaml"), HasSubstr("calculate_per_token_loss: True"));
  // A checkpoint is evaluated on the same examples.
  char said_loss[80];
  std::snprintf(said_loss, sizeof(said_loss), "eval: Loss: %.6f,",
                lines[5]["eval_loss"].get<double>());
  ASSERT_EQ(pretrain("--evaluate output/checkpoint/step_00000006"), 0) << said();
  EXPECT_THAT(out_, Says(said_loss));
}

// Bit for bit, also where the first part was planned to be shorter.
TEST_F(SftTest, StoppingAndGoingOnKeepsRowsAndOrder) {
  const std::string dropout =
      " --set model_config.hidden_dropout=0.1 --set model_config.attention_dropout=0.1";
  ASSERT_EQ(train(dropout, "whole"), 0) << said();
  ASSERT_EQ(train(dropout + set_training("training_iters", "3"), "parts"), 0) << said();
  ASSERT_EQ(train(dropout + set_training("resume_training", "True"), "parts"), 0) << said();
  EXPECT_EQ(metrics("parts"), metrics("whole"));
  const std::string weights = "/checkpoint/step_00000006/model.safetensors";
  EXPECT_TRUE(dir_.read("parts" + weights) == dir_.read("whole" + weights));
}

TEST_F(SftTest, OtherExamplesAreRefusedWhereARunGoesOn) {
  ASSERT_EQ(train(set_training("training_iters", "3")), 0) << said();
  const std::string on = set_training("resume_training", "True");
  const std::pair<std::string, const char*> changes[] = {
      {set_data("sft_packing", "False"), "dataset_config.sft_packing is False; it was True"},
      {set_data("sft_loss", "all"), "dataset_config.sft_loss is all; it was answers"},
      {set_data("sft_long_examples", "drop"), "dataset_config.sft_long_examples is drop"},
      {set_data("split", "70,30,0"), "dataset_config.split is 70,30,0; it was 80,20,0"},
      {set_data("eos_token_id", "257"), "ends a text is ... 257; ... 256"},
      {set_data("shuffle", "False"), "dataset_config.shuffle is False; it was True"},
  };
  for (const auto& [change, said_of_it] : changes) {
    EXPECT_EQ(train(on + change), 2) << change;
    EXPECT_THAT(err_, Says(said_of_it));
    EXPECT_THAT(err_, Says("training_config.new_dataset: ... True"));
  }
  dir_.write("chat.jinja", std::string(kChatTemplate) + "{# changed #}");
  EXPECT_EQ(train(on), 2);
  EXPECT_THAT(err_, HasSubstr("the chat template is one with checksum"));
  dir_.write("chat.jinja", kChatTemplate);
  dir_.write("train.jsonl", sft_examples(61));
  EXPECT_EQ(train(on), 2);
  EXPECT_THAT(err_, Says("dataset_config.sft_data_path ... is ... train.jsonl ("));
  dir_.write("moved.jsonl", sft_examples(60));
  EXPECT_EQ(train(on + set_data("sft_data_path", "moved.jsonl")), 0) << said();
}

// 24 examples of which three fill a row: an epoch is 24 rows of one, or 8 of three.
TEST_F(SftTest, PackedAndUnpackedLossesAreEqual) {
  std::string lines;
  for (int i = 0; i < 24; ++i) {
    const std::string question = std::string(static_cast<size_t>(10 + i % 3), 'q');
    const std::string answer = sample_text(i + 1).substr(static_cast<size_t>(i), 21);
    lines += Json{{"prompt", question},
                  {"completion", answer.substr(0, static_cast<size_t>(21 - i % 3))}}
                 .dump() +
             "\n";
  }
  dir_.write("even.jsonl", lines);
  for (const char* positions : {"rope", "learned_absolute"}) {
    const std::string common = set_data("sft_data_path", "even.jsonl") + set_data("split", "1") +
                               set_training("eval_interval", "null") +
                               " --set optimizer_config.eps=1e-4" +
                               " --set model_config.position_embedding_type=" + positions;
    ASSERT_EQ(train(common + set_data("batch_size", "4") + set_data("micro_batch_num", "2"),
                    std::string("packed_") + positions),
              0)
        << said();
    EXPECT_THAT(out_, HasSubstr("24 examples in 8 rows of 96 (100.0 % filled)"));
    ASSERT_EQ(train(common + set_data("sft_packing", "False") + set_data("batch_size", "8") +
                        set_data("micro_batch_num", "3"),
                    std::string("unpacked_") + positions),
              0)
        << said();
    EXPECT_THAT(out_, HasSubstr("24 examples in 24 rows of 96 (33.3 % filled)"));
    const auto packed = steps(std::string("packed_") + positions);
    const auto unpacked = steps(std::string("unpacked_") + positions);
    ASSERT_EQ(packed.size(), unpacked.size());
    for (size_t i = 0; i < packed.size(); ++i) {
      EXPECT_EQ(packed[i]["loss_tokens"], unpacked[i]["loss_tokens"]);
      for (const char* field : {"loss", "grad_norm"}) {
        const double expected = unpacked[i][field];
        EXPECT_NEAR(packed[i][field].get<double>(), expected, 1e-5 * expected) << field;
      }
      EXPECT_EQ(packed[i]["epoch"], unpacked[i]["epoch"]);
    }
  }
}

TEST_F(SftTest, EpochsAreThoseOfTheExamples) {
  for (const char* packing : {"True", "False"}) {
    const std::string output = std::string("epochs_") + packing;
    ASSERT_EQ(train(set_data("sft_packing", packing) + set_training("training_iters", "0") +
                        set_training("epochs", "2") + set_training("eval_interval", "null"),
                    output),
              0)
        << said();
    const auto lines = steps(output);
    EXPECT_EQ(lines.front()["epoch"], 0);
    EXPECT_EQ(lines.back()["epoch"], 1);
    double learned = 0;
    for (const auto& line : lines) {
      learned += line["loss_tokens"].get<double>();
    }
    // Twice all of them, and what the last step has of the third epoch.
    const size_t said_rows = out_.find("tokens learned;");
    ASSERT_NE(said_rows, std::string::npos);
    if (std::string(packing) == "False") {
      EXPECT_EQ(lines.size(), 48U * 2 / 4);
    }
    EXPECT_GT(learned, 0);
  }
}

TEST_F(SftTest, SeveralFilesAndWeights) {
  dir_.write("few.jsonl", sft_examples(5));
  ASSERT_EQ(train(set_data("sft_data_path", "[train.jsonl,few.jsonl]") +
                      set_data("sft_valid_data_path", "few.jsonl") + set_data("split", "969,30,1"),
                  "both"),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("65 lines, 65 examples in "));
  EXPECT_THAT(out_, HasSubstr("5 for validation in "));
  ASSERT_EQ(train(set_data("sft_data_path", "[0.2,train.jsonl,0.8,few.jsonl]") +
                      set_training("eval_interval", "null"),
                  "weighted"),
            0)
      << said();
  EXPECT_NE(steps("both")[0]["loss"], steps("weighted")[0]["loss"]);
  EXPECT_EQ(train(set_training("resume_training", "True") +
                      set_data("sft_data_path", "[0.3,train.jsonl,0.7,few.jsonl]") +
                      set_training("eval_interval", "null"),
                  "weighted"),
            2);
  EXPECT_THAT(err_, HasSubstr("is 0.3 train.jsonl"));
  EXPECT_EQ(train(set_data("sft_data_path", "[train.jsonl,train.jsonl]")), 2);
  EXPECT_THAT(err_, HasSubstr("stands there twice"));
}

TEST_F(SftTest, LinesOfAStep) {
  ASSERT_EQ(pretrain("--config_path run.yaml --which_data 1"), 0) << said();
  std::istringstream rows(out_);
  std::string line;
  ASSERT_TRUE(std::getline(rows, line));
  const Json row = Json::parse(line);
  EXPECT_EQ(row["dataset"], "train.jsonl");
  const Json document = row["documents"][0];
  const std::string examples = dir_.read("train.jsonl");
  const std::string found = examples.substr(document["offset"], document["bytes"]);
  EXPECT_EQ(std::count(examples.begin(),
                       examples.begin() + static_cast<std::ptrdiff_t>(document["offset"]), '\n'),
            document["id"].get<int64_t>());
  EXPECT_TRUE(Json::accept(found)) << found;
  ASSERT_EQ(pretrain("--config_path run.yaml --which_steps train.jsonl:" +
                     std::to_string(document["id"].get<int64_t>())),
            0)
      << said();
  EXPECT_EQ(Json::parse(out_.substr(0, out_.find('\n')))["sample"], row["sample"]);
}

TEST_F(SftTest, WhatIsLeftOutIsCounted) {
  dir_.write(
      "train.jsonl",
      sft_examples(40) +
          Json{{"prompt", std::string(50, 'p')}, {"completion", std::string(90, 'c')}}.dump() +
          "\n" + Json{{"prompt", std::string(200, 'p')}, {"completion", "c"}}.dump() + "\n" +
          R"({"messages": [{"role": "user", "content": "no answer"}]})" + "\n");
  ASSERT_EQ(train(), 0) << said();
  const std::string said_of_cut = out_ + err_;
  EXPECT_THAT(said_of_cut, Says("1 ... 97 ... its last label and cut ... 44"));
  EXPECT_THAT(said_of_cut, Says("2 ... learned from them"));
  ASSERT_EQ(train(set_data("sft_long_examples", "drop"), "dropped"), 0) << said();
  EXPECT_THAT(out_ + err_, Says("2 ... 97 ... last label and left out"));
}

TEST_F(SftTest, BadFilesNameFileAndLine) {
  dir_.write("train.jsonl", sft_examples(3) + "\n{\"prompt\": 3, \"completion\": \"x\"}\n");
  for (const char* dry_run : {"", " --dry_run"}) {
    EXPECT_EQ(train(dry_run), 2);
    EXPECT_THAT(err_, HasSubstr("train.jsonl:5: \"prompt\" is a JSON number, expected a string"));
  }
  dir_.write("train.jsonl", sft_examples(30));
  EXPECT_EQ(train(set_data("sft_data_path", "none.jsonl")), 2);
  EXPECT_THAT(err_, HasSubstr("none.jsonl"));
  dir_.write("train.jsonl", "\n");
  EXPECT_EQ(train(), 2);
  EXPECT_THAT(err_, Says("0 ... left for training"));
}

TEST_F(SftTest, KeysThatContradictEachOther) {
  const std::pair<std::string, const char*> cases[] = {
      {set_data("data_path", "x"), "given beside data_path"},
      {set_data("reset_attention_mask", "True"), "has no effect on ... sft_data_path"},
      {set_data("eod_mask_loss", "True"), "has no effect on ... sft_data_path"},
      {set_data("sft_data_path", "null") + set_data("sft_packing", "False"),
       "has no effect without ... sft_data_path"},
      {set_data("sft_valid_data_path", "x.jsonl"), "divides sft_data_path"},
      {set_data("sft_valid_data_path", "[0.5,x.jsonl]") + set_data("split", "969,30,1"),
       "example is read once"},
      {set_data("sft_long_examples", "split"), "sft_long_examples"},
      {set_data("split", "100,0,0"), "example to evaluate on"},
      {set_data("tokenizer_type", "sentencepiece"), "tokenizer of the model"},
  };
  for (const auto& [arguments, said_of_it] : cases) {
    EXPECT_EQ(train(arguments), 2) << arguments;
    EXPECT_THAT(err_, Says(said_of_it)) << arguments;
  }
  // By micro-batches, if somebody wants it.
  EXPECT_EQ(train(set_training("calculate_per_token_loss", "False")), 0) << said();
  EXPECT_THAT(out_ + err_, Says("over all learned tokens"));
}

}  // namespace
}  // namespace tapestry::sft_program_test
