#include "interop/export/gguf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "interop/gguf/gguf_pre.h"
#include "tests/message_of.h"
#include "tests/temp_dir.h"
#include "text/tokenizers/kinds/sentencepiece_tokenizer.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

Json small_tokenizer(const std::string& architecture) {
  std::ifstream file("tests/data/golden_gguf/" + architecture + "/hf/tokenizer.json");
  return Json::parse(file);
}

Json split(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

Json byte_level(bool regex, bool prefix = false) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"use_regex", regex}};
}

Json sequence_of(const Json& list) { return {{"type", "Sequence"}, {"pretokenizers", list}}; }

GgufTokenizer read_json(const Json& tokenizer, const Json& config = {}, int64_t rows = 288) {
  const data::TempDir folder;
  folder.write("tokenizer.json", tokenizer.dump());
  if (!config.is_null()) {
    folder.write("tokenizer_config.json", config.dump());
  }
  return read_gguf_tokenizer(folder.path(), {.type = "", .ids = {}, .rows = rows});
}

std::string refusal(const std::string& architecture,
                    const std::function<void(Json&)>& change,
                    int64_t rows = 288) {
  Json tokenizer = small_tokenizer(architecture);
  change(tokenizer);
  return message_of<ValueError>([&] { read_json(tokenizer, {}, rows); });
}

TEST(GgufPre, ComponentsAreComparedWithThoseThatAreKnown) {
  const auto pre = [](const Json& pre_tokenizer, const Json& normalizer = {}) {
    return gguf_pre({{"pre_tokenizer", pre_tokenizer}, {"normalizer", normalizer}}, "F").name;
  };
  EXPECT_EQ(pre(byte_level(true)), "gpt-2");
  EXPECT_EQ(pre({{"type", "ByteLevel"}, {"add_prefix_space", false}}), "gpt-2");
  EXPECT_EQ(pre(sequence_of({split(kLlama3), byte_level(false)})), "llama-bpe");
  // Line breaks may stand for themselves.
  std::string raw = kLlama3;
  for (const auto& [name, character] : {std::pair{"\\r", "\r"}, {"\\n", "\n"}}) {
    for (size_t at = raw.find(name); at != std::string::npos; at = raw.find(name)) {
      raw.replace(at, 2, character);
    }
  }
  EXPECT_EQ(pre(sequence_of({split(raw), byte_level(false)})), "llama-bpe");
  std::string qwen = kLlama3;
  qwen.erase(qwen.find("{1,3}"), 5);
  EXPECT_EQ(pre(sequence_of({split(qwen), byte_level(false)}), {{"type", "NFC"}}), "qwen2");
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  EXPECT_EQ(pre(sequence_of({digits, byte_level(true)})), "smollm");

  // DeepSeek Coder's, and Tekken's with its rule for whole pieces.
  const std::string han = "[一-龥ࠀ-一가-퟿]+";
  EXPECT_EQ(pre(sequence_of({split("[\r\n]"), split("\\s?\\p{L}+"), split("\\s?\\p{P}+"),
                             split(han), digits, byte_level(false)})),
            "deepseek-coder");
  const std::string lower = "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]";
  const std::string upper = "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]";
  const std::string before = "[^\\r\\n\\p{L}\\p{N}]?";
  const std::string tekken =
      before + upper + "*" + lower + "+|" + before + upper + "+" + lower +
      "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  EXPECT_EQ(pre(sequence_of({split(tekken), byte_level(false)})), "tekken");
  EXPECT_TRUE(gguf_pre({{"pre_tokenizer", sequence_of({split(tekken), byte_level(false)})}}, "F")
                  .takes_whole_pieces);

  // Where llama.cpp cuts otherwise is said.
  EXPECT_THAT(
      gguf_pre({{"pre_tokenizer", sequence_of({split(tekken), byte_level(false)})}}, "F").remarks,
      ElementsAre(HasSubstr("combining marks")));

  const auto refused = [&](const Json& pre_tokenizer, const Json& normalizer = {}) {
    return message_of<ValueError>([&] { pre(pre_tokenizer, normalizer); });
  };
  EXPECT_THAT(refused(byte_level(true, /*prefix=*/true)),
              AllOf(HasSubstr("F: pre_tokenizer: ByteLevel prefix regex"), HasSubstr("Qwen2")));
  EXPECT_THAT(refused(sequence_of({split("\\w+"), byte_level(false)})), HasSubstr("Split \\w+"));
  EXPECT_THAT(refused(sequence_of({split(kLlama3), byte_level(true)})), HasSubstr("pre_tokenizer"));
  Json inverted = split(kLlama3);
  inverted["invert"] = true;
  EXPECT_THAT(refused(sequence_of({inverted, byte_level(false)})), HasSubstr("invert"));
  EXPECT_THAT(refused(Json()), HasSubstr("pre_tokenizer: none"));
  EXPECT_THAT(refused(byte_level(true), {{"type", "NFC"}}), HasSubstr("normalizer"));
  EXPECT_THAT(refused(byte_level(true), {{"type", "Lowercase"}}), HasSubstr("Lowercase"));
}

