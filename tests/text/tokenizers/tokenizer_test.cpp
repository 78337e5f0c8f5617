#include "text/tokenizers/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"
#include "text/tokenizers/kinds/character_tokenizer.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/kinds/sentencepiece_tokenizer.h"
#include "text/tokenizers/tokenizer_record.h"
#include "text/util/checksum.h"
#include "text/util/utf8.h"

namespace tapestry::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Enough different words for a few dozen pieces.
std::vector<std::string> lines_of_text() {
  std::vector<std::string> lines;
  const char* words[] = {"light", "water", "mountain", "river", "and",    "the",  "evening",
                         "of",    "stone", "morning",  "wind",  "flower", "went", "into"};
  for (size_t i = 0; i < 200; ++i) {
    std::string line;
    for (size_t j = 0; j < 9; ++j) {
      line.append(j > 0 ? " " : "").append(words[(i * i + 7 * j * (i + 1)) % 14]);
    }
    lines.push_back(line);
  }
  return lines;
}

const std::string& model_bytes() {
  static const std::string bytes = train_sentencepiece(lines_of_text(), {.vocab_size = 300}).model;
  return bytes;
}

class SentencePieceTest : public ::testing::Test {
 protected:
  std::string model_ = dir().write("m.model", model_bytes());
  static TempDir& dir() {
    static TempDir folder;
    return folder;
  }
};

TEST(ByteTokenizer, IsTheBytes) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.vocab_size(), 257);
  EXPECT_EQ(tokenizer.eod_id(), 256);
  EXPECT_EQ(tokenizer.pad_id(), -1);
  std::string all;
  for (int i = 0; i < 256; ++i) {
    all.push_back(static_cast<char>(i));
  }
  std::vector<int32_t> ids = tokenizer.encode(all);
  EXPECT_EQ(ids.size(), 256U);
  EXPECT_EQ(ids[255], 255);
  EXPECT_EQ(tokenizer.decode(ids), all);
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{'a', 256, 'b'}), "ab");
  EXPECT_ERROR(tokenizer.decode(std::vector<int32_t>{257}), ValueError, "id 257");
  EXPECT_ERROR(tokenizer.decode(std::vector<int32_t>{-1}), ValueError, "id -1");
  EXPECT_THAT(tokenizer.describe(), HasSubstr("257"));
}

TEST(CharacterTokenizer, NumbersTheCharactersOfItsText) {
  const TempDir dir;
  const std::string text = "b\xC3\xA4 a\nb\xFF";
  train_character_tokenizer({{dir.write("a.txt", text)}}, dir.file("c.model"));
  const CharacterTokenizer tokenizer(dir.file("c.model"));
  EXPECT_EQ(tokenizer.vocab_size(), 7);  // \n, space, a, b, a-umlaut, U+FFFD, end of document
  EXPECT_EQ(tokenizer.eod_id(), 6);
  EXPECT_EQ(tokenizer.pad_id(), -1);
  EXPECT_THAT(tokenizer.encode(text), ElementsAre(3, 4, 1, 2, 0, 3, 5));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{3, 4, 6, 1, 0}), "b\xC3\xA4 \n");
  EXPECT_ERROR(tokenizer.encode("abc"), ValueError,
               "the character 'c' (U+0063) is not among the 6");
  EXPECT_ERROR(tokenizer.encode("a\t"), ValueError, "the character U+0009");
  EXPECT_ERROR(tokenizer.decode(std::vector<int32_t>{7}), ValueError, "id 7 is outside 0 .. 6");
  EXPECT_EQ(make_tokenizer("character", dir.file("c.model"))->describe(),
            "character tokenizer " + dir.file("c.model") + ", 7 ids");
  EXPECT_ERROR(train_character_tokenizer({{dir.write("e.txt", "")}}, dir.file("e.model")),
               ValueError, "e.txt: has no text");
}

TEST(CharacterTokenizer, RefusesOtherFiles) {
  const TempDir dir;
  for (const char* bytes :
       {"", "plain text", "[1]", "{\"tokenizer_type\": \"byte\", \"characters\": [\"a\"]}",
        "{\"tokenizer_type\": \"character\"}"}) {
    EXPECT_ERROR(CharacterTokenizer(dir.write("c.model", bytes)), IoError,
                 "c.model: ... character tokenizer");
  }
  for (const char* list : {"[\"b\", \"a\"]", "[\"a\", \"a\"]", "[\"ab\"]", "[1]", "[\"\"]"}) {
    const std::string bytes =
        concat("{\"tokenizer_type\": \"character\", \"characters\": ", list, "}");
    EXPECT_ERROR(CharacterTokenizer(dir.write("c.model", bytes)), IoError,
                 "expected one character");
  }
  EXPECT_ERROR(CharacterTokenizer(dir.file("none")), IoError, "none: cannot be read");
  EXPECT_ERROR(CharacterTokenizer(
                   dir.write("c.model", "{\"tokenizer_type\":\"character\",\"characters\":[]}")),
               IoError, "is empty");
}

