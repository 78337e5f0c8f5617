#include "parallel_core/inference/stopped_text.h"

#include <gtest/gtest.h>

#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/huggingface_tokenizer.h"

namespace tapestry {
namespace {

using Stops = std::vector<std::string>;

// The pieces that the bytes of a text give, joined by '|'; what finish() gives is the last one.
std::string pieces(const std::string& text, const Stops& stops, std::string* stop = nullptr) {
  const data::ByteTokenizer tokenizer;
  StoppedText found(tokenizer, tokenizer.encode("Q:"), stops);
  EXPECT_EQ(found.prompt_text(), "Q:");
  std::string out;
  std::string whole;
  for (const int32_t id : tokenizer.encode(text)) {
    const std::string piece = found.add(id);
    out += piece + "|";
    whole += piece;
  }
  const std::string rest = found.finish();
  EXPECT_EQ(found.text(), whole + rest);
  EXPECT_EQ(found.finish(), "");
  if (stop != nullptr) {
    *stop = found.stop();
  }
  EXPECT_EQ(found.stopped(), !found.stop().empty());
  return out + rest;
}

TEST(StoppedText, ShowsWhatIsCertain) {
  EXPECT_EQ(pieces("abc", {}), "a|b|c|");
  EXPECT_EQ(pieces("ab\ncd", {"\n\n"}), "a|b||\nc|d|");
  EXPECT_EQ(pieces("ab\n", {"\n\n"}), "a|b||\n");
  EXPECT_EQ(pieces("aab", {"ab"}), "|a||");
  EXPECT_EQ(pieces("aac", {"ab"}), "|a|ac|");
}

TEST(StoppedText, EndsBeforeTheFirstStop) {
  std::string stop;
  EXPECT_EQ(pieces("ab\n\ncd", {"\n\n"}, &stop), "a|b|||||");
  EXPECT_EQ(stop, "\n\n");
  EXPECT_EQ(pieces("xyEND", {"yE", "END", "y"}, &stop), "x|||||");
  EXPECT_EQ(stop, "y");  // it is complete before the longer one is
  EXPECT_EQ(pieces("stop", {"stop"}, &stop), "||||");
  EXPECT_EQ(pieces("Q:", {"Q:"}, &stop), "||");  // the prompt's own does not count
  EXPECT_EQ(pieces("a", {"Q:a"}, &stop), "a|");
  EXPECT_EQ(stop, "");
}

// A stop string that one token completes together with what comes after it.
TEST(StoppedText, OfTwoAtOnePlaceTheLonger) {
  const data::ByteTokenizer tokenizer;
  StoppedText found(tokenizer, {}, {"\xC3\xA4", "\xC3\xA4\xC3\xB6"});
  std::string text;
  for (const int32_t id : tokenizer.encode("u\xC3\xA4\xC3\xB6")) {
    text += found.add(id);
  }
  EXPECT_EQ(text, "u");
  EXPECT_EQ(found.stop(), "\xC3\xA4");
}

TEST(StoppedText, HoldsBackHalfCharacters) {
  EXPECT_EQ(pieces("\xE2\x82\xAC!", {}), "||\xE2\x82\xAC|!|");
}

// Tokenizers with byte fallback write a newline as a byte, whose text comes with the next token.
TEST(StoppedText, ThePromptsLastBytesAreNotTheAnswers) {
  const data::HuggingFaceTokenizer tokenizer("tests/data/golden_tokenizers/own_pieces");
  const auto answer = [&](const std::string& prompt, const std::string& said, const Stops& stops) {
    const std::vector<int32_t> before = tokenizer.encode(prompt);
    const std::vector<int32_t> all = tokenizer.encode(prompt + said);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), all.begin()));
    StoppedText found(tokenizer, before, stops);
    EXPECT_EQ(found.prompt_text(), prompt);
    std::string text;
    for (size_t i = before.size(); i < all.size(); ++i) {
      text += found.add(all[i]);
    }
    text += found.finish();
    EXPECT_EQ(text, found.text());
    return text;
  };
  EXPECT_EQ(answer("the\n", "cat", {}), "cat");
  EXPECT_EQ(answer("the\n", "cat\nand", {"\n"}), "cat");
  EXPECT_EQ(answer("the\n\n", "\ncat", {}), "\ncat");
  EXPECT_EQ(answer("the\n", "\ncat", {"\n"}), "");
  EXPECT_EQ(answer("the\n", "", {}), "");
  EXPECT_EQ(answer("the \xF0\x9F\x90\x88", "\xF0\x9F\x90\x88", {}), "\xF0\x9F\x90\x88");
}

TEST(StoppedText, EmptyStops) {
  const data::ByteTokenizer tokenizer;
  EXPECT_THROW(StoppedText(tokenizer, {}, {"a", ""}), ValueError);
}

}  // namespace
}  // namespace tapestry