TEST(GgufTokenizer, ByteLevel) {
  const GgufTokenizer tokenizer =
      read_json(small_tokenizer("gpt2"),
                {{"eos_token", "<|endoftext|>"}, {"chat_template", "{{ messages }}"}});
  EXPECT_EQ(tokenizer.model, "gpt2");
  EXPECT_EQ(tokenizer.pre, "gpt-2");
  EXPECT_EQ(tokenizer.tokens.size(), 288U);
  EXPECT_EQ(tokenizer.tokens[257], "he");
  EXPECT_EQ(tokenizer.tokens[261], "[PAD261]");
  EXPECT_EQ(tokenizer.types[261], kGgufUnused);
  EXPECT_EQ(tokenizer.types[260], kGgufControl);
  EXPECT_THAT(tokenizer.merges, ElementsAre("Ġ t", "h e", "Ġt he", "a n"));
  EXPECT_EQ(tokenizer.eos, 260);
  EXPECT_FALSE(tokenizer.add_bos);
  EXPECT_EQ(tokenizer.chat_template, "{{ messages }}");
}

// What begins and ends texts is what the folder's tokenizer says, which its template is given too,
// before what config.json says; what ends an answer is what the template writes there.
TEST(GgufTokenizer, NamedTokensComeBeforeThoseOfTheModel) {
  nlohmann::json json = small_tokenizer("gpt2");
  json["added_tokens"].push_back({{"id", 261}, {"content", "<|begin|>"}, {"special", true}});
  json["added_tokens"].push_back({{"id", 262}, {"content", "<|end|>"}, {"special", true}});
  const data::TempDir folder;
  folder.write("tokenizer.json", json.dump());
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true,
                   "bos_token": "<|begin|>", "eos_token": "<|endoftext|>",
                   "chat_template": "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}",
                   "added_tokens_decoder": {"263": {"content": "<extra>", "special": false}}})");
  TokenIds ids;
  ids.bos = 260;
  ids.eos = {257};
  const GgufTokenizer tokenizer =
      read_gguf_tokenizer(folder.path(), {.type = "", .ids = ids, .rows = 288});
  EXPECT_EQ(tokenizer.bos, 261);
  EXPECT_TRUE(tokenizer.add_bos);
  EXPECT_EQ(tokenizer.eos, 260);
  EXPECT_EQ(tokenizer.eot, 262);
  EXPECT_EQ(tokenizer.tokens[263], "<extra>");
  EXPECT_EQ(tokenizer.types[263], kGgufUserDefined);
  folder.write("tokenizer_config.json", R"({"bos_token": "<|begin|>"})");
  const GgufTokenizer other =
      read_gguf_tokenizer(folder.path(), {.type = "", .ids = ids, .rows = 288});
  EXPECT_EQ(other.bos, 261);
  EXPECT_FALSE(other.add_bos);
  EXPECT_EQ(other.eos, 257);
  EXPECT_EQ(other.eot, std::nullopt);
}

