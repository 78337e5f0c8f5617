#include <gtest/gtest.h>

#include "autograd/io/json.h"
#include "text/tokenizers/huggingface/normalizer.h"
#include "text/tokenizers/huggingface/pre_tokenizer.h"

namespace tapestry::data::huggingface {
namespace unicode_test {
namespace {

std::string utf8(std::initializer_list<uint32_t> code_points) {
  std::string text;
  for (const uint32_t point : code_points) {
    append_utf8(text, point);
  }
  return text;
}

std::string normalized(const char* json, const std::string& text) {
  const Slice slice{text};
  AlignedText out(slice, /*tracked=*/false);
  make_normalizer(Json::parse(json))->apply(out);
  return out.text();
}

size_t pieces(const char* json, const std::string& text) {
  class Count final : public PieceSink {
   public:
    void piece(const Slice& /*piece*/) override { ++count; }
    size_t count = 0;
  } sink;
  make_pre_tokenizer(Json::parse(json), false).split(Slice{text}, /*tracked=*/false, sink);
  return sink.count;
}

// What `tokenizers` 0.23 makes of characters that are younger than its tables, beside older ones.
TEST(Unicode, NormalizersAreAsOldAsTheLibrarys) {
  constexpr const char* kNfd = R"({"type": "NFD"})";
  constexpr const char* kNfkc = R"({"type": "NFKC"})";
  EXPECT_EQ(normalized(kNfd, utf8({0x301, 0x323})), utf8({0x323, 0x301}));
  for (const uint32_t young : {0x7FD, 0x898, 0x1ABF, 0x1DF6, 0x1E4EC}) {
    EXPECT_EQ(normalized(kNfd, utf8({0x301, young, 0x323})), utf8({0x301, young, 0x323}));
  }
  EXPECT_EQ(normalized(kNfd, utf8({0x11938})), utf8({0x11938}));
  EXPECT_EQ(normalized(R"({"type": "NFC"})", utf8({0x11935, 0x11930})), utf8({0x11935, 0x11930}));
  EXPECT_EQ(normalized(kNfkc, utf8({0x32FE})), utf8({0x30F2}));
  EXPECT_EQ(normalized(kNfkc, utf8({0x32FF, 0x1F16C, 0x1FBF3})), utf8({0x32FF, 0x1F16C, 0x1FBF3}));
  constexpr const char* kStrip = R"({"type": "StripAccents"})";
  EXPECT_EQ(normalized(kStrip, utf8({'a', 0x8D4, 0x903, 0x1DFB})), "a");
  EXPECT_EQ(normalized(kStrip, utf8({0x897, 0x1DF6, 0x1133B})), utf8({0x897, 0x1DF6, 0x1133B}));
  constexpr const char* kBert = R"({"type": "BertNormalizer", "lowercase": false,
                                    "strip_accents": true})";
  EXPECT_EQ(normalized(kBert, utf8({'a', 0x300, 0x1734, 0x200B})), "a");
  EXPECT_EQ(normalized(kBert, utf8({0x8D4, 0x1DFB, 0x890})), utf8({0x8D4, 0x1DFB, 0x890}));
  EXPECT_EQ(normalized(R"({"type": "Lowercase"})", utf8({'A', 0x1C89, 0xA7CB, 0x10D65})),
            utf8({'a', 0x1C8A, 0x264, 0x10D85}));
}

TEST(Unicode, PreTokenizersAreAsOldAsTheLibrarys) {
  constexpr const char* kPunctuation = R"({"type": "Punctuation"})";
  EXPECT_EQ(pieces(kPunctuation, utf8({'a', 0x2E42, 'a', 0x166D, 'a', '+'})), 6U);
  EXPECT_EQ(pieces(kPunctuation, utf8({'a', 0x2E43, 'a', 0x61D, 0x1B7D, 0x11B00})), 1U);
  constexpr const char* kDigits = R"({"type": "Digits", "individual_digits": true})";
  EXPECT_EQ(pieces(kDigits, utf8({'a', 0x10D40, 'a', 0xBD, 0x1E5F1})), 5U);
  constexpr const char* kWhitespace = R"({"type": "Whitespace"})";
  EXPECT_EQ(pieces(kWhitespace, utf8({'a', 0x897, 0x16130, 0xB2, 'a'})), 3U);
}

}  // namespace
}  // namespace unicode_test
}  // namespace tapestry::data::huggingface
