// Configurations made in C++, from dictionaries and from command lines: as good as those of a file.
#include "parallel_core/config/init_configs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/config/read/load.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/show/render.h"
#include "tests/says.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kYaml =
    "training_config: {training_iters: 10, seed: 3}\n"
    "dataset_config: {batch_size: 2}\n"
    "model_config:\n"
    "  vocab_size: 64\n"
    "  num_layers: 4\n"
    "  num_attention_heads: 4\n"
    "  hidden_size: 32\n"
    "  ffn_hidden_size: 64\n"
    "  seq_length: 16\n"
    "  hidden_act: swiglu\n"
    "optimizer_config: {learning_rate: 0.01, lr_decay_style: cosine}\n";

AllConfig from_yaml(const std::vector<std::string>& overrides = {}) {
  return init_configs_from_text(kYaml, "run.yaml", {.overrides = overrides});
}

// The same, set member by member.
AllConfig from_members() {
  AllConfig config;
  config.training_config.training_iters = 10;
  config.training_config.seed = 3;
  config.dataset_config.batch_size = 2;
  config.model_config.vocab_size = 64;
  config.model_config.num_layers = 4;
  config.model_config.num_attention_heads = 4;
  config.model_config.hidden_size = 32;
  config.model_config.ffn_hidden_size = 64;
  config.model_config.seq_length = 16;
  config.model_config.hidden_act = "swiglu";
  config.optimizer_config.learning_rate = 0.01;
  config.optimizer_config.lr_decay_style = "cosine";
  return config;
}

std::vector<std::string> findings(AllConfig config) {
  const AllConfig before = config;
  try {
    resolve(config);
  } catch (const ConfigError& error) {
    EXPECT_EQ(resolved_yaml(config), resolved_yaml(before));  // nothing is changed
    return error.findings();
  }
  return {};
}

TEST(Resolve, GivesWhatAFileGives) {
  AllConfig config = from_members();
  EXPECT_FALSE(config.model_config.kv_channels.has_value());
  EXPECT_THROW(require_supported(config), ValueError);
  resolve(config);
  require_supported(config);
  EXPECT_TRUE(config.same_values(from_yaml()));
  EXPECT_EQ(config.model_config.kv_channels, 8);
  EXPECT_TRUE(config.model_config.gated_linear_unit);
  EXPECT_EQ(config.origins.at("model_config.vocab_size").text, "C++");
  EXPECT_EQ(config.origins.at("model_config.norm_epsilon").text, "default");
  EXPECT_EQ(config.origins.at("model_config.kv_channels").kind, ConfigOrigin::Kind::kDerived);
}

TEST(Resolve, TakesEveryPresetsValuesBack) {
  for (const char* preset : {"tiny", "124M", "110M_llama", "7B", "13B", "70B"}) {
    const AllConfig file =
        init_configs_from_yaml(std::string("examples/gpt/pretrain_gpt_") + preset + ".yaml");
    AllConfig members = file;
    members.origins.clear();
    resolve(members);
    EXPECT_TRUE(members.same_values(file)) << preset;
    AllConfig again = file;
    resolve(again);
    EXPECT_TRUE(again.same_values(file)) << preset;
    EXPECT_EQ(resolved_yaml(again), resolved_yaml(file)) << preset;  // origins too
  }
}

TEST(Resolve, MakesAnewWhatFollowsFromAChange) {
  AllConfig config = from_yaml({"training_config.bf16=True"});
  EXPECT_EQ(config.model_config.num_query_groups, 4);
  EXPECT_EQ(config.model_config.compute_dtype, kBFloat16);
  config.model_config.num_attention_heads = 8;
  config.model_config.hidden_act = "gelu";
  config.training_config.bf16 = false;
  config.parallel_config.zero_level = "z2";
  config.parallel_config.tensor_model_parallel_size = 2;
  config.parallel_config.sequence_parallel = true;
  resolve(config);
  EXPECT_EQ(config.model_config.num_query_groups, 8);
  EXPECT_EQ(config.model_config.kv_channels, 4);
  EXPECT_FALSE(config.model_config.gated_linear_unit);
  EXPECT_EQ(config.model_config.compute_dtype, kFloat32);
  EXPECT_TRUE(config.training_config.use_distributed_optimizer);
  EXPECT_TRUE(config.model_config.sequence_parallel);
  EXPECT_EQ(config.model_config.fused_linear_cross_entropy, false);
  EXPECT_EQ(config.origins.at("model_config.vocab_size").text, "run.yaml:4");
  // And back again.
  config.parallel_config.tensor_model_parallel_size = 1;
  config.parallel_config.zero_level.reset();
  resolve(config);
  EXPECT_FALSE(config.training_config.use_distributed_optimizer);
  EXPECT_FALSE(config.training_config.wrap_with_ddp);
  EXPECT_FALSE(config.model_config.sequence_parallel);
  EXPECT_EQ(config.model_config.fused_linear_cross_entropy, std::nullopt);
}

