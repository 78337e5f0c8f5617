// Files of examples as tokens: ends, borders, cuts, and what is said of them.
#include "parallel_core/post_training/examples/example_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry::post_training {
namespace example_reader_test {
namespace {

using data::TempDir;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kEnd = 256;
constexpr int32_t kBegin = 257;
constexpr int32_t kTwo = 258;  // "ab"

// Bytes, of which "ab" are one token; <e> ends a text, and a text may begin with kBegin.
class TwoTokenizer final : public data::Tokenizer {
 public:
  explicit TwoTokenizer(bool begins = false) : begins_(begins) {}

  int64_t vocab_size() const override { return 259; }
  std::vector<int32_t> encode(std::string_view text) const override {
    return encode_with_spans(text).ids;
  }
  data::Encoding encode_with_spans(std::string_view text) const override {
    data::Encoding encoding;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool both = text.substr(i).starts_with("ab");
      encoding.ids.push_back(both ? kTwo : static_cast<uint8_t>(text[i]));
      encoding.spans.push_back({static_cast<int64_t>(i), static_cast<int64_t>(i + (both ? 2 : 1))});
      i += both ? 1 : 0;
    }
    return encoding;
  }
  std::vector<int32_t> ids_before() const override {
    return begins_ ? std::vector<int32_t>{kBegin} : std::vector<int32_t>{};
  }
  std::string decode(std::span<const int32_t> ids) const override { return bytes_.decode(ids); }
  std::string decode_with_special(std::span<const int32_t> ids) const override {
    return ids.size() == 1 && ids[0] == kEnd ? "<e>" : decode(ids);
  }
  std::unique_ptr<data::TextDecoder> text_decoder() const override { return bytes_.text_decoder(); }
  std::optional<int32_t> id_of(std::string_view /*token*/) const override { return std::nullopt; }
  int32_t eod_id() const override { return kEnd; }
  int32_t pad_id() const override { return -1; }
  bool separable_at_newlines() const override { return true; }
  std::string describe() const override { return "tokenizer of two"; }
  data::TokenizerIdentity identity() const override { return {"two", 259, ""}; }

 private:
  bool begins_;
  data::ByteTokenizer bytes_;
};

class ExampleReader : public ::testing::Test {
 protected:
  ReadExamples read(const std::string& text) {
    options_.encoding.tokenizer = &tokenizer_;
    options_.encoding.eod = kEnd;
    return read_examples({dir_.write("f.jsonl", text)}, options_);
  }
  std::vector<std::string> remarks(const ReadExamples& read) {
    return remarks_on(read, options_, "data");
  }
  static std::string shown(std::span<const int32_t> ids) {
    std::string text;
    for (const int32_t id : ids) {
      text += id == kEnd     ? "."
              : id == kBegin ? "^"
              : id == kTwo   ? "2"
                             : std::string(1, static_cast<char>(id));
    }
    return text;
  }
  // "prompt|completion" of each sequence.
  static std::vector<std::string> sequences(const ReadExamples& read) {
    std::vector<std::string> texts;
    for (int64_t i = 0; i < read.sequences.size(); ++i) {
      const auto ids = read.sequences.ids(i);
      const auto prompt = static_cast<size_t>(read.sequences.prompt_tokens(i));
      texts.push_back(shown(ids.first(prompt)) + "|" + shown(ids.subspan(prompt)));
    }
    return texts;
  }