TEST(GgufTokenizer, Pieces) {
  const GgufTokenizer tokenizer = read_json(small_tokenizer("llama"));
  EXPECT_EQ(tokenizer.model, "llama");
  EXPECT_EQ(tokenizer.add_space_prefix, true);
  EXPECT_TRUE(tokenizer.add_bos);
  EXPECT_EQ(tokenizer.bos, 1);
  EXPECT_EQ(tokenizer.unknown, 0);
  EXPECT_EQ(tokenizer.types[13], kGgufByte);
  EXPECT_EQ(tokenizer.scores[265], 0.0F);   // th, the first merge
  EXPECT_EQ(tokenizer.scores[266], -1.0F);  // the second
  EXPECT_EQ(tokenizer.scores[260], -5.0F);  // no merge makes t
  EXPECT_EQ(tokenizer.scores[13], 0.0F);
}

TEST(GgufTokenizer, OtherPiecesHaveNoPrefixOrAnother) {
  Json tokenizer = small_tokenizer("llama");
  tokenizer["normalizer"] = tokenizer["normalizer"]["normalizers"][1];
  EXPECT_EQ(read_json(tokenizer).add_space_prefix, false);
  tokenizer["normalizer"] = nullptr;
  tokenizer["pre_tokenizer"] = {{"type", "Metaspace"},
                                {"replacement", "\u2581"},
                                {"prepend_scheme", "first"},
                                {"split", false}};
  const GgufTokenizer metaspace = read_json(tokenizer);
  EXPECT_EQ(metaspace.add_space_prefix, true);
  EXPECT_THAT(metaspace.remarks, ElementsAre(HasSubstr("Metaspace")));
  tokenizer["pre_tokenizer"]["prepend_scheme"] = "never";
  EXPECT_EQ(read_json(tokenizer).add_space_prefix, false);
}

TEST(GgufTokenizer, WholePiecesMatterOnlyWhereMergesDoNotMakeThem) {
  Json tokenizer = small_tokenizer("gpt2");
  tokenizer["model"]["ignore_merges"] = true;
  EXPECT_EQ(read_json(tokenizer).pre, "gpt-2");
  tokenizer["model"]["vocab"]["xyz"] = 270;  // which no merge makes
  EXPECT_THAT(message_of<ValueError>([&] { read_json(tokenizer); }),
              AllOf(HasSubstr("model.ignore_merges: is true"), HasSubstr("\"xyz\"")));
}

TEST(GgufTokenizer, WhatLlamaCppCannotDoIsRefusedByName) {
  const auto set = [](const char* where, const Json& value) {
    return [=](Json& tokenizer) { tokenizer[Json::json_pointer(where)] = value; };
  };
  EXPECT_THAT(refusal("gpt2", set("/model/type", "Unigram")), HasSubstr("model.type: Unigram"));
  EXPECT_THAT(refusal("gpt2", set("/model/dropout", 0.1)), HasSubstr("model.dropout: is 0.1"));
  EXPECT_THAT(refusal("gpt2", set("/model/end_of_word_suffix", "</w>")),
              HasSubstr("model.end_of_word_suffix"));
  EXPECT_THAT(refusal("gpt2", set("/model/merges/0", "a b c")), HasSubstr("model.merges"));
  EXPECT_THAT(refusal("gpt2",
                      [](Json& tokenizer) {
                        tokenizer["added_tokens"][0]["special"] = false;
                        tokenizer["added_tokens"][0]["lstrip"] = true;
                      }),
              HasSubstr("lstrip"));
  EXPECT_THAT(refusal("gpt2", set("/model/vocab/xyz", 288)),
              AllOf(HasSubstr("\"xyz\" has the id 288"), HasSubstr("model_config.vocab_size")));
  EXPECT_THAT(refusal(
                  "gpt2", [](Json&) {}, 200),
              HasSubstr("200 rows"));
  EXPECT_THAT(
      refusal("llama", [](Json& tokenizer) { tokenizer["model"]["vocab"].erase("<0x41>"); }),
      AllOf(HasSubstr("number 65"), HasSubstr("byte_fallback")));
  EXPECT_THAT(refusal("llama", set("/model/unk_token", "<nothing>")), HasSubstr("model.unk_token"));
  EXPECT_THAT(refusal("llama", set("/normalizer", {{"type", "NFKC"}})), HasSubstr("NFKC"));
  EXPECT_THAT(refusal("llama", set("/pre_tokenizer", {{"type", "Whitespace"}})),
              HasSubstr("Whitespace"));
  EXPECT_THAT(refusal("llama", set("/post_processor", {{"type", "BertProcessing"}})),
              HasSubstr("BertProcessing"));
  EXPECT_THAT(refusal("llama",
                      [](Json& tokenizer) {
                        Json& single = tokenizer["post_processor"]["single"];
                        single.insert(single.begin(), single[0]);
                      }),
              HasSubstr("puts 2 ids before a text"));
  const data::TempDir folder;
  folder.write("tokenizer.json", "{");
  EXPECT_THROW(read_gguf_tokenizer(folder.path(), {.type = "", .ids = {}, .rows = 10}), IoError);
}

