// Folders of Hugging Face models: what the programs take from them, and what they write back.
#include <gmock/gmock.h>

#include <string>

#include "autograd/ops/ops.h"
#include "tests/examples/gpt/hf_folders.h"
#include "tests/says.h"

namespace tapestry::hf_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(HfTest, LoadedAndWrittenBackBitForBit) {
  write_llama("llama", "llama");
  write_llama("qwen2", "qwen2");
  write_gpt2("gpt2");
  dir_.write("run.yaml", kNothing);
  for (const std::string name : {"llama", "qwen2", "gpt2"}) {
    expect_same_after_a_run(name);
    EXPECT_EQ(
        json("out_" + name + "/checkpoint/step_00000001/generation_config.json").at("eos_token_id"),
        256);
  }
}

TEST_F(HfTest, FilesOfTheOriginalGpt2) {
  write_gpt2("old", "");
  write_gpt2("new");
  testing::State state = tensors("old");
  state["h.0.attn.bias"] = ones({1, 1, kPositions, kPositions});
  write_state(dir_.file("old/model.safetensors"), state);
  dir_.write("run.yaml", kNothing);
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf old"), 0) << said();
  const testing::State saved = tensors("output/checkpoint/step_00000001");
  state.erase("h.0.attn.bias");
  ASSERT_EQ(saved.size(), state.size());
  for (const auto& [name, tensor] : state) {
    EXPECT_TRUE(testing::same_bits(saved.at("transformer." + name), tensor)) << name;
  }
}

TEST_F(HfTest, WhatIsStoredIsWhatConfigJsonSays) {
  write_llama("llama", "llama");
  Json config = json("llama/config.json");
  config["torch_dtype"] = "bfloat16";
  config["eos_token_id"] = 2;
  dir_.write("llama/config.json", config.dump());
  testing::State half;
  for (const auto& [name, tensor] : tensors("llama")) {
    half[name] = tensor.to(kBFloat16);
  }
  write_state(dir_.file("llama/model.safetensors"), half);
  dir_.write("run.yaml", kNothing);
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf llama --set training_config.bf16=True "
                     "--set model_config.params_dtype=bfloat16"),
            0)
      << said();
  const std::string saved = "output/checkpoint/step_00000001";
  for (const auto& [name, tensor] : tensors(saved)) {  // masters
    EXPECT_TRUE(testing::same_bits(tensor, half.at(name).to(kFloat32))) << name;
  }
  EXPECT_EQ(json(saved + "/config.json").at("torch_dtype"), "float32");
  EXPECT_EQ(json(saved + "/config.json").at("eos_token_id"), 256);  // of the text
}

TEST_F(HfTest, ContradictionsNameBoth) {
  write_llama("llama", "llama");
  const std::string model =
      "model_config:\n  vocab_size: 264\n  num_layers: 2\n  hidden_size: 16\n"
      "  ffn_hidden_size: 24\n  num_attention_heads: 4\n  group_query_attention: True\n"
      "  num_query_groups: 2\n  kv_channels: 6\n  position_embedding_type: rope\n"
      "  normalization: RMSNorm\n  hidden_act: swiglu\n  add_bias_linear: False\n"
      "  untie_embeddings_and_output_weights: True\n";
  const std::string yaml = replaced(kNothing, "model_config:\n", model);
  dir_.write("wrong.yaml", yaml);  // rotary_base is 10000 by default
  dir_.write("right.yaml", replaced(yaml, "hidden_act", "rotary_base: 5e5\n  hidden_act"));
  const std::string load = " --set training_config.load_checkpoint=llama ";
  ASSERT_EQ(pretrain("--config_path right.yaml" + load), 0) << said();
  testing::expect_states_equal(tensors("output/checkpoint/step_00000001"), tensors("llama"));
  const auto expect_named = [&] {
    EXPECT_THAT(out_ + err_, HasSubstr("model_config.rotary_config.rotary_base is 10000.0, but "
                                       "rope_theta of llama/config.json is 500000.0"))
        << said();
    EXPECT_THAT(out_ + err_, HasSubstr("model_config.norm_epsilon is 1e-06, but rms_norm_eps of "
                                       "llama/config.json is 1e-05"))
        << said();
  };
  const std::string wrong =
      "--config_path wrong.yaml --set model_config.norm_epsilon=1e-6 "
      "--set training_config.output_dir=wrong ";
  EXPECT_EQ(pretrain(wrong + load), 2);
  expect_named();
  EXPECT_FALSE(fs::exists(dir_.file("wrong/metrics.jsonl")));
  EXPECT_EQ(pretrain(wrong + load + "--dry_run"), 2);
  expect_named();
  EXPECT_EQ(pretrain(wrong + "--evaluate llama"), 2);
  expect_named();
  EXPECT_EQ(pretrain("--config_path right.yaml --dry_run" + load), 0) << said();

  // With from_hf the keys are held against the file before anything else.
  EXPECT_EQ(pretrain(wrong + "--from_hf llama"), 2);
  EXPECT_THAT(err_, HasSubstr("model_config.norm_epsilon: is 1e-06, but rms_norm_eps of "
                              "llama/config.json is 1e-05; leave the key out"));

  // A checkpoint whose config.json was changed by hand.
  fs::copy(dir_.file("output/checkpoint/step_00000001"), dir_.file("changed"));
  Json config = json("changed/config.json");
  config["rope_theta"] = 7.0;
  dir_.write("changed/config.json", config.dump());
  EXPECT_EQ(generate("--checkpoint changed --prompt And --max_new_tokens 2"), 2);
  EXPECT_THAT(err_, HasSubstr("rope_theta of changed/config.json is 7.0"));
}