TEST(Crc64, IsTheOneOfXz) {
  EXPECT_EQ(crc64(""), "0000000000000000");
  EXPECT_EQ(crc64("123456789"), "995dc9bbdf1939fa");  // the catalogue's check value
}

TEST(TokenizerRecord, IsKeptBesideTheData) {
  const TempDir dir;
  const std::string prefix = dir.file("data/books_text_document");
  EXPECT_EQ(read_tokenizer_record(prefix), std::nullopt);
  train_character_tokenizer({{dir.write("a.txt", "ab")}}, dir.file("books.model"));
  std::filesystem::create_directories(dir.file("data"));
  const CharacterTokenizer tokenizer(dir.file("books.model"));
  const TokenizerRecord record = make_tokenizer_record(prefix, tokenizer, dir.file("books.model"));
  EXPECT_EQ(record.model, "../books.model");  // so that the folders may move together
  dir.write("data/books_text_document.tokenizer.json", tokenizer_record_text(record));
  EXPECT_EQ(read_tokenizer_record(prefix), record);
  EXPECT_EQ(recorded_model_path(prefix, record), dir.file("books.model"));
  EXPECT_EQ(record.tokenizer.checksum, crc64(dir.read("books.model")));
  EXPECT_THAT(describe(record.tokenizer),
              ::testing::StartsWith("character tokenizer of 3 ids (crc64 "));
  const TokenizerRecord bytes = make_tokenizer_record(prefix, ByteTokenizer(), "");
  EXPECT_EQ(tokenizer_record_text(bytes),
            "{\n  \"tokenizer_type\": \"byte\",\n  \"vocab_size\": 257\n}\n");
  for (const char* bad : {"", "{", "[]", "{\"tokenizer_type\": \"byte\"}", "{\"vocab_size\": 3}"}) {
    dir.write("data/books_text_document.tokenizer.json", bad);
    EXPECT_ERROR(read_tokenizer_record(prefix), IoError, "record of a tokenizer");
  }
}

TEST(MakeTokenizer, ChecksTypeAndModel) {
  EXPECT_EQ(make_tokenizer("byte", "")->vocab_size(), 257);
  EXPECT_ERROR(make_tokenizer("byte", "x.model"), ValueError, "has no model file");
  EXPECT_ERROR(make_tokenizer("bpe", ""), ValueError, "\"bpe\" is unknown");
  EXPECT_ERROR(make_tokenizer("sentencepiece", ""), ValueError, "needs a model file");
}

TEST_F(SentencePieceTest, RoundTripsAnyText) {
  const SentencePieceTokenizer tokenizer(model_);
  EXPECT_EQ(tokenizer.vocab_size(), 300);
  EXPECT_EQ(tokenizer.eod_id(), 2);
  EXPECT_EQ(tokenizer.pad_id(), -1);
  EXPECT_TRUE(tokenizer.separable_at_newlines());
  const std::string texts[] = {"",
                               "the water",
                               " the  water ",
                               "\n\n the\n\twater\r\n",
                               "Zebra \xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80 12",
                               std::string(100000, 'q'),
                               std::string("a\0b", 3),
                               "<s> </s> <unk> <0x41>"};
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.decode(ids), text);
    for (const int32_t id : ids) {
      ASSERT_GE(id, 3);  // text never gives <unk>, <s> or </s>
      ASSERT_LT(id, 300);
    }
  }
  const std::string line = lines_of_text()[3];
  EXPECT_LT(tokenizer.encode(line).size(), line.size() / 2);
}

