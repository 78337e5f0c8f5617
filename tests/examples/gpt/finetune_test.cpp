// finetune_gpt from a Hugging Face folder to answers, on a task that the test makes.
#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "tests/examples/gpt/run_program.h"
#include "tests/says.h"

namespace tapestry::finetune_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr int kExamples = 2000;
constexpr int kUnseen = 200;

// A model that has learned to repeat a word is tuned to write each letter's successor.
constexpr const char* kBase =
    "training_config:\n"
    "  training_iters: 300\n"
    "  seed: 5\n"
    "  output_dir: base\n"
    "  log_interval: 100\n"
    "dataset_config:\n"
    "  sft_data_path: repeat.jsonl\n"
    "  split: \"1,0,0\"\n"
    "  tokenizer_type: byte\n"
    "  batch_size: 8\n"
    "model_config:\n"
    "  vocab_size: 264\n"
    "  num_layers: 2\n"
    "  hidden_size: 64\n"
    "  ffn_hidden_size: 192\n"
    "  num_attention_heads: 4\n"
    "  seq_length: 128\n"
    "  position_embedding_type: rope\n"
    "  normalization: RMSNorm\n"
    "  hidden_act: swiglu\n"
    "  qkv_has_bias: False\n"
    "  out_proj_has_bias: False\n"
    "  mlp_has_bias: False\n"
    "  untie_embeddings_and_output_weights: True\n"
    "  init_method_std: 0.02\n"
    "  hidden_dropout: 0.0\n"
    "  attention_dropout: 0.0\n"
    "optimizer_config:\n"
    "  learning_rate: 3.0e-3\n"
    "  lr_decay_style: cosine\n"
    "  lr_warmup_fraction: 0.05\n"
    "  clip_grad: 1.0\n";

std::string successor(std::string word) {
  for (char& letter : word) {
    letter = letter == 'z' ? 'a' : static_cast<char>(letter + 1);
  }
  return word;
}

std::string line(const std::string& prompt, const std::string& completion) {
  return Json{{"prompt", prompt}, {"completion", completion}}.dump() + "\n";
}

class Finetune : public ProgramTest {
 protected:
  void SetUp() override {
    std::mt19937 random(3);
    std::set<std::string> words;
    std::vector<std::string> order;
    while (order.size() < 2 * kExamples + kUnseen) {
      std::string word;
      for (int i = 0; i < 4; ++i) {
        word += static_cast<char>('a' + random() % 26);
      }
      if (words.insert(word).second) {
        order.push_back(word);
      }
    }
    std::string repeat;
    std::string task;
    std::string prompts;
    for (size_t i = 0; i < order.size(); ++i) {
      const std::string prompt = order[i] + ">";
      if (i < kExamples) {
        repeat += line(prompt, order[i]);
      } else if (i < 2 * kExamples) {
        task += line(prompt, successor(order[i]));
      } else {
        prompts += Json{{"prompt", prompt}}.dump() + "\n";
        expected_.push_back(successor(order[i]));
      }
    }
    dir_.write("repeat.jsonl", repeat);
    dir_.write("task.jsonl", task);
    dir_.write("unseen.jsonl", prompts);
    dir_.write("base.yaml", kBase);
    ASSERT_EQ(pretrain("--config_path base.yaml"), 0) << said();
    ASSERT_EQ(run(TAPESTRY_EXPORT, "--checkpoint base --to hf --output model"), 0) << said();
  }

  // Of the unseen prompts, how many the model answers exactly.
  int right_answers(const std::string& model) {
    EXPECT_EQ(run(TAPESTRY_GENERATE, "--checkpoint " + model +
                                         " --prompts unseen.jsonl --temperature 0 "
                                         "--max_new_tokens 8"),
              0)
        << said();
    std::istringstream lines(out_);
    std::string text;
    int right = 0;
    size_t i = 0;
    for (; std::getline(lines, text); ++i) {
      right += Json::parse(text).at("text") == expected_.at(i) ? 1 : 0;
    }
    EXPECT_EQ(i, expected_.size());
    return right;
  }

  std::vector<std::string> expected_;
};