TEST_F(HfTest, ADryRunShowsWhatTheFolderGives) {
  write_gpt2("gpt2");
  dir_.write("run.yaml", kNothing);
  ASSERT_EQ(pretrain("--config_path run.yaml --dry_run --verbose --from_hf gpt2"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("position_embedding_type: learned_absolute"));
  EXPECT_THAT(out_, HasSubstr("max_position_embeddings: 32"));
  EXPECT_THAT(out_, HasSubstr("weights: gpt2, "));
  EXPECT_FALSE(fs::exists(dir_.file("output")));
  // The weights need not be the folder's.
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf gpt2 "
                     "--set 'training_config.load_checkpoint=\"\"'"),
            0)
      << said();
  EXPECT_THAT(out_, Not(HasSubstr("loaded")));
  const std::string resolved = dir_.read("output/config.yaml");
  EXPECT_THAT(resolved, HasSubstr("  num_layers: 2  # gpt2/config.json, n_layer\n"));
  EXPECT_THAT(resolved, HasSubstr("  from_hf: null  # was gpt2, --set\n"));
}

TEST_F(HfTest, TextFromAFolder) {
  write_llama("llama", "llama");
  const std::string ask = " --prompt 'And the king' --max_new_tokens 8 --temperature 0";
  ASSERT_EQ(generate("--checkpoint llama" + ask), 0) << said();
  EXPECT_THAT(err_, Says("llama: ... ids are taken for bytes"));
  EXPECT_THAT(out_, HasSubstr("And the king"));
  const std::string text = out_;
  // The same model with the configuration of a run.
  dir_.write("run.yaml", kNothing);
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf llama"), 0) << said();
  ASSERT_EQ(generate("--checkpoint output/checkpoint/step_00000001" + ask), 0) << said();
  EXPECT_EQ(out_, text);

  ASSERT_EQ(preprocess("--input text.txt --output_prefix pieces --tokenizer_type sentencepiece "
                       "--train_tokenizer --vocab_size 264"),
            0)
      << said();
  fs::copy_file(dir_.file("pieces.model"), dir_.file("llama/tokenizer.model"));
  ASSERT_EQ(generate("--checkpoint llama" + ask), 0) << said();
  EXPECT_EQ(err_, "");
  EXPECT_THAT(out_, HasSubstr("And the king"));
  // A text that the library begins with an id of its own has it here.
  Json config = json("llama/config.json");
  config["bos_token_id"] = 1;
  dir_.write("llama/config.json", config.dump());
  dir_.write("llama/tokenizer_config.json", "{\"add_bos_token\": true}");
  ASSERT_EQ(generate("--checkpoint llama" + ask), 0) << said();

  fs::remove(dir_.file("llama/tokenizer.model"));
  dir_.write("llama/tokenizer.json", "{}");
  EXPECT_EQ(generate("--checkpoint llama" + ask), 2);
  EXPECT_THAT(err_, HasSubstr("llama/tokenizer.json: model: is null, expected an object"));
  fs::remove(dir_.file("llama/tokenizer.json"));
  fs::remove(dir_.file("llama/config.json"));
  EXPECT_EQ(generate("--checkpoint llama" + ask), 2);
  EXPECT_THAT(err_, HasSubstr("llama: has neither config.yaml"));
}