TEST_F(SentencePieceTest, EncodingInPiecesChangesNothing) {
  const SentencePieceTokenizer tokenizer(model_);
  const std::string parts[] = {"the water\n", " of the river\n", "\n", "stone and wind"};
  std::string text;
  std::vector<int32_t> ids;
  for (const std::string& part : parts) {
    text += part;
    const auto more = tokenizer.encode(part);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  EXPECT_EQ(tokenizer.encode(text), ids);
}

TEST_F(SentencePieceTest, BadBytesBecomeReplacementCharacters) {
  const SentencePieceTokenizer tokenizer(model_);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the \xFF water\xC3")),
            "the \xEF\xBF\xBD water\xEF\xBF\xBD");
}

TEST_F(SentencePieceTest, DecodingChecksIdsAndSkipsSpecialOnes) {
  const SentencePieceTokenizer tokenizer(model_);
  std::vector<int32_t> ids = tokenizer.encode("the water");
  ids.insert(ids.begin(), 1);
  ids.push_back(2);
  EXPECT_EQ(tokenizer.decode(ids), "the water");
  EXPECT_ERROR(tokenizer.decode(std::vector<int32_t>{300}), ValueError,
               "id 300 is outside 0 .. 299");
  EXPECT_ERROR(tokenizer.decode(std::vector<int32_t>{-1}), ValueError, "id -1");
}

// A folder of transformers' LlamaTokenizer: tokenizer.model, and tokens and settings beside it.
TEST_F(SentencePieceTest, TokensBesideTheModel) {
  const TempDir folder;
  const std::string file = folder.write("tokenizer.model", model_bytes());
  const SentencePieceTokenizer alone(file);
  const auto size = static_cast<int32_t>(alone.vocab_size());
  EXPECT_THAT(alone.ids_before(), ElementsAre());
  const std::vector<int32_t> river = alone.encode("river");
  folder.write("added_tokens.json",
               concat(R"({"<|im_end|>": )", size + 3, R"(, "<|im_start|>": )", size, "}"));
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>",
                   "eos_token": {"content": "<|im_end|>"}})");
  const SentencePieceTokenizer chat(file);
  EXPECT_EQ(chat.vocab_size(), size + 4);
  EXPECT_EQ(chat.eod_id(), size + 3);
  EXPECT_THAT(chat.ids_before(), ElementsAre(alone.bos_id()));  // where the key is missing
  std::vector<int32_t> expected = {size};
  expected.insert(expected.end(), river.begin(), river.end());
  expected.push_back(size + 3);
  expected.push_back(alone.bos_id());
  const std::string text = "<|im_start|>river<|im_end|><s>";
  EXPECT_EQ(chat.encode(text), expected);
  const Encoding places = chat.encode_with_spans(text);
  EXPECT_EQ(places.ids, expected);
  EXPECT_EQ(places.spans.front(), (TextSpan{0, 12}));
  EXPECT_EQ(places.spans[1].begin, 12);
  EXPECT_EQ(places.spans[expected.size() - 3].end, 17);
  EXPECT_EQ(places.spans.back(), (TextSpan{27, 30}));
  EXPECT_EQ(chat.decode_with_special(expected), text);
  // <|im_start|> is a token that added_tokens.json does not call special, so it is text.
  EXPECT_EQ(chat.decode(expected), "<|im_start|>river");
  std::string streamed;
  const auto decoder = chat.text_decoder();
  for (const int32_t id : expected) {
    streamed += decoder->add(id);
  }
  EXPECT_EQ(streamed + decoder->finish(), "<|im_start|>river");
  EXPECT_EQ(chat.id_of("<|im_end|>"), size + 3);
  EXPECT_EQ(chat.files_beside().size(), 2U);

  folder.write("tokenizer_config.json", R"({"add_bos_token": false, "eos_token": "<none>"})");
  const SentencePieceTokenizer other(file);
  EXPECT_THAT(other.ids_before(), ElementsAre());
  EXPECT_EQ(other.eod_id(), alone.eod_id());
  EXPECT_THAT(other.remarks(), ElementsAre(HasSubstr("eos_token is \"<none>\"")));
  folder.write("added_tokens.json", concat(R"({"<|a|>": )", size - 1, "}"));
  EXPECT_THROW(SentencePieceTokenizer{file}, ValueError);  // the id of a piece
}

TEST_F(SentencePieceTest, TrainingIsDeterministic) {
  EXPECT_EQ(train_sentencepiece(lines_of_text(), {.vocab_size = 300}).model, model_bytes());
}