  TempDir dir_;
  TwoTokenizer tokenizer_;
  ReadingOptions options_{.max_tokens = 100};
};

TEST_F(ExampleReader, TextsGetTheEndThatTheyLack) {
  const ReadExamples read = this->read(
      "{\"prompt\": \"p\", \"chosen\": \" c\", \"rejected\": \" d<e>\"}\n"
      "\n"
      "{\"prompt\": \"q\", \"chosen\": \"\", \"rejected\": \"<e>\"}\n");
  EXPECT_THAT(sequences(read), ElementsAre("p| c.", "p| d.", "q|.", "q|."));
  EXPECT_EQ(read.places[1].line, 3);
  EXPECT_EQ(read.counts.lines, 2);
  EXPECT_THAT(remarks(read), ElementsAre(Says("data ... 2 answers say nothing"),
                                         Says("data ... 1 pair ... the rejected one as well")));
}

TEST_F(ExampleReader, TextsBeginAsTheTokenizerBeginsThem) {
  tokenizer_ = TwoTokenizer(/*begins=*/true);
  EXPECT_THAT(sequences(read("{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"d\"}")),
              ElementsAre("^p|c.", "^p|d."));
  options_.format = ExampleFormat::kReward;
  EXPECT_THAT(sequences(read("{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"d\"}")),
              ElementsAre("^p|c.", "^p|d."));
  EXPECT_THAT(sequences(read("{\"chosen\": \"pc\", \"rejected\": \"pd\"}")),
              ElementsAre("|^pc.", "|^pd."));
  options_.format = ExampleFormat::kPrompt;
  EXPECT_THAT(sequences(read("{\"prompt\": \"p\"}")), ElementsAre("^p|"));
}

TEST_F(ExampleReader, ABorderInsideOfATokenDividesIt) {
  const ReadExamples read =
      this->read("{\"prompt\": \"ba\", \"chosen\": \"b\", \"rejected\": \"xab\"}");
  EXPECT_THAT(sequences(read), ElementsAre("ba|b.", "ba|x2."));
  EXPECT_THAT(remarks(read), ElementsAre(Says("1 answer begins inside a token")));
}

TEST_F(ExampleReader, Conversations) {
  const auto line =
      R"({"prompt": [{"role": "u", "content": "q"}], "chosen": [{"role": "a", "content": "y"}], )"
      R"("rejected": [{"role": "a", "content": ""}]})";
  EXPECT_ERROR(read(line), ValueError, "f.jsonl:1 ... no chat template");
  const auto with = [&](const std::string& source) {
    const chat::ChatFormat format{.chat_template =
                                      std::make_shared<chat::ChatTemplate>(source, "T.jinja")};
    options_.encoding.format = &format;
    return sequences(read(line));
  };
  const std::string said = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
  EXPECT_THAT(with(said + "{% if add_generation_prompt %}a:{% endif %}"),
              ElementsAre("u:q;a:|y;", "u:q;a:|;"));
  // A generation prompt that opens a thought, which the history does not show.
  EXPECT_THAT(with(said + "{% if add_generation_prompt %}a:<think>{% endif %}"),
              ElementsAre("u:q;a:|y;", "u:q;a:|;"));
  EXPECT_ERROR(with("{{ messages | length }}" + said), ValueError,
               "f.jsonl:1 ... T.jinja ... where the answer begins is not known");
}

TEST_F(ExampleReader, PairsBecomeExamplesAsInTrlsBatches) {
  options_.format = ExampleFormat::kUnpaired;
  const ReadExamples read = this->read(
      "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n"
      "{\"prompt\": \"q\", \"chosen\": \"c\", \"rejected\": \"d\"}\n"
      "{\"prompt\": \"r\", \"completion\": \"e\", \"label\": false}\n");
  EXPECT_THAT(sequences(read), ElementsAre("p|a.", "q|c.", "p|b.", "q|d.", "r|e."));
  EXPECT_THAT(read.labels, ElementsAre(1, 1, 0, 0, 0));
  EXPECT_THAT(remarks(read), ElementsAre(Says("2 pairs are two examples each")));
  std::string many;
  for (int i = 0; i < 1001; ++i) {
    many += "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n";
  }
  const ReadExamples batches = this->read(many);
  ASSERT_EQ(batches.sequences.units(), 2002);
  EXPECT_EQ(batches.labels[999], 1);
  EXPECT_EQ(batches.labels[1000], 0);
  EXPECT_EQ(batches.labels[2000], 1);
  EXPECT_EQ(batches.labels[2001], 0);
}

TEST_F(ExampleReader, LongExamples) {
  options_.max_tokens = 4;
  const std::string text =
      "{\"prompt\": \"pp\", \"chosen\": \"xyz\", \"rejected\": \"x\"}\n"
      "{\"prompt\": \"pppp\", \"chosen\": \"x\", \"rejected\": \"y\"}\n";
  const ReadExamples kept = read(text);
  EXPECT_THAT(sequences(kept), ElementsAre("pp|xyz.", "pp|x."));
  EXPECT_THAT(remarks(kept),
              ElementsAre(Says("1 prompt ... longer than 4 tokens ... 2 tokens ... at the end"),
                          Says("1 example ... prompt alone fills 4 tokens ... f.jsonl:2")));
  options_.long_sequences = LongSequences::kKeepEnd;
  EXPECT_EQ(read(text).sequences.units(), 2);
  options_.long_sequences = LongSequences::kDrop;
  const ReadExamples none = read(text);
  EXPECT_EQ(none.sequences.units(), 0);
  EXPECT_THAT(remarks(none),
              ElementsAre(Says("2 examples are left out ... 4 tokens ... f.jsonl:1")));
}

TEST_F(ExampleReader, Margins) {
  options_.format = ExampleFormat::kReward;
  const ReadExamples some = read(
      "{\"chosen\": \"a\", \"rejected\": \"b\", \"margin\": 0.5}\n"
      "{\"chosen\": \"a\", \"rejected\": \"b\"}\n");
  EXPECT_THAT(some.margins, ElementsAre(0.5, 0));
  EXPECT_THAT(remarks(some), ElementsAre(Says("1 pair has no \"margin\"")));
  EXPECT_THAT(read("{\"chosen\": \"a\", \"rejected\": \"b\"}\n").margins, IsEmpty());
}

TEST_F(ExampleReader, BadLinesStopOrAreLeftOut) {
  const std::string text =
      "{\"prompt\": \"p\", \"chosen\": \"a\", \"rejected\": \"b\"}\n"
      "{\"prompt\": \"p\"}\n"
      "{\"prompt\": \"q\", \"chosen\": \"a\", \"rejected\": \"b\"}\n";
  EXPECT_ERROR(read(text), ValueError, "f.jsonl:2 ... no \"chosen\"");
  options_.skip_bad_lines = true;
  const ReadExamples read = this->read(text);
  EXPECT_EQ(read.sequences.units(), 2);
  EXPECT_EQ(read.places[1].line, 3);
  EXPECT_THAT(remarks(read), ElementsAre(Says("1 bad line ... f.jsonl:2")));
}

TEST(CutSequence, KeepsTheStartOrTheEnd) {
  const std::vector<int32_t> prompt = {1, 2, 3};
  const std::vector<int32_t> completion = {4, 5, 6, 7};
  const auto cut = [&](LongSequences how, int64_t most) {
    const CutSequence kept = cut_sequence(prompt, completion, how, most);
    return std::pair(std::vector<int32_t>(kept.prompt.begin(), kept.prompt.end()),
                     std::vector<int32_t>(kept.completion.begin(), kept.completion.end()));
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(cut(LongSequences::kKeepStart, 7), std::pair(prompt, completion));
  EXPECT_EQ(cut(LongSequences::kKeepStart, 5), std::pair(prompt, Ids{4, 5}));
  EXPECT_EQ(cut(LongSequences::kKeepStart, 2), std::pair(Ids{1, 2}, Ids{}));
  EXPECT_EQ(cut(LongSequences::kKeepEnd, 5), std::pair(Ids{3}, completion));
  EXPECT_EQ(cut(LongSequences::kKeepEnd, 2), std::pair(Ids{}, Ids{6, 7}));
}

}  // namespace
}  // namespace example_reader_test
}  // namespace tapestry::post_training
