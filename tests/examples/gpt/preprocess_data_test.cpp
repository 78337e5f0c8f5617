// Runs the program preprocess_data: exit codes, messages and files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "parallel_core/data/indexed_dataset.h"
#include "tests/says.h"
#include "tests/temp_dir.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/tokenizer.h"
#include "text/tokenizers/tokenizer_record.h"
#include "text/util/utf8.h"

namespace tapestry::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PreprocessDataTest : public ::testing::Test {
 protected:
  // Runs it in the folder; output and errors are then in text_.
  int run(const std::string& arguments) {
    const std::string command =
        "cd '" + dir_.path() + "' && " TAPESTRY_PREPROCESS_DATA " " + arguments + " > log 2>&1";
    const int status = std::system(command.c_str());
    text_ = dir_.read("log");
    std::filesystem::remove(dir_.file("log"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  TempDir dir_;
  std::string text_;
};

TEST_F(PreprocessDataTest, BytesOfSeveralFiles) {
  dir_.write("a.txt", "one");
  dir_.write("b.txt", "two\n\nthree");
  ASSERT_EQ(run("--input a.txt b.txt --output_prefix out --tokenizer_type byte --append_eod"), 0)
      << text_;
  EXPECT_THAT(text_, HasSubstr("2 documents (0 empty), 15 tokens"));
  EXPECT_THAT(text_, ::testing::Not(HasSubstr("%")));  // no progress line in a file
  EXPECT_THAT(IndexedDataset(dir_.file("out_text_document")).sequence(0),
              ElementsAre('o', 'n', 'e', 256));
  ASSERT_EQ(run("--input b.txt --output_prefix out --tokenizer_type byte --split_documents "
                "blank_line"),
            0);
  EXPECT_EQ(IndexedDataset(dir_.file("out_text_document")).num_documents(), 2);
}

TEST_F(PreprocessDataTest, TrainsAndUsesATokenizer) {
  std::string lines;
  for (int i = 0; i < 300; ++i) {
    lines += "{\"body\": \"line " + std::to_string(i * 7919) + " of the text and more\"}\n";
  }
  dir_.write("a.jsonl", lines);
  ASSERT_EQ(
      run("--input a.jsonl --json_key body --output_prefix out --tokenizer_type sentencepiece "
          "--train_tokenizer --vocab_size 290"),
      0)
      << text_;
  const auto tokenizer = make_tokenizer("sentencepiece", dir_.file("out.model"));
  EXPECT_EQ(tokenizer->vocab_size(), 290);
  const IndexedDataset dataset(dir_.file("out_body_document"));
  EXPECT_EQ(dataset.num_documents(), 300);
  const std::vector<int64_t> ids = dataset.sequence(1);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>(ids.begin(), ids.end())),
            "line 7919 of the text and more");
  const std::string before = dir_.read("out_body_document.bin");
  ASSERT_EQ(
      run("--input a.jsonl --json_key body --output_prefix out --tokenizer_type sentencepiece "
          "--tokenizer_model out.model"),
      0);
  EXPECT_TRUE(dir_.read("out_body_document.bin") == before);
}

TEST_F(PreprocessDataTest, BadInputGivesTwoAReasonAndNoFiles) {
  dir_.write("a.txt", "one");
  dir_.write("bad.jsonl", "{\"text\": 1}\n");
  dir_.write("empty.txt", "");
  dir_.write("odd.model", "odd");
  dir_.write("a.txt.gz", "\x1F\x8B\x08 and more");
  const auto names = dir_.names();
  const struct {
    const char* arguments;
    const char* message;
  } cases[] = {
      {"", "--input: is missing"},
      {"--input a.txt --tokenizer_type byte", "--output_prefix: ... is missing"},
      {"--input a.txt --output_prefix o", "--tokenizer_type: ... is missing"},
      {"--input a.txt --output_prefix o --tokenizer_type word", "\"word\" is unknown"},
      {"--input a.txt --output_prefix o --tokenizer_type sentencepiece", "--tokenizer_model"},
      {"--input a.txt --output_prefix o --tokenizer_type byte --tokenizer_model odd.model",
       "has no model file"},
      {"--input a.txt --output_prefix o --tokenizer_type byte --train_tokenizer --vocab_size 300",
       "--tokenizer_type ... and character"},
      {"--input a.txt --output_prefix o --tokenizer_type character", "--tokenizer_model"},
      {"--input a.txt --output_prefix o --tokenizer_type character --train_tokenizer --vocab_size "
       "9",
       "--vocab_size: is only used together"},
      {"--input a.txt --output_prefix o --tokenizer_type character --tokenizer_model odd.model",
       "odd.model: ... character tokenizer"},
      {"--input a.txt --output_prefix o --tokenizer_type byte --grow_vocab",
       "--grow_vocab: is only"},
      {"--input a.txt --output_prefix o --tokenizer_type sentencepiece --train_tokenizer "
       "--vocab_size 300 --character_coverage 2",
       "character_coverage 2"},
      {"--input a.txt.gz --output_prefix o --tokenizer_type byte",
       "a.txt.gz: is compressed by gzip ... gunzip -k a.txt.gz"},
      {"--input a.txt --output_prefix o --tokenizer_type sentencepiece --train_tokenizer",
       "--train_tokenizer ... needs it"},
      {"--input a.txt --output_prefix o --tokenizer_type byte --vocab_size 300",
       "only used together"},
      {"--input a.txt --output_prefix o --tokenizer_type sentencepiece --tokenizer_model odd.model",
       "odd.model: offset"},
      {"--input a.txt --output_prefix o --tokenizer_type byte --split_documents page",
       "\"page\" is unknown"},
      {"--input a.txt --output_prefix o --tokenizer_type byte --json_key a/b", "a slash"},
      {"--input a.txt --output_prefix o --tokenizer_type byte --append", "append"},
      {"--input a.txt --output_prefix o --tokenizer_type byte extra.txt", "--help"},
      {"--input a.txt --output_prefix o --tokenizer_type byte --vocab_size many", "vocab_size"},
      {"--input none.txt --output_prefix o --tokenizer_type byte", "none.txt"},
      {"--input empty.txt --output_prefix o --tokenizer_type byte", "has no text"},
      {"--input bad.jsonl --output_prefix o --tokenizer_type byte", "bad.jsonl:1"},
      {"--input a.txt --output_prefix no/o --tokenizer_type byte", "no/o_text_document.bin"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(run(c.arguments), 2) << c.arguments << "\n" << text_;
    EXPECT_THAT(text_, Says(c.message)) << c.arguments;
    EXPECT_EQ(dir_.names(), names) << c.arguments;
  }
}

TEST_F(PreprocessDataTest, RecordsTheTokenizer) {
  dir_.write("a.txt",
             "\xEF\xBB\xBF"
             "abba\n");
  ASSERT_EQ(run("--input a.txt --output_prefix out --tokenizer_type character --train_tokenizer"),
            0)
      << text_;
  EXPECT_THAT(text_, Says("note: a.txt: ... byte-order mark"));
  EXPECT_THAT(text_, HasSubstr("character tokenizer out.model, 4 ids"));
  EXPECT_THAT(IndexedDataset(dir_.file("out_text_document")).sequence(0),
              ElementsAre(1, 2, 2, 1, 0));
  const auto record = read_tokenizer_record(dir_.file("out_text_document"));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->tokenizer, make_tokenizer("character", dir_.file("out.model"))->identity());
  EXPECT_EQ(record->model, "out.model");
}

// 2,000 characters, as Chinese has them, at a vocabulary that has room for 252, and one that grows.
TEST_F(PreprocessDataTest, AScriptOfManyCharacters) {
  std::string text;
  for (uint32_t i = 0; i < 40000; ++i) {
    text += utf8(0x4E00 + i * i % 2003);
    text += i % 50 == 49 ? "\n" : "";
  }
  dir_.write("a.txt", text);
  const std::string arguments =
      "--input a.txt --output_prefix out --tokenizer_type sentencepiece --train_tokenizer "
      "--vocab_size 512 ";
  ASSERT_EQ(run(arguments), 0) << text_;
  EXPECT_THAT(text_, HasSubstr("note: a vocabulary of 512 has room for the 221 most frequent of"));
  const auto decoded = [&] {
    const std::vector<int64_t> ids = IndexedDataset(dir_.file("out_text_document")).sequence(0);
    return make_tokenizer("sentencepiece", dir_.file("out.model"))
        ->decode(std::vector<int32_t>(ids.begin(), ids.end()));
  };
  EXPECT_TRUE(decoded() == text);
  ASSERT_EQ(run(arguments + "--grow_vocab"), 0) << text_;
  EXPECT_THAT(text_, Says("is raised from ... 512"));
  EXPECT_GT(read_tokenizer_record(dir_.file("out_text_document"))->tokenizer.vocab_size, 1000);
  EXPECT_TRUE(decoded() == text);
}

TEST_F(PreprocessDataTest, HelpNamesEveryOption) {
  ASSERT_EQ(run("--help"), 0);
  for (const char* option :
       {"--input", "--output_prefix", "--tokenizer_type", "--tokenizer_model", "--train_tokenizer",
        "--vocab_size", "--grow_vocab", "--character_coverage", "--json_key", "--append_eod"}) {
    EXPECT_THAT(text_, Says(option));
  }
}

}  // namespace
}  // namespace tapestry::data
