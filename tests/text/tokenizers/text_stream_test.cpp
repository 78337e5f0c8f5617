#include "text/tokenizers/text_stream.h"

#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"
#include "text/tokenizers/kinds/character_tokenizer.h"
#include "text/tokenizers/kinds/sentencepiece_tokenizer.h"
#include "text/util/utf8.h"

namespace tapestry::data {
namespace {

// Texts of which each prefix of the stream must be what is certain.
std::string streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  TextStream stream(tokenizer);
  std::string text;
  for (size_t i = 0; i < ids.size(); ++i) {
    text += stream.add(ids[i]);
    const std::string so_far = tokenizer.decode(std::span(ids).first(i + 1));
    EXPECT_EQ(so_far.substr(0, text.size()), text) << "after " << i + 1 << " ids";
    EXPECT_LE(so_far.size() - text.size(), 40U) << "holds back too much";
  }
  return text + stream.finish();
}

// The bytes that each id stands for, as text.
std::vector<std::string> parts(const Tokenizer& tokenizer, const std::string& text) {
  const Encoding encoding = tokenizer.encode_with_spans(text);
  EXPECT_EQ(encoding.ids, tokenizer.encode(text));
  EXPECT_EQ(encoding.ids.size(), encoding.spans.size());
  std::vector<std::string> found;
  for (const TextSpan& span : encoding.spans) {
    found.push_back(
        text.substr(static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin)));
  }
  return found;
}

const char* const kTexts[] = {"", "the water of the river", " the  \n river",
                              "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80 and \xE4\xBD\xA0",
                              "a\xFF b\xE2\x82 c\xF0\x9F"};

const SentencePieceTokenizer& pieces() {
  static const TempDir dir;
  static const SentencePieceTokenizer tokenizer(dir.write(
      "m.model",
      train_sentencepiece(std::vector<std::string>(50, "the water of the river and the wind"),
                          {.vocab_size = 280})
          .model));
  return tokenizer;
}

TEST(TextStream, BytesWaitForTheirCharacter) {
  const ByteTokenizer tokenizer;
  for (const char* text : kTexts) {
    EXPECT_EQ(streamed(tokenizer, tokenizer.encode(text)), text);
  }
  TextStream stream(tokenizer);
  EXPECT_EQ(stream.add(0xE2), "");
  EXPECT_EQ(stream.add(0x82), "");
  EXPECT_EQ(stream.add(0xAC), "\xE2\x82\xAC");
  EXPECT_EQ(stream.add(0xE2), "");
  EXPECT_EQ(stream.add('a'),
            "\xE2"
            "a");
  EXPECT_EQ(stream.add(0xC3), "");
  EXPECT_EQ(stream.finish(), "\xC3");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_ERROR(stream.add(257), ValueError, "id 257");
}

TEST(TextStream, PiecesKeepSpacesAndBytes) {
  for (const char* text : kTexts) {
    const std::vector<int32_t> ids = pieces().encode(text);
    EXPECT_EQ(streamed(pieces(), ids), pieces().decode(ids));
  }
  // A document that ends inside, and bytes that are no character.
  std::vector<int32_t> ids = pieces().encode("the \xE2\x82\xAC");
  ids.pop_back();
  const std::vector<int32_t> more = pieces().encode("the end");
  for (const int32_t id : {pieces().eod_id(), *pieces().id_of("<0xE4>"), more[0]}) {
    ids.push_back(id);
  }
  EXPECT_EQ(streamed(pieces(), ids), pieces().decode(ids));
}