TEST(Resolve, KeepsWhatWasSetInPlaceOfADerivedValue) {
  AllConfig config = from_yaml();
  config.model_config.kv_channels = 16;
  resolve(config);
  EXPECT_EQ(config.model_config.kv_channels, 16);
  EXPECT_EQ(config.origins.at("model_config.kv_channels").text, "C++");
}

TEST(Resolve, ErrorsNameTheKey) {
  AllConfig config = from_members();
  config.model_config.hidden_size = 0;
  config.model_config.hidden_act = "swich";
  config.model_config.ffn_hidden_size = -4;
  config.optimizer_config.learning_rate = std::numeric_limits<double>::quiet_NaN();
  config.dataset_config.data_layout = "BHS";
  config.model_config.attention_dropout = 1.5;
  const std::vector<std::string> found = findings(config);
  for (const char* key :
       {"C++: model_config.hidden_size is required", "C++: model_config.hidden_act: ",
        "C++: model_config.ffn_hidden_size: ", "C++: optimizer_config.learning_rate: ",
        "C++: dataset_config.data_layout: ", "C++: model_config.attention_dropout: "}) {
    EXPECT_THAT(found, Contains(Says(key)));
  }
  EXPECT_EQ(found.size(), 6U) << ::testing::PrintToString(found);
}

TEST(Resolve, ChecksCombinations) {
  AllConfig both = from_members();
  both.training_config.fp16 = true;
  both.training_config.bf16 = true;
  EXPECT_THAT(findings(both), ElementsAre(AllOf(HasSubstr("C++: training_config.fp16"),
                                                HasSubstr("cannot both be True"))));
  AllConfig split = from_members();
  split.parallel_config.pipeline_model_parallel_size = 8;
  EXPECT_THAT(findings(split),
              ElementsAre(HasSubstr("C++: parallel_config.pipeline_model_parallel_size: ")));
  AllConfig heads = from_members();
  heads.parallel_config.tensor_model_parallel_size = 3;
  EXPECT_THAT(findings(heads), Contains(Says("C++: model_config.num_attention_heads: 4 ... not "
                                             "divisible by ... tensor_model_parallel_size 3")));
  EXPECT_THAT(findings(AllConfig{}), Contains(Says("model_config.vocab_size ... is required")));
}

TEST(Resolve, ValuesHaveTheirOtherSpellings) {
  AllConfig config = from_members();
  config.optimizer_config.optimizer_type = "mint.AdamW";
  resolve(config);
  EXPECT_EQ(config.optimizer_config.optimizer_type, "AdamW");
}

TEST(Resolve, WhatIsNotBuiltYetIsRefusedByRuns) {
  AllConfig config = from_members();
  config.without_effect["training_config.profile_pcie"] = true;
  resolve(config);
  EXPECT_THAT(config.unsupported, Contains(HasSubstr("training_config.profile_pcie")));
  EXPECT_THROW(require_supported(config), ConfigError);
}

TEST(FromDict, IsWhatAFileIs) {
  const nlohmann::json dict = {
      {"training_config", {{"training_iters", 10}, {"seed", 3}}},
      {"dataset_config", {{"batch_size", 2}}},
      {"model_config",
       {{"vocab_size", 64},
        {"num_layers", 4},
        {"num_attention_heads", 4},
        {"hidden_size", 32},
        {"ffn_hidden_size", 64},
        {"seq_length", 16},
        {"hidden_act", "swiglu"}}},
      {"optimizer_config", {{"learning_rate", 0.01}, {"lr_decay_style", "cosine"}}}};
  EXPECT_TRUE(init_configs_from_dict(dict).same_values(from_yaml()));
  nlohmann::json more = dict;
  more["model_config"]["window_size"] = {3, 0};
  more["model_config"]["kv_channels"] = nullptr;
  more["model_config"]["fa_config"] = {{"keep_prob", 1}};
  more["model_config"]["rotary_config"]["rotary_base"] = 5e5;
  more["optimizer_config"]["betas"] = {0.9, 0.95};
  const AllConfig config =
      init_configs_from_dict(more, {.overrides = {"model_config.position_embedding_type=rope"}});
  EXPECT_THAT(config.model_config.window_size.value(), ElementsAre(3, 0));
  EXPECT_EQ(config.model_config.kv_channels, 8);
  EXPECT_EQ(config.model_config.rotary_config.rotary_base, 5e5);
  EXPECT_EQ(config.model_config.position_embedding_type, "rope");
  EXPECT_EQ(config.optimizer_config.betas[1], 0.95);
}

