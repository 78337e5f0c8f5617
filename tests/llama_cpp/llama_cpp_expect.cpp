// Writes what a saved model says, for scripts/llama_cpp.sh --compare:
//
//   llama_cpp_expect FOLDER TEXT OUT [PROMPTS [TOKENS]]
//
// FOLDER is a checkpoint or a Hugging Face model, TEXT a text file. OUT gets
//   prompts.jsonl       {"prompt": ids, "continuation": ids} for the beginnings of PROMPTS (20) of
//                       the text's lines, continued greedily in float32 by TOKENS (100) tokens
//   probabilities.f32   of each token at each of these places, [PROMPTS, TOKENS, vocab_size]
//   lines.jsonl         {"text", "ids"} for each line, and for stretches of twenty
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/inference/generation.h"
#include "parallel_core/training/checkpoints/saved_model.h"
#include "parallel_core/training/step/forward_step.h"
#include "parallel_core/training/step/get_model.h"

namespace {

namespace fs = std::filesystem;

using tapestry::check;
using tapestry::IoError;
using tapestry::ValueError;

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) {
      lines.push_back(line);
    }
  }
  check<IoError>(!lines.empty(), path, ": has no lines");
  return lines;
}

// Its first words.
std::string beginning_of(const std::string& line) {
  constexpr int kWords = 5;
  size_t at = std::min(line.find_first_not_of(' '), line.size() - 1);
  for (int word = 0; word < kWords && at != std::string::npos; ++word) {
    at = line.find(' ', at + 1);
  }
  return line.substr(0, at);
}

std::vector<float> softmax(const float* logits, size_t count) {
  const float largest = *std::max_element(logits, logits + count);
  std::vector<double> values(count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    values[i] = std::exp(static_cast<double>(logits[i] - largest));
    sum += values[i];
  }
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(values[i] / sum);
  }
  return out;
}

void write_lines(const tapestry::data::Tokenizer& tokenizer,
                 const std::vector<std::string>& lines,
                 const fs::path& path) {
  constexpr size_t kStretch = 20;
  std::ofstream out(path);
  const auto write = [&](const std::string& text) {
    out << nlohmann::json{{"text", text}, {"ids", tokenizer.encode(text)}}.dump() << "\n";
  };
  std::string stretch;
  for (size_t i = 0; i < lines.size(); ++i) {
    write(lines[i]);
    stretch += lines[i] + "\n";
    if ((i + 1) % kStretch == 0) {
      write(stretch);
      stretch.clear();
    }
  }
  out.flush();
  check<IoError>(out.good(), path.string(), ": cannot be written");
}

void write_expected(const std::vector<std::string>& words) {
  check<ValueError>(words.size() >= 3,
                    "expected: llama_cpp_expect FOLDER TEXT OUT [PROMPTS [TOKENS]]");
  const std::string folder = tapestry::resolve_checkpoint(words[0]);
  const std::vector<std::string> lines = lines_of(words[1]);
  const fs::path out = words[2];
  const size_t prompts = words.size() > 3 ? std::stoul(words[3]) : 20;
  const size_t tokens = words.size() > 4 ? std::stoul(words[4]) : 100;
  fs::create_directories(out);
  const tapestry::SavedModel saved = tapestry::open_saved_model(folder);
  const auto model = tapestry::get_model(saved.config);
  tapestry::load_weights(*model, saved.config.model_config, folder);
  model->eval();
  std::ofstream texts(out / "prompts.jsonl");
  std::ofstream probabilities(out / "probabilities.f32", std::ios::binary);
  for (size_t i = 0; i < prompts; ++i) {
    std::vector<int32_t> prompt = saved.start;
    const std::vector<int32_t> ids =
        saved.tokenizer->encode(beginning_of(lines[i * (lines.size() - 1) / prompts]));
    prompt.insert(prompt.end(), ids.begin(), ids.end());
    const std::vector<int32_t> continuation =
        tapestry::generate(*model, prompt,
                           {.max_new_tokens = static_cast<int64_t>(tokens),
                            .temperature = 0,
                            .max_context = saved.config.model_config.seq_length});
    texts << nlohmann::json{{"prompt", prompt}, {"continuation", continuation}}.dump() << "\n";
    tapestry::data::Batch batch;
    batch.batch = 1;
    batch.tokens.assign(prompt.begin(), prompt.end());
    batch.tokens.insert(batch.tokens.end(), continuation.begin(), continuation.end() - 1);
    batch.seq = static_cast<int64_t>(batch.tokens.size());
    const std::vector<float> logits = tapestry::pipeline_logits(*model, batch).to_vector<float>();
    const size_t vocabulary = logits.size() / batch.tokens.size();
    for (size_t place = prompt.size() - 1; place < batch.tokens.size(); ++place) {
      const std::vector<float> row = softmax(logits.data() + place * vocabulary, vocabulary);
      probabilities.write(reinterpret_cast<const char*>(row.data()),
                          static_cast<std::streamsize>(row.size() * sizeof(float)));
    }
  }
  texts.flush();
  probabilities.flush();
  check<IoError>(texts.good() && probabilities.good(), out.string(), ": cannot be written");
  write_lines(*saved.tokenizer, lines, out / "lines.jsonl");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    write_expected({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama_cpp_expect: %s\n", error.what());
    return 1;
  }
  return 0;
}