TEST(TextSpans, OfBytesAndCharacters) {
  const ByteTokenizer bytes;
  EXPECT_EQ(parts(bytes, "a\xC3\xA9"), (std::vector<std::string>{"a", "\xC3", "\xA9"}));
  const TempDir dir;
  train_character_tokenizer({{dir.write("a.txt", "ab\xC3\xA9\xEF\xBF\xBD")}}, dir.file("c.model"));
  const CharacterTokenizer characters(dir.file("c.model"));
  EXPECT_EQ(parts(characters,
                  "b\xC3\xA9"
                  "a"),
            (std::vector<std::string>{"b", "\xC3\xA9", "a"}));
  EXPECT_EQ(parts(characters,
                  "a\xE2\x82"
                  "b\xFF\xFF"),
            (std::vector<std::string>{"a", "\xE2\x82", "b", "\xFF", "\xFF"}));
  EXPECT_EQ(characters.id_of("b"), 1);
  EXPECT_EQ(characters.id_of("ab"), std::nullopt);
  EXPECT_EQ(characters.id_of("c"), std::nullopt);
  EXPECT_EQ(bytes.id_of("a"), 'a');
  EXPECT_EQ(bytes.id_of("ab"), std::nullopt);
  const std::vector<int32_t> ids = {0, 1};
  EXPECT_EQ(streamed(characters, ids), "ab");
}

TEST(TextSpans, OfPiecesCoverTheText) {
  for (const std::string text : kTexts) {
    std::string joined;
    const Encoding encoding = pieces().encode_with_spans(text);
    EXPECT_EQ(encoding.ids, pieces().encode(text));
    int64_t at = 0;
    for (const TextSpan& span : encoding.spans) {
      EXPECT_GE(span.begin, 0);
      EXPECT_LE(span.begin, at) << "a gap in " << text;
      at = std::max(at, span.end);
    }
    EXPECT_EQ(at, static_cast<int64_t>(text.size()));
  }
  // All bytes of a character stand for the whole of it.
  for (const std::string& part : parts(pieces(), "\xE2\x82\xAC")) {
    EXPECT_EQ(part, "\xE2\x82\xAC");
  }
}

TEST(SpecialPieces, AreSpeltOutOnRequest) {
  std::vector<int32_t> ids = {*pieces().id_of("<s>")};
  for (const int32_t id : pieces().encode("the river")) {
    ids.push_back(id);
  }
  ids.push_back(*pieces().id_of("</s>"));
  EXPECT_EQ(pieces().decode(ids), "the river");
  EXPECT_EQ(pieces().decode_with_special(ids), "<s>the river</s>");
  EXPECT_EQ(pieces().id_of("no such piece"), std::nullopt);
  EXPECT_TRUE(pieces().ids_before().empty());
  EXPECT_TRUE(pieces().ids_after().empty());
  EXPECT_ERROR(pieces().decode_with_special(std::vector<int32_t>{1000}), ValueError, "id 1000");
}

TEST(ValidText, KnowsWhereItsCharactersComeFrom) {
  const std::string bytes =
      "a\xE2\x82"
      "b\xFF"
      "c";  // a, one U+FFFD for two bytes, b, U+FFFD, c
  const ValidText valid(bytes);
  EXPECT_EQ(valid.text(), replace_invalid_utf8(bytes));
  const int64_t begins[] = {0, 1, 1, 1, 3, 4, 4, 4, 5};
  const int64_t ends[] = {0, 1, 3, 3, 3, 4, 5, 5, 5, 6};
  for (int64_t at = 0; at < 9; ++at) {
    EXPECT_EQ(valid.begin_in_bytes(at), begins[at]) << at;
    EXPECT_EQ(valid.end_in_bytes(at), ends[at]) << at;
  }
  EXPECT_EQ(valid.end_in_bytes(9), 6);
  const std::string good = "good";
  EXPECT_EQ(ValidText(good).text().data(), good.data());  // no copy
}

TEST(ValidText, ACutCharacterIsOneThatCouldGoOn) {
  for (const char* cut : {"\xC3", "\xE2", "\xE2\x82", "\xF0", "\xF0\x9F", "\xF0\x9F\x98"}) {
    EXPECT_EQ(without_cut_character(concat("ab", cut)), 2U);
  }
  for (const char* whole : {"", "a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xFF", "\x80",
                            "\xE0\x80", "\xED\xA0", "\xF4\x90"}) {
    EXPECT_EQ(without_cut_character(concat("ab", whole)), 2 + std::string(whole).size());
  }
}

}  // namespace
}  // namespace tapestry::data
