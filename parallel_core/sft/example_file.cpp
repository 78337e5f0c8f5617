#include "parallel_core/sft/example_file.h"

#include <algorithm>
#include <exception>

#include "autograd/kernels/machine/parallel_for.h"
#include "autograd/tensor/error.h"
#include "parallel_core/sft/example.h"
#include "text/sources/line_reader.h"

namespace tapestry::sft {
namespace {

// Text that is in memory at a time, beside its tokens.
constexpr size_t kBlockBytes = size_t{8} << 20U;

// What is kept of an example, and how long it was.
struct KeptExample {
  EncodedExample example;
  int64_t length = 0;
};

// What becomes of one line.
struct EncodedLine {
  std::vector<KeptExample> examples;
  bool is_conversation = false;
  bool unrolled = false;
  int64_t rendered = 0;
  int64_t plain = 0;
  int64_t begins_twice = 0;
  std::exception_ptr error;
};

KeptExample kept_of(EncodedExample example, const ExampleEncoding& encoding) {
  KeptExample kept{.length = std::ssize(example.ids)};
  if (kept.length > encoding.max_tokens) {
    const bool cut = encoding.long_examples == LongExamples::kCut;
    const auto size = static_cast<size_t>(cut ? encoding.max_tokens : 0);
    example.ids.resize(size);
    example.ids.shrink_to_fit();
    example.answer.resize(size);
    example.answer.shrink_to_fit();
  }
  kept.example = std::move(example);
  return kept;
}

EncodedLine encode_line(const std::string& text,
                        const std::string& place,
                        const ExampleEncoding& encoding) {
  EncodedLine line;
  try {
    const Example example = parse_example(text, place);
    line.is_conversation = example.kind == ExampleKind::kMessages;
    each_answered_text(
        example, encoding.format, place,
        [&](const AnsweredText& answered) {
          line.unrolled = answered.unrolled_to.has_value();
          ++(answered.rendered ? line.rendered : line.plain);
          line.examples.push_back(
              kept_of(encode_example(answered, *encoding.tokenizer, encoding.eod, encoding.learned,
                                     encoding.next_turn),
                      encoding));
          line.begins_twice += line.examples.back().example.begins_twice ? 1 : 0;
        },
        encoding.without_format);
  } catch (const ValueError& error) {
    const std::string message = error.what();
    line.error = std::make_exception_ptr(
        message.starts_with(place) ? error : ValueError(concat(place, ": ", message)));
  } catch (...) {
    line.error = std::current_exception();
  }
  return line;
}

}  // namespace

ExampleCounts& ExampleCounts::operator+=(const ExampleCounts& other) {
  for (const auto member :
       {&ExampleCounts::lines, &ExampleCounts::conversations, &ExampleCounts::unrolled,
        &ExampleCounts::examples, &ExampleCounts::cut, &ExampleCounts::dropped_long,
        &ExampleCounts::without_answer, &ExampleCounts::tokens, &ExampleCounts::cut_tokens,
        &ExampleCounts::learned, &ExampleCounts::crossing, &ExampleCounts::rendered,
        &ExampleCounts::plain, &ExampleCounts::begins_twice}) {
    this->*member += other.*member;
  }
  return *this;
}

// Lines that are encoded together.
struct ExampleFile::Block {
  std::vector<std::string> texts;
  std::vector<int64_t> lines;
  size_t bytes = 0;
};

ExampleFile::ExampleFile(const std::string& path, const ExampleEncoding& encoding) {
  file_.path = path;
  check<ValueError>(encoding.max_tokens >= 2, path, ": rows of ", encoding.max_tokens - 1,
                    " tokens have no room for an example");
  data::LineReader reader(path, kMaxLineBytes);
  Block block;
  std::string line;
  while (reader.next(line)) {
    if (data::is_blank(line)) {
      continue;
    }
    block.bytes += line.size();
    block.texts.push_back(std::move(line));
    block.lines.push_back(reader.number() - 1);
    if (block.bytes >= kBlockBytes) {
      encode(block, encoding);
      block = {};
    }
  }
  encode(block, encoding);
  num_lines_ = reader.number();
  file_ = reader.file();
  ids_.shrink_to_fit();
}

void ExampleFile::encode(Block& block, const ExampleEncoding& encoding) {
  std::vector<EncodedLine> encoded(block.texts.size());
  const std::string& path = file_.path;
  kernels::parallel_for(std::ssize(block.texts), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      encoded[i] = encode_line(block.texts[i], concat(path, ":", block.lines[i] + 1), encoding);
    }
  });
  for (size_t i = 0; i < encoded.size(); ++i) {
    if (encoded[i].error) {
      try {
        std::rethrow_exception(encoded[i].error);
      } catch (const ValueError& error) {
        if (!encoding.skip_bad_lines) {
          throw;
        }
        bad_lines_.add(error.what());
        continue;
      }
    }
    counts_.conversations += encoded[i].is_conversation ? 1 : 0;
    counts_.unrolled += encoded[i].unrolled ? 1 : 0;
    counts_.rendered += encoded[i].rendered;
    counts_.plain += encoded[i].plain;
    counts_.begins_twice += encoded[i].begins_twice;
    for (const auto& [example, length] : encoded[i].examples) {
      add(example, length, block.lines[i], encoding);
    }
    ++counts_.lines;
  }
}

void ExampleFile::add(const EncodedExample& example,
                      int64_t length,
                      int64_t line,
                      const ExampleEncoding& encoding) {
  const bool too_long = length > encoding.max_tokens;
  if (too_long && encoding.long_examples == LongExamples::kDrop) {
    ++counts_.dropped_long;
    return;
  }
  const int64_t learned = example.learned();
  if (learned == 0) {
    ++counts_.without_answer;
    return;
  }
  ids_.insert(ids_.end(), example.ids.begin(), example.ids.end());
  answer_.insert(answer_.end(), example.answer.begin(), example.answer.end());
  examples_.push_back({static_cast<int64_t>(ids_.size()), line, counts_.lines});
  ++counts_.examples;
  counts_.cut += too_long ? 1 : 0;
  counts_.cut_tokens += too_long ? length - encoding.max_tokens : 0;
  counts_.tokens += std::ssize(example.ids);
  counts_.learned += learned;
  counts_.crossing += example.crossing;
}

std::span<const int32_t> ExampleFile::ids(int64_t i) const {
  const int64_t begin = begin_of(i);
  const int64_t end = examples_[static_cast<size_t>(i)].end;
  return std::span(ids_).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

bool ExampleFile::is_answer(int64_t i, int64_t t) const {
  return answer_[static_cast<size_t>(begin_of(i) + t)];
}

std::pair<int64_t, int64_t> ExampleFile::examples_of(int64_t first, int64_t last) const {
  const auto at = [&](int64_t ordinal) {
    return std::partition_point(examples_.begin(), examples_.end(),
                                [&](const Entry& e) { return e.ordinal < ordinal; }) -
           examples_.begin();
  };
  return {at(first), at(last)};
}

int64_t ExampleFile::learned(int64_t begin, int64_t end) const {
  int64_t count = 0;
  for (int64_t i = begin; i < end; ++i) {
    for (int64_t t = begin_of(i) + 1; t < examples_[static_cast<size_t>(i)].end; ++t) {
      count += answer_[static_cast<size_t>(t)] ? 1 : 0;
    }
  }
  return count;
}

}  // namespace tapestry::sft