TEST_F(Finetune, FullAndLowRankTuningAnswerWhatTheyHaveNotSeen) {
  EXPECT_LT(right_answers("model"), kUnseen / 20);
  const std::string common =
      "--from_hf model --data task.jsonl --seq_length 128 --batch_rows 8 "
      "--set dataset_config.tokenizer_type=byte ";
  ASSERT_EQ(run(TAPESTRY_FINETUNE_GPT, common + "--dry_run --output_dir dry"), 0) << said();
  EXPECT_FALSE(fs::exists(dir_.file("dry")));
  for (const char* shown : {"configuration:\n", "memory: about ", "less with:\n  --"}) {
    EXPECT_THAT(out_, Says(shown));
  }
  ASSERT_EQ(run(TAPESTRY_FINETUNE_GPT,
                common + "--full --epochs 12 --learning_rate 2e-3 --output_dir full"),
            0)
      << said();
  EXPECT_GE(right_answers("full/hf"), kUnseen * 95 / 100);

  ASSERT_EQ(run(TAPESTRY_FINETUNE_GPT, common + "--lora_rank 16 --epochs 12 --learning_rate 5e-3 "
                                                "--output_dir low_rank --export hf adapter"),
            0)
      << said();
  EXPECT_THAT(out_, HasSubstr("validation loss "));
  EXPECT_THAT(out_, HasSubstr("prompt:   "));
  EXPECT_GE(right_answers("low_rank/hf"), kUnseen * 95 / 100);
  EXPECT_GE(right_answers("model --adapter low_rank/adapter"), kUnseen * 95 / 100);
  EXPECT_TRUE(fs::exists(dir_.file("low_rank/finetune.yaml")));

  // The saved configuration is the run: pretrain_gpt comes to the same bits.
  ASSERT_EQ(pretrain("--config_path low_rank/finetune.yaml "
                     "--set training_config.output_dir=again"),
            0)
      << said();
  const auto weights = [&](const std::string& output) {
    std::string newest;
    for (const auto& entry : fs::directory_iterator(dir_.file(output + "/checkpoint"))) {
      newest = std::max(newest, entry.path().filename().string());
    }
    return dir_.read(output + "/checkpoint/" + newest + "/adapter_model.safetensors");
  };
  EXPECT_FALSE(weights("again").empty());
  EXPECT_EQ(weights("again"), weights("low_rank"));

  // A finished run is not written over.
  EXPECT_EQ(run(TAPESTRY_FINETUNE_GPT, common + "--output_dir low_rank"), 2);
  EXPECT_THAT(err_, HasSubstr("low_rank/hf: is there already"));
}