// tokenizer.json of a folder: a run takes it, its text is prepared with it, and what the folder
// says of tokens goes with the checkpoint byte for byte.
TEST_F(HfTest, TheTokenizerOfAFolder) {
  write_llama("llama", "llama");
  fs::copy_file("tests/data/golden_tokenizers/own_bytes/tokenizer.json",
                dir_.file("llama/tokenizer.json"));
  dir_.write("llama/tokenizer_config.json", "{ \"eos_token\": \"<|endoftext|>\" }");
  dir_.write("llama/special_tokens_map.json", "{}");
  dir_.write("llama/chat_template.jinja", "{{ messages }}");
  dir_.write("llama/generation_config.json", "{ \"eos_token_id\": [263, 10] }");
  const std::string yaml =
      replaced(kNothing, "  data_path: text_text_document\n  tokenizer_type: byte\n",
               "  text: text.txt\n  dataset_dir: data\n");
  dir_.write("run.yaml", yaml);
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf llama"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("Hugging Face tokenizer llama/tokenizer.json, 264 ids"));
  const std::string saved = "output/checkpoint/step_00000001/";
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "chat_template.jinja", "generation_config.json", "config.json"}) {
    EXPECT_EQ(dir_.read(saved + name), dir_.read(std::string("llama/") + name)) << name;
  }
  EXPECT_FALSE(fs::exists(dir_.file(saved + "tokenizer.model")));
  const std::string ask = " --prompt 'And the king' --max_new_tokens 8 --temperature 0";
  ASSERT_EQ(generate("--checkpoint llama" + ask), 0) << said();
  EXPECT_EQ(err_, "");
  EXPECT_THAT(out_, HasSubstr("And the king"));
  const std::string text = out_;
  ASSERT_EQ(generate("--checkpoint output" + ask), 0) << said();
  EXPECT_EQ(out_, text);

  // The same text prepared beforehand; another tokenizer is not that of the data.
  ASSERT_EQ(preprocess("--input text.txt --output_prefix mine --tokenizer_type huggingface "
                       "--tokenizer_model llama --append_eod"),
            0)
      << said();
  EXPECT_THAT(dir_.read("mine_text_document.tokenizer.json"), HasSubstr("llama/tokenizer.json"));
  dir_.write("run.yaml", replaced(yaml, "text: text.txt", "data_path: mine_text_document"));
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf llama "
                     "--set training_config.output_dir=second"),
            0)
      << said();
  fs::create_directory(dir_.file("other"));
  fs::copy_file("tests/data/golden_tokenizers/own_words/tokenizer.json",
                dir_.file("other/tokenizer.json"));
  EXPECT_EQ(pretrain("--config_path run.yaml --from_hf llama "
                     "--set dataset_config.tokenizer_model=other "
                     "--set dataset_config.tokenizer_type=huggingface "
                     "--set training_config.output_dir=third"),
            2);
  EXPECT_THAT(err_, HasSubstr("mine_text_document: was made with the huggingface tokenizer"));
}

