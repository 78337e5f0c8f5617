#include <sentencepiece_trainer.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "autograd/io/atomic_file.h"
#include "autograd/io/input_file.h"
#include "autograd/tensor/error.h"
#include "text/sources/text_source.h"
#include "text/tokenizers/kinds/sentencepiece_tokenizer.h"
#include "text/util/heartbeat.h"
#include "text/util/utf8.h"

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
    while (cut > 1 && continues_character(line[cut])) {
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

// 256 bytes, <unk>, <s>, </s> and the newline.
constexpr int64_t kFixedPieces = 260;
constexpr int64_t kMostPieces = 1000000;
constexpr double kUsualCoverage = 0.9995;

struct CharacterCount {
  uint32_t code_point = 0;
  int64_t count = 0;
};

// The most frequent first.
std::vector<CharacterCount> count_characters(const std::vector<std::string>& lines) {
  std::unordered_map<uint32_t, int64_t> count;
  for (const std::string& line : lines) {
    for (const uint32_t point : code_points(line)) {
      ++count[point];
    }
  }
  std::vector<CharacterCount> counts;
  counts.reserve(count.size());
  for (const auto& [point, times] : count) {
    counts.push_back({point, times});
  }
  std::sort(counts.begin(), counts.end(), [](const auto& a, const auto& b) {
    return a.count != b.count ? a.count > b.count : a.code_point < b.code_point;
  });
  return counts;
}

int64_t occurrences(std::span<const CharacterCount> counts) {
  int64_t sum = 0;
  for (const CharacterCount& character : counts) {
    sum += character.count;
  }
  return sum;
}

// How many of the most frequent characters make up the share.
size_t characters_for(std::span<const CharacterCount> counts, double coverage) {
  const double wanted = coverage * static_cast<double>(occurrences(counts));
  int64_t sum = 0;
  size_t needed = 0;
  while (needed < counts.size() && static_cast<double>(sum) < wanted) {
    sum += counts[needed++].count;
  }
  return needed;
}

bool has_space(std::span<const CharacterCount> counts) {
  return std::any_of(counts.begin(), counts.end(),
                     [](const CharacterCount& c) { return c.code_point == ' '; });
}

// What is asked of SentencePiece.
struct Plan {
  int64_t vocab_size = 0;
  /// This many of the most frequent characters; none: those of the usual coverage.
  std::optional<size_t> characters;
};

// Makes size and coverage fit the characters of the text, or each other.
Plan make_plan(std::span<const CharacterCount> counts,
               const SentencePieceTrainingOptions& options,
               std::vector<std::string>& remarks) {
  constexpr int64_t kRoundTo = 64;
  Plan plan{options.vocab_size, std::nullopt};
  const size_t needed = characters_for(counts, options.character_coverage.value_or(kUsualCoverage));
  if (options.character_coverage) {
    plan.characters = needed;
  }
  // The space has a piece in any case.
  const auto characters = static_cast<int64_t>(needed) + (has_space(counts.first(needed)) ? 0 : 1);
  const int64_t room = plan.vocab_size - kFixedPieces;
  const int64_t comfortable =
      (kFixedPieces + characters + characters / 4 + kRoundTo - 1) / kRoundTo * kRoundTo;
  if (options.grow_vocab && characters + characters / 4 > room) {
    plan.vocab_size = std::min(comfortable, kMostPieces);
    remarks.push_back(concat("the vocabulary is raised from ", options.vocab_size, " to ",
                             plan.vocab_size, ": the text has ", characters,
                             " characters that need a piece of their own"));
    return plan;
  }
  if (characters <= room) {
    return plan;
  }
  check<ValueError>(!options.character_coverage, "tokenizer training: character_coverage ",
                    options.character_coverage.value_or(0), " means ", characters,
                    " characters, but a vocabulary of ", plan.vocab_size, " has room for ", room,
                    "; use a vocab_size of ", comfortable,
                    " or a smaller coverage: what is not covered is encoded as bytes");
  plan.characters = static_cast<size_t>(room - std::max<int64_t>(1, room / 8));
  const double covered = static_cast<double>(occurrences(counts.first(*plan.characters))) /
                         static_cast<double>(occurrences(counts));
  constexpr double kPercent = 100;
  remarks.push_back(concat(
      "a vocabulary of ", plan.vocab_size, " has room for the ", *plan.characters,
      " most frequent of ", counts.size(), " characters; the others, ", kPercent * (1 - covered),
      " % of the text, are encoded as bytes. A vocabulary of ", comfortable, " would hold them"));
  return plan;
}

// The stretches of the lines that consist of the characters.
std::vector<std::string> stretches_of(const std::vector<std::string>& lines,
                                      std::span<const CharacterCount> characters) {
  std::unordered_set<uint32_t> covered;
  for (const CharacterCount& character : characters) {
    covered.insert(character.code_point);
  }
  std::vector<std::string> stretches;
  for (const std::string& line : lines) {
    std::string stretch;
    for (const uint32_t point : code_points(line)) {
      if (covered.contains(point)) {
        stretch += utf8(point);
      } else if (!stretch.empty()) {
        stretches.push_back(stretch);
        stretch.clear();
      }
    }
    if (!stretch.empty()) {
      stretches.push_back(std::move(stretch));
    }
  }
  return stretches;
}

}  // namespace

