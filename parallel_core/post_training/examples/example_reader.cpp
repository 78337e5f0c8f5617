#include "parallel_core/post_training/examples/example_reader.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/error.h"
#include "text/sources/line_reader.h"
#include "text/util/numbers.h"

namespace tapestry::post_training {

namespace {

// Text that is in memory at a time, beside its tokens.
constexpr size_t kBlockBytes = size_t{8} << 20U;
// Rows that TRL's batched map sees at a time.
constexpr size_t kUnpairedLines = 1000;

// What becomes of one line.
struct LineTokens {
  std::vector<EncodedAnswer> answers;
  bool is_conversation = false;
  std::optional<bool> label;
  std::optional<double> margin;
  std::string object;
  std::exception_ptr error;
};

LineTokens tokens_of_line(const std::string& text,
                          const std::string& place,
                          const ReadingOptions& options) {
  LineTokens tokens;
  try {
    ExampleLine line = parse_example_line(text, place, options.format);
    tokens.answers = encode_line(line, place, options.encoding);
    tokens.is_conversation = line.is_conversation;
    tokens.label = line.label;
    tokens.margin = line.margin;
    tokens.object = std::move(line.object);
  } catch (const ValueError& error) {
    const std::string message = error.what();
    tokens.error = std::make_exception_ptr(
        message.starts_with(place) ? error : ValueError(concat(place, ": ", message)));
  } catch (...) {
    tokens.error = std::current_exception();
  }
  return tokens;
}

int64_t length_of(const EncodedAnswer& answer) {
  return std::ssize(answer.prompt) + std::ssize(answer.completion);
}

// Puts the examples of all files together.
class ReadingExamples {
 public:
  explicit ReadingExamples(const ReadingOptions& options) : options_(options) {
    const bool is_pair =
        options.format == ExampleFormat::kPreference || options.format == ExampleFormat::kReward;
    read_.sequences = SequenceSet(is_pair ? 2 : 1);
  }

  void read_file(const std::string& path) {
    data::LineReader reader(path, kMaxLineBytes);
    std::vector<std::string> texts;
    std::vector<int64_t> numbers;
    size_t bytes = 0;
    std::string line;
    while (reader.next(line)) {
      if (data::is_blank(line)) {
        continue;
      }
      bytes += line.size();
      texts.push_back(std::move(line));
      numbers.push_back(reader.number());
      if (bytes >= kBlockBytes) {
        add_block(path, texts, numbers);
        texts.clear();
        numbers.clear();
        bytes = 0;
      }
    }
    add_block(path, texts, numbers);
    read_.files.push_back(reader.file());
    ++file_;
  }

  ReadExamples finish() {
    flush_rejected();
    if (read_.counts.no_margin == read_.sequences.units()) {
      read_.counts.no_margin = 0;
      read_.margins.clear();
    }
    return std::move(read_);
  }

 private:
  void add_block(const std::string& path,
                 const std::vector<std::string>& texts,
                 const std::vector<int64_t>& numbers) {
    std::vector<LineTokens> encoded(texts.size());
    kernels::parallel_for(std::ssize(texts), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        encoded[i] = tokens_of_line(texts[i], concat(path, ":", numbers[i]), options_);
      }
    });
    for (size_t i = 0; i < encoded.size(); ++i) {
      if (encoded[i].error && !is_left_out(encoded[i].error)) {
        std::rethrow_exception(encoded[i].error);
      }
      if (!encoded[i].error) {
        add_line(encoded[i], {.file = file_, .line = numbers[i]}, concat(path, ":", numbers[i]));
      }
    }
  }

  bool is_left_out(const std::exception_ptr& error) {
    if (!options_.skip_bad_lines) {
      return false;
    }
    try {
      std::rethrow_exception(error);
    } catch (const ValueError& bad) {
      read_.counts.bad_lines.add(bad.what());
      return true;
    } catch (...) {
      return false;
    }
  }

  void add_line(LineTokens& line, const ExamplePlace& at, const std::string& place) {
    ReadingCounts& counts = read_.counts;
    ++counts.lines;
    counts.conversations += line.is_conversation ? 1 : 0;
    for (const EncodedAnswer& answer : line.answers) {
      counts.empty += answer.is_empty ? 1 : 0;
      counts.apart += answer.is_joined ? 0 : 1;
    }
    const bool is_pair = line.answers.size() == 2;
    if (is_pair) {
      counts.equal += line.answers[0].completion == line.answers[1].completion ? 1 : 0;
    }
    if (options_.format != ExampleFormat::kUnpaired) {
      add_unit(line.answers, line, at, place);
      return;
    }
    if (!is_pair) {
      flush_rejected();
      add_labelled(line.answers.front(), *line.label, at, place);
      return;
    }
    ++counts.unpaired;
    add_labelled(line.answers[0], true, at, place);
    rejected_.push_back({std::move(line.answers[1]), at, place});
    if (rejected_.size() == kUnpairedLines) {
      flush_rejected();
    }
  }

  void flush_rejected() {
    for (const Rejected& rejected : rejected_) {
      add_labelled(rejected.answer, false, rejected.at, rejected.place);
    }
    rejected_.clear();
  }

