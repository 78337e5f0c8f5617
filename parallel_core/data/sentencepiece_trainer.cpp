#include <sentencepiece_trainer.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"
#include "parallel_core/data/sentencepiece_tokenizer.h"
#include "parallel_core/data/text_source.h"
#include "parallel_core/data/utf8.h"

namespace tapestry::data {
namespace {

class LineIterator final : public sentencepiece::SentenceIterator {
 public:
  explicit LineIterator(const std::vector<std::string>& lines) : lines_(lines) {}
  bool done() const override { return at_ == lines_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return lines_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string>& lines_;
  size_t at_ = 0;
};

// Appends a line in parts of at most kMostBytes, cut after white space where there is some and
// never inside a character: a line of any length counts.
void append_line(std::string_view line, std::vector<std::string>& lines) {
  constexpr size_t kMostBytes = 4096;
  while (line.size() > kMostBytes) {
    size_t cut = line.rfind(' ', kMostBytes - 1);
    cut = cut == std::string_view::npos ? kMostBytes : cut + 1;
    const auto is_continuation = [&](size_t at) {
      return (static_cast<uint8_t>(line[at]) & 0xC0U) == 0x80U;
    };
    while (cut > 1 && is_continuation(cut)) {
      --cut;
    }
    lines.emplace_back(line.substr(0, cut));
    line.remove_prefix(cut);
  }
  if (!line.empty()) {
    lines.emplace_back(line);
  }
}

template <class F>
void for_each_line(std::string_view text, F&& f) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    f(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

}  // namespace

std::string train_sentencepiece(const std::vector<std::string>& lines, int64_t vocab_size) {
  // 256 bytes, <unk>, <s>, </s> and the newline, and at least one piece of text.
  constexpr int64_t kFixedPieces = 260;
  constexpr int64_t kMostPieces = 1000000;
  check<ValueError>(vocab_size > kFixedPieces && vocab_size <= kMostPieces,
                    "tokenizer training: vocab_size ", vocab_size, ", expected ", kFixedPieces + 1,
                    " .. ", kMostPieces, " (", kFixedPieces, " are bytes and special pieces)");
  std::vector<std::string> sentences;
  bool has_text = false;
  for (const std::string& line : lines) {
    append_line(is_valid_utf8(line) ? line : replace_invalid_utf8(line), sentences);
    has_text = has_text || line.find_first_not_of(" \t\r\n") != std::string::npos;
  }
  check<ValueError>(has_text, "tokenizer training: the text is empty");
  const std::unordered_map<std::string, std::string> options{
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(vocab_size)},
      {"byte_fallback", "true"},
      {"character_coverage", "0.9995"},
      {"normalization_rule_name", "identity"},
      {"add_dummy_prefix", "false"},
      {"remove_extra_whitespaces", "false"},
      {"user_defined_symbols", "\n"},
      {"max_sentence_length", "1000000"},
      {"num_threads", "1"},
      {"hard_vocab_limit", "true"},
      {"minloglevel", "3"},
  };
  LineIterator iterator(sentences);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(options, &iterator, &model);
  check<ValueError>(status.ok(), "tokenizer training: a vocabulary of ", vocab_size,
                    " does not suit this text: ", status.ToString(),
                    "; use more text or another vocab_size");
  return model;
}

void train_sentencepiece(const std::vector<std::string>& files,
                         const std::string& json_key,
                         const std::string& model_file,
                         const SentencePieceTrainingOptions& options) {
  TextInput input;
  input.files = files;
  input.json_key = json_key;
  uint64_t total = 0;
  for (const std::string& file : files) {
    total += InputFile(file).size();
  }
  const uint64_t stride = std::max<uint64_t>(
      1, options.max_bytes > 0 ? (total + options.max_bytes - 1) / options.max_bytes : 1);
  std::vector<std::string> lines;
  uint64_t number = 0;
  read_documents(input, /*in_pieces=*/true, [&](std::string_view text, bool) {
    for_each_line(text, [&](std::string_view line) {
      if (number++ % stride == 0) {
        append_line(line, lines);
      }
    });
  });
  const bool has_text = std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find_first_not_of(" \t\r\n") != std::string::npos;
  });
  check<ValueError>(has_text, files.empty() ? "no file" : files.front(),
                    files.size() > 1 ? " and the other files: " : ": ",
                    "has no text to train a tokenizer on");
  write_file_atomically(model_file, train_sentencepiece(lines, options.vocab_size));
}

}  // namespace tapestry::data
