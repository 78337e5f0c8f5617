// adapter_config.json: what is read, what is refused, what is written, and which modules it means.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/peft_names.h"
#include "parallel_core/dist_checkpointing/peft_plan.h"
#include "parallel_core/lora/adapter_plan.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_families.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using PeftJson = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

PeftJson usual() {
  return PeftJson::parse(R"({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8,
    "target_modules": ["q_proj", "mlp.down_proj"], "bias": "none"})");
}

class PeftConfigTest : public ::testing::Test {
 protected:
  PeftConfigTest()
      : folder_(fs::temp_directory_path() / ("tapestry_peft_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~PeftConfigTest() override { fs::remove_all(folder_); }

  PeftConfig read(const std::string& text) const {
    std::ofstream(folder_ / kAdapterConfigFile, std::ios::trunc) << text;
    return read_peft_config(folder_.string());
  }
  PeftConfig read_json(const PeftJson& json) const { return read(json.dump()); }
  PeftConfig with(const std::function<void(PeftJson&)>& change) const {
    PeftJson json = usual();
    change(json);
    return read_json(json);
  }
  std::string refusal(const char* key, const PeftJson& value) const {
    return message_of<ValueError>([&] { with([&](PeftJson& json) { json[key] = value; }); });
  }

  fs::path folder_;
};

TEST_F(PeftConfigTest, ReadsWhatPeftWrites) {
  const PeftConfig c = with([](PeftJson& json) {
    json["use_rslora"] = true;
    json["use_dora"] = true;
    json["bias"] = "lora_only";
    json["fan_in_fan_out"] = true;
    json["lora_dropout"] = 0.25;
    json["rank_pattern"] = {{"z.*", 7}, {"a.*", 2}};
    json["alpha_pattern"] = {{"q_proj", 2.5}};
    json["layers_to_transform"] = 3;
    json["layers_pattern"] = "layers";
    json["modules_to_save"] = {"lm_head"};
    json["base_model_name_or_path"] = "some/base";
  });
  EXPECT_EQ(c.rank, 4);
  EXPECT_EQ(c.alpha, 8);
  EXPECT_EQ(c.dropout, 0.25);
  EXPECT_TRUE(c.use_rslora && c.use_dora && c.fan_in_fan_out && c.trains_biases);
  EXPECT_THAT(c.targets.names, ElementsAre("q_proj", "mlp.down_proj"));
  EXPECT_THAT(c.rank_pattern, ElementsAre(Pair("z.*", 7), Pair("a.*", 2)));  // as they come
  EXPECT_THAT(c.alpha_pattern, ElementsAre(Pair("q_proj", 2.5)));
  EXPECT_THAT(*c.layers, ElementsAre(3));
  EXPECT_THAT(c.layers_pattern, ElementsAre("layers"));
  EXPECT_THAT(c.modules_to_save, ElementsAre("lm_head"));
  EXPECT_EQ(c.base, "some/base");
}

TEST_F(PeftConfigTest, KeepsWhatSaysNothing) {
  const std::string text =
      "{\"zzz_of_the_future\": null, \"loftq_config\": {}, \"corda_config\": null,\n"
      "   \"megatron_core\": \"megatron.core\", \"qalora_group_size\": 16, \"peft_version\": "
      "\"1\",\n"
      "   \"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 16.0, \"target_modules\": "
      "\"all-linear\"}";
  PeftConfig c = read(text);
  EXPECT_TRUE(c.targets.all_linear);
  EXPECT_EQ(peft_config_text(c), text);
  c.base = "there";
  const PeftJson written = PeftJson::parse(peft_config_text(c));
  EXPECT_EQ(written["base_model_name_or_path"], "there");
  EXPECT_EQ(written["qalora_group_size"], 16);
  EXPECT_TRUE(written.contains("zzz_of_the_future"));
  EXPECT_FALSE(written.contains("alpha_pattern"));
  EXPECT_TRUE(read_json(written).same_values(c));
}

TEST_F(PeftConfigTest, RefusesByKeyAndValue) {
  const auto says = [](const char* key, const char* value) {
    return AllOf(HasSubstr(concat(key, " is ", value)), HasSubstr("adapter_config.json"));
  };
  EXPECT_THAT(refusal("peft_type", "IA3"), says("peft_type", "\"IA3\""));
  EXPECT_THAT(refusal("task_type", "TOKEN_CLS"), says("task_type", "\"TOKEN_CLS\""));
  EXPECT_THAT(refusal("bias", "all"), says("bias", "\"all\""));
  EXPECT_THAT(refusal("init_lora_weights", "pissa_niter_4"),
              says("init_lora_weights", "\"pissa_niter_4\""));
  EXPECT_THAT(refusal("lora_bias", true), says("lora_bias", "true"));
  EXPECT_THAT(refusal("layer_replication", PeftJson::array({PeftJson::array({0, 4})})),
              says("layer_replication", "[[0,4]]"));
  EXPECT_THAT(refusal("trainable_token_indices", PeftJson::array({1})),
              says("trainable_token_indices", "[1]"));
  EXPECT_THAT(refusal("something_new", 3), says("something_new", "3"));
  EXPECT_THAT(refusal("r", 0), says("r", "0"));
  EXPECT_THAT(refusal("r", 4.5), says("r", "4.5"));
  EXPECT_THAT(refusal("lora_alpha", "8"), says("lora_alpha", "\"8\""));
  EXPECT_THAT(refusal("lora_dropout", 1.0), says("lora_dropout", "1.0"));
  EXPECT_THAT(refusal("target_modules", nullptr), says("target_modules", "null"));
  EXPECT_THAT(refusal("target_modules", PeftJson::array({1})), says("target_modules", "[1]"));
  EXPECT_THAT(refusal("rank_pattern", PeftJson{{"q_proj", -1}}), HasSubstr("rank_pattern is -1"));
  EXPECT_THAT(refusal("use_dora", "yes"), says("use_dora", "\"yes\""));
  EXPECT_THAT(message_of<IoError>([&] { read("{\"r\": 1, \"r\": 2}"); }), HasSubstr("twice"));
  EXPECT_THAT(message_of<IoError>([&] { read("[]"); }), HasSubstr("JSON object"));
  EXPECT_THAT(message_of<IoError>([&] { read_peft_config("/nowhere"); }),
              HasSubstr("/nowhere/adapter_config.json"));
  // All of them at once.
  EXPECT_THAT(message_of<ValueError>([&] {
                with([](PeftJson& json) {
                  json["r"] = 0;
                  json["bias"] = "all";
                });
              }),
              AllOf(HasSubstr("r is 0"), HasSubstr("bias is \"all\"")));
}

// How start values were found, and what a tied table does anyway, ask for nothing here.
TEST_F(PeftConfigTest, ReadsKeysThatStartValuesAndTiesCameWith) {
  const PeftConfig eva = with([](PeftJson& json) {
    json["init_lora_weights"] = "eva";
    json["eva_config"] = {{"rho", 2.0}, {"tau", 0.99}};
    json["loftq_config"] = PeftJson::object();
  });
  EXPECT_EQ(eva.rank, 4);
  // Those that change the base are still refused, by the key that says so.
  EXPECT_THAT(message_of<ValueError>([&] {
                with([](PeftJson& json) {
                  json["init_lora_weights"] = "corda";
                  json["corda_config"] = {{"corda_method", "kpm"}};
                });
              }),
              AllOf(HasSubstr("init_lora_weights is \"corda\""),
                    ::testing::Not(HasSubstr("corda_config is"))));
  EXPECT_THAT(refusal("ensure_weight_tying", "yes"), HasSubstr("ensure_weight_tying"));

  TransformerConfig tied = testing::small_config(testing::llama()).model_config;
  tied.untie_embeddings_and_output_weights = false;
  const auto saved = [&](bool ensure) {
    return lora_config_of(with([&](PeftJson& json) {
                            json["modules_to_save"] = {"embed_tokens"};
                            json["ensure_weight_tying"] = ensure;
                          }),
                          tied, "F")
        .modules_to_save;
  };
  EXPECT_THAT(saved(true), ElementsAre("model\\.embed_tokens"));
  EXPECT_THAT(message_of<ValueError>([&] { saved(false); }), HasSubstr("would part"));
}

TEST_F(PeftConfigTest, NamesFitAsInPeft) {
  const auto modules = [&](const std::function<void(PeftJson&)>& change) {
    return PeftModules(with(change), "test");
  };
  const std::string q = "model.layers.1.self_attn.q_proj";
  {
    const PeftModules m = modules([](PeftJson&) {});
    EXPECT_TRUE(m.targets(q));
    EXPECT_TRUE(m.targets("q_proj"));
    EXPECT_FALSE(m.targets("model.layers.1.self_attn.xq_proj"));
    EXPECT_TRUE(m.targets("model.layers.1.mlp.down_proj"));
    EXPECT_FALSE(m.targets("model.layers.1.xmlp.down_proj"));
    EXPECT_EQ(m.scale(q), 2);
  }
  {
    const PeftModules m =
        modules([](PeftJson& json) { json["target_modules"] = R"(.*\.layers\.[01]\..*_proj)"; });
    EXPECT_TRUE(m.targets(q));
    EXPECT_FALSE(m.targets(q + "x"));
    EXPECT_FALSE(m.targets("model.layers.2.self_attn.q_proj"));
  }
  {
    const PeftModules m = modules([](PeftJson& json) {
      json["layers_to_transform"] = {0, 2};
      json["exclude_modules"] = {"layers.2.self_attn.q_proj"};
    });
    EXPECT_TRUE(m.targets("model.layers.0.self_attn.q_proj"));
    EXPECT_FALSE(m.targets(q));
    EXPECT_FALSE(m.targets("model.layers.2.self_attn.q_proj"));
    EXPECT_TRUE(m.targets("model.layers.2.mlp.down_proj"));
    EXPECT_FALSE(m.targets("q_proj.q_proj"));  // in no layer
  }
  {
    const PeftModules m = modules([](PeftJson& json) {
      json["layers_to_transform"] = {5};
      json["layers_pattern"] = {"h", "blocks"};
    });
    EXPECT_TRUE(m.targets("model.blocks.5.q_proj"));
    EXPECT_FALSE(m.targets("model.layers.5.q_proj"));
  }
  {
    const PeftModules m = modules([](PeftJson& json) {
      json["rank_pattern"] = {{"self_attn.q_proj", 16}, {"q_proj", 1}, {R"(layers\.1\..*)", 9}};
      json["alpha_pattern"] = {{"down_proj", 2}};
      json["use_rslora"] = true;
    });
    EXPECT_EQ(m.rank(q), 16);  // the first that fits
    EXPECT_EQ(m.rank("model.layers.1.mlp.down_proj"), 9);
    EXPECT_EQ(m.rank("model.layers.0.mlp.down_proj"), 4);
    EXPECT_EQ(m.rank("xself_attn.q_proj"), 1);
    EXPECT_EQ(m.alpha("model.layers.0.mlp.down_proj"), 2);
    EXPECT_EQ(m.scale(q), 2);  // 8 / sqrt(16)
  }
  {
    const PeftModules m = modules([](PeftJson& json) {
      json["target_modules"] = "all-linear";
      json["modules_to_save"] = {"lm_head", "norm"};
    });
    EXPECT_TRUE(m.targets(q));
    EXPECT_FALSE(m.targets("lm_head"));
    EXPECT_TRUE(m.saves("lm_head"));
    EXPECT_TRUE(m.saves("model.layers.0.input_layernorm"));  // PEFT asks for the end of the path
  }
}

TEST_F(PeftConfigTest, ExpressionsAreBounded) {
  EXPECT_THAT(message_of<ValueError>([&] {
                PeftModules(with([](PeftJson& json) { json["target_modules"] = "(q_proj"; }),
                            "FILE");
              }),
              AllOf(HasSubstr("FILE: target_modules"), HasSubstr("(q_proj")));
  const PeftModules slow(with([](PeftJson& json) { json["target_modules"] = "((a|aa)+)+[bc]"; }),
                         "FILE");
  EXPECT_THAT(message_of<ValueError>([&] { (void)slow.targets(std::string(60, 'a')); }),
              HasSubstr("simpler"));
}

// The modules that a configuration of ours means, as PEFT reads what we write of it.
std::set<std::string> described(const AdapterPlan& plan) {
  std::set<std::string> out;
  for (const AdaptedModule& module : plan.modules) {
    out.insert(concat(module.hf_path.empty() ? module.module : module.hf_path, " ", module.rank,
                      " ", module.alpha, " ", module.scale));
  }
  return out;
}

AllConfig adapted(const testing::Overrides& model, const testing::Overrides& lora) {
  return testing::small_config(testing::joined({model, {"lora_config.use_lora=True"}, lora}));
}

TEST_F(PeftConfigTest, SaysWhatOurKeysSayAndBack) {
  const std::string targets = "lora_config.target_cells=";
  const testing::Overrides mixture = testing::qwen2_moe({testing::kUntied});
  struct Case {
    const char* name;
    testing::Overrides model;
    testing::Overrides lora;
    std::vector<std::string> names;  // of target_modules; empty: not looked at
  };
  const std::vector<Case> cases = {
      {"llama, all", testing::llama({testing::kUntied}), {}, {}},
      {"gemma4, all", testing::gemma4(), {}, {}},
      {"gemma4, what is of per-layer embeddings",
       testing::gemma4(),
       {targets + "[{target_cells: ['.*per_layer.*']}]"},
       {}},
      {"llama, queries of layer 1",
       testing::llama(),
       {targets + "[{target_cells: ['model.layers.1.self_attn.q_proj']}]"},
       {"1.self_attn.q_proj"}},
      {"llama, ranks",
       testing::llama(),
       {targets + "[{target_cells: ['.*(q|v|up)_proj']}, {cell: '.*v_proj', rank: 3, alpha: 7.5}, "
                  "{cell: '.*layers.1.*up_proj', rank: 2}]",
        "lora_config.use_rslora=True"},
       {"q_proj", "v_proj", "up_proj"}},
      {"gpt2, the MLP's projection alone",
       {},
       {targets + "[{target_cells: ['.*mlp.c_proj']}]"},
       {"mlp.c_proj"}},
      {"gpt2, all", {}, {}, {"c_attn", "c_proj", "c_fc"}},
      {"gpt2, with biases and a norm",
       {},
       {targets + "[{target_cells: ['.*c_fc']}]", "lora_config.bias=lora_only",
        "lora_config.modules_to_save=[ln_f]"},
       {"c_fc"}},
      {"experts beside shared ones",
       mixture,
       {targets + "[{target_cells: ['.*shared_expert.*']}]"},
       {"shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"}},
      {"experts in one tensor",
       testing::gpt_oss(),
       {targets + "[{target_cells: ['.*k_proj', '.*experts.(gate_up|down)_proj']}, "
                  "{cell: '.*layers.1.*down_proj', rank: 2, alpha: 5}]"},
       {"k_proj"}},
      {"the experts' second matrix alone",
       testing::gpt_oss(),
       {targets + "[{target_cells: ['.*experts.down_proj']}]"},
       {}},
      {"tied, with the output layer",
       testing::llama(),
       {"lora_config.modules_to_save=['lm_head', 'model.norm']"},
       {}},
      {"no Hugging Face names",
       {"model_config.position_embedding_type=none"},
       {targets + "[{target_cells: ['.*wq', '.*w_down']}]"},
       {"wq", "w_down"}},
      {"tied, with the table",
       testing::llama(),
       {"lora_config.modules_to_save=['embed_tokens', 'model.norm']", "lora_config.use_dora=True"},
       {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const AllConfig config = adapted(c.model, c.lora);
    const PeftConfig peft = peft_config_of(config.model_config, "base");
    if (!c.names.empty()) {
      EXPECT_THAT(peft.targets.names, ::testing::UnorderedElementsAreArray(c.names));
    }
    const PeftConfig again = read(peft_config_text(peft));
    EXPECT_TRUE(again.same_values(peft));
    AllConfig back = testing::small_config(c.model);
    configure_adapter(back, folder_.string());
    const AdapterPlan ours = plan_adapter(config);
    const AdapterPlan theirs = plan_adapter(back);
    EXPECT_EQ(described(ours), described(theirs));
    EXPECT_EQ(std::set(ours.saved_modules.begin(), ours.saved_modules.end()),
              std::set(theirs.saved_modules.begin(), theirs.saved_modules.end()));
    EXPECT_EQ(back.lora_config.use_dora, config.lora_config.use_dora);
    EXPECT_EQ(back.lora_config.bias, config.lora_config.bias);
    EXPECT_NO_THROW(check_adapter_config(config.model_config, folder_.string()));
  }
}

TEST_F(PeftConfigTest, ATableThatIsTheOutputTooIsNamedTwice) {
  const AllConfig config =
      adapted(testing::llama(), {"lora_config.modules_to_save=['embed_tokens']"});
  const PeftConfig peft = peft_config_of(config.model_config, "base");
  EXPECT_THAT(peft.modules_to_save, ::testing::UnorderedElementsAre("embed_tokens", "lm_head"));
  read(with([](PeftJson& json) { json["modules_to_save"] = {"embed_tokens"}; }).text);
  AllConfig back = testing::small_config(testing::llama());
  EXPECT_THAT(message_of<ValueError>([&] { configure_adapter(back, folder_.string()); }),
              AllOf(HasSubstr("modules_to_save"), HasSubstr("one matrix")));
}

TEST_F(PeftConfigTest, AnOutputLayerThatIsNamedAloneIsApart) {
  with([](PeftJson& json) { json["modules_to_save"] = {"lm_head"}; });
  AllConfig back = testing::small_config(testing::llama());
  configure_adapter(back, folder_.string());
  EXPECT_TRUE(back.model_config.untie_embeddings_and_output_weights);
  EXPECT_THAT(plan_adapter(back).saved_modules, ::testing::ElementsAre("lm_head.weight"));
  with([](PeftJson& json) {
    json["modules_to_save"] = {"embed_tokens"};
    json["ensure_weight_tying"] = true;
  });
  back = testing::small_config(testing::llama());
  configure_adapter(back, folder_.string());
  EXPECT_FALSE(back.model_config.untie_embeddings_and_output_weights);
}

TEST_F(PeftConfigTest, ParametersAreStackedExpertsAlone) {
  const auto refusal = [&](const testing::Overrides& model, const char* name) {
    with([&](PeftJson& json) { json["target_parameters"] = {name}; });
    AllConfig config = testing::small_config(model);
    return message_of<ValueError>([&] { configure_adapter(config, folder_.string()); });
  };
  EXPECT_THAT(refusal(testing::mixtral(), "mlp.experts.down_proj"),
              AllOf(HasSubstr("target_parameters"), HasSubstr("'mlp.experts.down_proj'"),
                    HasSubstr("in one tensor")));
  EXPECT_THAT(refusal(testing::gpt_oss(), "mlp.experts.up_proj"), HasSubstr("means nothing"));
}

TEST_F(PeftConfigTest, RefusesModulesThatGetNoAdapter) {
  AllConfig config = testing::small_config(testing::llama({testing::kUntied}));
  with([](PeftJson& json) { json["target_modules"] = {"q_proj", "lm_head"}; });
  EXPECT_THAT(message_of<ValueError>([&] { configure_adapter(config, folder_.string()); }),
              AllOf(HasSubstr("target_modules"), HasSubstr("lm_head")));
  with([](PeftJson& json) { json["target_modules"] = {"c_attn"}; });
  EXPECT_THAT(message_of<ValueError>([&] { configure_adapter(config, folder_.string()); }),
              HasSubstr("no module"));
  AllConfig experts = testing::small_config(testing::mixtral({testing::kUntied}));
  with([](PeftJson& json) { json["target_modules"] = "all-linear"; });
  EXPECT_THAT(message_of<ValueError>([&] { configure_adapter(experts, folder_.string()); }),
              HasSubstr("get no adapter"));
}

TEST_F(PeftConfigTest, AnotherAdapterIsNamedByWhatDiffers) {
  with([](PeftJson& json) { json["target_modules"] = {"q_proj"}; });
  const auto difference = [&](const testing::Overrides& lora) {
    const AllConfig config = adapted(testing::llama(), lora);
    return message_of<ValueError>(
        [&] { check_adapter_config(config.model_config, folder_.string()); });
  };
  const std::string q = "lora_config.target_cells=[{target_cells: ['.*q_proj']}]";
  EXPECT_THAT(difference({q, "lora_config.lora_rank=8", "lora_config.lora_alpha=8"}),
              AllOf(HasSubstr("the rank of model.layers.0.self_attn.q_proj is 4"), HasSubstr("8")));
  EXPECT_THAT(difference({q, "lora_config.lora_rank=4"}), HasSubstr("lora_alpha"));
  EXPECT_THAT(difference({q, "lora_config.lora_rank=4", "lora_config.lora_alpha=8",
                          "lora_config.use_rslora=True"}),
              HasSubstr("use_rslora"));
  with([](PeftJson& json) {
    json["target_modules"] = {"o_proj"};
    json["bias"] = "lora_only";
  });
  EXPECT_THAT(difference({"lora_config.target_cells=[{target_cells: ['.*o_proj']}]",
                          "lora_config.lora_rank=4", "lora_config.lora_alpha=8"}),
              HasSubstr("bias is lora_only, but lora_config says none"));
  with([](PeftJson& json) { json["target_modules"] = {"q_proj"}; });
  EXPECT_THAT(difference({"lora_config.lora_rank=4", "lora_config.lora_alpha=8"}),
              HasSubstr("has no adapter for"));
}

TEST(PeftNames, FusedModulesHaveTheirBsBelowEachOther) {
  const FileNames gpt2(name_scheme_of("gpt2"), testing::small_config().model_config);
  const std::string stem = "base_model.model.transformer.h.1.attn.c_attn";
  const FilePlace a = peft_place(gpt2, {}, "layers.1.attention.wqkv.lora_A.weight", {3, 32});
  EXPECT_EQ(a.name, stem + ".lora_A.weight");
  EXPECT_EQ(a.shape, (Shape{3, 32}));
  const FilePlace b = peft_place(gpt2, {}, "layers.1.attention.wk.lora_B.weight", {32, 3});
  EXPECT_EQ(b.name, stem + ".lora_B.weight");
  EXPECT_EQ(b.shape, (Shape{96, 3}));
  EXPECT_EQ(b.first, 32);
  EXPECT_FALSE(b.transposed);
  const FilePlace m = peft_place(gpt2, {}, "layers.1.attention.wv.lora_magnitude_vector", {32});
  EXPECT_EQ(m.name, stem + ".lora_magnitude_vector");
  EXPECT_EQ(m.shape, (Shape{96}));
  EXPECT_EQ(m.first, 64);
  const FilePlace whole = peft_place(gpt2, {}, "layers.1.feed_forward.w_up.weight", {48, 32});
  EXPECT_EQ(whole.name, "base_model.model.transformer.h.1.mlp.c_fc.weight");
  EXPECT_EQ(whole.shape, (Shape{32, 48}));
  EXPECT_TRUE(whole.transposed);
}

TEST(PeftNames, ABiasBesideAnAdapterIsOfTheBaseLayer) {
  const AllConfig config =
      testing::small_config({"lora_config.use_lora=True", "lora_config.bias=lora_only",
                             "lora_config.target_cells=[{target_cells: ['.*c_attn']}]"});
  const AdapterPlan plan = plan_adapter(config);
  const FileNames gpt2(name_scheme_of("gpt2"), config.model_config);
  const std::string layer = "base_model.model.transformer.h.1.";
  const FilePlace keys = peft_place(gpt2, plan, "layers.1.attention.wk.bias", {32});
  EXPECT_EQ(keys.name, layer + "attn.c_attn.base_layer.bias");
  EXPECT_EQ(keys.shape, (Shape{96}));
  EXPECT_EQ(keys.first, 32);
  EXPECT_EQ(peft_place(gpt2, plan, "layers.1.attention.wo.bias", {32}).name,
            layer + "attn.c_proj.bias");
  EXPECT_EQ(peft_place(gpt2, plan, "layers.1.attention_norm.bias", {32}).name, layer + "ln_1.bias");
}

TEST(PeftNames, AFusedGateHasItsBsBelowEachOther) {
  const FileNames phi3(name_scheme_of("phi3"),
                       testing::small_config({"model_config.hidden_act=swiglu"}).model_config);
  const std::string stem = "base_model.model.model.layers.1.mlp.gate_up_proj";
  EXPECT_EQ(peft_place(phi3, {}, "layers.1.feed_forward.w_gate_up.lora_A.weight", {3, 32}).name,
            stem + ".lora_A.weight");
  const FilePlace b = peft_place(phi3, {}, "layers.1.feed_forward.w_up.lora_B.weight", {48, 3});
  EXPECT_EQ(b.name, stem + ".lora_B.weight");
  EXPECT_EQ(b.shape, (Shape{96, 3}));
  EXPECT_EQ(b.first, 48);
}

}  // namespace
}  // namespace tapestry
