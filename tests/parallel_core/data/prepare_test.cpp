#include "parallel_core/data/prepare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "autograd/kernels/machine/team.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/indexed_dataset.h"
#include "tests/says.h"
#include "tests/temp_dir.h"
#include "text/tokenizers/tokenizer_record.h"

namespace tapestry::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class PrepareTest : public ::testing::Test {
 protected:
  PrepareSummary prepare(const TextInput& input, bool append_eod = false) {
    PrepareOptions options;
    options.input = input;
    options.output_prefix = dir_.file("out");
    options.append_eod = append_eod;
    return prepare_dataset(options, ByteTokenizer());
  }
  std::vector<std::string> documents() {
    const IndexedDataset dataset(dir_.file("out"));
    const auto bounds = dataset.document_boundaries();
    std::vector<std::string> texts;
    for (size_t d = 0; d + 1 < bounds.size(); ++d) {
      std::string& text = texts.emplace_back();
      for (int64_t s = bounds[d]; s < bounds[d + 1]; ++s) {
        for (const int64_t id : dataset.sequence(s)) {
          text.push_back(id == ByteTokenizer::kEod ? '$' : static_cast<char>(id));
        }
      }
    }
    return texts;
  }
  void expect_no_output() {
    for (const std::string& name : dir_.names()) {
      EXPECT_THAT(name, ::testing::Not(::testing::HasSubstr("out")));
    }
  }
  TempDir dir_;
};

TEST_F(PrepareTest, EachFileIsADocument) {
  const PrepareSummary summary =
      prepare({{dir_.write("a.txt", "one\n\ntwo"), dir_.write("b.txt", "x\xFFy")}}, true);
  EXPECT_THAT(documents(), ElementsAre("one\n\ntwo$", "x\xFFy$"));
  EXPECT_EQ(summary.documents, 2);
  EXPECT_EQ(summary.tokens, 13);
  EXPECT_EQ(summary.text_bytes, 11);
}

TEST_F(PrepareTest, BadLinesAreAnErrorOrLeftOutAndListed) {
  const std::string path = dir_.write("a.ndjson",
                                      "{\"text\": \"one\", \"x\": NaN, \"y\": [1e999, -Infinity]}\n"
                                      "{\"text\": \"cut\n"
                                      "{\"text\": \"\\ud83d\"}\n"
                                      "\n"
                                      "{\"body\": \"no\"}\n"
                                      "{\"text\": \"two\"}\n");
  EXPECT_ERROR(prepare({{path}}), ValueError, "a.ndjson:2: is not valid JSON: it ends too early");
  expect_no_output();
  BadLines bad;
  TextInput input{{path}};
  input.on_bad_line = [&](const std::string& message) { bad.add(message); };
  prepare(input);
  EXPECT_THAT(documents(), ElementsAre("one", "two"));
  EXPECT_EQ(bad.count, 3);
  EXPECT_THAT(bad.text(), ::testing::AllOf(::testing::HasSubstr("3 bad lines are left out: "),
                                           ::testing::HasSubstr("a.ndjson:2: "),
                                           ::testing::HasSubstr("a.ndjson:3: has half of a pair"),
                                           ::testing::HasSubstr("a.ndjson:5: has no key \"text\""),
                                           ::testing::HasSubstr("\"body\"")));
  for (int i = 0; i < 20; ++i) {
    bad.add("x");
  }
  EXPECT_THAT(bad.text(), ::testing::EndsWith("; and 13 more"));
}

TEST_F(PrepareTest, NamesOfJsonLinesInAnyCase) {
  for (const char* name : {"a.JSONL", "a.ndjson", "a.jl", "a.JsonLines", "a.json"}) {
    prepare({{dir_.write(name, "{\"text\": \"x\"}\n")}});
    EXPECT_THAT(documents(), ElementsAre("x")) << name;
  }
}

TEST_F(PrepareTest, BlankLinesSeparateDocuments) {
  TextInput input{
      {dir_.write("a.txt", "\n \nfirst\nline\n\t\r\n\nsecond\n\n"), dir_.write("b.txt", "third")}};
  input.split_documents = DocumentSplit::kBlankLine;
  prepare(input);
  EXPECT_THAT(documents(), ElementsAre("first\nline\n", "second\n", "third"));
}