TEST(GgufTokenizer, SentencePieceModels) {
  const data::TempDir folder;
  const std::vector<std::string> lines(50, "the cat and the dog and the catapult");
  folder.write("tokenizer.model", data::train_sentencepiece(lines, {.vocab_size = 280}).model);
  folder.write("added_tokens.json", R"({"<|im_start|>": 285})");
  const GgufTokenizer tokenizer =
      read_gguf_tokenizer(folder.path(), {.type = "sentencepiece", .ids = {}, .rows = 288});
  EXPECT_EQ(tokenizer.model, "llama");
  EXPECT_EQ(tokenizer.add_space_prefix, false);
  EXPECT_EQ(tokenizer.unknown, 0);
  EXPECT_EQ(tokenizer.types[3], kGgufUserDefined);  // the newline
  EXPECT_EQ(tokenizer.tokens[285], "<|im_start|>");
  EXPECT_EQ(tokenizer.types[287], kGgufUnused);
  int bytes = 0;
  for (const int32_t type : tokenizer.types) {
    bytes += type == kGgufByte ? 1 : 0;
  }
  EXPECT_EQ(bytes, 256);
  EXPECT_THAT(tokenizer.scores, ::testing::Contains(-1.0F));

  folder.write("tokenizer.model", "no model");
  EXPECT_THROW(
      read_gguf_tokenizer(folder.path(), {.type = "sentencepiece", .ids = {}, .rows = 288}),
      IoError);
}

TEST(GgufTokenizer, VocabularyAndMergesBytesAndCharacters) {
  const data::TempDir folder;
  folder.write("vocab.json", R"({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3})");
  folder.write("merges.txt", "#version: 0.2\na b\n");
  const GgufTokenizer pair = read_gguf_tokenizer(folder.path(), {.type = "", .ids = {}, .rows = 4});
  EXPECT_EQ(pair.pre, "gpt-2");
  EXPECT_THAT(pair.merges, ElementsAre("a b"));
  EXPECT_EQ(pair.types[3], kGgufControl);
  folder.write("tokenizer_config.json", R"({"tokenizer_class": "BloomTokenizer"})");
  EXPECT_THAT(message_of<ValueError>(
                  [&] { read_gguf_tokenizer(folder.path(), {.type = "", .ids = {}, .rows = 4}); }),
              HasSubstr("BloomTokenizer"));

  const data::TempDir empty;
  const GgufTokenizer bytes =
      read_gguf_tokenizer(empty.path(), {.type = "byte", .ids = {}, .rows = 260});
  EXPECT_EQ(bytes.tokens[' '], "Ġ");
  EXPECT_EQ(bytes.tokens['a'], "a");
  EXPECT_EQ(bytes.types[256], kGgufControl);
  EXPECT_TRUE(bytes.merges.empty());

  empty.write("tokenizer.model",
              R"({"tokenizer_type": "character", "characters": ["\n", "a", "é", "€"]})");
  const GgufTokenizer characters =
      read_gguf_tokenizer(empty.path(), {.type = "character", .ids = {}, .rows = 8});
  EXPECT_EQ(characters.tokens[0], "Ċ");
  EXPECT_EQ(characters.tokens[2], "Ã©");
  EXPECT_THAT(characters.merges, ElementsAre("Ã ©", "â Ĥ", "âĤ ¬"));
  EXPECT_EQ(characters.types[4], kGgufControl);
}

}  // namespace
}  // namespace tapestry
