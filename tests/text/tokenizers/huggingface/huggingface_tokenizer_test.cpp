#include "text/tokenizers/huggingface/huggingface_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "tests/says.h"
#include "tests/temp_dir.h"
#include "text/tokenizers/huggingface/tokenizer_files.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/text_stream.h"

namespace tapestry::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::string kOwn = "tests/data/golden_tokenizers/";

Json own(const std::string& name) {
  std::ifstream in(kOwn + name + "/tokenizer.json");
  return Json::parse(in);
}

// What the tokenizer says to a file that was changed.
std::string refused(const Json& json) {
  const TempDir dir;
  try {
    HuggingFaceTokenizer tokenizer(dir.write("tokenizer.json", json.dump()));
    return "taken";
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), HasSubstr("tokenizer.json: "));
    return error.what();
  }
}

TEST(HuggingFaceTokenizer, RefusesWhatIsNotImplementedByItsName) {
  const Json whole = own("own_chat");
  EXPECT_EQ(refused(whole), "taken");
  const struct {
    const char* part;
    const char* type;
  } cases[] = {{"normalizer", "Sparkle"},
               {"pre_tokenizer", "UnicodeScripts"},
               {"post_processor", "PairProcessing"},
               {"decoder", "CTC"},
               {"model", "WordPiece"}};
  for (const auto& c : cases) {
    Json json = whole;
    json[c.part]["type"] = c.type;
    EXPECT_THAT(refused(json),
                HasSubstr(concat(c.part, ": a component of type ", c.type, " is not implemented")));
  }
  Json json = whole;
  json["pre_tokenizer"]["pretokenizers"][0]["type"] = "Tarot";
  EXPECT_THAT(refused(json),
              HasSubstr("pre_tokenizer.pretokenizers[0]: a component of type Tarot"));
  json = whole;
  json["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Shuffled";
  EXPECT_THAT(refused(json), HasSubstr("the behavior Shuffled is not implemented"));
  json = whole;
  json["model"]["dropout"] = 0.1;
  EXPECT_THAT(refused(json), HasSubstr("dropout is not implemented"));
}

TEST(HuggingFaceTokenizer, RefusesWhatDoesNotFitTogether) {
  const Json whole = own("own_chat");
  Json json = whole;
  json["model"]["merges"][0] = "nowhere found";
  EXPECT_THAT(refused(json), HasSubstr("merges[0]: \"nowhere\" is not in the vocabulary"));
  json = whole;
  json["model"]["merges"][1] = "one two three";
  EXPECT_THAT(refused(json), HasSubstr("merges[1] is \"one two three\", expected two tokens"));
  json = whole;
  json["model"]["vocab"]["far"] = 4'000'000'000;
  EXPECT_THAT(refused(json), HasSubstr("\"far\" has the id 4000000000"));
  json = whole;
  json["model"]["vocab"]["again"] = 5;
  EXPECT_THAT(refused(json), HasSubstr("have the same id 5"));
  json = whole;
  json["added_tokens"][1]["id"] = 999;
  EXPECT_THAT(refused(json),
              HasSubstr("added_tokens[1]: \"<|im_start|>\" has the id 999, expected"));
  json = whole;
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a";
  EXPECT_THAT(refused(json), HasSubstr("'(a' is no regular expression"));
  json = own("own_pieces");
  json["post_processor"]["special_tokens"] = Json::object();
  EXPECT_THAT(refused(json), HasSubstr("special_tokens has no <s>"));
  EXPECT_THAT(refused(Json::array()), HasSubstr("is array, expected an object"));
  const TempDir dir;
  EXPECT_ERROR(HuggingFaceTokenizer(dir.write("t.json", "{\"model\": ")), IoError,
               "t.json: is not valid JSON");
  EXPECT_ERROR(HuggingFaceTokenizer(dir.write("t.json", std::string(100000, '['))), IoError,
               "t.json: is nested more than 64 deep");
  EXPECT_ERROR(HuggingFaceTokenizer(dir.file("none")), IoError, "none: is missing");
  EXPECT_ERROR(HuggingFaceTokenizer(dir.path()), IoError, "has neither tokenizer.json nor");
}

// Patterns that would run for ever end, and say which it was.
TEST(HuggingFaceTokenizer, APatternThatTakesTooLongIsAnError) {
  Json json = own("own_bytes");
  json["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(?:a+)+(?:a+)+(?:a+)+Z"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const TempDir dir;
  const HuggingFaceTokenizer tokenizer(dir.write("tokenizer.json", json.dump()));
  EXPECT_ERROR(tokenizer.encode(std::string(3000, 'a') + "-Z"), ValueError,
               "(?:a+)+Z' cannot be matched");
}

// Each place takes few steps, all of them together the square of the text.
TEST(Pattern, ATextThatTakesTooLongInAllIsAnError) {
  const huggingface::Pattern pattern = huggingface::Pattern::regex("(?:ab|a(?=c))*+d");
  std::string text;
  for (int i = 0; i < 200'000; ++i) {
    text += "ab";
  }
  text += "xd";
  huggingface::Pattern::Finder finder(pattern, text);
  huggingface::Pattern::Match match;
  EXPECT_ERROR(finder.next(match), ValueError, "s of processor time for a text of 400002 bytes");
}

// Files that make much of little end with what was too much.
TEST(HuggingFaceTokenizer, WhatAFileMakesOfATextIsBounded) {
  Json json = own("own_pieces");
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aaaa"}};
  Json chain = Json::array();
  for (int i = 0; i < 40; ++i) {
    chain.push_back(replace);
  }
  const TempDir dir;
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", chain}};
  const HuggingFaceTokenizer normalizing(dir.write("tokenizer.json", json.dump()));
  EXPECT_ERROR(normalizing.encode(std::string(100, 'a')), ValueError,
               "tokenizer.json: a text becomes longer than");
  EXPECT_ERROR(normalizing.encode_with_spans(std::string(100, 'a')), ValueError, "longer than");
  json["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"Regex", ""}}}, {"content", std::string(100'000, 'b')}};
  const HuggingFaceTokenizer empty(dir.write("tokenizer.json", json.dump()));
  EXPECT_ERROR(empty.encode("one two three"), ValueError, "longer than");
  json["normalizer"] = nullptr;
  json["decoder"] = {{"type", "Sequence"}, {"decoders", chain}};
  const HuggingFaceTokenizer decoding(dir.write("tokenizer.json", json.dump()));
  EXPECT_ERROR(decoding.decode(decoding.encode("banana")), ValueError, "longer than");
}

// A token of a space that takes the spaces around it, in a text of nothing else.
TEST(HuggingFaceTokenizer, ATokenOfASpaceTakesTheOthersOnce) {
  const int64_t next = HuggingFaceTokenizer(kOwn + "own_chat").vocab_size();
  Json json = own("own_chat");
  json["added_tokens"].push_back({{"id", next},
                                  {"content", " "},
                                  {"lstrip", true},
                                  {"rstrip", true},
                                  {"normalized", false},
                                  {"special", false}});
  const TempDir dir;
  const HuggingFaceTokenizer tokenizer(dir.write("tokenizer.json", json.dump()));
  const auto space = static_cast<int32_t>(next);
  const Encoding few = tokenizer.encode_with_spans("a   b");
  EXPECT_THAT(few.ids, ElementsAre(tokenizer.encode("a").front(), space, space, space,
                                   tokenizer.encode("b").front()));
  EXPECT_EQ(few.spans[1], (TextSpan{1, 4}));
  EXPECT_EQ(tokenizer.encode(std::string(300'000, ' ')).size(), 300'000U);
}

TEST(HuggingFaceTokenizer, KnowsItsTokens) {
  const HuggingFaceTokenizer chat(kOwn + "own_chat");
  const int32_t start = *chat.id_of("<|im_start|>");
  EXPECT_EQ(chat.token(start), "<|im_start|>");
  EXPECT_EQ(chat.id_of("no such token"), std::nullopt);
  EXPECT_EQ(chat.eod_id(), chat.id_of("<|endoftext|>"));
  EXPECT_EQ(chat.bos_id(), -1);
  EXPECT_EQ(chat.pad_id(), -1);
  EXPECT_EQ(chat.decode(std::vector<int32_t>{start, 97}), "a");
  EXPECT_EQ(chat.decode_with_special(std::vector<int32_t>{start, 97}), "<|im_start|>a");
  EXPECT_ERROR(chat.decode(std::vector<int32_t>{100000}), ValueError, "id 100000 is outside 0 .. ");
  EXPECT_ERROR(chat.decode(std::vector<int32_t>{-1}), ValueError, "id -1");
  const HuggingFaceTokenizer pieces(kOwn + "own_pieces/tokenizer.json");
  EXPECT_THAT(pieces.ids_before(), ElementsAre(1));
  EXPECT_EQ(pieces.bos_id(), 1);
  EXPECT_EQ(pieces.eod_id(), 2);
  EXPECT_EQ(pieces.identity().type, "huggingface");
  EXPECT_EQ(pieces.identity().checksum.size(), 16U);
  EXPECT_EQ(make_tokenizer("huggingface", kOwn + "own_pieces")->identity(), pieces.identity());
  EXPECT_THAT(pieces.describe(), HasSubstr("own_pieces/tokenizer.json, "));
}

// What stands beside tokenizer.json says which tokens end and begin a text.
TEST(HuggingFaceTokenizer, SpecialTokensAreNamedBesideIt) {
  const TempDir dir;
  dir.write("tokenizer.json", own("own_chat").dump());
  const HuggingFaceTokenizer plain(dir.path());
  const int32_t last = *plain.id_of("<|im_end|>");
  dir.write("config.json", concat("{\"eos_token_id\": [", last, ", 3], \"pad_token_id\": 7}"));
  EXPECT_EQ(HuggingFaceTokenizer(dir.path()).eod_id(), last);
  EXPECT_EQ(HuggingFaceTokenizer(dir.path()).pad_id(), 7);
  dir.write("tokenizer_config.json",
            R"({"eos_token": {"content": "<|im_start|>"}, "bos_token": "<|im_end|>"})");
  EXPECT_EQ(HuggingFaceTokenizer(dir.path()).eod_id(), plain.id_of("<|im_start|>"));
  EXPECT_EQ(HuggingFaceTokenizer(dir.path()).bos_id(), last);
  dir.write("tokenizer_config.json", "[]");
  EXPECT_ERROR(HuggingFaceTokenizer(dir.path()), IoError, "tokenizer_config.json: is array");
}

// transformers' classes of Llama put ids around texts whatever tokenizer.json says; others go by
// it.
TEST(HuggingFaceTokenizer, AClassSaysWhatBeginsATextWhateverTheFileSays) {
  const TempDir dir;
  Json json = own("own_pieces");
  const Json adds = json["post_processor"];
  const auto before = [&](const Json& processor, const std::string& settings) {
    json["post_processor"] = processor;
    dir.write("tokenizer.json", json.dump());
    dir.write("tokenizer_config.json", settings);
    return HuggingFaceTokenizer(dir.path()).ids_before();
  };
  for (const char* name : {"LlamaTokenizerFast", "LlamaTokenizer", "CodeLlamaTokenizerFast"}) {
    const std::string in_class = concat(R"({"tokenizer_class": ")", name, R"(")");
    EXPECT_THAT(before(nullptr, in_class + R"(, "add_bos_token": true})"), ElementsAre(1));
    EXPECT_THAT(before(nullptr, in_class + "}"), ElementsAre(1));
    EXPECT_THAT(before(adds, in_class + R"(, "add_bos_token": false})"), ElementsAre());
    EXPECT_THAT(before(adds, in_class + R"(, "bos_token": {"content": "</s>"}})"), ElementsAre(2));
  }
  EXPECT_THAT(
      before(nullptr, R"({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": true})"),
      ElementsAre());
  EXPECT_THAT(
      before(adds, R"({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": false})"),
      ElementsAre(1));
  EXPECT_THAT(before(nullptr, R"({"tokenizer_class": "GemmaTokenizer"})"), ElementsAre());
  EXPECT_THAT(HuggingFaceTokenizer(dir.path()).remarks(),
              ElementsAre(HasSubstr("a GemmaTokenizer puts \"<bos>\" around texts")));
  before(nullptr, R"({"tokenizer_class": "LlamaTokenizer", "add_eos_token": true})");
  EXPECT_THAT(HuggingFaceTokenizer(dir.path()).ids_after(), ElementsAre(2));
}

// Tokens that only the files beside it name are tokens, too.
TEST(HuggingFaceTokenizer, TokensThatTheFileLacks) {
  const TempDir dir;
  dir.write("tokenizer.json", own("own_chat").dump());
  const auto next = static_cast<int32_t>(HuggingFaceTokenizer(dir.path()).vocab_size());
  const auto ids = [&](const std::string& text) {
    return HuggingFaceTokenizer(dir.path()).encode(text);
  };
  const int32_t a = ids("a").front();
  dir.write("added_tokens.json", concat(R"({"<extra>": )", next, "}"));
  EXPECT_THAT(ids("a<extra>a"), ElementsAre(a, next, a));
  EXPECT_EQ(HuggingFaceTokenizer(dir.path()).decode(std::vector<int32_t>{next}), "<extra>");
  dir.write("tokenizer_config.json",
            concat(R"({"added_tokens_decoder": {")", next + 1,
                   R"(": {"content": "<more>", "rstrip": true, "special": true}}})"));
  const HuggingFaceTokenizer both(dir.path());
  EXPECT_EQ(both.vocab_size(), next + 2);
  EXPECT_THAT(both.encode("<more>  a<extra>"), ElementsAre(next + 1, a, next));
  EXPECT_EQ(both.decode(std::vector<int32_t>{next + 1, a}), "a");
  // An id that leaves a hole is no id that the library would give.
  std::filesystem::remove(dir.file("tokenizer_config.json"));
  dir.write("added_tokens.json", concat(R"({"<extra>": )", next + 9, "}"));
  EXPECT_ERROR(HuggingFaceTokenizer(dir.path()), ValueError, "added_tokens.json: \"<extra>\" has");
  // A named token that there is not is no end.
  std::filesystem::remove(dir.file("added_tokens.json"));
  dir.write("tokenizer_config.json", R"({"eos_token": "<|nowhere|>"})");
  const HuggingFaceTokenizer named(dir.path());
  EXPECT_EQ(named.eod_id(), named.id_of("<|endoftext|>"));
  EXPECT_THAT(named.remarks(), ElementsAre(HasSubstr("tokenizer_config.json: eos_token is "
                                                     "\"<|nowhere|>\", which the tokenizer")));
}

TEST(HuggingFaceTokenizer, PlacesOfBytesThatAreNoText) {
  const HuggingFaceTokenizer tokenizer(kOwn + "own_bytes");
  const std::string bytes =
      "a\xE2\x82"
      "b";  // two bytes that are one U+FFFD, three ids
  const Encoding encoding = tokenizer.encode_with_spans(bytes);
  ASSERT_EQ(encoding.ids.size(), 5U);
  EXPECT_EQ(encoding.spans[0], (TextSpan{0, 1}));
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(encoding.spans[i], (TextSpan{1, 3}));
  }
  EXPECT_EQ(encoding.spans[4], (TextSpan{3, 4}));
}

