#include "examples/gpt/generate_chat.h"

#include <ctime>
#include <iostream>
#include <optional>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "examples/gpt/command_line.h"
#include "parallel_core/dist_checkpointing/agreement.h"
#include "parallel_core/training/log/terminal.h"
#include "parallel_core/training/program.h"

namespace tapestry::examples {

namespace {

// What the user says next, on every process; empty at the end of the input.
std::optional<std::string> next_line(bool reads, ProcessGroup& world) {
  std::string line;
  std::string told = "end";
  if (reads && is_terminal(OutputStream::kOut)) {
    print_result("> ");
  }
  if (reads && std::getline(std::cin, line)) {
    told = ":" + line;
  }
  if (world.size() > 1) {
    told = all_gather_text(world, reads ? told : "").front();
  }
  return told.starts_with(':') ? std::optional(told.substr(1)) : std::nullopt;
}

}  // namespace

std::optional<chat::ChatFormat> chat_of(const std::string& folder) {
  std::optional<chat::ChatFormat> format = chat::read_chat_format(folder);
  if (format) {
    format->now = std::time(nullptr);
  }
  return format;
}

void converse(Answers& answers, ProcessGroup& world) {
  nlohmann::ordered_json messages = answers.new_conversation();
  int64_t number = 0;
  while (const auto line = next_line(answers.speaks(), world)) {
    if (line->find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    if (*line == "/reset") {
      messages = answers.new_conversation();
      continue;
    }
    nlohmann::ordered_json longer = messages;
    longer.push_back({{"role", "user"}, {"content", *line}});
    try {
      const std::string answer = answers.answer(longer, number);
      longer.push_back({{"role", "assistant"}, {"content", answer}});
    } catch (const ValueError& error) {
      if (answers.speaks()) {
        say("generate", error.what());
      }
      continue;
    }
    messages = std::move(longer);
    ++number;
  }
}

}  // namespace tapestry::examples
