// How fast one thread encodes and decodes texts with tokenizers of Hugging Face, one text at a time
// as bench/peer/tokenizers.mjs does it with the Rust library:
//
//   tokenizer_bench TOKENIZER... -- TEXT_FILE...
//
// A text file is taken in parts of about 4 KB that end with a line. Prints one line of JSON for
// each pair: megabytes a second of text, the best of some runs after one that warms the caches.
#include <algorithm>
#include <chrono>
#include <exception>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "text/tokenizers/huggingface/huggingface_tokenizer.h"
#include "text/util/file.h"

namespace tapestry {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPart = 4096;
constexpr double kBudget = 2;  // seconds for each figure

std::vector<std::string> parts_of(const std::string& file) {
  const std::string text = data::read_file(file);
  std::vector<std::string> parts;
  for (size_t at = 0; at < text.size();) {
    const size_t line = text.find('\n', std::min(at + kPart, text.size()));
    const size_t end = line == std::string::npos ? text.size() : line + 1;
    parts.push_back(text.substr(at, end - at));
    at = end;
  }
  return parts;
}

template <class Work>
double best_seconds(const Work& work) {
  work();
  double best = std::numeric_limits<double>::infinity();
  double total = 0;
  for (int runs = 0; runs < 3 || total < kBudget; ++runs) {
    const auto start = Clock::now();
    work();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, seconds);
    total += seconds;
  }
  return best;
}

void measure(const std::string& tokenizer_file, const std::string& text_file) {
  const auto start = Clock::now();
  const data::HuggingFaceTokenizer tokenizer(tokenizer_file);
  const double load = std::chrono::duration<double>(Clock::now() - start).count();
  const std::vector<std::string> parts = parts_of(text_file);
  size_t bytes = 0;
  size_t tokens = 0;
  std::vector<std::vector<int32_t>> ids(parts.size());
  const double encode = best_seconds([&] {
    bytes = 0;
    tokens = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      ids[i] = tokenizer.encode(parts[i]);
      bytes += parts[i].size();
      tokens += ids[i].size();
    }
  });
  const double places = best_seconds([&] {
    for (const std::string& part : parts) {
      check<RuntimeError>(tokenizer.encode_with_spans(part).ids.size() > 0, "no ids");
    }
  });
  const double decode = best_seconds([&] {
    for (const auto& row : ids) {
      check<RuntimeError>(!tokenizer.decode(row).empty(), "no text");
    }
  });
  constexpr double kMega = 1e6;
  const double megabytes = static_cast<double>(bytes) / kMega;
  const nlohmann::ordered_json line = {{"tokenizer", tokenizer_file},
                                       {"text", text_file},
                                       {"megabytes", megabytes},
                                       {"tokens", tokens},
                                       {"load_seconds", load},
                                       {"encode_mb_per_s", megabytes / encode},
                                       {"encode_with_spans_mb_per_s", megabytes / places},
                                       {"decode_mb_per_s", megabytes / decode}};
  std::cout << line.dump() << "\n";
}

int run(int argc, char** argv) {
  std::vector<std::string> tokenizers;
  std::vector<std::string> texts;
  bool after = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") {
      after = true;
    } else {
      (after ? texts : tokenizers).push_back(word);
    }
  }
  if (tokenizers.empty() || texts.empty()) {
    std::cerr << "usage: tokenizer_bench TOKENIZER... -- TEXT_FILE...\n";
    return 2;
  }
  for (const std::string& tokenizer : tokenizers) {
    for (const std::string& text : texts) {
      measure(tokenizer, text);
    }
  }
  return 0;
}

}  // namespace
}  // namespace tapestry

int main(int argc, char** argv) {
  try {
    return tapestry::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "tokenizer_bench: " << error.what() << "\n";
    return 1;
  }
}
