// A file of examples as tokens in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel_core/sft/encode_example.h"
#include "text/chat/chat_format.h"
#include "text/sources/text_source.h"
#include "text/tokenizers/tokenizer.h"

namespace tapestry::sft {

enum class LongExamples {
  kCut,   ///< keep as much as a row has room for
  kDrop,  ///< leave them out
};

/// How examples become tokens.
struct ExampleEncoding {
  const data::Tokenizer* tokenizer = nullptr;
  const chat::ChatFormat* format = nullptr;  ///< null as long as no example is a conversation
  std::string without_format;                ///< why it is null, for a message; may be empty
  int32_t eod = -1;
  int32_t next_turn = -1;  ///< see encode_example
  LearnedTokens learned = LearnedTokens::kAnswers;
  LongExamples long_examples = LongExamples::kCut;
  int64_t max_tokens = 0;  ///< of an example
  bool skip_bad_lines = false;
};

/// What became of a file, for the log.
struct ExampleCounts {
  int64_t lines = 0;           ///< that hold an example
  int64_t conversations = 0;   ///< of these
  int64_t unrolled = 0;        ///< conversations that became one example for each answer
  int64_t examples = 0;        ///< that are trained on
  int64_t cut = 0;             ///< of these: too long, end left out
  int64_t dropped_long = 0;    ///< too long, left out
  int64_t without_answer = 0;  ///< left out, as nothing is learned from them
  int64_t tokens = 0;
  int64_t cut_tokens = 0;
  int64_t learned = 0;       ///< tokens with a loss
  int64_t crossing = 0;      ///< learned tokens that reach over an answer's beginning or end
  int64_t rendered = 0;      ///< of the texts of all examples: written by a template
  int64_t plain = 0;         ///< and not
  int64_t begins_twice = 0;  ///< of these: EncodedExample::begins_twice

  ExampleCounts& operator+=(const ExampleCounts& other);
  bool operator==(const ExampleCounts&) const = default;
};

/// Examples of a file, or of a part of its lines, in its order. Memory is four bytes and a bit a
/// token. Reading is thread-safe.
class ExampleFile {
 public:
  /// Reads and encodes on all threads; the result does not depend on how many these are. Blank
  /// lines are passed over. Errors as data::LineReader, parse_example, answered_texts,
  /// encode_example; of several lines the first one's. With `skip_bad_lines` a line with a
  /// ValueError is left out instead.
  ExampleFile(const std::string& path, const ExampleEncoding& encoding);

  const data::TextFile& file() const { return file_; }
  const ExampleCounts& counts() const { return counts_; }
  /// Lines that were left out.
  const data::BadLines& bad_lines() const { return bad_lines_; }
  /// Lines of the file, blank ones and all.
  int64_t num_lines() const { return num_lines_; }
  int64_t size() const { return static_cast<int64_t>(examples_.size()); }

  std::span<const int32_t> ids(int64_t i) const;
  /// Whether token t of example i is to be learned.
  bool is_answer(int64_t i, int64_t t) const;
  /// The line that example i comes from, counted from 0.
  int64_t line(int64_t i) const { return examples_[static_cast<size_t>(i)].line; }
  /// Examples [begin, end) of the lines that hold an example, from number `first` to before `last`.
  std::pair<int64_t, int64_t> examples_of(int64_t first, int64_t last) const;
  /// Tokens with a loss in examples [begin, end).
  int64_t learned(int64_t begin, int64_t end) const;

 private:
  struct Entry {
    int64_t end = 0;      // of its tokens
    int64_t line = 0;     // of the file
    int64_t ordinal = 0;  // of its line among those that hold an example
  };
  struct Block;

  void encode(Block& block, const ExampleEncoding& encoding);
  void add(const EncodedExample& example,
           int64_t length,
           int64_t line,
           const ExampleEncoding& encoding);
  int64_t begin_of(int64_t i) const {
    return i > 0 ? examples_[static_cast<size_t>(i - 1)].end : 0;
  }

  data::TextFile file_;
  ExampleCounts counts_;
  data::BadLines bad_lines_;
  int64_t num_lines_ = 0;
  std::vector<int32_t> ids_;
  std::vector<bool> answer_;
  std::vector<Entry> examples_;
};

}  // namespace tapestry::sft
