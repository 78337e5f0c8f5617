// Tokenizers of Hugging Face against what the Rust library makes of the same texts.
//
// A folder holds texts.jsonl ({"n", "kind", "text"}), ids/NAME.jsonl ({"n", "ids", maybe "decoded"
// and "decoded_with_special"}), maybe invalid_utf8.jsonl ({"n", "hex", "text"}) with
// ids/invalid_NAME.jsonl, maybe manifest.json, and NAME/tokenizer.json or NAME/tokenizer.tar.xz.
// TAPESTRY_GOLDEN_TOKENIZERS names it, else it is tests/data/golden_tokenizers; TAPESTRY_TOKENIZERS
// names folders in which tokenizers are looked for first, separated by colons.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/default_text.h"
#include "tests/temp_dir.h"
#include "text/tokenizers/huggingface/huggingface_tokenizer.h"
#include "text/tokenizers/text_stream.h"
#include "text/util/file.h"

namespace tapestry::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string setting(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

std::vector<Json> read_lines(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) {
      lines.push_back(Json::parse(line));
    }
  }
  return lines;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string sha256_of_file(const std::string& path) {
  return run_command(concat("sha256sum '", path, "'"), "install coreutils").substr(0, 64);
}

// Places in code points, as the library gives them.
std::vector<std::vector<int64_t>> in_characters(const std::string& text,
                                                const std::vector<TextSpan>& spans) {
  const auto before = [&](int64_t end) {
    return std::count_if(text.begin(), text.begin() + end,
                         [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80; });
  };
  std::vector<std::vector<int64_t>> places;
  for (const TextSpan& span : spans) {
    places.push_back({before(span.begin), before(span.end)});
  }
  return places;
}