TEST_F(SentencePieceTest, TrainingRefusesWhatCannotBe) {
  const std::vector<std::string> little = {"a b"};
  const SentencePieceTrainingOptions usual{.vocab_size = 300};
  EXPECT_ERROR(train_sentencepiece(little, {.vocab_size = 260}), ValueError,
               "vocab_size 260, expected 261");
  EXPECT_ERROR(train_sentencepiece(std::vector<std::string>(), usual), ValueError,
               "the text is empty");
  EXPECT_ERROR(train_sentencepiece({"", "  \t"}, usual), ValueError, "the text is empty");
  EXPECT_ERROR(train_sentencepiece(little, {.character_coverage = 1.5}), ValueError,
               "character_coverage 1.5");
}

TEST_F(SentencePieceTest, ALittleTextGetsThePiecesThatItHas) {
  const TrainedSentencePiece trained = train_sentencepiece({"one"}, {.vocab_size = 512});
  const SentencePieceTokenizer tokenizer(dir().write("little.model", trained.model));
  EXPECT_GE(tokenizer.vocab_size(), 263);  // bytes and special pieces, o, n, e
  EXPECT_LT(tokenizer.vocab_size(), 512);
  EXPECT_THAT(trained.remarks, ElementsAre(HasSubstr("fewer than the 512 asked for")));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("none at all")), "none at all");
}

// Lines of 1,500 characters, the n-th of them about 1500 / n times as frequent as the last.
std::vector<std::string> lines_of_many_characters() {
  std::vector<std::string> lines(200);
  size_t at = 0;
  for (uint32_t n = 1; n <= 1500; ++n) {
    for (uint32_t times = 0; times <= 1500 / n; ++times) {
      lines[at++ % lines.size()] += utf8(0x4E00 + n);
    }
  }
  return lines;
}

// As with Chinese: more characters than pieces.
TEST_F(SentencePieceTest, CharactersWithoutRoomAreBytes) {
  const auto lines = lines_of_many_characters();
  const TrainedSentencePiece trained = train_sentencepiece(lines, {.vocab_size = 512});
  const SentencePieceTokenizer tokenizer(dir().write("many.model", trained.model));
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  ASSERT_EQ(trained.remarks.size(), 1U);
  EXPECT_THAT(trained.remarks[0], HasSubstr("of 1500 characters"));
  EXPECT_EQ(tokenizer.encode(utf8(0x4E01)).size(), 1U);
  EXPECT_EQ(tokenizer.encode(utf8(0x4E00 + 1499)).size(), 3U);  // its bytes
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(lines[0] + " a ")), lines[0] + " a ");
}

// A space that the text does not have must not come back as the sign that stands for it.
TEST_F(SentencePieceTest, ATextWithoutSpaces) {
  std::vector<std::string> lines;
  lines.reserve(300);
  for (int i = 0; i < 300; ++i) {
    lines.push_back(utf8(0x4E00 + i * i % 20) + utf8(0x4E00 + i % 7) + "abc"[i % 3]);
  }
  for (const int64_t size :
       {261, 262, 283, 300}) {  // less room than characters, just as much, more
    const TrainedSentencePiece trained = train_sentencepiece(lines, {.vocab_size = size});
    const SentencePieceTokenizer tokenizer(dir().write("tight.model", trained.model));
    EXPECT_LE(tokenizer.vocab_size(), size);
    const std::string text = lines[5] + " and a space\n";
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST_F(SentencePieceTest, AVocabularyMayGrowToItsCharacters) {
  const auto lines = lines_of_many_characters();
  const TrainedSentencePiece grown =
      train_sentencepiece(lines, {.vocab_size = 512, .character_coverage = 1, .grow_vocab = true});
  const SentencePieceTokenizer tokenizer(dir().write("grown.model", grown.model));
  EXPECT_EQ(tokenizer.vocab_size(), 2176);  // 260 + 1500 + 375, in multiples of 64
  EXPECT_EQ(tokenizer.encode(utf8(0x4E00 + 1499)).size(), 1U);
  EXPECT_THAT(grown.remarks, ElementsAre(HasSubstr("raised from 512 to 2176")));
  // Enough as it is: the same model as without.
  const TrainedSentencePiece as_it_is =
      train_sentencepiece(lines_of_text(), {.vocab_size = 300, .grow_vocab = true});
  EXPECT_EQ(as_it_is.model, model_bytes());
  EXPECT_THAT(as_it_is.remarks, ElementsAre());
  // A coverage that was asked for is kept or refused, with a size that works.
  EXPECT_ERROR(train_sentencepiece(lines, {.vocab_size = 512, .character_coverage = 1}), ValueError,
               "use a vocab_size of 2176");
  EXPECT_EQ(
      SentencePieceTokenizer(
          dir().write(
              "sized.model",
              train_sentencepiece(lines, {.vocab_size = 2176, .character_coverage = 1}).model))
          .vocab_size(),
      2176);
}

TEST_F(SentencePieceTest, TrainingTakesLongLinesAndOddCharacters) {
  std::string joined;
  for (const std::string& line : lines_of_text()) {
    joined += line + " ";
  }
  joined.append(20000, 'x').append("\xFF\t\xE2\x82\xAC");
  joined.push_back('\0');
  const std::string one_line =
      dir().write("long.txt", joined + "\n" + std::string("\xEF\xBF\xBD \xE2\x96\x81") + "\r\n");
  train_sentencepiece({{one_line}}, dir().file("long.model"), {.vocab_size = 290});
  const SentencePieceTokenizer tokenizer(dir().file("long.model"));
  EXPECT_EQ(tokenizer.vocab_size(), 290);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("the water")), "the water");
}