TEST_F(PrepareTest, JsonLines) {
  const std::string path = dir_.write(
      "a.jsonl",
      "{\"text\": \"one\\n\\u00e9\"}\n\n{\"id\": 1, \"text\": \"\"}\r\n{\"text\":\"two\"}");
  const PrepareSummary summary = prepare({{path}}, true);
  EXPECT_THAT(documents(), ElementsAre("one\n\xC3\xA9$", "", "two$"));
  EXPECT_EQ(summary.empty_documents, 1);
  prepare({{dir_.write("b.txt", "{\"body\": \"three\", \"text\": 1}\n")}, "body"});
  EXPECT_THAT(documents(), ElementsAre("three"));
}

TEST_F(PrepareTest, BadJsonLinesAreNamed) {
  const struct {
    const char* line;
    const char* message;
  } cases[] = {{"{\"text\": \"cut", "a.jsonl:2: is not valid JSON"},
               {"{\"text\": \"x\"} y", "a.jsonl:2: is not valid JSON"},
               {"{\"text\": \"\xFF\"}", "a.jsonl:2: is not valid UTF-8"},
               {"[\"text\"]", "a.jsonl:2: is a JSON array"},
               {"{\"body\": \"x\"}", "a.jsonl:2: has no key \"text\""},
               {"{\"text\": 3}", "a.jsonl:2: the value of \"text\" is a JSON number"},
               {"{\"text\": null}", "a.jsonl:2: the value of \"text\" is a JSON null"}};
  for (const auto& c : cases) {
    const std::string path =
        dir_.write("a.jsonl", std::string("{\"text\": \"fine\"}\n") + c.line + "\n");
    EXPECT_ERROR(prepare({{path}}), ValueError, c.message);
    expect_no_output();
  }
}

TEST_F(PrepareTest, LongDocumentsComeInPiecesAndStayOne) {
  std::string text;
  while (text.size() < (3U << 20U)) {
    text += "line " + std::to_string(text.size()) + "\n";
  }
  text += std::string(1U << 21U, 'z');  // a line longer than the pieces
  int pieces = 0;
  std::string joined;
  uint64_t reported = 0;
  read_documents(
      {{dir_.write("a.txt", text)}}, true,
      [&](std::string_view piece, bool last, const TextPlace& place) {
        EXPECT_TRUE(last || piece.back() == '\n');
        joined += piece;
        ++pieces;
        EXPECT_EQ(place, (TextPlace{0, 0, static_cast<int64_t>(joined.size())}));
      },
      [&](uint64_t done, uint64_t total) {
        EXPECT_GT(done, reported);
        EXPECT_EQ(total, text.size());
        reported = done;
      });
  EXPECT_GT(pieces, 3);
  EXPECT_EQ(reported, text.size());
  EXPECT_TRUE(joined == text);
  prepare({{dir_.file("a.txt")}});
  ASSERT_EQ(documents().size(), 1U);
  EXPECT_TRUE(documents()[0] == text);
}