// One long text, in which merges may be cut at characters that no merge brings together, gives what
// its pieces give, and the same from many threads at once.
TEST(HuggingFaceTokenizer, LongTextsAndThreads) {
  for (const char* name : {"own_pieces", "own_chat", "own_unigram", "own_words"}) {
    const HuggingFaceTokenizer tokenizer(kOwn + name);
    std::string text;
    for (int i = 0; i < 300; ++i) {
      text +=
          concat("the river", i % 7, "runs  under\tit's ", i * i, "\xC3\xA9\xE6\x97\xA5 stones\n");
    }
    const std::vector<int32_t> ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.encode_with_spans(text).ids, ids) << name;
    std::vector<std::thread> threads;
    std::vector<std::vector<int32_t>> found(4);
    for (auto& mine : found) {
      threads.emplace_back([&] { mine = tokenizer.encode(text); });
    }
    for (auto& thread : threads) {
      thread.join();
    }
    for (const auto& mine : found) {
      EXPECT_EQ(mine, ids) << name;
    }
  }
}

TEST(HuggingFaceTokenizer, StreamsHoldBackWhatCanChange) {
  const HuggingFaceTokenizer pieces(kOwn + "own_pieces");
  TextStream stream(pieces);
  EXPECT_EQ(stream.add(*pieces.id_of("\xE2\x96\x81")), "");  // the space before a text
  EXPECT_EQ(stream.add(*pieces.id_of("<0xE2>")), "");
  EXPECT_EQ(stream.add(*pieces.id_of("<0x82>")), "");
  EXPECT_EQ(stream.add(*pieces.id_of("<0xAC>")), "");  // a fourth byte could spoil them all
  EXPECT_EQ(stream.add(*pieces.id_of("t")),
            "\xE2\x82\xAC"
            "t");
  EXPECT_EQ(stream.add(*pieces.id_of("<0xFF>")), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  const HuggingFaceTokenizer bytes(kOwn + "own_bytes");
  TextStream second(bytes);
  EXPECT_EQ(second.add(0xE2), "");
  EXPECT_EQ(second.add(0x82), "");
  EXPECT_EQ(second.add(0xAC), "\xE2\x82\xAC");
  EXPECT_EQ(second.add(0xE2), "");
  EXPECT_EQ(second.finish(), "\xEF\xBF\xBD");
}

// The two files of GPT-2's kind are the same tokenizer.
TEST(HuggingFaceTokenizer, VocabAndMerges) {
  const Json json = own("own_bytes");
  const TempDir dir;
  Json vocab = json["model"]["vocab"];
  vocab["<|endoftext|>"] = 263;
  dir.write("vocab.json", vocab.dump());
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : json["model"]["merges"]) {
    merges += merge.get<std::string>() + "\n";
  }
  dir.write("merges.txt", merges);
  const HuggingFaceTokenizer whole(kOwn + "own_bytes");
  const HuggingFaceTokenizer two(dir.path());
  for (const char* text : {"the river's 12", "<|endoftext|>a", "\n\n x", "\xC3\xA9"}) {
    EXPECT_EQ(two.encode(text), whole.encode(text));
  }
  EXPECT_EQ(two.eod_id(), 263);
  EXPECT_NE(two.identity(), whole.identity());
  dir.write("merges.txt", "#version: 0.2\none two three\n");
  EXPECT_ERROR(HuggingFaceTokenizer(dir.path()), IoError, "merges.txt: line 2");
  dir.write("merges.txt", merges);
  dir.write("tokenizer_config.json", R"({"tokenizer_class": "BertTokenizer"})");
  EXPECT_ERROR(HuggingFaceTokenizer(dir.path()), ValueError, "of the class BertTokenizer");
  dir.write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2TokenizerFast"})");
  EXPECT_NE(HuggingFaceTokenizer(dir.path()).encode("12"), std::vector<int32_t>{});
}

