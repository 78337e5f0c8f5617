// Models as GGUF files, against files that another writer made.
//
// Reads the directory in TAPESTRY_GOLDEN_GGUF, else the project's own small set. Each folder in it
// is a case: hf/, what F32.gguf, F16.gguf, BF16.gguf and Q8_0.gguf must hold, and expected.json.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "interop/export/gguf_export.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/inference/open_model.h"
#include "parallel_core/training/checkpoints/saved_model.h"
#include "parallel_core/training/step/forward_step.h"
#include "parallel_core/training/step/get_model.h"
#include "tests/golden/gguf_file.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using testing::GgufFile;
using testing::GgufStoredTensor;
using testing::GgufValue;

std::vector<fs::path> golden_gguf_cases() {
  const char* given = std::getenv("TAPESTRY_GOLDEN_GGUF");
  std::vector<fs::path> cases;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(given != nullptr ? given : "tests/data/golden_gguf")) {
    if (fs::exists(entry.path() / "hf")) {
      cases.push_back(entry.path());
    }
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

void expect_same_file(const GgufFile& ours, const GgufFile& wanted) {
  for (const auto& [key, value] : wanted.metadata) {
    const auto found = ours.metadata.find(key);
    if (found == ours.metadata.end()) {
      ADD_FAILURE() << "the key " << key << " is missing";
    } else if (key != "general.name") {
      EXPECT_TRUE(found->second == value) << "the value of " << key << " is another";
    }
  }
  for (const auto& [name, tensor] : ours.tensors) {
    EXPECT_TRUE(wanted.tensors.contains(name)) << "the tensor " << name << " is ours alone";
  }
  for (const auto& [name, tensor] : wanted.tensors) {
    const auto found = ours.tensors.find(name);
    if (found == ours.tensors.end()) {
      ADD_FAILURE() << "the tensor " << name << " is missing";
      continue;
    }
    EXPECT_EQ(found->second.type, tensor.type) << name;
    EXPECT_EQ(found->second.dimensions, tensor.dimensions) << name;
    EXPECT_TRUE(found->second.bytes == tensor.bytes) << "the values of " << name << " are others";
  }
}

TEST(GoldenGguf, ThereAreCases) { EXPECT_FALSE(golden_gguf_cases().empty()); }

TEST(GoldenGguf, FilesAreThoseOfTheReference) {
  const fs::path folder = fs::temp_directory_path() / ("golden_gguf_" + std::to_string(getpid()));
  fs::create_directories(folder);
  for (const fs::path& directory : golden_gguf_cases()) {
    const ExportSource source = open_export_source((directory / "hf").string());
    int compared = 0;
    for (const char* type : {"F32", "F16", "BF16", "Q8_0"}) {
      const fs::path wanted = directory / (std::string(type) + ".gguf");
      if (!fs::exists(wanted)) {
        continue;
      }
      SCOPED_TRACE(wanted.string());
      const std::string ours = (folder / "ours.gguf").string();
      export_gguf(source, ours, {.type = gguf_type(type), .name = "ours"});
      expect_same_file(testing::read_gguf_file(ours), testing::read_gguf_file(wanted.string()));
      ++compared;
    }
    EXPECT_GT(compared, 0) << directory << " has no GGUF file";
  }
  fs::remove_all(folder);
}

// What llama.cpp says of these files is what the model says here.
TEST(GoldenGguf, TextAndProbabilitiesAreTheExpectedOnes) {
  // Of float32 logits whose size is some tens, and of a sum over the vocabulary.
  constexpr double kBound = 1e-5;
  double worst = 0;
  for (const fs::path& directory : golden_gguf_cases()) {
    if (!fs::exists(directory / "expected.json")) {
      continue;
    }
    SCOPED_TRACE(directory.string());
    const auto expected = nlohmann::json::parse(std::ifstream(directory / "expected.json"));
    const auto ids = expected.at("ids").get<std::vector<int32_t>>();
    const auto prompt = expected.at("prompt").get<std::vector<int32_t>>();
    const AllConfig config = open_export_source((directory / "hf").string()).config;
    const auto model = get_model(config);
    load_weights(*model, config.model_config, (directory / "hf").string());
    model->eval();
    const auto probabilities = expected.at("probs").get<std::vector<std::vector<double>>>();
    data::Batch batch;
    batch.batch = 1;
    batch.seq = static_cast<int64_t>(prompt.size() + probabilities.size()) - 1;
    batch.tokens.assign(ids.begin(), ids.begin() + batch.seq);
    const std::vector<float> logits = pipeline_logits(*model, batch).to_vector<float>();
    const size_t vocabulary = logits.size() / static_cast<size_t>(batch.seq);
    for (size_t i = 0; i < probabilities.size(); ++i) {
      const float* row = logits.data() + (prompt.size() - 1 + i) * vocabulary;
      const float largest = *std::max_element(row, row + vocabulary);
      double sum = 0;
      for (size_t id = 0; id < vocabulary; ++id) {
        sum += std::exp(static_cast<double>(row[id] - largest));
      }
      for (size_t id = 0; id < probabilities[i].size(); ++id) {
        const double ours = std::exp(static_cast<double>(row[id] - largest)) / sum;
        worst = std::max(worst, std::fabs(ours - probabilities[i][id]));
      }
    }
    EXPECT_LE(worst, kBound);
    const std::vector<int32_t> wanted(ids.begin() + static_cast<std::ptrdiff_t>(prompt.size()),
                                      ids.end());
    const std::vector<int32_t> text =
        generate(*model, prompt,
                 {.max_new_tokens = static_cast<int64_t>(wanted.size()),
                  .temperature = 0,
                  .max_context = config.model_config.seq_length});
    // Where the two likeliest tokens are nearer than the bound, either may come, and all else
    // after.
    if (expected.at("smallest_gap").get<double>() > kBound) {
      EXPECT_EQ(text, wanted);
    }
  }
  std::cout << "largest difference of a probability: " << worst << "\n";
}

// What other programs have written, in: the folder's model and tokenizer.
TEST(GoldenGguf, FilesOfTheReferenceAreRead) {
  for (const fs::path& directory : golden_gguf_cases()) {
    const std::string folder = (directory / "hf").string();
    const SavedModel theirs = open_saved_model(folder);
    data::Batch batch;
    batch.batch = 1;
    batch.seq = 32;
    for (int32_t i = 0; i < batch.seq; ++i) {
      batch.tokens.push_back((i * 37 + 11) % 250);
    }
    const auto logits = [&](const std::string& path) {
      const OpenModel opened = open_model({.checkpoint = path, .dtype = "float32"});
      return pipeline_logits(*opened.model, batch).to_vector<float>();
    };
    const std::vector<float> wanted = logits(folder);
    double largest = 0;
    for (const float value : wanted) {
      largest = std::max(largest, std::abs(static_cast<double>(value)));
    }
    for (const auto& [type, bound] : {std::pair{"F32", 1e-6}, {"F16", 4e-3}, {"BF16", 4e-2}}) {
      const std::string file = (directory / (std::string(type) + ".gguf")).string();
      SCOPED_TRACE(file);
      const SavedModel ours = open_saved_model(file);
      EXPECT_EQ(ours.start, theirs.start);
      EXPECT_EQ(ours.eod_id, theirs.eod_id);
      for (const char* text : {"the ", "of the cat", " a\n b", "x<s>y", "caf\xc3\xa9 12345"}) {
        EXPECT_EQ(ours.tokenizer->encode(text), theirs.tokenizer->encode(text)) << text;
      }
      const std::vector<float> found = logits(file);
      ASSERT_EQ(found.size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_NEAR(found[i], wanted[i], bound * largest) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tapestry
