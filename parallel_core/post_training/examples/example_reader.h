// Files of examples, read line by line and cut to what a row has room for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "parallel_core/post_training/examples/encode_line.h"
#include "parallel_core/post_training/examples/task_examples.h"
#include "text/sources/text_source.h"

namespace tapestry::post_training {

/// What becomes of a prompt with its completion that has more than max_tokens.
enum class LongSequences {
  kKeepStart,  ///< the end is left out, the whole example where a prompt alone has as many
  kKeepEnd,    ///< the start is left out
  kDrop,       ///< the example is left out, of a pair if either is too long
};

struct ReadingOptions {
  ExampleFormat format = ExampleFormat::kPreference;
  LineEncoding encoding;
  LongSequences long_sequences = LongSequences::kKeepStart;
  int64_t max_tokens = 0;
  bool skip_bad_lines = false;
};

/// What became of the examples, for the log.
struct ReadingCounts {
  int64_t lines = 0;          ///< that hold an example
  int64_t conversations = 0;  ///< of these
  int64_t cut = 0;            ///< sequences that are too long, of which a part is left out
  int64_t cut_tokens = 0;
  int64_t dropped = 0;  ///< examples that are left out
  std::string first_dropped;
  int64_t empty = 0;      ///< answers that say nothing
  int64_t equal = 0;      ///< pairs of equal answers
  int64_t apart = 0;      ///< answers whose first letter belongs to a token of the prompt
  int64_t no_margin = 0;  ///< pairs without a margin where others have one
  int64_t unpaired = 0;   ///< pairs that became two examples
  data::BadLines bad_lines;
};

/// What all files of one part hold, in their order. Prompts and completions are whole: see
/// cut_sequence.
struct ReadExamples {
  SequenceSet sequences;
  std::vector<uint8_t> labels;
  std::vector<double> margins;
  std::vector<std::string> lines;
  std::vector<ExamplePlace> places;
  std::vector<data::TextFile> files;
  ReadingCounts counts;
};

/// Reads and encodes on all threads; the result does not depend on how many these are. Blank lines
/// are passed over. Pairs among kUnpaired become examples as TRL's batched map makes them: the
/// chosen answers of up to 1000 lines, then the rejected ones. Errors as data::LineReader,
/// parse_example_line, encode_line; of several lines the first one's. With `skip_bad_lines` a line
/// with a ValueError is left out instead. Which examples are left out follows from max_tokens;
/// nothing is cut here.
ReadExamples read_examples(const std::vector<std::string>& files, const ReadingOptions& options);

/// The part of a sequence that is kept: at most max_tokens.
struct CutSequence {
  std::span<const int32_t> prompt;
  std::span<const int32_t> completion;
};
CutSequence cut_sequence(std::span<const int32_t> prompt,
                         std::span<const int32_t> completion,
                         LongSequences long_sequences,
                         int64_t max_tokens);

/// What is remarkable about a part, for the log: sentences that begin with `name`.
std::vector<std::string> remarks_on(const ReadExamples& read,
                                    const ReadingOptions& options,
                                    const std::string& name);

}  // namespace tapestry::post_training
