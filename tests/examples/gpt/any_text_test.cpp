// Whole runs on texts of every kind: few documents, parts of their own, characters, files that are
// tokenised on first use; and data whose tokenizer is another one than the run's.
#include <cmath>

#include "autograd/io/json.h"
#include "parallel_core/data/indexed_dataset.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"
#include "text/util/utf8.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class AnyTextTest : public ProgramTest {
 protected:
  // The tiny run with another source of data, and without a split.
  void write_run(const std::string& source, const std::string& name = "run.yaml") {
    dir_.write(name, replaced(replaced(kTinyRun, "data_path: text_text_document", source),
                              "  split: 90,10,0\n", ""));
  }
  // Into the folder of the run before.
  int train(const std::string& arguments) { return pretrain(arguments + " --overwrite"); }
  Json last_line(const std::string& output = "output") const { return steps(output).back(); }
  std::string log() const { return dir_.read("output/log/rank_0/info.log"); }
};

const std::string kEvaluating =
    "--config_path run.yaml --set training_config.eval_interval=1 --set "
    "training_config.eval_iters=2 ";

// With the usual split of 969, 30 and 1.
TEST_F(AnyTextTest, OneDocument69And400) {
  for (const int paragraphs : {1, 69, 400}) {
    std::string text;
    for (int i = 0; i < paragraphs; ++i) {
      text += sample_text(800 / paragraphs) + "\n\n";
    }
    dir_.write("text.txt", text);
    ASSERT_EQ(preprocess("--input text.txt --output_prefix text --tokenizer_type byte "
                         "--split_documents blank_line --append_eod"),
              0)
        << said();
    const int64_t documents = data::IndexedDataset(dir_.file("text_text_document")).num_documents();
    ASSERT_EQ(documents, paragraphs);
    write_run("data_path: text_text_document");
    ASSERT_EQ(train("--config_path run.yaml"), 0) << said();
    EXPECT_FALSE(last_line().contains("eval_loss"));
    ASSERT_EQ(train(kEvaluating), 0) << said();
    EXPECT_NEAR(last_line().at("eval_loss").get<double>(), std::log(257.0), 0.5);
    if (paragraphs == 1) {
      EXPECT_THAT(out_, HasSubstr("1 document is too few for split 969,30,1, so it cuts tokens"));
    } else {
      EXPECT_THAT(out_, Not(HasSubstr("cuts tokens")));
    }
    ASSERT_EQ(train("--config_path run.yaml --set dataset_config.split=1"), 0) << said();
  }
}

// What the message of a text that is too short advises works.
TEST_F(AnyTextTest, TheAdviceForAShortText) {
  dir_.write("text.txt", "Forty bytes of text, and not a byte more");
  ASSERT_EQ(preprocess("--input text.txt --output_prefix text --tokenizer_type byte"), 0) << said();
  write_run("data_path: text_text_document");
  ASSERT_EQ(train(kEvaluating + "--set model_config.seq_length=32"), 2);
  EXPECT_THAT(err_, Says("valid part has ... 0 ... 40 ... \"969,30,1\", ... 33; ... "
                         "model_config.seq_length 16, ... training_config.eval_interval"));
  EXPECT_EQ(train(kEvaluating + "--set model_config.seq_length=16"), 0) << said();
  EXPECT_EQ(train(kEvaluating + "--set model_config.seq_length=32 --set "
                                "training_config.eval_interval=null"),
            0)
      << said();
}

