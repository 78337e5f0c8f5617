// Examples for fine-tuning that tests of the programs share.
#pragma once

#include <string>

#include "autograd/io/json.h"
#include "tests/examples/gpt/run_program.h"

namespace tapestry {

inline constexpr const char* kChatTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

/// Lines of every kind: sums with their answers, conversations of two answers, plain text.
inline std::string sft_examples(int count) {
  using Json = nlohmann::ordered_json;
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const int a = i * 37 % 50;
    const int b = i * 11 % 23;
    const std::string sum = std::to_string(a) + "+" + std::to_string(b);
    Json line;
    if (i % 3 == 0) {
      line = {{"prompt", sum + "="}, {"completion", std::to_string(a + b)}};
    } else if (i % 3 == 1) {
      const auto said = [](const char* role, const std::string& content) {
        return Json{{"role", role}, {"content", content}};
      };
      line["messages"] = Json::array({said("user", sum), said("assistant", std::to_string(a + b)),
                                      said("user", "thanks"), said("assistant", "ok")});
    } else {
      line = {{"text", sum + " is " + std::to_string(a + b)}};
    }
    lines += line.dump() + "\n";
  }
  return lines;
}

/// Six steps on train.jsonl, in bytes, with chat.jinja.
inline std::string sft_run() {
  std::string run = replaced(kTinyRun, "  data_path: text_text_document\n",
                             "  sft_data_path: train.jsonl\n  chat_template: chat.jinja\n");
  run = replaced(run, "training_iters: 3",
                 "training_iters: 6\n  save_interval: 3\n  eval_interval: 3");
  run = replaced(run, "batch_size: 2\n", "batch_size: 2\n  micro_batch_num: 2\n");
  run = replaced(run, "90,10,0", "80,20,0");
  return replaced(run, "seq_length: 16", "seq_length: 96");
}

}  // namespace tapestry