// Empty documents, short and long ones, more than are encoded together.
TEST_F(PrepareTest, TheNumberOfThreadsChangesNothing) {
  std::string lines;
  for (int i = 0; i < 20'000; ++i) {
    lines +=
        "{\"text\":\"" + std::string(i % 977 * (i % 1009 == 0 ? 400 : 1), 'a' + i % 26) + "\"}\n";
  }
  const TextInput input{{dir_.write("a.jsonl", lines), dir_.write("b.txt", lines)}};
  const int before = num_threads();
  std::vector<std::string> files;
  for (const int threads : {1, 2, 3}) {
    set_num_threads(threads);
    EXPECT_EQ(prepare(input, true).documents, 20'001);
    files.push_back(dir_.read("out.bin") + dir_.read("out.idx") + dir_.read("out.sources.npy"));
  }
  set_num_threads(before);
  EXPECT_TRUE(files[0] == files[1]);
  EXPECT_TRUE(files[0] == files[2]);
}

TEST_F(PrepareTest, EmptyTextIsAnError) {
  EXPECT_ERROR(prepare({{dir_.write("a.txt", "")}}, true), ValueError, "has no text");
  EXPECT_ERROR(prepare({{dir_.write("a.jsonl", "{\"text\":\"\"}\n")}}, true), ValueError,
               "has no text");
  TextInput blank{{dir_.write("a.txt", "\n  \n\n")}};
  blank.split_documents = DocumentSplit::kBlankLine;
  EXPECT_ERROR(prepare(blank), ValueError, "has no text");
  EXPECT_ERROR(prepare({}), ValueError, "no input file");
  expect_no_output();
}

TEST_F(PrepareTest, UnusableFilesAreNamed) {
  EXPECT_ERROR(prepare({{dir_.file("none.txt")}}), IoError, "none.txt");
  EXPECT_ERROR(prepare({{dir_.path()}}), IoError, "not a regular file");
  expect_no_output();
  PrepareOptions options;
  options.input.files = {dir_.write("a.txt", "x")};
  options.output_prefix = dir_.file("no/out");
  EXPECT_ERROR(prepare_dataset(options, ByteTokenizer()), IoError, "out.bin");
  options.output_prefix = "/proc/out";
  EXPECT_ERROR(prepare_dataset(options, ByteTokenizer()), IoError, "/proc/out.bin");
}

TEST_F(PrepareTest, AFailedRunKeepsTheOldResult) {
  prepare({{dir_.write("a.txt", "old")}});
  EXPECT_ERROR(prepare({{dir_.write("a.jsonl", "{")}}), ValueError, "a.jsonl:1: ... JSON");
  EXPECT_THAT(documents(), ElementsAre("old"));
  EXPECT_EQ(dir_.names().size(), 7U);
}

TEST_F(PrepareTest, AByteOrderMarkIsNoText) {
  const std::string path = dir_.write("a.txt", "\xEF\xBB\xBFone");
  EXPECT_THAT(check_text_files({path, dir_.write("b.txt", "two"), dir_.write("e.txt", "")}),
              ElementsAre(path + ": begins with a byte-order mark, which is no part of the text"));
  prepare({{path, dir_.write("b.jsonl", "\xEF\xBB\xBF{\"text\": \"two\"}\n")}});
  EXPECT_THAT(documents(), ElementsAre("one", "two"));
}

TEST_F(PrepareTest, WhatIsNoPlainTextIsNamed) {
  const struct {
    std::string begin;
    const char* message;
  } cases[] = {{"\x1F\x8B\x08", "a.txt: is compressed by gzip"},
               {"\x28\xB5\x2F\xFD", "zstd -d "},
               {std::string("\xFD"
                            "7zXZ\0",
                            6),
                "unxz -k "},
               {"PK\x03\x04", "zip archive"},
               {"%PDF-1.5", "pdftotext "},
               {"\xFF\xFE"
                "a",
                "iconv -f UTF-16 -t UTF-8 "},
               {"\xFE\xFF", "is UTF-16"},
               {"MMIDIDX", "is the index of a data set"}};
  for (const auto& c : cases) {
    const std::string path = dir_.write("a.txt", c.begin + " and more");
    EXPECT_ERROR(prepare({{path}}), ValueError, c.message);
    EXPECT_ERROR(check_text_files({path}), ValueError, c.message);
    expect_no_output();
  }
}

TEST_F(PrepareTest, TheTokenizerIsRecorded) {
  prepare({{dir_.write("a.txt", "one")}});
  const auto record = read_tokenizer_record(dir_.file("out"));
  ASSERT_TRUE(record);
  EXPECT_EQ(record->tokenizer, ByteTokenizer().identity());
  // A data set that is written without one does not keep its predecessor's.
  IndexedDatasetWriter writer(dir_.file("out"), TokenType::kUInt16);
  writer.finish();
  EXPECT_EQ(read_tokenizer_record(dir_.file("out")), std::nullopt);
}

}  // namespace
}  // namespace tapestry::data