TEST_F(AnyTextTest, PartsOfTheirOwnAndATest) {
  for (const char* part : {"train", "valid", "test"}) {
    dir_.write(concat(part, ".txt"), std::string(600, part[0]));
    ASSERT_EQ(preprocess(concat("--input ", part, ".txt --output_prefix ", part,
                                " --tokenizer_type byte")),
              0)
        << said();
  }
  write_run(
      "train_data_path: train_text_document\n  valid_data_path: [1, valid_text_document]\n"
      "  test_data_path: test_text_document");
  const std::string options =
      kEvaluating +
      "--set training_config.training_iters=40 --set training_config.save_interval=40 --set "
      "optimizer_config.learning_rate=2e-2";
  ASSERT_EQ(train(options), 0) << said();
  const Json last = last_line();
  const auto loss = last.at("loss").get<double>();
  // Training data are t, test data too, validation data are v, which the model has not seen.
  EXPECT_LT(loss, 0.5);
  EXPECT_NEAR(last.at("test_loss").get<double>(), loss, 0.2);
  EXPECT_GT(last.at("eval_loss").get<double>(), 2);
  EXPECT_NEAR(last.at("test_perplexity").get<double>(),
              std::exp(last.at("test_loss").get<double>()), 1e-9);
  EXPECT_THAT(log(), ::testing::ContainsRegex("test: Step:40, Loss: [0-9.]+, Perplexity: [0-9.]+"));
  EXPECT_EQ(log().find("test: Step"), log().rfind("test: Step"));  // once, at the end

  // The evaluation alone has the same result, from the checkpoint and its configuration.
  const auto before = tree();
  ASSERT_EQ(pretrain("--evaluate output"), 0) << said();
  const auto number = [](const char* part, double value) {
    char text[80];
    std::snprintf(text, sizeof(text), "%s: Loss: %.6f, Perplexity: %.4f", part, value,
                  std::exp(value));
    return std::string(text);
  };
  const std::string valid = number("eval", last.at("eval_loss").get<double>());
  EXPECT_THAT(out_, HasSubstr("evaluating output/checkpoint/step_00000040"));
  EXPECT_THAT(out_, Says(valid));
  EXPECT_THAT(out_, Says(number("test", last.at("test_loss").get<double>())));
  EXPECT_EQ(tree(), before);
  // Or on other data, with another configuration.
  ASSERT_EQ(pretrain("--evaluate output/checkpoint/step_00000040 --config_path run.yaml --set "
                     "dataset_config.valid_data_path=train_text_document"),
            0)
      << said();
  EXPECT_THAT(out_, Not(Says(valid)));
}