class GoldenTokenizers {
 public:
  GoldenTokenizers()
      : folder_(setting("TAPESTRY_GOLDEN_TOKENIZERS", "tests/data/golden_tokenizers")) {
    for (const Json& line : read_lines(folder_ + "/texts.jsonl")) {
      texts_[line.at("n")] = line.at("text");
    }
    for (const Json& line : read_lines(folder_ + "/invalid_utf8.jsonl")) {
      invalid_[line.at("n")] = {from_hex(line.at("hex")), line.at("text")};
    }
    if (fs::exists(folder_ + "/manifest.json")) {
      manifest_ = Json::parse(read_file(folder_ + "/manifest.json"));
    }
    std::string places = setting("TAPESTRY_TOKENIZERS", "");
    while (!places.empty()) {
      const size_t colon = std::min(places.find(':'), places.size());
      places_.push_back(places.substr(0, colon));
      places.erase(0, colon + 1);
    }
    places_.push_back(folder_);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    if (fs::is_directory(folder_ + "/ids")) {
      for (const auto& entry : fs::directory_iterator(folder_ + "/ids")) {
        const std::string name = entry.path().stem().string();
        if (entry.path().extension() == ".jsonl" && !name.starts_with("invalid_")) {
          names.push_back(name);
        }
      }
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  // The folder of a tokenizer; empty if it is nowhere.
  std::string find(const std::string& name) const {
    for (const std::string& place : places_) {
      if (fs::exists(place + "/" + name + "/tokenizer.json")) {
        return place + "/" + name;
      }
    }
    const std::string packed = fs::absolute(folder_ + "/" + name + "/tokenizer.tar.xz").string();
    if (!fs::exists(packed)) {
      return "";
    }
    fs::create_directories(unpacked_.file(name));
    run_command(
        concat("cd '", unpacked_.file(name), "' && ", TAPESTRY_CMAKE, " -E tar xf '", packed, "'"),
        "it is unpacked by CMake");
    return unpacked_.file(name);
  }

  void check_texts(const std::string& name, const HuggingFaceTokenizer& tokenizer) {
    for (const Json& line : read_lines(folder_ + "/ids/" + name + ".jsonl")) {
      const std::string& text = texts_.at(line.at("n"));
      const auto ids = line.at("ids").get<std::vector<int32_t>>();
      ++cases_;
      SCOPED_TRACE(concat(name, ", text ", line.at("n").dump(), ": ", text.substr(0, 300)));
      EXPECT_EQ(tokenizer.encode(text), ids);
      const Encoding encoding = tokenizer.encode_with_spans(text);
      EXPECT_EQ(encoding.ids, ids);
      EXPECT_EQ(encoding.spans.size(), ids.size());
      if (line.contains("spans")) {
        EXPECT_EQ(in_characters(text, encoding.spans),
                  line["spans"].get<std::vector<std::vector<int64_t>>>());
      }
      const std::string decoded = line.value("decoded", text);
      EXPECT_EQ(tokenizer.decode(ids), decoded);
      EXPECT_EQ(tokenizer.decode_with_special(ids), line.value("decoded_with_special", decoded));
      TextStream stream(tokenizer);
      std::string streamed;
      for (const int32_t id : ids) {
        streamed += stream.add(id);
      }
      EXPECT_EQ(streamed + stream.finish(), decoded);
    }
  }

  void check_invalid(const std::string& name, const HuggingFaceTokenizer& tokenizer) {
    for (const Json& line : read_lines(folder_ + "/ids/invalid_" + name + ".jsonl")) {
      const auto& [bytes, text] = invalid_.at(line.at("n"));
      const auto ids = line.at("ids").get<std::vector<int32_t>>();
      ++cases_;
      SCOPED_TRACE(concat(name, ", invalid text ", line.at("n").dump()));
      EXPECT_EQ(tokenizer.encode(bytes), ids);
      EXPECT_EQ(tokenizer.encode(text), ids);
      EXPECT_EQ(tokenizer.encode_with_spans(bytes).ids, ids);
    }
  }

  void check_manifest(const std::string& name, const HuggingFaceTokenizer& tokenizer) {
    if (!manifest_.contains("tokenizers") || !manifest_["tokenizers"].contains(name)) {
      return;
    }
    SCOPED_TRACE(name);
    const Json& entry = manifest_["tokenizers"][name];
    if (entry.contains("adds_with_special")) {
      const auto adds = entry["adds_with_special"].get<std::vector<std::vector<int32_t>>>();
      EXPECT_EQ(tokenizer.ids_before(), adds.at(0));
      EXPECT_EQ(tokenizer.ids_after(), adds.at(1));
    }
    const std::string text = corpus();
    if (!text.empty() && entry.contains("corpus")) {
      const std::vector<int32_t> ids = tokenizer.encode(text);
      EXPECT_EQ(ids.size(), entry["corpus"]["ids"].get<size_t>());
      const std::string file = unpacked_.write(
          "corpus.ids", std::string(reinterpret_cast<const char*>(ids.data()), 4 * ids.size()));
      EXPECT_EQ(sha256_of_file(file), entry["corpus"]["sha256"].get<std::string>());
    }
  }

  // The file whose ids the manifest knows, where it is on this machine and still the same.
  std::string corpus() const {
    const char* const kPath = "/usr/share/common-licenses/GPL-3";
    if (!manifest_.contains("corpus") || !fs::exists(kPath) ||
        sha256_of_file(kPath) != manifest_["corpus"].value("sha256", "")) {
      return "";
    }
    return read_file(kPath);
  }

  int64_t cases() const { return cases_; }
  const std::string& folder() const { return folder_; }

 private:
  std::string folder_;
  std::vector<std::string> places_;
  std::map<int64_t, std::string> texts_;
  std::map<int64_t, std::pair<std::string, std::string>> invalid_;  // bytes, and as they are read
  Json manifest_;
  TempDir unpacked_;
  int64_t cases_ = 0;
};

TEST(GoldenTokenizers, GiveTheSameIdsAndTexts) {
  GoldenTokenizers golden;
  std::string skipped;
  for (const std::string& name : golden.names()) {
    const std::string folder = golden.find(name);
    if (folder.empty()) {
      skipped += " " + name;
      continue;
    }
    const int64_t before = golden.cases();
    try {
      const HuggingFaceTokenizer tokenizer(folder);
      golden.check_texts(name, tokenizer);
      golden.check_invalid(name, tokenizer);
      golden.check_manifest(name, tokenizer);
    } catch (const std::exception& error) {
      ADD_FAILURE() << name << ": " << error.what();
    }
    std::cout << name << ": " << golden.cases() - before << " texts\n";
  }
  if (!skipped.empty()) {
    std::cout << "skipped, as their tokenizer.json is nowhere:" << skipped << "\n";
  }
  std::cout << golden.cases() << " texts in all\n";
  EXPECT_GT(golden.cases(), 0) << golden.folder() << " holds no cases";
}

}  // namespace
}  // namespace tapestry::data