  void add_labelled(const EncodedAnswer& answer,
                    bool label,
                    const ExamplePlace& at,
                    const std::string& place) {
    if (add_sequences({&answer, 1}, at, place)) {
      read_.labels.push_back(label ? 1 : 0);
    }
  }

  void add_unit(const std::vector<EncodedAnswer>& answers,
                const LineTokens& line,
                const ExamplePlace& at,
                const std::string& place) {
    if (!add_sequences(answers, at, place)) {
      return;
    }
    if (options_.format == ExampleFormat::kReward) {
      read_.margins.push_back(line.margin.value_or(0));
      read_.counts.no_margin += line.margin ? 0 : 1;
    }
    if (options_.format == ExampleFormat::kPrompt) {
      read_.lines.push_back(line.object);
    }
  }

  // False: the example is left out.
  bool add_sequences(std::span<const EncodedAnswer> answers,
                     const ExamplePlace& at,
                     const std::string& place) {
    ReadingCounts& counts = read_.counts;
    const int64_t most = options_.max_tokens;
    const auto fills_up = [&](const EncodedAnswer& answer) {
      return !answer.completion.empty() && std::ssize(answer.prompt) >= most;
    };
    const auto is_long = [&](const EncodedAnswer& answer) { return length_of(answer) > most; };
    const LongSequences how = options_.long_sequences;
    const bool is_dropped =
        (how == LongSequences::kDrop && std::any_of(answers.begin(), answers.end(), is_long)) ||
        (how == LongSequences::kKeepStart && std::any_of(answers.begin(), answers.end(), fills_up));
    if (is_dropped) {
      counts.first_dropped = counts.dropped++ == 0 ? place : counts.first_dropped;
      return false;
    }
    for (const EncodedAnswer& answer : answers) {
      counts.cut += is_long(answer) ? 1 : 0;
      counts.cut_tokens += is_long(answer) ? length_of(answer) - most : 0;
      read_.sequences.add(answer.prompt, answer.completion);
    }
    read_.places.push_back(at);
    return true;
  }

  struct Rejected {
    EncodedAnswer answer;
    ExamplePlace at;
    std::string place;
  };

  const ReadingOptions& options_;
  ReadExamples read_;
  std::vector<Rejected> rejected_;
  int32_t file_ = 0;
};

std::string counted(int64_t count, const char* one, const char* many) {
  return concat(with_thousands(count), " ", count == 1 ? one : many);
}

}  // namespace

ReadExamples read_examples(const std::vector<std::string>& files, const ReadingOptions& options) {
  ReadingExamples reading(options);
  for (const std::string& file : files) {
    reading.read_file(file);
  }
  return reading.finish();
}

CutSequence cut_sequence(std::span<const int32_t> prompt,
                         std::span<const int32_t> completion,
                         LongSequences long_sequences,
                         int64_t max_tokens) {
  const auto most = static_cast<size_t>(max_tokens);
  if (prompt.size() + completion.size() <= most) {
    return {prompt, completion};
  }
  if (long_sequences == LongSequences::kKeepEnd) {
    const auto kept = completion.last(std::min(completion.size(), most));
    return {prompt.last(most - kept.size()), kept};
  }
  const auto kept = prompt.first(std::min(prompt.size(), most));
  return {kept, completion.first(most - kept.size())};
}

std::vector<std::string> remarks_on(const ReadExamples& read,
                                    const ReadingOptions& options,
                                    const std::string& name) {
  const ReadingCounts& c = read.counts;
  std::vector<std::string> remarks;
  const auto remark = [&](int64_t count, const std::string& text) {
    if (count > 0) {
      remarks.push_back(concat(name, ": ", text));
    }
  };
  remark(c.bad_lines.count, c.bad_lines.text());
  const bool keeps_end = options.long_sequences == LongSequences::kKeepEnd;
  remark(c.cut, concat(counted(c.cut, "prompt with its completion is",
                               "prompts with their completions are"),
                       " longer than ", options.max_tokens,
                       " tokens and cut: ", counted(c.cut_tokens, "token is", "tokens are"),
                       " left out at the ", keeps_end ? "start" : "end"));
  remark(c.dropped,
         concat(counted(c.dropped, "example is", "examples are"), " left out, as ",
                options.long_sequences == LongSequences::kDrop ? "what it holds is longer than "
                                                               : "a prompt alone fills ",
                options.max_tokens, " tokens; the first is ", c.first_dropped));
  remark(c.empty, concat(counted(c.empty, "answer says", "answers say"), " nothing: ",
                         c.empty == 1 ? "it is" : "they are", " the end of a text alone"));
  remark(c.equal, concat("of ", counted(c.equal, "pair", "pairs"),
                         " the chosen answer is the rejected one as well"));
  remark(c.apart,
         concat(counted(c.apart, "answer begins", "answers begin"),
                " inside a token of prompt and answer together, so that both are encoded apart; "
                "prompts that end in a space are the usual reason"));
  remark(c.no_margin, concat(counted(c.no_margin, "pair has", "pairs have"),
                             " no \"margin\", where others have one: it is taken for 0"));
  remark(c.unpaired, concat(counted(c.unpaired, "pair is", "pairs are"),
                            " two examples each: chosen ones are desirable, rejected ones not"));
  return remarks;
}

}  // namespace tapestry::post_training