TEST_F(AnyTextTest, EvaluatingNeedsACheckpointAndData) {
  ASSERT_NO_FATAL_FAILURE(prepare_text());
  dir_.write("run.yaml", kTinyRun);
  ASSERT_EQ(train("--config_path run.yaml --set training_config.save_interval=3"), 0) << said();
  const auto bad = [&](const std::string& arguments, const char* message) {
    EXPECT_EQ(pretrain(arguments), 2) << said();
    EXPECT_THAT(err_, Says(message));
  };
  bad("--evaluate nowhere", "nowhere: ... no such file or folder");
  bad("--evaluate output --set dataset_config.split=1", "nor a test part");
  bad("--evaluate output --dry_run", "--evaluate and --dry_run exclude each other");
  bad("--evaluate output --overwrite", "--evaluate and --overwrite exclude each other");
  bad("--evaluate output --set model_config.hidden_size=32",
      "model_config.hidden_size is 32, but n_embd of output/checkpoint/step_00000003/config.json "
      "is 16");
  fs::copy_file(dir_.file("output/checkpoint/step_00000003/model.safetensors"),
                dir_.file("weights.safetensors"));
  bad("--evaluate weights.safetensors", "--evaluate ... does not know the model");
  EXPECT_EQ(pretrain("--evaluate weights.safetensors --config_path run.yaml"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("eval: Loss: "));
}

// From files to text without preprocess_data, with each tokenizer.
TEST_F(AnyTextTest, TextTokenisedOnFirstUse) {
  dir_.write("a.txt", sample_text(300));
  dir_.write("b.jsonl", Json{{"text", sample_text(40)}}.dump() + "\n");
  for (const std::string type : {"character", "sentencepiece", "byte"}) {
    write_run("text: [a.txt, b.jsonl]");
    dir_.write("run.yaml", replaced(replaced(dir_.read("run.yaml"), "byte", type),
                                    "vocab_size: 260", "vocab_size: 320"));
    const std::string options = kEvaluating + "--set training_config.save_interval=3";
    ASSERT_EQ(train(options), 0) << said();
    EXPECT_THAT(out_, HasSubstr("prepared the text as ./dataset/a_"));
    EXPECT_THAT(out_,
                Says(type == "sentencepiece" ? "SentencePiece tokenizer" : type + " tokenizer"));
    const std::string trained = metrics("output");
    ASSERT_EQ(train(options), 0) << said();
    EXPECT_THAT(out_, HasSubstr("found the text as ./dataset/a_"));
    EXPECT_EQ(metrics("output"), trained);
    ASSERT_EQ(generate("--checkpoint output --prompt 'And the king' --max_new_tokens 5"), 0)
        << said();
    EXPECT_EQ(out_.find("And the king"), 0U) << out_;
  }
  // A prompt with a character that the text does not have.
  write_run("text: a.txt");
  dir_.write("run.yaml", replaced(dir_.read("run.yaml"), "byte", "character"));
  ASSERT_EQ(train(kEvaluating + "--set training_config.save_interval=3"), 0) << said();
  EXPECT_EQ(generate("--checkpoint output --prompt 'And a ZEBRA'"), 2);
  EXPECT_THAT(err_, HasSubstr("the character 'Z' (U+005A) is not among the "));
}

// nanoGPT's example on a text of one document, cut 90 to 10 by characters.
TEST_F(AnyTextTest, TheCharacterPreset) {
  dir_.write("text.txt", sample_text(500));
  const std::string options =
      "--config_path " TAPESTRY_SOURCE_DIR
      "/examples/gpt/pretrain_gpt_char.yaml --set training_config.training_iters=60 --set "
      "optimizer_config.lr_warmup_iters=5 --set training_config.eval_interval=60 --set "
      "training_config.eval_iters=2 --set training_config.save_interval=60 --set "
      "training_config.num_threads=1 ";
  ASSERT_EQ(train(options + "--set dataset_config.text=text.txt"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("1 document is too few for split 90,10, so it cuts tokens"));
  EXPECT_LT(last_line().at("eval_loss").get<double>(), 2.5);
  ASSERT_EQ(generate("--checkpoint output --prompt 'And ' --max_new_tokens 8 --temperature 0"), 0)
      << said();
  EXPECT_THAT(out_, ::testing::StartsWith("And the"));
}

// scripts/quickstart.sh as it is, in a clone whose build is there already.
TEST_F(AnyTextTest, TheQuickStart) {
  const fs::path clone = dir_.file("clone");
  fs::create_directories(clone / "build/release/examples");
  fs::create_directory_symlink(fs::path(TAPESTRY_PRETRAIN_GPT).parent_path(),
                               clone / "build/release/examples/gpt");
  fs::create_directories(clone / "examples/gpt");
  for (const char* folder : {"scripts", "examples/gpt"}) {
    fs::copy(fs::path(TAPESTRY_SOURCE_DIR) / folder, clone / folder,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  dir_.write("clone/packages.txt", "");
  for (const char* stub : {"cmake", "dpkg-query"}) {
    dir_.write(concat("stubs/", stub), "#!/bin/sh\nexit 0\n");
    fs::permissions(dir_.file(concat("stubs/", stub)), fs::perms::owner_all);
  }
  std::string paragraphs;
  for (int i = 0; i < 69; ++i) {
    paragraphs += sample_text(8) + "\n\n";
  }
  std::string chinese = "\xEF\xBB\xBF";
  for (uint32_t i = 0; i < 8000; ++i) {
    chinese += data::utf8(0x4E00 + i * i % 1009) + (i % 40 == 39 ? "\n" : "");
  }
  const std::string small =
      " --set training_config.training_iters=2 --set training_config.eval_interval=1 --set "
      "training_config.eval_iters=1 --set training_config.save_interval=2 --set "
      "optimizer_config.lr_warmup_iters=0 --set model_config.seq_length=32 --set "
      "model_config.num_layers=1 --set dataset_config.batch_size=1 --set "
      "training_config.num_threads=1";
  const struct {
    std::string text;
    const char* options;
    const char* says;
  } cases[] = {{sample_text(400), "", "eval: Step:2"},
               {paragraphs, "", "69 documents"},
               {sample_text(400), " --preset char", "character tokenizer"},
               {chinese, "", "is raised from ... 512"},
               {chinese, " --preset char", "character tokenizer"}};
  for (const auto& c : cases) {
    dir_.write("my text.txt", c.text);
    ASSERT_EQ(run("PATH='" + dir_.file("stubs") + "':$PATH bash clone/scripts/quickstart.sh",
                  "--text 'my text.txt'" + std::string(c.options) + small),
              0)
        << said();
    EXPECT_THAT(out_, Says(c.says));
    EXPECT_THAT(out_, ::testing::ContainsRegex("step_00000002 continues \"."));
  }
}

TEST_F(AnyTextTest, EpochsAloneMayLimitARun) {
  dir_.write("text.txt", std::string(2000, 'x'));
  write_run("text: text.txt");
  dir_.write("run.yaml", replaced(dir_.read("run.yaml"), "training_iters: 3", "epochs: 2"));
  ASSERT_EQ(train("--config_path run.yaml --set dataset_config.split=1"), 0) << said();
  // 2001 tokens, with that of the document's end, twice; 32 in a step.
  EXPECT_EQ(last_line().at("step"), 126);
  EXPECT_EQ(last_line().at("epoch"), 1);
  // Lines of a step know where it ends, from the first one on.
  ASSERT_EQ(train("--config_path run.yaml --set dataset_config.split=1"
                  " --set training_config.log_style=static --set training_config.log_interval=1"),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("{ Epoch:[  1/  2], step:[    1/   63], "));
  EXPECT_THAT(out_, HasSubstr("{ Epoch:[  2/  2], step:[   63/   63], "));
  EXPECT_THAT(out_, HasSubstr("  100.0% |"));
  // Also those of a run that is stopped in its second epoch and goes on, or that training_iters
  // ends there.
  const std::string line =
      " --set dataset_config.split=1 --set training_config.log_style=static"
      " --set training_config.log_interval=1 --set training_config.";
  ASSERT_EQ(train("--config_path run.yaml" + line + "training_iters=70"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("{ Epoch:[  2/  2], step:[    7/"));
  EXPECT_THAT(out_, HasSubstr("  100.0% |"));
  ASSERT_EQ(pretrain("--resume output --set training_config.training_iters=0"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("{ Epoch:[  2/  2], step:[    8/   63], "));
  EXPECT_THAT(out_, Not(HasSubstr("step:[    7/")));
  EXPECT_THAT(out_, HasSubstr("{ Epoch:[  2/  2], step:[   63/   63], "));
  EXPECT_THAT(out_, HasSubstr("  100.0% |"));
}

TEST_F(AnyTextTest, TheTokenizerBelongsToTheData) {
  dir_.write("a.txt", sample_text(300));
  dir_.write("b.txt", sample_text(200) + "quite another text");
  const std::string pieces = " --tokenizer_type sentencepiece --train_tokenizer --vocab_size 300";
  ASSERT_EQ(preprocess("--input a.txt --output_prefix a" + pieces), 0) << said();
  ASSERT_EQ(preprocess("--input b.txt --output_prefix b" + pieces), 0) << said();
  ASSERT_EQ(preprocess("--input b.txt --output_prefix same --tokenizer_type sentencepiece "
                       "--tokenizer_model a.model"),
            0)
      << said();
  const auto bad = [&](const std::string& arguments, const std::vector<std::string>& messages) {
    const auto before = tree();
    EXPECT_EQ(train("--config_path run.yaml --set model_config.vocab_size=300 " + arguments), 2)
        << said();
    for (const std::string& message : messages) {
      EXPECT_THAT(err_, Says(message));
    }
    EXPECT_EQ(tree(), before);
  };
  const auto good = [&](const std::string& arguments) {
    EXPECT_EQ(train("--config_path run.yaml --set model_config.vocab_size=300 " + arguments), 0)
        << said();
  };
  write_run("data_path: a_text_document");
  bad("", {"a_text_document: was made with the sentencepiece tokenizer of 300 ids (crc64 ",
           "dataset_config.tokenizer_type is byte; set it to sentencepiece"});
  const std::string right = "--set dataset_config.tokenizer_type=sentencepiece ";
  good(right);
  EXPECT_THAT(out_, HasSubstr("SentencePiece tokenizer a.model"));
  bad(right + "--set dataset_config.tokenizer_model=b.model",
      {"a_text_document: was made with the sentencepiece", "but b.model is the sentencepiece",
       "dataset_config.tokenizer_model"});
  bad(right + "--set 'dataset_config.data_path=[0.5, a_text_document, 0.5, b_text_document]'",
      {"b_text_document: was made with the", "but a_text_document with the", "need one tokenizer"});
  good(right + "--set 'dataset_config.data_path=[0.5, a_text_document, 0.5, same_text_document]'");
  EXPECT_THAT(out_, HasSubstr("SentencePiece tokenizer a.model"));

  // The tokenizer is trained anew, the data are not: they do not belong together any more.
  fs::copy_file(dir_.file("b.model"), dir_.file("a.model"), fs::copy_options::overwrite_existing);
  bad(right, {"but a.model is the sentencepiece"});

  // Data of earlier releases, or of other programs, have no record: they are taken as before.
  fs::remove(dir_.file("a_text_document.tokenizer.json"));
  good(right);
  EXPECT_THAT(
      out_,
      Says("a_text_document: ... record of its tokenizer ... (a_text_document.tokenizer.json);"));
  EXPECT_THAT(out_, HasSubstr("SentencePiece tokenizer a.model"));
}

// A model that is trained on, on other text.
TEST_F(AnyTextTest, WeightsKeepTheirTokenizer) {
  dir_.write("a.txt", sample_text(300));
  dir_.write("b.txt", sample_text(200) + "quite another text");
  write_run("text: [a.txt]");
  const std::string pieces =
      "--config_path run.yaml --set dataset_config.tokenizer_type=sentencepiece --set "
      "model_config.vocab_size=300 ";
  ASSERT_EQ(pretrain(pieces + "--set training_config.output_dir=base"), 0) << said();
  EXPECT_THAT(out_ + err_, Not(HasSubstr("trained with the tokenizer")));

  const std::string on = pieces + "--set training_config.load_checkpoint=base ";
  const std::string saved = "base/checkpoint/step_00000003";
  const std::string other = "--set 'dataset_config.text=[b.txt]' ";
  ASSERT_EQ(train(on + other), 0) << said();
  for (const std::string& part :
       {saved + ": its weights were trained with the tokenizer " + saved + "/tokenizer.model",
        std::string("the data were made with ./dataset/b_"),
        std::string("dataset_config.tokenizer_model")}) {
    EXPECT_THAT(out_ + err_, Says(part));
  }
  ASSERT_EQ(train(on + "--set dataset_config.tokenizer_type=byte"), 0) << said();
  EXPECT_THAT(out_ + err_, HasSubstr("the data were made with bytes"));
  ASSERT_EQ(pretrain("--evaluate base " + other), 0) << said();
  EXPECT_THAT(out_ + err_, Says(saved + " ... with the tokenizer"));

  ASSERT_EQ(
      train(on + other + "--set dataset_config.tokenizer_model=" + saved + "/tokenizer.model"), 0)
      << said();
  EXPECT_THAT(out_ + err_, Not(HasSubstr("trained with the tokenizer")));
  EXPECT_THAT(out_, HasSubstr("loaded " + saved));
}

}  // namespace
}  // namespace tapestry