TEST(FromDict, Errors) {
  const auto message = [](const nlohmann::json& dict) -> std::string {
    try {
      init_configs_from_dict(dict);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_THAT(message({{"model_config", {{"hidden_size", "64"}}}}),
              HasSubstr("dict: model_config.hidden_size: "));  // a string is no number
  EXPECT_THAT(message({{"model_config", {{"hidden_sise", 64}}}}),
              HasSubstr("dict: unknown key 'hidden_sise' in model_config; did you mean "
                        "'hidden_size'?"));
  EXPECT_THAT(message(nlohmann::json::array()), HasSubstr("dict: expected a mapping"));
  nlohmann::json deep = 1;
  for (int i = 0; i < 20; ++i) {
    deep = nlohmann::json::array({deep});
  }
  EXPECT_THAT(message({{"model_config", {{"window_size", deep}}}}), HasSubstr("16 levels"));
}

const std::vector<std::string> kWords = {"--train-iters",
                                         "10",
                                         "--seed=3",
                                         "--micro-batch-size",
                                         "2",
                                         "--vocab_size",
                                         "64",
                                         "--model_config.num_layers=4",
                                         "--num-attention-heads",
                                         "4",
                                         "--hidden_size",
                                         "32",
                                         "--ffn-hidden-size",
                                         "64",
                                         "--seq-length",
                                         "16",
                                         "--swiglu",
                                         "--lr",
                                         "1e-2",
                                         "--lr-decay-style",
                                         "cosine"};

std::vector<std::string> joined(std::vector<std::string> words,
                                const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::string args_error(const std::vector<std::string>& more) {
  try {
    init_configs_from_args(joined(kWords, more));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(FromArgs, IsWhatAFileIs) {
  EXPECT_TRUE(init_configs_from_args(kWords).same_values(from_yaml()));
  std::vector<const char*> argv = {"program"};
  for (const std::string& word : kWords) {
    argv.push_back(word.c_str());
  }
  EXPECT_TRUE(
      init_configs_from_args(static_cast<int>(argv.size()), argv.data()).same_values(from_yaml()));
  const AllConfig config = init_configs_from_args(
      joined(kWords, {"--bf16", "--model_config.rotary_config.rotary_base", "5e5", "--adam-beta2",
                      "0.95", "--window-size", "[7, 0]", "--min_lr", "-0.0", "--seed", "8"}),
      {.overrides = {"model_config.position_embedding_type=rope"}});
  EXPECT_EQ(config.model_config.compute_dtype, kBFloat16);
  EXPECT_EQ(config.model_config.rotary_config.rotary_base, 5e5);
  EXPECT_EQ(config.model_config.position_embedding_type, "rope");
  EXPECT_EQ(config.optimizer_config.betas[1], 0.95);
  EXPECT_THAT(config.model_config.window_size.value(), ElementsAre(7, 0));
  EXPECT_EQ(config.training_config.seed, 8);  // the last one counts
  EXPECT_EQ(config.origins.at("optimizer_config.learning_rate").text, "--lr 1e-2");
}

TEST(FromArgs, AFileGoesBelow) {
  const data::TempDir dir;
  dir.write("run.yaml", kYaml);
  const AllConfig config = init_configs_from_args(
      std::vector<std::string>{"--seed", "9", "--config_path", dir.file("run.yaml")});
  EXPECT_EQ(config.training_config.seed, 9);
  EXPECT_EQ(config.model_config.hidden_size, 32);
  EXPECT_THROW(init_configs_from_args(std::vector<std::string>{"--config_path=none.yaml"}),
               IoError);
}

TEST(FromArgs, GlobalBatch) {
  const auto micro = [](const std::vector<std::string>& more) {
    return init_configs_from_args(joined(kWords, more)).dataset_config.micro_batch_num;
  };
  EXPECT_EQ(micro({"--global-batch-size", "12"}), 6);
  EXPECT_EQ(micro({"--global-batch-size", "12", "--data-parallel-size", "3"}), 2);
  EXPECT_THAT(args_error({"--global-batch-size", "13"}),
              Says("--global-batch-size 13: ... no multiple of ... micro-batch-size 2"));
  // The run is held to the ranks that were counted with.
  const auto ranks = [](const std::vector<std::string>& more) {
    return init_configs_from_args(joined(kWords, more)).parallel_config.data_parallel_size;
  };
  EXPECT_EQ(ranks({}), std::nullopt);
  EXPECT_EQ(ranks({"--global-batch-size", "12"}), 1);
  EXPECT_EQ(ranks({"--global-batch-size", "12", "--data-parallel-size", "3"}), 3);
  EXPECT_EQ(ranks({"--data-parallel-size", "2"}), 2);
  EXPECT_THAT(args_error({"--global-batch-size", "x"}), HasSubstr("expected an integer > 0"));
}

// As pretrain_gpt hands them on.
TEST(FromArgs, AmongTheOverridesOfAFile) {
  const data::TempDir dir;
  dir.write("run.yaml", kYaml);
  const auto load = [&](const std::vector<std::string>& overrides) {
    return init_configs_from_yaml(dir.file("run.yaml"), {.overrides = overrides});
  };
  const AllConfig config =
      load({"training_config.seed=9", "--gradient_accumulation_steps 4", "--lr=1e-2", "--seed 9",
            "--model_config.num_layers=3", "--untie_embeddings_and_output_weights"});
  const AllConfig plain = load({});
  EXPECT_EQ(config.training_config.seed, 9);
  EXPECT_EQ(config.dataset_config.micro_batch_num, 4 * plain.dataset_config.micro_batch_num);
  EXPECT_EQ(config.optimizer_config.learning_rate, 1e-2);
  EXPECT_EQ(config.model_config.num_layers, 3);
  EXPECT_TRUE(config.model_config.untie_embeddings_and_output_weights);
  EXPECT_EQ(config.origins.at("optimizer_config.learning_rate").text, "--lr=1e-2");
  const auto error = [&](const std::vector<std::string>& overrides) {
    return message_of<ConfigError>([&] { load(overrides); });
  };
  EXPECT_THAT(error({"--global-batch-size 8"}), HasSubstr("needs --micro-batch-size too"));
  EXPECT_EQ(load({"--global-batch-size 8", "--micro-batch-size 2"}).dataset_config.micro_batch_num,
            4);
}

TEST(FromArgs, FlagsAndSettingsOfOneCommandLineAgree) {
  const auto error = [](const std::vector<std::string>& overrides) {
    return message_of<ConfigError>([&] { config::check_flags_agree(overrides); });
  };
  EXPECT_THAT(error({"training_config.seed=9", "--seed 8"}),
              HasSubstr("--seed 8: training_config.seed: is given by --set training_config.seed=9 "
                        "too, with another value; leave one of them out"));
  EXPECT_THAT(
      error({"--gradient_accumulation_steps=2", "runner_config.gradient_accumulation_steps=3"}),
      HasSubstr("training_config.gradient_accumulation_steps: is given by --set"));
  EXPECT_THAT(error({"--moe_config.num_experts 2", "moe_config.expert_num=4"}),
              HasSubstr("moe_config.num_experts"));
  EXPECT_NO_THROW(config::check_flags_agree(
      {"training_config.seed=7", "training_config.seed=8", "--seed 8", "--lr 1"}));
}

TEST(FromArgs, Errors) {
  EXPECT_THAT(args_error({"--learning-rat", "1"}),
              HasSubstr("--learning-rat 1: unknown name 'learning_rat'; did you mean "
                        "'learning_rate'?"));
  EXPECT_THAT(args_error({"words"}), HasSubstr("'words': expected --section.key=value"));
  EXPECT_THAT(args_error({"--lr", "much"}),
              HasSubstr("--lr much: optimizer_config.learning_rate: "));
  EXPECT_THAT(args_error({"--swiglu", "True"}), HasSubstr("takes no value"));
  EXPECT_THAT(args_error({"--model_config.hiden_size=3"}), HasSubstr("hidden_size"));
  EXPECT_THAT(args_error({"--no_config.x=3"}), HasSubstr("no_config"));
}

// A name that several sections have is in the table, which says whose it is.
TEST(FromArgs, NamesOfSeveralSections) {
  std::map<std::string, std::set<std::string>> owners;
  for (const config::Section& section : config::schema()) {
    for (const config::Key& key : section.keys) {
      owners[std::string(key.name)].insert(std::string(section.name));
      for (const std::string_view alias : config::split_text(key.aliases, '|')) {
        owners[std::string(alias)].insert(std::string(section.name));
      }
    }
  }
  int several = 0;
  for (const auto& [name, sections] : owners) {
    if (sections.size() > 1) {
      ++several;
      const auto names = config::flat_names();
      EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&, &name = name](const auto& flat) {
        return flat.flag == name;
      })) << name;
    }
  }
  EXPECT_GE(several, 3);
  for (const config::FlatName& flat : config::flat_names()) {
    const std::string_view key = flat.key.substr(0, flat.key.find('='));
    const size_t dot = key.find('.');
    EXPECT_NE(config::find_key(key.substr(0, dot), key.substr(dot + 1)), nullptr) << flat.flag;
  }
  EXPECT_EQ(init_configs_from_args(joined(kWords, {"--seq_length", "8"})).model_config.seq_length,
            8);
}

}  // namespace
}  // namespace tapestry
