#include "text/sources/text_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "autograd/tensor/error.h"
#include "parallel_core/data/default_text.h"
#include "tests/says.h"
#include "tests/temp_dir.h"
#include "text/sources/text_source.h"
#include "text/util/file.h"
#include "text/util/heartbeat.h"

namespace tapestry::data {
namespace text_files_test {
namespace {

using std::string_view_literals::operator""sv;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TextFilesTest : public ::testing::Test {
 protected:
  // Paths below the folder of the test.
  std::vector<std::string> found(const std::vector<std::string>& entries) const {
    std::vector<std::string> full;
    for (const std::string& entry : entries) {
      full.push_back(dir_.file(entry));
    }
    std::vector<std::string> files = text_files(full);
    for (std::string& file : files) {
      file = file.substr(dir_.path().size() + 1);
    }
    return files;
  }
  void check_text(std::string_view bytes, const std::string& name = "t.txt") const {
    check_is_text(InputFile(dir_.write(name, bytes)));
  }

  TempDir dir_;
};

TEST_F(TextFilesTest, FoldersAndPatternsInTheOrderOfTheirNames) {
  for (const char* name :
       {"c/b.txt", "c/a.txt", "c/sub/z.md", "c/B.txt", "c/.hidden", "c/.git/x"}) {
    dir_.write(name, "x");
  }
  dir_.write("one.txt", "x");
  dir_.write("odd[1].txt", "x");
  EXPECT_THAT(found({"one.txt", "c"}),
              ElementsAre("one.txt", "c/B.txt", "c/a.txt", "c/b.txt", "c/sub/z.md"));
  EXPECT_THAT(found({"c/[a-b].txt"}), ElementsAre("c/a.txt", "c/b.txt"));
  EXPECT_THAT(found({"c/*"}), ElementsAre("c/B.txt", "c/a.txt", "c/b.txt", "c/sub/z.md"));
  EXPECT_THAT(found({"odd[1].txt"}), ElementsAre("odd[1].txt"));  // its very name
  EXPECT_THAT(found({"one.txt", "one.txt"}), ElementsAre("one.txt", "one.txt"));
  EXPECT_ERROR(found({"c/a.txt", "c"}), ValueError, "c/a.txt comes twice");
  EXPECT_ERROR(found({"c/*.csv"}), IoError, "c/*.csv matches no file");
  std::filesystem::create_directory(dir_.file("empty"));
  EXPECT_ERROR(found({"empty"}), ValueError, "has no files");
  ASSERT_EQ(::mkfifo(dir_.file("c/pipe").c_str(), 0600), 0);
  EXPECT_ERROR(found({"c"}), IoError, "c/pipe: cannot be read as a text: not a regular file");
}

TEST_F(TextFilesTest, WhatIsWrittenIntoAFolderOfTextsIsNoneOfThem) {
  const std::string folder = dir_.path();
  dir_.write("a.txt", "x");
  dir_.write("sets.txt", "x");
  const CorpusOptions options{.dataset_dir = dir_.file("set"), .tokenizer_type = "byte"};
  EXPECT_EQ(prepare_text({folder}, options).documents, 2);
  EXPECT_TRUE(text_is_prepared({folder}, options));
  dir_.write("mine_text_document.idx", "x");
  dir_.write("mine.model", "x");
  EXPECT_THAT(
      text_files({folder}, "text", {dir_.file("set/"), dir_.file("mine_"), dir_.file("mine.")}),
      ElementsAre(dir_.file("a.txt"), dir_.file("sets.txt")));
  EXPECT_THAT(text_files({folder + "/*"}, "text",
                         {dir_.file("set/"), dir_.file("mine_"), dir_.file("mine.")}),
              ElementsAre(dir_.file("a.txt"), dir_.file("sets.txt")));
}

TEST_F(TextFilesTest, FoldersOfDataAreNoTexts) {
  dir_.write("set/mine_text_document.idx", "x");
  EXPECT_ERROR(found({"set"}), ValueError, "data_path: " + dir_.file("set/mine_text_document"));
  dir_.write("steps/step_0/rank_0/tokens.npy", "x");
  EXPECT_ERROR(found({"steps"}), ValueError, "step_data_dir: " + dir_.file("steps"));
}

TEST_F(TextFilesTest, ForeignDataInAFolder) {
  EXPECT_FALSE(foreign_data(dir_.file("none"), true).has_value());
  // What is left by preparing texts there, and by its own default text.
  for (const char* ours :
       {"bible.txt", "bible_byte_257_text_document.idx", "bible_sentencepiece_512.model",
        "my book_0123abcd_sentencepiece_512_text_document.idx", "a_0123abcd_character.model",
        "a_0123abcd_huggingface_9_00ff00ff_text_document.tokenizer.json"}) {
    dir_.write(ours, "x");
  }
  EXPECT_FALSE(foreign_data(dir_.path(), true).has_value());
  const auto now = [&](const char* name, bool texts = true) {
    const std::string path = dir_.write(name, "x");
    const auto data = foreign_data(dir_.path(), texts);
    std::filesystem::remove_all(path);
    return data ? data->name + " " + data->remedy : "";
  };
  EXPECT_THAT(now("a_text_document.idx"), HasSubstr("dataset_config.data_path: "));
  EXPECT_THAT(now("bible2_byte_257_text_document.idx"), HasSubstr("data_path"));
  EXPECT_THAT(now("notes.TXT"), HasSubstr("dataset_config.text: "));
  EXPECT_THAT(now("notes.ndjson"), HasSubstr("dataset_config.text: "));
  EXPECT_THAT(now("t.parquet"), HasSubstr("are not read"));
  EXPECT_THAT(now("t.jsonl.gz"), HasSubstr("are not read"));
  EXPECT_THAT(now("t.mindrecord0"), HasSubstr("MindRecord"));
  EXPECT_EQ(now("notes.txt", /*texts=*/false), "");
}

TEST_F(TextFilesTest, WhatIsNoTextIsRefusedWithWhatHelps) {
  using std::string;
  std::string noise;
  for (uint32_t i = 0, x = 1; i < 4000; ++i, x = x * 1664525 + 1013904223) {
    noise += static_cast<char>(x >> 24U);
  }
  std::string tar(512, '\0');
  tar.replace(257, 5, "ustar");
  const struct {
    std::string bytes;
    const char* said;
  } cases[] = {
      {"\x1F\x8B\x08 zip", "gunzip -k "},
      {"\x28\xB5\x2F\xFD..", "zstd -d "},
      {string("\xFD\x37\x7A\x58\x5A\0..", 8), "unxz -k "},
      {"BZh91AY&SY", "bunzip2 -k "},
      {"PK\x03\x04.....", "unzip "},
      {"%PDF-1.7\n", "pdftotext "},
      {"PAR1\x15\x04", "Parquet"},
      {string("ARROW1\0\0", 8), "Arrow"},
      {string("\xFF\xFF\xFF\xFF\x10\0\0\0..", 10), "Arrow"},
      {"\xD0\xCF\x11\xE0\xA1\xB1\x1A\xE1", "old Office"},
      {string("h\0i\0 \0t\0h\0e\0r\0e\0", 16), "iconv -f UTF-16LE"},
      {tar, "tar xf "},
      {noise, "bytes that no text has"},
      // "Grundgesetz" with umlauts in Latin-1; a Chinese line in GB18030.
      {string("Stra\xDF"
              "e, M\xFCnchen, K\xF6ln, gr\xF6\xDF"
              "er, sch\xF6n, f\xFCnf, zw\xF6lf, "
              "M\xE4"
              "dchen, \xDC"
              "ber, \xC4rger, \xD6l, s\xFC\xDF, gr\xFCn, k\xFChl, h\xF6ren, "
              "sp\xE4t, fr\xFC"
              "h"),
       "iconv -f WINDOWS-1252"},
      {"\xD6\xD0\xCE\xC4\xD3\xEF\xC1\xCF\xBF\xE2\xD6\xD0\xCE\xC4\xD3\xEF\xC1\xCF\xBF\xE2"
       "\xD6\xD0\xCE\xC4\xD3\xEF\xC1\xCF\xBF\xE2\xD6\xD0\xCE\xC4\xD3\xEF\xC1\xCF\xBF\xE2\n",
       "iconv -f GB18030"},
  };
  for (const auto& [bytes, said] : cases) {
    EXPECT_ERROR(check_text(bytes), ValueError, said);
  }
  EXPECT_ERROR(check_text("PK\x03\x04.....", "FILE.docx"), ValueError,
               "(unzip " + dir_.file("FILE.docx") +
                   "), or turn it into text: pandoc -t plain -o "
                   "NEW.txt " +
                   dir_.file("FILE.docx"));
  EXPECT_ERROR(check_text(noise, "t.br"), ValueError, "brotli -d -k ");
  EXPECT_ERROR(check_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), IoError,
               "git lfs pull");
  // Texts: Chinese, with a stray byte, with a form feed, of one byte, empty.
  std::string chinese;
  for (int i = 0; i < 30000; ++i) {  // the 64 KiB that are looked at end inside a character
    chinese += "\xE4\xB8\xAD";
  }
  for (const std::string& text :
       {chinese, string("caf\xC3\xA9 x\xFFy"), string("a\fb\tc\r\n"), string("x"), string()}) {
    EXPECT_NO_THROW(check_text(text));
  }
}

TEST_F(TextFilesTest, JsonLinesByAnotherNameAreRemarkedUpon) {
  const std::string lines = "{\"text\": \"x\"}\n{\"text\": \"y\"}\n";
  EXPECT_THAT(check_text_files({dir_.write("a.txt", lines)}),
              ElementsAre(HasSubstr("looks like JSONL, but is read as plain text")));
  EXPECT_THAT(check_text_files({dir_.file("a.txt")}, /*json_lines=*/true), IsEmpty());
  EXPECT_THAT(check_text_files({dir_.write("a.jl", lines)}), IsEmpty());
  EXPECT_THAT(check_text_files({dir_.write("b.txt", "{ x }\n")}), IsEmpty());
}

TEST_F(TextFilesTest, AFolderIsPreparedAndKnownAgain) {
  dir_.write("texts/b.txt", "b");
  dir_.write("texts/a.txt", "a");
  const CorpusOptions options{.dataset_dir = dir_.file("prepared"), .tokenizer_type = "byte"};
  EXPECT_FALSE(text_is_prepared({dir_.file("texts")}, options));
  EXPECT_EQ(prepare_text({dir_.file("texts")}, options).documents, 2);
  EXPECT_TRUE(text_is_prepared({dir_.file("texts")}, options));
  EXPECT_TRUE(text_is_prepared({dir_.file("texts/*.txt")}, options));
  dir_.write("texts/c.txt", "c");
  EXPECT_FALSE(text_is_prepared({dir_.file("texts")}, options));
}

TEST_F(TextFilesTest, BadLinesOfATextAreLeftOutIfThatIsAsked) {
  const std::string path = dir_.write("a.jsonl", "{\"text\": \"x\"}\n{\n");
  CorpusOptions options{.dataset_dir = dir_.file("prepared"), .tokenizer_type = "byte"};
  EXPECT_ERROR(prepare_text({path}, options), ValueError, "a.jsonl:2");
  options.skip_bad_lines = true;
  const PreparedCorpus corpus = prepare_text({path}, options);
  EXPECT_EQ(corpus.documents, 1);
  EXPECT_THAT(corpus.remarks, ElementsAre(HasSubstr("1 bad line is left out: ")));
}

// A process that has been: it was our child.
pid_t gone_process() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  return child;
}

TEST_F(TextFilesTest, TemporariesOfKilledPreparationsAreRemoved) {
  const std::string gone = std::to_string(gone_process());
  const std::string left = ".a_text_document.bin.tmp-" + gone + "-0";
  dir_.write("prepared/" + left, "xyz");
  dir_.write("prepared/.a.tmp-" + std::to_string(::getpid()) + "-0", "ours");
  dir_.write("prepared/.a.tmp-notes", "not ours");
  const PreparedCorpus corpus = prepare_text(
      {dir_.write("t.txt", "x")}, {.dataset_dir = dir_.file("prepared"), .tokenizer_type = "byte"});
  EXPECT_THAT(corpus.remarks,
              ElementsAre(HasSubstr(left + " (3 bytes), which a program that was killed")));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("prepared/" + left)));
  EXPECT_TRUE(std::filesystem::exists(dir_.file("prepared/.a.tmp-notes")));
  EXPECT_TRUE(
      std::filesystem::exists(dir_.file("prepared/.a.tmp-" + std::to_string(::getpid()) + "-0")));
  dir_.write(".b.idx.tmp-" + gone + "-1", "x");
  EXPECT_THAT(remove_stale_temporaries(dir_.path(), "a"), IsEmpty());
}

TEST_F(TextFilesTest, WorkThatTakesLongSaysSo) {
  std::vector<std::string> said;
  prepare_text({dir_.write("t.txt", "one two three four five six seven")},
               {.dataset_dir = dir_.file("prepared"),
                .vocab_size = 290,
                .report = [&](const std::string& message) { said.push_back(message); }});
  EXPECT_THAT(said, ElementsAre(HasSubstr("training a tokenizer of 290 pieces on 0 MB of text")));
  // Beats until it is over, however soon that is.
  std::mutex mutex;
  std::condition_variable beat;
  int beats = 0;
  {
    const Heartbeat heartbeat(std::chrono::milliseconds(1), [&](int64_t) {
      const std::lock_guard lock(mutex);
      ++beats;
      beat.notify_all();
    });
    std::unique_lock lock(mutex);
    beat.wait(lock, [&] { return beats >= 2; });
  }
  EXPECT_GE(beats, 2);
  const Heartbeat silent(std::chrono::milliseconds(1), nullptr);
}

}  // namespace
}  // namespace text_files_test
}  // namespace tapestry::data
