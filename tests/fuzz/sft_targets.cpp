// Files of examples for fine-tuning.
#include <array>
#include <memory>
#include <string>

#include "parallel_core/sft/example_file.h"
#include "tests/fuzz/targets.h"
#include "text/chat/chat_format.h"

namespace tapestry::fuzz {

namespace {

// Shows thoughts of the last message alone, so that some conversations are unrolled.
constexpr const char* kTemplate =
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.thought and loop.last %}({{ m.thought }}){% endif %}{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr int64_t kRowTokens = 48;

void put_examples(InputFolder& folder, std::string_view input) { folder.put("e.jsonl", input); }

void read_examples_with(const InputFolder& folder, sft::LongExamples long_examples) {
  static const auto format = [] {
    chat::ChatFormat made;
    made.chat_template = std::make_shared<chat::ChatTemplate>(kTemplate);
    return made;
  }();
  const data::ByteTokenizer bytes;
  const sft::ExampleFile file(folder.file("e.jsonl"), {.tokenizer = &bytes,
                                                       .format = &format,
                                                       .eod = bytes.eod_id(),
                                                       .long_examples = long_examples,
                                                       .max_tokens = kRowTokens});
  int64_t tokens = 0;
  int64_t line = -1;
  for (int64_t i = 0; i < file.size(); ++i) {
    const auto ids = file.ids(i);
    must_hold(std::ssize(ids) >= 2 && std::ssize(ids) <= kRowTokens, "an example fits no row");
    must_hold(file.learned(i, i + 1) > 0, "nothing is learned from an example");
    must_hold(file.line(i) >= line && file.line(i) < file.num_lines(), "lines do not ascend");
    line = file.line(i);
    tokens += std::ssize(ids);
  }
  const sft::ExampleCounts& counts = file.counts();
  must_hold(counts.tokens == tokens && counts.examples == file.size(), "counts are wrong");
  must_hold(counts.learned == file.learned(0, file.size()), "learned tokens are miscounted");
}

void read_examples(const InputFolder& folder) {
  read_examples_with(folder, sft::LongExamples::kCut);
  read_examples_with(folder, sft::LongExamples::kDrop);
}

constexpr std::array<Target, 1> kSftTargets = {{{"sft_jsonl", put_examples, read_examples}}};

}  // namespace

std::span<const Target> sft_targets() { return kSftTargets; }

}  // namespace tapestry::fuzz
