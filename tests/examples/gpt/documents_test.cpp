// Documents in a sample, through the programs: dataset_config.reset_attention_mask,
// reset_position_ids and eod_mask_loss.
#include <cmath>

#include "autograd/io/json.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry::documents_program_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

std::string set_data(const std::string& key, const std::string& value) {
  return " --set dataset_config." + key + "=" + value;
}

class DocumentsTest : public ProgramTest {
 protected:
  // Documents of seven bytes and their end, so that samples of 16 tokens hold two of them.
  void SetUp() override {
    std::string documents;
    const std::string text = sample_text(40);
    for (size_t i = 0; i + 7 <= text.size(); i += 7) {
      documents += Json{{"text", text.substr(i, 7)}}.dump() + "\n";
    }
    dir_.write("text.jsonl", documents);
    ASSERT_EQ(preprocess("--input text.jsonl --output_prefix text --tokenizer_type byte "
                         "--append_eod"),
              0)
        << said();
    std::string run = replaced(kTinyRun, "  seq_length: 16\n",
                               "  seq_length: 16\n  max_position_embeddings: 16\n");
    run = replaced(run, "  learning_rate: 1e-3\n", "  learning_rate: 1e-3\n  eps: 1e-4\n");
    dir_.write("run.yaml", replaced(run, "  batch_size: 2\n",
                                    "  batch_size: 2\n  shuffle: False\n  eod_mask_loss: True\n"));
  }
  std::vector<Json> train(const std::string& output, const std::string& more) {
    EXPECT_EQ(pretrain("--config_path run.yaml --set training_config.output_dir=" + output + more),
              0)
        << said();
    return steps(output);
  }
};

void expect_same_curve(const std::vector<Json>& found, const std::vector<Json>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    for (const char* field : {"loss", "grad_norm"}) {
      EXPECT_NEAR(found[i].at(field).get<double>(), expected[i].at(field).get<double>(),
                  1e-5 * expected[i].at(field).get<double>())
          << field;
    }
    for (const char* field : {"tokens", "loss_tokens"}) {
      EXPECT_EQ(found[i].at(field), expected[i].at(field));
    }
  }
}

const std::string kReset =
    set_data("reset_attention_mask", "True") + set_data("reset_position_ids", "True");

TEST_F(DocumentsTest, TwoInASampleTrainAsTwoSamples) {
  for (const std::string& model :
       {std::string(), std::string(" --set model_config.position_embedding_type=rope")}) {
    const auto apart =
        train("apart" + std::to_string(model.size()),
              model + " --set model_config.seq_length=8" + set_data("batch_size", "4"));
    EXPECT_EQ(apart.front().at("loss_tokens"), 4 * 7);  // what follows an end is not predicted
    const auto joined = train("joined" + std::to_string(model.size()), model + kReset);
    expect_same_curve(joined, apart);
    const auto attentive = train("attentive" + std::to_string(model.size()), model);
    EXPECT_GT(std::abs(attentive[2].at("loss").get<double>() - apart[2].at("loss").get<double>()),
              1e-4);
  }
}

TEST_F(DocumentsTest, StoppingAndGoingOnKeepsDocumentsAndOrder) {
  const std::string more =
      kReset + set_data("shuffle", "True") + " --set model_config.attention_dropout=0.1";
  train("whole", more + " --set training_config.training_iters=4");
  train("parts", more + " --set training_config.training_iters=2");
  train(
      "parts",
      more + " --set training_config.training_iters=4 --set training_config.resume_training=True");
  EXPECT_EQ(metrics("parts"), metrics("whole"));
}

TEST_F(DocumentsTest, OtherTokensMayEndOrPad) {
  // The space ends documents, here: another curve, and a remark.
  const auto spaces = train("spaces", kReset + set_data("eos_token_id", "32"));
  EXPECT_THAT(out_ + err_, Says("taken to end with ... 32, ... 256"));
  const auto ends = train("ends", kReset);
  EXPECT_THAT(out_ + err_, Not(HasSubstr("no document ends")));
  EXPECT_NE(spaces[0].at("loss"), ends[0].at("loss"));
  EXPECT_NE(spaces[0].at("loss_tokens"), ends[0].at("loss_tokens"));
  train("never", kReset + set_data("eos_token_id", "259"));
  EXPECT_THAT(out_ + err_, Says("no document ... token 259"));
  // Neither what follows a document's end nor an e.
  const auto padded = train("padded", set_data("pad_token_id", "101"));
  const auto whole = train("unpadded", "");
  EXPECT_LT(padded[0].at("loss_tokens").get<double>(), whole[0].at("loss_tokens").get<double>());
}

TEST_F(DocumentsTest, ShortNamesOfTheModelSection) {
  const auto by_data = train("by_data", set_data("reset_attention_mask", "True"));
  const auto by_model = train("by_model", " --set model_config.use_eod_attn_mask_compression=True");
  EXPECT_EQ(by_model[2].at("loss"), by_data[2].at("loss"));
  EXPECT_EQ(pretrain("--config_path run.yaml --set model_config.use_eod_reset=True" +
                     set_data("reset_attention_mask", "False")),
            2);
  EXPECT_THAT(err_, HasSubstr("reset_attention_mask is False"));
}

TEST_F(DocumentsTest, RecordedStepsHaveMasksOfTheirOwn) {
  for (const char* key : {"eod_mask_loss=True", "reset_attention_mask=True",
                          "reset_position_ids=True", "pad_token_id=3", "shuffle=True"}) {
    EXPECT_EQ(pretrain("--config_path run.yaml --set dataset_config.data_path=null --set "
                       "dataset_config.eod_mask_loss=False --set dataset_config.step_data_dir=x "
                       "--set dataset_config." +
                       std::string(key)),
              2);
    EXPECT_THAT(err_, HasSubstr("recorded steps")) << key;
  }
}

}  // namespace
}  // namespace tapestry::documents_program_test
