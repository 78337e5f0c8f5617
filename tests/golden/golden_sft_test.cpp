// Which text examples become, which tokens these are, and which of them are learned: as the Rust
// library `tokenizers` and Jinja2 have it. TAPESTRY_GOLDEN_SFT names a folder with examples.jsonl;
// its README.md says what is in it. Without it the project's own cases are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "parallel_core/sft/encode_example.h"
#include "text/tokenizers/kinds/make_tokenizer.h"
#include "text/tokenizers/tokenizer.h"
#include "text/util/file.h"
#include "text/util/utf8.h"

namespace tapestry::sft {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Folders that tokenizers and templates may lie in: those that are named, then those beside the
// cases.
class GoldenFolders {
 public:
  GoldenFolders() {
    const std::string named = variable("TAPESTRY_GOLDEN_SFT");
    cases_ = named.empty() ? "tests/data/golden_sft" : named;
    std::istringstream several(variable("TAPESTRY_TOKENIZERS"));
    for (std::string folder; std::getline(several, folder, ':');) {
      tokenizers_.emplace_back(folder);
    }
    tokenizers_.emplace_back(variable("TAPESTRY_GOLDEN_TOKENIZERS"));
    tokenizers_.push_back(cases_ / ".." / "tokenizers");
    tokenizers_.push_back(cases_ / "tokenizers");
    templates_ = {fs::path(variable("TAPESTRY_GOLDEN_CHAT")) / "templates",
                  cases_ / ".." / "chat" / "templates", cases_ / "templates"};
  }
  fs::path cases() const { return cases_ / "examples.jsonl"; }

  /// The tokenizer's folder; one that is packed is unpacked first. Empty if it is nowhere.
  fs::path tokenizer(const std::string& name) const {
    for (const fs::path& folder : tokenizers_) {
      const fs::path own = folder / name;
      if (folder.empty() || !fs::is_directory(own)) {
        continue;
      }
      if (fs::exists(own / "tokenizer.json")) {
        return own;
      }
      const fs::path packed = fs::absolute(own / "tokenizer.tar.xz");
      if (fs::exists(packed)) {
        const fs::path unpacked = fs::path(::testing::TempDir()) / ("golden_sft_" + name);
        fs::create_directories(unpacked);
        const std::string command =
            "cd '" + unpacked.string() + "' && cmake -E tar xf '" + packed.string() + "'";
        if (std::system(command.c_str()) == 0 && fs::exists(unpacked / "tokenizer.json")) {
          return unpacked;
        }
      }
    }
    return {};
  }
  fs::path chat_template(const std::string& name) const {
    for (const fs::path& folder : templates_) {
      const fs::path file = folder / (name + ".jinja");
      if (fs::exists(file)) {
        return file;
      }
    }
    return {};
  }

 private:
  fs::path cases_;
  std::vector<fs::path> tokenizers_;
  std::vector<fs::path> templates_;
};

// Code points before a place of the text.
int64_t characters_before(const std::string& text, int64_t place) {
  return std::ssize(
      data::code_points(std::string_view(text).substr(0, static_cast<size_t>(place))));
}

// What differs between a case and what we make of it; empty if nothing does.
std::string difference(const Json& golden,
                       const AnsweredText& text,
                       const EncodedExample& example) {
  std::vector<std::vector<int64_t>> spans;
  for (const data::TextSpan& span : text.answers) {
    spans.push_back(
        {characters_before(text.text, span.begin), characters_before(text.text, span.end)});
  }
  if (text.text != golden.at("text")) {
    return "text is\n" + text.text;
  }
  if (Json(spans) != golden.at("spans")) {
    return "spans are " + Json(spans).dump();
  }
  if (Json(example.ids) != golden.at("ids")) {
    return "ids are " + Json(example.ids).dump() + ", expected " + golden.at("ids").dump();
  }
  if (Json(example.answer) != golden.at("answer")) {
    return "answer is " + Json(example.answer).dump() + ", expected " + golden.at("answer").dump();
  }
  return {};
}

TEST(GoldenSft, TextsTokensAndAnswers) {
  const GoldenFolders folders;
  std::ifstream file(folders.cases());
  ASSERT_TRUE(file) << folders.cases() << " cannot be read";
  std::map<std::string, std::unique_ptr<data::Tokenizer>> tokenizers;
  int64_t cases = 0;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.empty()) {
      continue;
    }
    const std::string place = folders.cases().string() + ":" + std::to_string(number);
    const Json golden = Json::parse(line);
    const auto name = golden.at("tokenizer").get<std::string>();
    auto& tokenizer = tokenizers[name];
    if (!tokenizer) {
      const fs::path folder = folders.tokenizer(name);
      ASSERT_FALSE(folder.empty()) << place << ": there is no tokenizer " << name;
      tokenizer = data::make_tokenizer("huggingface", folder.string());
    }
    // The case without what is expected of it is what a user writes.
    Json written = golden;
    for (const char* expected : {"text", "spans", "ids", "answer", "unrolled_to"}) {
      written.erase(expected);
    }
    std::optional<chat::ChatFormat> format;
    if (golden.contains("template")) {
      const auto template_name = golden.at("template").get<std::string>();
      const fs::path path = folders.chat_template(template_name);
      ASSERT_FALSE(path.empty()) << place << ": there is no template " << template_name;
      format = chat::ChatFormat{.chat_template = std::make_shared<chat::ChatTemplate>(
                                    data::read_file(path.string()), template_name),
                                .special_tokens = {{"bos_token", golden.value("bos_token", "")},
                                                   {"eos_token", golden.value("eos_token", "")}}};
    }
    const Example example = parse_example(written.dump(), place);
    const std::vector<AnsweredText> texts =
        answered_texts(example, format ? &*format : nullptr, place);
    const std::optional<int64_t> unrolled_to =
        golden.contains("unrolled_to") ? std::optional(golden.at("unrolled_to").get<int64_t>())
                                       : std::nullopt;
    const auto text = std::find_if(texts.begin(), texts.end(), [&](const AnsweredText& t) {
      return t.unrolled_to == unrolled_to;
    });
    ASSERT_NE(text, texts.end()) << place << ": " << texts.size() << " texts, none of which is "
                                 << (unrolled_to ? "unrolled to that message" : "whole");
    EXPECT_EQ(unrolled_to ? 1U : texts.size(), texts[0].unrolled_to ? 1U : texts.size());
    EXPECT_EQ(difference(golden, *text, encode_example(*text, *tokenizer, tokenizer->eod_id())), "")
        << place;
    ++cases;
  }
  EXPECT_GT(cases, 0) << folders.cases() << " has no case";
  std::cout << "golden_sft: " << cases << " cases, " << tokenizers.size() << " tokenizers\n";
}

}  // namespace
}  // namespace tapestry::sft