// A base model whose texts end with one token, tuned on conversations whose turns end with another:
// what is written stops there, also in programs that read generation_config.json alone.
TEST_F(ProgramTest, WhatIsTunedOnConversationsStopsWhereTheyEnd) {
  fs::create_directories(dir_.file("tok"));
  fs::copy_file("tests/data/golden_tokenizers/own_chat/tokenizer.json",
                dir_.file("tok/tokenizer.json"));
  const Json tokenizer = Json::parse(dir_.read("tok/tokenizer.json"));
  const auto id_of = [&](const std::string& token) -> int64_t {
    for (const Json& added : tokenizer.at("added_tokens")) {
      if (added.at("content") == token) {
        return added.at("id");
      }
    }
    return -1;
  };
  dir_.write("tok/tokenizer_config.json",
             Json{{"eos_token", "<|endoftext|>"},
                  {"chat_template",
                   "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                   "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"}}
                 .dump());
  std::string chat;
  for (int i = 0; i < 12; ++i) {
    chat += Json{{"messages",
                  {{{"role", "user"}, {"content", "say " + std::to_string(i)}},
                   {{"role", "assistant"}, {"content", std::to_string(i)}}}}}
                .dump() +
            "\n";
  }
  dir_.write("chat.jsonl", chat);
  dir_.write("repeat.jsonl", line("a>", "b"));
  std::string base = kBase;
  for (const auto& [from, to] :
       {std::pair{"training_iters: 300", "training_iters: 1"},
        std::pair{"tokenizer_type: byte", "tokenizer_type: huggingface\n  tokenizer_model: tok"},
        std::pair{"vocab_size: 264", "vocab_size: 336"}}) {
    base.replace(base.find(from), std::string_view(from).size(), to);
  }
  dir_.write("base.yaml", base);
  ASSERT_EQ(pretrain("--config_path base.yaml"), 0) << said();
  ASSERT_EQ(run(TAPESTRY_EXPORT, "--checkpoint base --to hf --output model"), 0) << said();
  const auto ends = [&](const std::string& folder) {
    return Json::parse(dir_.read(folder + "/generation_config.json")).at("eos_token_id");
  };
  const int64_t text_end = id_of("<|endoftext|>");
  const Json both = {id_of("<|im_end|>"), text_end};
  EXPECT_EQ(ends("model"), Json(text_end));
  for (const char* how : {"--full --output_dir full", "--lora_rank 4 --output_dir low_rank"}) {
    ASSERT_EQ(run(TAPESTRY_FINETUNE_GPT,
                  std::string("--from_hf model --data chat.jsonl --export hf --epochs 1 ") + how),
              0)
        << said();
  }
  EXPECT_EQ(ends("full/hf"), both);
  EXPECT_EQ(ends("low_rank/hf"), both);
}

// A model that has learned nothing yet, in bytes, and a handful of examples.
class FewExamples : public ProgramTest {
 protected:
  void SetUp() override {
    dir_.write("repeat.jsonl", line("a>", "b"));
    std::string base = kBase;
    const std::string iters = "training_iters: 300";
    base.replace(base.find(iters), iters.size(), "training_iters: 1");
    dir_.write("base.yaml", base);
    ASSERT_EQ(pretrain("--config_path base.yaml"), 0) << said();
    ASSERT_EQ(run(TAPESTRY_EXPORT, "--checkpoint base --to hf --output model"), 0) << said();
    std::string few;
    for (char c = 'a'; c < 'm'; ++c) {
      few += line(std::string(1, c) + ">", std::string(3, c));
    }
    dir_.write("few.jsonl", few);
  }
  int tune(const std::string& more) {
    return run(TAPESTRY_FINETUNE_GPT,
               "--from_hf model --data few.jsonl --set dataset_config.tokenizer_type=byte "
               "--answers 0 --validation_share 0 " +
                   more);
  }
  bool has_changed(const std::string& output) const {
    return dir_.read(output + "/hf/model.safetensors") != dir_.read("model/model.safetensors");
  }
};

TEST_F(FewExamples, MakeUpdatesThatTrain) {
  ASSERT_EQ(tune("--epochs 2 --output_dir own"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("updates    24 of 1 row: 24 rows in 2 epochs, an example each; 8 "
                              "rows an update would make 3"));
  EXPECT_EQ(steps("own").size(), 24U);
  for (const Json& step : steps("own")) {
    EXPECT_GT(step.at("lr").at(0).get<double>(), 0);
  }
  EXPECT_TRUE(has_changed("own"));
  // All examples fit into one row, and so one update is what was asked for: it is made, and said.
  ASSERT_EQ(tune("--epochs 1 --batch_rows 8 --output_dir asked"), 0) << said();
  EXPECT_THAT(out_ + err_, HasSubstr("updates    1 of 8 rows: 1 row in 1 epoch; that is few: "
                                     "--batch_rows 1 makes 1, more examples or more --epochs"));
  EXPECT_TRUE(has_changed("asked"));
}

TEST_F(FewExamples, ARunThatChangesNothingDoesNotEndAsIfItHad) {
  EXPECT_EQ(tune("--epochs 1 --learning_rate 1e-30 --full --output_dir same"), 1) << said();
  EXPECT_THAT(out_ + err_, Says("12 ... rate was at most ... 1e-30"));
  EXPECT_FALSE(fs::exists(dir_.file("same/hf")));
}

TEST_F(FewExamples, InTheFormsThatPeopleHave) {
  dir_.write("forms/alpaca.jsonl", R"({"instruction": "Say a.", "input": "", "output": "a"})"
                                   "\n");
  dir_.write(
      "forms/shared.ndjson",
      R"({"conversations": [{"from": "human", "value": "b?"}, {"from": "gpt", "value": "b"}]})"
      "\nno JSON\n");
  const std::string common =
      "--from_hf model --data forms --epochs 1 --answers 0 --validation_share 0 ";
  EXPECT_EQ(run(TAPESTRY_FINETUNE_GPT, common), 2);
  EXPECT_THAT(err_, Says("model_config.from_hf 'model' ... no tokenizer"));
  const std::string bytes = common + "--set dataset_config.tokenizer_type=byte --output_dir tuned ";
  EXPECT_EQ(run(TAPESTRY_FINETUNE_GPT, bytes), 2);
  EXPECT_THAT(err_, HasSubstr("forms/shared.ndjson:2: is not valid JSON"));
  ASSERT_EQ(run(TAPESTRY_FINETUNE_GPT, bytes + "--skip_bad_lines"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("forms/shared.ndjson: 1 bad line is left out: "));
  EXPECT_THAT(out_, HasSubstr("are written in ChatML"));
  EXPECT_THAT(dir_.read("tuned/hf/chat_template.jinja"), HasSubstr("<|im_start|>"));
}

}  // namespace
}  // namespace tapestry::finetune_test
