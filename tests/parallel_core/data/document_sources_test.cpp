#include "parallel_core/data/document_sources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/io/npy.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/indexed_dataset.h"
#include "parallel_core/data/prepare.h"
#include "tests/says.h"
#include "tests/temp_dir.h"
#include "text/util/checksum.h"

namespace tapestry::data {
namespace document_sources_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class DocumentSourcesTest : public ::testing::Test {
 protected:
  DocumentSources prepare(const TextInput& input, const std::string& name = "out") {
    PrepareOptions options;
    options.input = input;
    options.output_prefix = dir_.file(name);
    const PrepareSummary summary = prepare_dataset(options, ByteTokenizer());
    return *read_document_sources(dir_.file(name), summary.documents);
  }
  // What the places name in the files.
  static std::vector<std::string> bytes_at(const DocumentSources& sources) {
    std::vector<std::string> found;
    for (const TextPlace& place : sources.documents) {
      std::ifstream in(sources.files[static_cast<size_t>(place.file)].path, std::ios::binary);
      std::string bytes(static_cast<size_t>(place.bytes), '\0');
      in.seekg(place.offset);
      in.read(bytes.data(), place.bytes);
      found.push_back(in ? bytes : "cannot be read");
    }
    return found;
  }
  TempDir dir_;
};

TEST_F(DocumentSourcesTest, PlainFilesAreDocumentsWithoutTheirByteOrderMark) {
  const std::string marked = "\xEF\xBB\xBFtwo\r\n\r\nlines";
  const DocumentSources sources =
      prepare({{dir_.write("a.txt", "one"), dir_.write("texts/b.txt", marked)}});
  EXPECT_THAT(sources.documents, ElementsAre(TextPlace{0, 0, 3}, TextPlace{1, 3, 12}));
  EXPECT_THAT(bytes_at(sources), ElementsAre("one", "two\r\n\r\nlines"));
  EXPECT_THAT(sources.files, ElementsAre(TextFile{dir_.file("a.txt"), 3, crc64("one")},
                                         TextFile{dir_.file("texts/b.txt"), 15, crc64(marked)}));
}

TEST_F(DocumentSourcesTest, ParagraphsAreTheirLines) {
  TextInput input{{dir_.write("a.txt", "\n\none\ntwo\n \t\n\nthree\r\n\r\nfour")}};
  input.split_documents = DocumentSplit::kBlankLine;
  const DocumentSources sources = prepare(input);
  EXPECT_THAT(bytes_at(sources), ElementsAre("one\ntwo\n", "three\r\n", "four"));
  EXPECT_EQ(sources.documents[1].offset, 14);
}

TEST_F(DocumentSourcesTest, ObjectsAreTheirLinesWithoutTheNewline) {
  const DocumentSources sources = prepare({{dir_.write(
      "a.jsonl", "{\"text\": \"\\u00e4\"}\n\n  {\"text\":\"\"} \r\n{\"text\":\"x\"}")}});
  EXPECT_THAT(bytes_at(sources),
              ElementsAre("{\"text\": \"\\u00e4\"}", "  {\"text\":\"\"} \r", "{\"text\":\"x\"}"));
}

TEST_F(DocumentSourcesTest, LongDocumentsHaveOnePlace) {
  std::string text(5, '\n');
  while (text.size() < (size_t{5} << 20U)) {
    text += "line " + std::to_string(text.size()) + "\n";
  }
  TextInput input{{dir_.write("a.txt", text + "\n\nlast\n")}};
  input.split_documents = DocumentSplit::kBlankLine;
  const DocumentSources sources = prepare(input);
  const auto size = static_cast<int64_t>(text.size());
  EXPECT_THAT(sources.documents, ElementsAre(TextPlace{0, 5, size - 5}, TextPlace{0, size + 2, 5}));
  EXPECT_EQ(sources.files[0].crc64, crc64(text + "\n\nlast\n"));
}

TEST_F(DocumentSourcesTest, ADataSetDoesNotKeepThoseOfAnEarlierOne) {
  prepare({{dir_.write("a.txt", "one")}});
  EXPECT_TRUE(std::filesystem::exists(dir_.file("out.sources.npy")));
  IndexedDatasetWriter writer(dir_.file("out"), TokenType::kUInt16);
  writer.end_document();
  const DocumentSources two{{{"a", 9, ""}}, {{0, 0, 1}, {0, 1, 1}}};
  EXPECT_ERROR(writer.finish({}, &two), RuntimeError, "has 1 documents, not as many");
  writer.finish();
  EXPECT_EQ(read_document_sources(dir_.file("out"), 1), std::nullopt);
  EXPECT_THAT(dir_.names(), ElementsAre("a.txt", "out.bin", "out.idx"));
}

TEST_F(DocumentSourcesTest, PathsHoldWhereTheFoldersAreMoved) {
  const std::string text = dir_.write("here/texts/a.txt", "one");
  std::filesystem::create_directories(dir_.file("here/data"));
  prepare({{text}}, "here/data/out");
  EXPECT_THAT(dir_.read("here/data/out.sources.json"), HasSubstr("\"path\": \"../texts/a.txt\""));
  std::filesystem::rename(dir_.file("here"), dir_.file("there"));
  DocumentFinder finder;
  EXPECT_EQ(finder.find(dir_.file("there/data/out"), 0)->file, dir_.file("there/texts/a.txt"));
  EXPECT_THAT(finder.remarks(), IsEmpty());
}

TEST_F(DocumentSourcesTest, TheFinderSaysWhatIsMissing) {
  const std::string text = dir_.write("a.txt", "one");
  prepare({{text}}, "known");
  prepare({{text}}, "unknown");
  for (const char* file : {"unknown.sources.json", "unknown.sources.npy"}) {
    std::filesystem::remove(dir_.file(file));
  }
  DocumentFinder finder;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(finder.find(dir_.file("known"), 0)->bytes, 3);
    EXPECT_EQ(finder.find(dir_.file("unknown"), 0), std::nullopt);
  }
  EXPECT_THAT(finder.remarks(), ElementsAre(HasSubstr("unknown: has no ")));
  EXPECT_ERROR(finder.find(dir_.file("known"), 1), IndexError, "document 1 of 1");
  EXPECT_ERROR(finder.find(dir_.file("none"), 0), IoError, "none");