TrainedSentencePiece train_sentencepiece(const std::vector<std::string>& lines,
                                         const SentencePieceTrainingOptions& options) {
  check<ValueError>(options.vocab_size > kFixedPieces && options.vocab_size <= kMostPieces,
                    "tokenizer training: vocab_size ", options.vocab_size, ", expected ",
                    kFixedPieces + 1, " .. ", kMostPieces, " (", kFixedPieces,
                    " are bytes and special pieces)");
  const double asked = options.character_coverage.value_or(kUsualCoverage);
  check<ValueError>(asked > 0 && asked <= 1, "tokenizer training: character_coverage ", asked,
                    ", expected a share in (0, 1]");
  std::vector<std::string> sentences;
  bool has_text = false;
  for (const std::string& line : lines) {
    append_line(is_valid_utf8(line) ? line : replace_invalid_utf8(line), sentences);
    has_text = has_text || line.find_first_not_of(" \t\r\n") != std::string::npos;
  }
  check<ValueError>(has_text, "tokenizer training: the text is empty");
  TrainedSentencePiece trained;
  const std::vector<CharacterCount> counts = count_characters(sentences);
  const Plan plan = make_plan(counts, options, trained.remarks);
  std::unordered_map<std::string, std::string> arguments{
      {"model_type", "bpe"},
      {"vocab_size", std::to_string(plan.vocab_size)},
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
  const auto covered =
      std::span(counts).first(plan.characters.value_or(characters_for(counts, kUsualCoverage)));
  if (plan.characters) {
    // SentencePiece itself takes no share below 0.98.
    sentences = stretches_of(sentences, covered);
    arguments["character_coverage"] = "1.0";
  }
  // Encoded as bytes, a space would be decoded as the sign that stands for it in the pieces. The
  // trainer ends the program over a required character that occurs nowhere.
  if (!has_space(covered)) {
    arguments["required_chars"] = "\xE2\x96\x81";
    sentences.emplace_back(" ");
  }
  size_t bytes = 0;
  for (const std::string& sentence : sentences) {
    bytes += sentence.size();
  }
  constexpr double kMegabyte = 1e6;
  const std::string what =
      concat("training a tokenizer of ", plan.vocab_size, " pieces on ",
             std::round(static_cast<double>(bytes) / kMegabyte * 10) / 10, " MB of text");
  constexpr std::chrono::seconds kInterval(10);
  const auto tell = [&](int64_t seconds) { options.report(concat(what, ", ", seconds, " s")); };
  if (options.report) {
    options.report(what);
  }
  const Heartbeat heartbeat(kInterval, options.report ? tell : std::function<void(int64_t)>());
  const auto train = [&] {
    LineIterator iterator(sentences);
    return sentencepiece::SentencePieceTrainer::Train(arguments, &iterator, &trained.model);
  };
  auto status = train();
  if (!status.ok()) {
    arguments["hard_vocab_limit"] = "false";
    status = train();
    check<ValueError>(status.ok(), "tokenizer training: a vocabulary of ", plan.vocab_size,
                      " does not suit this text: ", status.ToString(),
                      "; use more text or another vocab_size");
    trained.remarks.push_back(concat("the text has ",
                                     inspect_sentencepiece_model(trained.model).pieces,
                                     " pieces, fewer than the ", plan.vocab_size, " asked for"));
  }
  return trained;
}

std::vector<std::string> train_sentencepiece(const TextInput& input,
                                             const std::string& model_file,
                                             const SentencePieceTrainingOptions& options) {
  const std::vector<std::string>& files = input.files;
  uint64_t total = 0;
  for (const std::string& file : files) {
    total += InputFile(file).size();
  }
  const uint64_t stride = std::max<uint64_t>(
      1, options.max_bytes > 0 ? (total + options.max_bytes - 1) / options.max_bytes : 1);
  std::vector<std::string> lines;
  uint64_t number = 0;
  read_documents(input, /*in_pieces=*/true, [&](std::string_view text, bool, const TextPlace&) {
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
  const TrainedSentencePiece trained = train_sentencepiece(lines, options);
  write_file_atomically(model_file, trained.model);
  return trained.remarks;
}

}  // namespace tapestry::data