// A run that is to go on whenever it is started takes the folder's weights the first time.
TEST_F(HfTest, GoingOnFromAFolder) {
  write_llama("llama", "llama");
  std::string yaml = replaced(kNothing, "training_iters: 1", "training_iters: 2");
  yaml = replaced(yaml, "num_threads: 1", "num_threads: 1\n  resume_training: True");
  dir_.write("run.yaml", replaced(yaml, "1e-30", "1e-3"));
  const std::string run = "--config_path run.yaml --from_hf llama ";
  ASSERT_EQ(pretrain(run + "--set training_config.output_dir=whole"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("loaded llama"));
  ASSERT_EQ(pretrain(run + "--set training_config.training_iters=1"), 0) << said();
  EXPECT_THAT(out_, HasSubstr("loaded llama"));
  ASSERT_EQ(pretrain(run), 0) << said();
  EXPECT_THAT(out_, HasSubstr("loaded ./output/checkpoint/step_00000001"));
  EXPECT_EQ(metrics("output"), metrics("whole"));
  testing::expect_states_equal(tensors("output/checkpoint/step_00000002"),
                               tensors("whole/checkpoint/step_00000002"));
}

TEST_F(HfTest, WhatACheckpointSaysOfItsTokenizer) {
  write_llama("llama", "llama");
  ASSERT_EQ(preprocess("--input text.txt --output_prefix pieces --tokenizer_type sentencepiece "
                       "--train_tokenizer --vocab_size 264 --append_eod"),
            0)
      << said();
  dir_.write("run.yaml", replaced(replaced(kNothing, "text_text_document", "pieces_text_document"),
                                  "tokenizer_type: byte", "tokenizer_type: sentencepiece"));
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf llama"), 0) << said();
  EXPECT_THAT(out_, Not(HasSubstr("warning")));
  const std::string saved = "output/checkpoint/step_00000001/";
  const auto expect_ids = [&](const Json& found) {
    EXPECT_EQ(found.at("bos_token_id"), 1);
    EXPECT_EQ(found.at("eos_token_id"), 2);
  };
  expect_ids(json(saved + "config.json"));
  expect_ids(json(saved + "generation_config.json"));
  EXPECT_EQ(json(saved + "generation_config.json").at("pad_token_id"), nullptr);
  const Json tokenizer = json(saved + "tokenizer_config.json");
  EXPECT_EQ(tokenizer.at("bos_token"), "<s>");
  EXPECT_EQ(tokenizer.at("eos_token"), "</s>");
  EXPECT_EQ(tokenizer.at("unk_token"), "<unk>");
  EXPECT_EQ(tokenizer.at("add_bos_token"), false);
  EXPECT_EQ(tokenizer.at("model_max_length"), kPositions);

  // What the folder of the same tokenizer holds besides is kept, also by the next run.
  fs::copy_file(dir_.file("pieces.model"), dir_.file("llama/tokenizer.model"));
  dir_.write("llama/tokenizer_config.json", "{\"add_bos_token\": true}");
  dir_.write("llama/special_tokens_map.json", "{}");
  dir_.write("llama/generation_config.json",
             "{\"bos_token_id\": 1, \"eos_token_id\": 2, \"temperature\": 0.6}");
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf llama --overwrite"), 0) << said();
  for (const char* file :
       {"tokenizer_config.json", "special_tokens_map.json", "generation_config.json"}) {
    EXPECT_EQ(dir_.read(saved + file), dir_.read(std::string("llama/") + file)) << file;
  }
  // Some folders have files that say nothing; they stay as they came, and fail no save.
  for (const char* file : {"chat_template.jinja", "added_tokens.json", "merges.txt"}) {
    dir_.write(std::string("llama/") + file, "");
  }
  ASSERT_EQ(pretrain("--config_path run.yaml --from_hf llama --overwrite"), 0) << said();
  for (const char* file : {"chat_template.jinja", "added_tokens.json", "merges.txt"}) {
    EXPECT_TRUE(fs::is_empty(dir_.file(saved + file))) << file;
  }
  EXPECT_EQ(dir_.read(saved + "tokenizer.model"), dir_.read("pieces.model"));
  // With another tokenizer they say nothing of its ids.
  dir_.write("bytes.yaml", kNothing);
  ASSERT_EQ(pretrain("--config_path bytes.yaml --from_hf llama --overwrite"), 0) << said();
  EXPECT_FALSE(fs::exists(dir_.file(saved + "special_tokens_map.json")));
  EXPECT_EQ(json(saved + "generation_config.json").at("eos_token_id"), 256);
}

TEST_F(HfTest, FoldersThatAreRefused) {
  dir_.write("run.yaml", kNothing);
  write_llama("llama", "llama");
  const auto refused = [&](const Json& change, const std::string& text) {
    Json config = llama_config("llama");
    config.update(change);
    dir_.write("llama/config.json", config.dump());
    EXPECT_EQ(pretrain("--config_path run.yaml --from_hf llama"), 2);
    EXPECT_THAT(err_, Says(text)) << said();
    EXPECT_EQ(generate("--checkpoint llama --prompt And"), 2);
    EXPECT_THAT(err_, Says(text)) << said();
  };
  refused({{"model_type", "mamba2"}}, "model_type \"mamba2\" cannot be read");
  refused({{"rope_scaling", {{"rope_type", "ntk"}, {"factor", 4.0}}}}, "\"ntk\" is not built");
  refused({{"hidden_act", "gelu"}}, "hidden_act: the activation \"gelu\" is not built");
  EXPECT_EQ(pretrain("--config_path run.yaml --from_hf none"), 2);
  EXPECT_THAT(err_, Says("model_config.from_hf: none: ... no such folder"));
}

}  // namespace
}  // namespace tapestry::hf_test