  dir_.write("a.txt", "another");
  DocumentFinder second;
  EXPECT_EQ(second.find(dir_.file("known"), 0)->bytes, 3);
  EXPECT_THAT(second.remarks(), ElementsAre(HasSubstr("a.txt: has 7 bytes, but had 3 when")));
  std::filesystem::remove(text);
  DocumentFinder third;
  EXPECT_EQ(third.find(dir_.file("known"), 0)->file, text);
  EXPECT_THAT(third.remarks(), ElementsAre(HasSubstr("a.txt: is not there any more")));
}

TEST_F(DocumentSourcesTest, DamagedFilesAreNamed) {
  prepare({{dir_.write("a.txt", "one")}});
  const std::string json = dir_.read("out.sources.json");
  const std::string npy = dir_.read("out.sources.npy");
  const auto read = [&] { return read_document_sources(dir_.file("out"), 1); };
  EXPECT_ERROR(read_document_sources(dir_.file("out"), 2), IoError, "2 documents, as the data set");
  for (const char* other :
       {"", "[]", "{\"documents\": 1}", "{\"documents\": -1, \"files\": []}",
        "{\"documents\": 1, \"files\": {}}", "{\"documents\": 1, \"files\": [3]}",
        "{\"documents\": 1, \"files\": [{\"path\": \"a\", \"bytes\": 3}]}",
        "{\"documents\": 1, \"files\": [{\"path\": 1, \"bytes\": 3, \"crc64\": \"\"}]}"}) {
    SCOPED_TRACE(other);
    dir_.write("out.sources.json", other);
    EXPECT_ERROR(read(), IoError, "out.sources.json: does not say where documents come from");
  }
  dir_.write("out.sources.json", json);
  const std::vector<std::vector<int64_t>> places = {
      {1, 0, 3}, {-1, 0, 3}, {0, -1, 3}, {0, 0, -1}, {0, 0, 4}, {0, 4, 0}, {0, 1, INT64_MAX}};
  for (const auto& place : places) {
    SCOPED_TRACE(::testing::PrintToString(place));
    write_npy(dir_.file("out.sources.npy"), DType::kInt64, {1, 3}, place.data());
    EXPECT_ERROR(read(), IoError, "found for document 0: file");
  }
  const std::vector<int32_t> narrow = {0, 0, 3};
  write_npy(dir_.file("out.sources.npy"), DType::kInt32, {1, 3}, narrow.data());
  EXPECT_ERROR(read(), IoError, "expected int64 [1, 3], found int32 [1, 3]");
  dir_.write("out.sources.npy", npy.substr(0, npy.size() - 1));
  EXPECT_ERROR(read(), IoError, "out.sources.npy");
  std::filesystem::remove(dir_.file("out.sources.npy"));
  EXPECT_ERROR(read(), IoError, "out.sources.npy: is missing, but ");
  dir_.write("out.sources.npy", npy);
  EXPECT_EQ(read()->documents, (std::vector<TextPlace>{{0, 0, 3}}));
  std::filesystem::remove(dir_.file("out.sources.json"));
  EXPECT_ERROR(read(), IoError, "out.sources.json: is missing, but ");
}

}  // namespace
}  // namespace document_sources_test
}  // namespace tapestry::data
