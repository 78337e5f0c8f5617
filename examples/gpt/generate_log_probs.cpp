#include "examples/gpt/generate_log_probs.h"

#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/inference/prompt_lines.h"
#include "parallel_core/post_training/distil/score_texts.h"
#include "parallel_core/post_training/distil/teacher_file.h"
#include "parallel_core/post_training/examples/encode_line.h"
#include "text/util/file.h"
#include "text/util/numbers.h"

namespace tapestry::examples {

namespace {

using Json = nlohmann::ordered_json;
using post_training::SequenceSet;

// A line is either.
struct TextLine {
  std::string place;
  std::optional<post_training::ExampleLine> pair;  // with a completion
  std::optional<PromptLine> prompt;                // to be answered
};

std::vector<TextLine> read_text_lines(const std::string& file) {
  std::istringstream text(data::read_file(file));
  std::vector<TextLine> out;
  int64_t number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    TextLine next;
    next.place = concat(file, ":", number);
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (object.is_object() && object.contains("completion") && !object["completion"].is_null()) {
      next.pair = post_training::parse_example_line(line, next.place,
                                                    post_training::ExampleFormat::kCompletion);
    } else {
      next.prompt = parse_prompt_line(line, number, next.place);
    }
    out.push_back(std::move(next));
  }
  check<ValueError>(!out.empty(), file, ": has no prompts");
  return out;
}

}  // namespace

bool has_conversations(const std::string& prompts) {
  for (const TextLine& line : read_text_lines(prompts)) {
    if (line.pair ? line.pair->is_conversation : line.prompt->messages != nullptr) {
      return true;
    }
  }
  return false;
}

void write_log_probs(const OpenModel& opened,
                     Answers& answers,
                     const chat::ChatFormat* format,
                     const LogProbsFile& file,
                     bool chat) {
  const std::vector<TextLine> lines = read_text_lines(file.prompts);
  const int64_t vocabulary = opened.saved.config.model_config.vocab_size;
  check<ValueError>(file.top_k >= 1 && file.top_k <= vocabulary, "--logprobs is ", file.top_k,
                    ", expected 1 to the vocabulary's ", vocabulary, " with --to");
  std::vector<PromptLine> prompts;
  for (const TextLine& line : lines) {
    if (line.prompt) {
      prompts.push_back(*line.prompt);
    }
  }
  const std::vector<AnsweredPrompt> answered = answers.answer_all(prompts, chat);
  SequenceSet texts;
  size_t next = 0;
  for (const TextLine& line : lines) {
    if (line.prompt) {
      const AnsweredPrompt& one = answered[next++];
      texts.add(one.prompt, one.answer);
      continue;
    }
    const auto encoded =
        post_training::encode_line(*line.pair, line.place,
                                   {.tokenizer = opened.saved.tokenizer.get(),
                                    .format = format,
                                    .eod = static_cast<int32_t>(opened.saved.eod_id)});
    texts.add(encoded.front().prompt, encoded.front().completion);
  }
  std::unique_ptr<post_training::TeacherFileWriter> writer;
  if (post_training::writes_scores(*opened.model)) {
    writer = std::make_unique<post_training::TeacherFileWriter>(
        file.to,
        post_training::TeacherFileHeader{.model = opened.folder,
                                         .tokenizer = opened.saved.tokenizer->identity(),
                                         .vocab_size = vocabulary,
                                         .top_k = file.top_k,
                                         .temperature = file.temperature},
        texts);
  }
  post_training::score_texts(*opened.model, texts,
                             {.top_k = file.top_k,
                              .temperature = file.temperature,
                              .vocabulary = vocabulary,
                              .most_tokens = file.most_tokens},
                             writer.get());
  if (writer != nullptr) {
    writer->finish();
  }
  if (answers.speaks()) {
    int64_t positions = 0;
    for (int64_t i = 0; i < texts.size(); ++i) {
      positions +=
          post_training::scored_positions(std::ssize(texts.ids(i)), texts.prompt_tokens(i));
    }
    say("generate", concat("wrote ", file.to, ": ", with_thousands(texts.size()), " texts (",
                           with_thousands(std::ssize(prompts)), " answered by the model), ",
                           with_thousands(positions), " positions with ", file.top_k,
                           file.top_k == 1 ? " token each" : " tokens each"));
  }
}

}  // namespace tapestry::examples