TEST_F(SentencePieceTest, TrainingFromFilesThinsOutLongText) {
  std::string text;
  for (const std::string& line : lines_of_text()) {
    text += line + "\n";
  }
  const std::string input = dir().write("text.txt", text);
  train_sentencepiece({{input}}, dir().file("whole.model"), {.vocab_size = 300});
  EXPECT_EQ(dir().read("whole.model"), model_bytes());
  train_sentencepiece({{input}}, dir().file("half.model"),
                      {.vocab_size = 290, .max_bytes = text.size() / 2});
  EXPECT_EQ(SentencePieceTokenizer(dir().file("half.model")).vocab_size(), 290);
  EXPECT_ERROR(train_sentencepiece({{input}}, dir().file("no/m.model"), {.vocab_size = 300}),
               IoError, "m.model");
}

TEST_F(SentencePieceTest, OddModelFilesAreRefused) {
  EXPECT_ERROR(SentencePieceTokenizer(dir().file("none.model")), IoError, "cannot be read");
  EXPECT_ERROR(SentencePieceTokenizer(dir().path()), IoError, "not a regular file");
  EXPECT_ERROR(SentencePieceTokenizer(dir().write("e.model", "")), IoError, "e.model: is empty");
  std::string noise(4096, '\0');
  uint32_t state = 1;
  for (char& c : noise) {
    state = state * 1664525U + 1013904223U;
    c = static_cast<char>(state >> 24U);
  }
  for (const std::string& bytes :
       {noise, std::string("{\"model\": {\"type\": \"BPE\"}}"), std::string("plain text\n"),
        std::string(1000, '\0'), std::string("\x93NUMPY\x01\x00", 8)}) {
    EXPECT_ERROR(SentencePieceTokenizer(dir().write("bad.model", bytes)), IoError,
                 "bad.model: offset");
  }
}

TEST_F(SentencePieceTest, ATruncatedModelIsRefusedWhereverItIsCut) {
  // The normalizer's message is the last one that a model needs; what follows it is optional.
  for (size_t length = 1; length + 40 < model_bytes().size(); length += 13) {
    const std::string cut = dir().write("cut.model", model_bytes().substr(0, length));
    EXPECT_ERROR(SentencePieceTokenizer{cut}, IoError, "cut.model: offset") << length;
  }
}

TEST(InspectSentencePiece, FindsWhatMatters) {
  const SentencePieceModelInfo info = inspect_sentencepiece_model(model_bytes());
  EXPECT_EQ(info.pieces, 300);
  EXPECT_TRUE(info.newline_is_user_defined);
  EXPECT_FALSE(info.newline_inside_piece || info.add_dummy_prefix ||
               info.remove_extra_whitespaces || info.has_normalization_rules);
  // piece "\n" of type normal, empty trainer_spec and normalizer_spec: the defaults of the format.
  const SentencePieceModelInfo plain =
      inspect_sentencepiece_model(std::string("\x0a\x03\x0a\x01\n\x12\x00\x1a\x00", 9));
  EXPECT_EQ(plain.pieces, 1);
  EXPECT_FALSE(plain.newline_is_user_defined);
  EXPECT_TRUE(plain.add_dummy_prefix && plain.remove_extra_whitespaces);
  EXPECT_ERROR(inspect_sentencepiece_model(std::string("\x12\x00\x1a\x00", 4)), ValueError,
               "no pieces");
}

}  // namespace
}  // namespace tapestry::data
