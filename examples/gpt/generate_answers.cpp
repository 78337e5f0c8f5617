#include "examples/gpt/generate_answers.h"

#include <algorithm>
#include <utility>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/inference/stopped_text.h"
#include "parallel_core/training/log/terminal.h"
#include "parallel_core/training/program.h"
#include "text/tokenizers/tokenizer.h"
#include "text/tokenizers/turn_end.h"
#include "text/util/utf8.h"

namespace tapestry::examples {

using Json = nlohmann::ordered_json;

// A prompt as the model sees it, and the text that is made of it.
struct Answers::Prompt {
  GenerationRequest request;
  StoppedText text;
  bool shows_prompt;  // the answers of conversations stand alone
};

namespace {

// JSON in which bytes that are no UTF-8 are U+FFFD.
std::string as_one_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string_view finish_of(const GenerationResult& result) {
  return result.finish == FinishReason::kStopped ? "stop_string" : name_of(result.finish);
}

/// What a run in exact mode has made is answered by in exact mode.
GenerationBatch exactly_as_trained(GenerationBatch batch, const OpenModel& opened) {
  batch.exact = batch.exact || opened.saved.config.training_config.exact;
  return batch;
}

}  // namespace

Answers::Answers(const OpenModel& opened,
                 const GenerationOptions& sampling,
                 const GenerationBatch& batch,
                 std::vector<std::string> stops,
                 bool speaks)
    : opened_(opened),
      sampling_(sampling),
      stops_(std::move(stops)),
      speaks_(speaks),
      generator_(*opened.model, exactly_as_trained(batch, opened)) {}

void Answers::set_chat(chat::ChatFormat format, const std::string& system) {
  system_ = system;
  // The tokens that end a turn, also where generation_config.json does not name them.
  const auto stop_at = [&](int32_t id) {
    if (std::find(sampling_.stop_ids.begin(), sampling_.stop_ids.end(), id) ==
        sampling_.stop_ids.end()) {
      sampling_.stop_ids.push_back(id);
    }
  };
  if (const auto id = opened_.saved.tokenizer->id_of(format.eos_token)) {
    stop_at(*id);
  }
  if (const auto turn = data::find_turn_end(format, *opened_.saved.tokenizer); turn.id >= 0) {
    stop_at(turn.id);
  }
  chat_ = std::move(format);
}

Json Answers::new_conversation() const {
  Json messages = Json::array();
  if (!system_.empty()) {
    messages.push_back({{"role", "system"}, {"content", system_}});
  }
  return messages;
}

std::string Answers::text_of_messages(const Json& messages, const Json* tools) const {
  return tools == nullptr
             ? chat_->render(messages, /*add_generation_prompt=*/true)
             : chat_->render(messages, /*add_generation_prompt=*/true, Json{{"tools", *tools}});
}

Answers::Prompt Answers::prompt_of(const PromptLine& line, bool chat, int64_t number) const {
  const data::Tokenizer& tokenizer = *opened_.saved.tokenizer;
  GenerationRequest request = {.prompt = {}, .options = sampling_};
  request.options.seed = line.seed ? static_cast<uint64_t>(*line.seed)
                                   : sampling_.seed + static_cast<uint64_t>(number);
  request.options.max_new_tokens = line.max_new_tokens.value_or(sampling_.max_new_tokens);
  std::vector<int32_t> ids;
  const bool renders = chat || line.messages != nullptr;
  if (renders) {
    Json messages;
    if (line.messages != nullptr) {
      messages = *line.messages;
    } else {
      messages = new_conversation();
      messages.push_back({{"role", "user"}, {"content", *line.prompt}});
    }
    // The template writes what begins a text.
    ids = tokenizer.encode(text_of_messages(messages, line.tools.get()));
  } else {
    ids = tokenizer.encode(*line.prompt);
    request.prompt = opened_.saved.start;
    if (speaks_ && !request.prompt.empty() && !ids.empty() &&
        request.prompt.back() == ids.front()) {
      say("generate",
          concat("the prompt begins with ", token_text(ids.front()),
                 ", which the tokenizer puts in front of every text as well, and so has it twice; "
                 "leave it out of the prompt"));
    }
  }
  request.prompt.insert(request.prompt.end(), ids.begin(), ids.end());
  return {std::move(request), StoppedText(tokenizer, ids, stops_), !renders};
}

void Answers::show(const std::string& text) const {
  if (speaks_ && !text.empty()) {
    // Bytes that a model makes up could do anything to a terminal.
    print_result(is_terminal(OutputStream::kOut) ? harmless_text(text) : text);
  }
}

std::string Answers::token_text(int32_t id) const {
  return opened_.saved.tokenizer->decode_with_special({&id, 1});
}

std::string Answers::json_line(const PromptLine& line,
                               int64_t number,
                               const Prompt& prompt,
                               const GenerationResult& result) const {
  Json out = {{"index", number}};
  if (line.id != nullptr) {
    out["id"] = *line.id;
  }
  if (line.prompt) {
    out["prompt"] = *line.prompt;
  }
  out["text"] = prompt.text.text();
  out["finish_reason"] = finish_of(result);
  if (prompt.text.stopped()) {
    out["stop"] = prompt.text.stop();
  } else if (result.finish == FinishReason::kStopId) {
    out["stop"] = token_text(result.stop_id);
  }
  out["prompt_tokens"] = prompt.request.prompt.size();
  out["tokens"] = result.ids();
  if (sampling_.top_log_probs >= 0) {
    Json tokens = Json::array();
    for (const GeneratedToken& token : result.tokens) {
      Json entry = {{"id", token.id}, {"token", token_text(token.id)}, {"logprob", token.log_prob}};
      if (sampling_.top_log_probs > 0) {
        entry["top"] = Json::array();
        for (const TokenLogProb& other : token.likeliest) {
          entry["top"].push_back(
              {{"id", other.id}, {"token", token_text(other.id)}, {"logprob", other.log_prob}});
        }
      }
      tokens.push_back(std::move(entry));
    }
    out["logprobs"] = std::move(tokens);
  }
  return as_one_line(out);
}

void Answers::print_all(const std::vector<PromptLine>& lines, bool chat, bool json) {
  std::vector<Prompt> prompts;
  std::vector<GenerationRequest> requests;
  for (const PromptLine& line : lines) {
    prompts.push_back(prompt_of(line, chat, std::ssize(prompts)));
    requests.push_back(prompts.back().request);
  }
  std::vector<std::string> done(lines.size());
  size_t printed = 0;
  const auto finish = [&](size_t i, const GenerationResult& result) {
    Prompt& prompt = prompts[i];
    prompt.text.finish();
    if (json) {
      done[i] = json_line(lines[i], static_cast<int64_t>(i), prompt, result);
    } else {
      done[i] = (i > 0 ? "\n" : "") + (prompt.shows_prompt ? prompt.text.prompt_text() : "") +
                prompt.text.text() + "\n";
    }
    for (; printed < done.size() && !done[printed].empty(); ++printed) {
      show(done[printed]);
    }
  };
  generator_.generate(
      requests,
      [&](size_t i, const GeneratedToken& token) {
        prompts[i].text.add(token.id);
        return !prompts[i].text.stopped();
      },
      finish);
}

std::vector<AnsweredPrompt> Answers::answer_all(const std::vector<PromptLine>& lines, bool chat) {
  std::vector<Prompt> prompts;
  std::vector<GenerationRequest> requests;
  for (const PromptLine& line : lines) {
    prompts.push_back(prompt_of(line, chat, std::ssize(prompts)));
    prompts.back().request.options.top_log_probs = -1;
    requests.push_back(prompts.back().request);
  }
  const std::vector<GenerationResult> results =
      generator_.generate(requests, [&](size_t i, const GeneratedToken& token) {
        prompts[i].text.add(token.id);
        return !prompts[i].text.stopped();
      });
  std::vector<AnsweredPrompt> out;
  for (size_t i = 0; i < results.size(); ++i) {
    out.push_back({std::move(requests[i].prompt), results[i].ids()});
    if (results[i].finish == FinishReason::kStopId) {
      out.back().answer.push_back(results[i].stop_id);
    }
  }
  return out;
}

void Answers::stream(const PromptLine& line, bool chat) {
  Prompt prompt = prompt_of(line, chat, 0);
  if (prompt.shows_prompt) {
    show(prompt.text.prompt_text());
  }
  generator_.generate({&prompt.request, 1}, [&](size_t /*request*/, const GeneratedToken& token) {
    show(prompt.text.add(token.id));
    return !prompt.text.stopped();
  });
  show(prompt.text.finish() + "\n");
}

std::string Answers::answer(const Json& messages, int64_t number) {
  PromptLine line;
  line.messages = std::make_shared<const Json>(messages);
  Prompt prompt = prompt_of(line, /*chat=*/true, number);
  generator_.generate({&prompt.request, 1}, [&](size_t /*request*/, const GeneratedToken& token) {
    show(prompt.text.add(token.id));
    return !prompt.text.stopped();
  });
  show(prompt.text.finish() + "\n");
  // Templates take text; a model may write bytes that are none.
  return data::replace_invalid_utf8(prompt.text.text());
}

}  // namespace tapestry::examples
