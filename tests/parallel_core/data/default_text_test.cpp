#include "parallel_core/data/default_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "autograd/tensor/error.h"
#include "parallel_core/data/indexed_dataset.h"
#include "tests/says.h"
#include "tests/temp_dir.h"
#include "text/tokenizers/kinds/character_tokenizer.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/tokenizer.h"
#include "text/tokenizers/tokenizer_record.h"

namespace tapestry::data {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<int32_t> ids_of(const IndexedDataset& dataset, int64_t sequence) {
  const std::vector<int64_t> ids = dataset.sequence(sequence);
  return {ids.begin(), ids.end()};
}

TEST(DefaultText, IsPreparedOnceAndWhole) {
  const TempDir dir;
  const CorpusOptions options{.dataset_dir = dir.file("data")};
  const PreparedCorpus first = prepare_default_text(options);
  EXPECT_TRUE(first.prepared);
  EXPECT_EQ(first.prefix, dir.file("data/bible_sentencepiece_512_text_document"));
  EXPECT_EQ(first.vocab_size, 512);
  EXPECT_EQ(first.documents, 1189);
  EXPECT_GT(first.tokens, 1500000);

  const std::string text = dir.read("data/bible.txt");
  EXPECT_THAT(text,
              StartsWith("Genesis 1\nIn the beginning God created the heaven and the earth.\n"));
  EXPECT_THAT(text, HasSubstr("\n\nRevelation 22\n"));
  const auto tokenizer = make_tokenizer("sentencepiece", first.tokenizer_model);
  const IndexedDataset dataset(first.prefix);
  EXPECT_EQ(dataset.token_type(), TokenType::kUInt16);
  std::string decoded;
  for (int64_t i = 0; i < dataset.num_sequences(); ++i) {
    const std::vector<int32_t> ids = ids_of(dataset, i);
    ASSERT_EQ(ids.back(), tokenizer->eod_id());
    decoded += (i > 0 ? "\n" : "") + tokenizer->decode(ids);
  }
  EXPECT_TRUE(decoded == text);

  // Again: nothing is written. A damaged file is made anew, with the same bytes.
  const std::string index = dir.read("data/bible_sentencepiece_512_text_document.idx");
  const PreparedCorpus again = prepare_default_text(options);
  EXPECT_FALSE(again.prepared);
  EXPECT_EQ(again.tokens, first.tokens);
  std::filesystem::resize_file(first.prefix + ".bin", 100);
  EXPECT_TRUE(prepare_default_text(options).prepared);
  EXPECT_EQ(dir.read("data/bible_sentencepiece_512_text_document.idx"), index);
  const std::string model = dir.read("data/bible_sentencepiece_512.model");
  std::filesystem::resize_file(first.tokenizer_model, 1000);
  EXPECT_TRUE(prepare_default_text(options).prepared);
  EXPECT_TRUE(dir.read("data/bible_sentencepiece_512.model") == model);
}

TEST(DefaultText, CleaningRefusesWhatIsNotTheWholeText) {
  EXPECT_ERROR(clean_bible("\nGenesis 1\n\n  1 In the beginning\n"), ValueError,
               "printed 1 verses in 1 chapters");
  EXPECT_ERROR(clean_bible(""), ValueError, "printed 0 verses");
  EXPECT_ERROR(clean_bible("Genesis 1\n  In the beginning\n"), ValueError, "line 2");
  EXPECT_ERROR(clean_bible("  1 In the beginning\n"), ValueError, "line 1");
  EXPECT_ERROR(clean_bible("Genesis 1\n  12\n"), ValueError, "line 2");
  EXPECT_ERROR(clean_bible("Genesis 1\n    \n  1\n"), ValueError, "line 3");
}

TEST(RunCommand, ReportsFailure) {
  EXPECT_EQ(run_command("printf 'a\\nb'", "advice"), "a\nb");
  EXPECT_ERROR(run_command("no_such_command_here 2>/dev/null", "apt-get install it"), IoError,
               "is not installed; apt-get install it");
  EXPECT_ERROR(run_command("exit 3", "advice"), IoError, "failed with status 3");
  // Ctrl-C while the text is made, for example.
  EXPECT_ERROR(run_command("kill -INT $$", "advice"), RuntimeError, "ended by signal 2");
  EXPECT_ERROR(run_command("exit 130", "advice"), RuntimeError, "ended by signal 2");
  EXPECT_ERROR(run_command("kill -9 $$", "advice"), RuntimeError, "ended by signal 9");
}

TEST(PrepareCorpus, FollowsChangesOfTheText) {
  const TempDir dir;
  const CorpusOptions options{.dataset_dir = dir.file("data"), .tokenizer_type = "byte"};
  const TextInput input{{dir.write("a.txt", "hello")}};
  const PreparedCorpus first = prepare_corpus("mine", input, options);
  EXPECT_EQ(first.prefix, dir.file("data/mine_byte_257_text_document"));
  EXPECT_EQ(first.tokens, 6);
  EXPECT_TRUE(first.tokenizer_model.empty());
  EXPECT_FALSE(prepare_corpus("mine", input, options).prepared);
  dir.write("a.txt", "hello world");
  std::filesystem::last_write_time(
      dir.file("a.txt"),
      std::filesystem::last_write_time(first.prefix + ".idx") + std::chrono::seconds(5));
  const PreparedCorpus second = prepare_corpus("mine", input, options);
  EXPECT_TRUE(second.prepared);
  EXPECT_EQ(second.tokens, 12);
}

// A file of the right name and date is not used if another tokenizer made it.
TEST(PrepareCorpus, FollowsTheTokenizer) {
  const TempDir dir;
  train_character_tokenizer({{dir.write("ab.txt", "ab")}}, dir.file("ab.model"));
  train_character_tokenizer({{dir.write("xa.txt", "ax")}}, dir.file("ax.model"));
  CorpusOptions options{.dataset_dir = dir.file("data"), .tokenizer_type = "character"};
  const TextInput input{{dir.write("a.txt", "aaa")}};
  options.tokenizer_model = dir.file("ab.model");
  const PreparedCorpus first = prepare_corpus("m", input, options);
  options.tokenizer_model = dir.file("ax.model");
  const PreparedCorpus second = prepare_corpus("m", input, options);
  EXPECT_EQ(second.prefix, first.prefix);
  EXPECT_TRUE(second.prepared);
  EXPECT_EQ(read_tokenizer_record(second.prefix)->model, "../ax.model");
  EXPECT_FALSE(prepare_corpus("m", input, options).prepared);
}

TEST(PrepareText, HasFilesOfItsOwnForEachText) {
  const TempDir dir;
  const CorpusOptions options{.dataset_dir = dir.file("data"), .tokenizer_type = "character"};
  const std::string a = dir.write("a/text.txt", "abc");
  const std::string b = dir.write("b/text.txt", "\xEF\xBB\xBFxy\nz");
  const PreparedCorpus first = prepare_text({a}, options);
  EXPECT_EQ(first.vocab_size, 4);
  EXPECT_EQ(first.tokens, 4);
  EXPECT_THAT(first.prefix, StartsWith(dir.file("data/text_")));
  EXPECT_THAT(first.prefix, ::testing::EndsWith("_character_4_text_document"));
  const PreparedCorpus second = prepare_text({b}, options);
  EXPECT_NE(second.tokenizer_model, first.tokenizer_model);
  EXPECT_EQ(second.tokens, 5);  // without the byte-order mark
  EXPECT_THAT(second.remarks, ::testing::ElementsAre(HasSubstr("byte-order mark")));
  EXPECT_FALSE(prepare_text({a}, options).prepared);
  EXPECT_EQ(prepare_text({a, b}, options).documents, 2);
  EXPECT_ERROR(prepare_text({}, options), ValueError, "no file");
  EXPECT_ERROR(prepare_text({dir.write("c.txt", "\x1F\x8B\x08")}, options), ValueError,
               "is compressed by gzip");
}

TEST(PrepareCorpus, RefusesBadOptions) {
  const TempDir dir;
  const TextInput input{{dir.write("a.txt", "hello")}};
  EXPECT_ERROR(prepare_corpus("m", input, {.dataset_dir = ""}), ValueError, "dataset_dir");
  EXPECT_ERROR(prepare_corpus("m", input, {.dataset_dir = dir.file("a.txt")}), IoError, "a.txt");
  EXPECT_ERROR(prepare_corpus("m", input, {.dataset_dir = dir.path(), .tokenizer_type = "word"}),
               ValueError, "\"word\" is unknown");
  EXPECT_ERROR(prepare_corpus("m", input, {.dataset_dir = dir.path(), .character_coverage = 2}),
               ValueError, "character_coverage 2");
  EXPECT_ERROR(prepare_corpus("m", {{dir.file("none")}}, {.dataset_dir = dir.path()}), IoError,
               "none");
  EXPECT_THAT(dir.names(), ::testing::ElementsAre("a.txt"));
}

TEST(PrepareCorpus, SeveralAtOnceAgree) {
  const TempDir dir;
  const TextInput input{{dir.write("a.txt", std::string(100000, 'x'))}};
  const CorpusOptions options{.dataset_dir = dir.file("data"), .tokenizer_type = "byte"};
  std::vector<PreparedCorpus> results(4);
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (PreparedCorpus& result : results) {
    threads.emplace_back([&] { result = prepare_corpus("m", input, options); });
  }
  int prepared = 0;
  for (size_t i = 0; i < threads.size(); ++i) {
    threads[i].join();
    prepared += results[i].prepared ? 1 : 0;
    EXPECT_EQ(results[i].tokens, 100001);
  }
  EXPECT_EQ(prepared, 1);
}

}  // namespace
}  // namespace tapestry::data