TEST(HuggingFaceTokenizer, FilesThatGoWithAModel) {
  const TempDir dir;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                           "generation_config.json", "config.json", "notes.txt"}) {
    dir.write(name, "{}");
  }
  std::vector<std::string> names;
  for (const auto& [name, path] : huggingface::tokenizer_files_to_copy(dir.path())) {
    names.push_back(name);
    EXPECT_EQ(path, dir.file(name));
  }
  EXPECT_THAT(names, ElementsAre("chat_template.jinja", "tokenizer.json", "tokenizer_config.json"));
  const auto alone = huggingface::tokenizer_files_to_copy(dir.write("mine.json", "{}"));
  EXPECT_EQ(alone.size(), 1U);
  EXPECT_EQ(alone.at("tokenizer.json"), dir.file("mine.json"));
  EXPECT_TRUE(huggingface::has_tokenizer_files(dir.path()));
  EXPECT_EQ(tokenizer_file("huggingface", dir.path()), dir.file("tokenizer.json"));
  EXPECT_EQ(tokenizer_file("sentencepiece", dir.path()), dir.path());
}

// Vocabularies whose tokens all begin alike: what they would take grows with the square of a text.
TEST(HuggingFaceTokenizer, LongTokensThatAreAlikeHaveALimit) {
  const TempDir dir;
  Json json = own("own_chat");
  auto& added = json["added_tokens"];
  const int64_t next = added.back()["id"].get<int64_t>() + 1;
  Json token = added.back();
  token["id"] = next;
  token["special"] = false;
  token["normalized"] = false;
  token["content"] = std::string(100'000, '~') + "!";
  added.push_back(token);
  const HuggingFaceTokenizer far(dir.write("tokenizer.json", json.dump()));
  EXPECT_ERROR(far.encode(std::string(200'000, '~')), ValueError, "added_tokens: they are so long");
  EXPECT_THAT(far.encode(std::string(100'000, '~') + "!"), ElementsAre(next));

  Json unigram = own("own_unigram");
  Json& vocab = unigram["model"]["vocab"];
  for (int i = 50; i < 400; ++i) {
    vocab.push_back({std::string(static_cast<size_t>(i), '~'), -3.0});
  }
  unigram["pre_tokenizer"] = nullptr;
  unigram["added_tokens"] = Json::array();
  const HuggingFaceTokenizer alike(dir.write("tokenizer.json", unigram.dump()));
  EXPECT_ERROR(alike.encode(std::string(20'000, '~')), ValueError, "so many long tokens");
  EXPECT_EQ(alike.encode(std::string(399, '~')).size(), 1U);
}

}  // namespace
}  // namespace tapestry::data
