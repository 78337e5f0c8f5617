// A model and its adapter as one: what the merged folder holds, and that it computes the same.
#include "interop/export/merge_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/io/safetensors.h"
#include "autograd/io/safetensors_directory.h"
#include "autograd/tensor/error.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/peft_plan.h"
#include "parallel_core/training/step/forward_step.h"
#include "tests/message_of.h"
#include "tests/parallel_core/model_families.h"
#include "tests/temp_dir.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using data::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Overrides;
using testing::State;

struct NamedValues {
  std::string name;
  Shape shape;
  std::vector<float> values;
};

void write_tensors(const std::string& path, const std::vector<NamedValues>& tensors) {
  std::vector<TensorView> views;
  for (const NamedValues& tensor : tensors) {
    views.push_back({tensor.name, kFloat32, tensor.shape, tensor.values.data()});
  }
  write_safetensors(path, views);
}

std::vector<NamedValues> read_tensors(const std::string& path) {
  const SafetensorsDirectory files(path);
  std::vector<NamedValues> out;
  for (const std::string& name : files.names()) {
    NamedValues tensor{.name = name, .shape = files.shape(name), .values = {}};
    tensor.values.resize(static_cast<size_t>(tensor.shape.numel()));
    files.read(name, tensor.values.data());
    out.push_back(std::move(tensor));
  }
  return out;
}

class MergeAdapter : public ::testing::Test {
 protected:
  // A base whose weights are divided among several files, with what other programs put beside it.
  void make_base(const Overrides& model) {
    model_ = model;
    const AllConfig config = testing::small_config(model);
    const auto made = get_model(config);
    testing::jitter(*made);
    CheckpointOptions options;
    options.directory = dir_.file("base_run");
    options.resolved_config = "seed: 1\n";
    options.max_shard_bytes = 8000;
    base_ = save_checkpoint(*made, config.model_config, 1, options);
    for (const char* name : {"tokenizer.json", "chat_template.jinja", "tokenizer_config.json"}) {
      std::ofstream(base_ + "/" + name) << "content of " << name << " \xff\n";
    }
  }

  // An adapter beside it, saved as a run saves it.
  void make_adapter(const Overrides& lora) {
    adapted_ = testing::small_config(
        testing::joined({model_, {"lora_config.use_lora=True", "lora_config.lora_rank=3"}, lora}));
    adapted_model_ = get_model(adapted_);
    load_weights(*adapted_model_, adapted_.model_config, base_);
    const NoGradGuard guard;
    for (const auto& entry : adapted_model_->trained_parameters()) {
      const Tensor noise = normal(0, 0.2, entry.parameter->shape(), kFloat32,
                                  RandomKey{5, stream_of(entry.name), 0});
      copy_values(*entry.parameter + noise, *entry.parameter);
      entry.parameter->bump_version();
    }
    CheckpointOptions options;
    options.directory = dir_.file("adapter_run");
    options.adapter_config = peft_config_text(peft_config_of(adapted_.model_config, base_));
    options.base_model =
        adapter_base_text({.path = base_, .fingerprint = weights_fingerprint(base_)});
    adapter_ = save_checkpoint(*adapted_model_, adapted_.model_config, 7, options);
  }

  MergeSummary merge(std::optional<DType> dtype = std::nullopt) {
    fs::remove_all(output());
    return merge_adapter({.base = "", .adapter = adapter_, .output = output(), .dtype = dtype});
  }
  std::string output() const { return dir_.file("merged"); }
  std::string refusal() {
    return message_of<ValueError>([&] { merge(); });
  }
  // Changes the tensors of the adapter's file.
  void rewrite(const std::function<void(std::vector<NamedValues>&)>& change) {
    const std::string file = adapter_ + "/" + kAdapterWeightsFile;
    std::vector<NamedValues> tensors = read_tensors(file);
    change(tensors);
    write_tensors(file, tensors);
  }
  void set_key(const char* key, const nlohmann::ordered_json& value) {
    const std::string file = adapter_ + "/" + kAdapterConfigFile;
    auto json = nlohmann::ordered_json::parse(std::ifstream(file));
    json[key] = value;
    std::ofstream(file) << json.dump(1);
  }
  static std::string content(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  TempDir dir_;
  Overrides model_;
  std::string base_;
  std::string adapter_;
  AllConfig adapted_;
  std::unique_ptr<GPTModel> adapted_model_;
};

TEST_F(MergeAdapter, ComputesWhatTheAdaptedModelDoes) {
  const Overrides qwen2 = testing::llama({testing::kQkvBias});
  const Overrides dora = {"lora_config.use_dora=True"};
  const std::string targets = "lora_config.target_cells=";
  struct Case {
    const char* name;
    Overrides model;
    Overrides lora;
    Overrides merged = {};  // besides, where the result is another model than the base
  };
  const std::vector<Case> cases = {
      {"llama", testing::llama({testing::kUntied}), {}},
      {"qwen2, tied, the output layer trained apart",
       qwen2,
       {"lora_config.modules_to_save=[lm_head]"},
       {testing::kUntied}},
      {"experts in one tensor",
       testing::gpt_oss(),
       {targets + "[{target_cells: ['.*o_proj', '.*experts.(gate_up|down)_proj']}, "
                  "{cell: '.*down_proj', rank: 2, alpha: 5}]"}},
      {"experts, down alone",
       testing::gpt_oss(),
       {targets + "[{target_cells: ['.*experts.down_proj']}]"}},
      {"llama, rslora and ranks",
       testing::llama(),
       {"lora_config.use_rslora=True",
        targets + "[{target_cells: ['.*_proj']}, {cell: '.*v_proj', rank: 5, alpha: 3}]"}},
      {"llama, dora", testing::llama(), dora},
      {"gemma4", testing::gemma4(), {}},
      {"gemma4 with experts", testing::gemma4_moe(), dora},
      {"qwen2, tied, the table trained whole",
       qwen2,
       {"lora_config.modules_to_save=['embed_tokens', 'model.norm']"}},
      {"gpt2", {}, {}},
      {"gpt2, dora", {}, dora},
      {"gpt2, with biases", {}, {"lora_config.bias=lora_only"}},
      {"no Hugging Face names", {"model_config.position_embedding_type=none"}, {}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    make_base(c.model);
    make_adapter(c.lora);
    const MergeSummary summary = merge();
    EXPECT_EQ(summary.base, base_);
    EXPECT_GT(summary.modules, 0);
    const AllConfig plain = testing::small_config(c.model);
    const AllConfig of_merged = testing::small_config(testing::joined(c.model, c.merged));
    const auto merged = get_model(of_merged);
    load_weights(*merged, of_merged.model_config, output());
    const data::Batch batch = testing::make_batch(plain, 2);
    const Tensor expected = pipeline_logits(*adapted_model_, batch);
    EXPECT_LE(testing::distance(pipeline_logits(*merged, batch), expected), 5e-5);
    const auto base_model = get_model(plain);
    load_weights(*base_model, plain.model_config, base_);
    EXPECT_GE(testing::distance(pipeline_logits(*base_model, batch), expected), 1e-2);
  }
}

// The value of each token, by a model with a score head.
Tensor values_of(ParallelModel& model, const data::Batch& batch) {
  const NoGradGuard guard;
  const TokenScoresRequest request = {.values = true};
  ModelInput input = to_model_input(batch);
  input.scores = &request;
  return model(input).scores->values;
}

TEST_F(MergeAdapter, GivesALanguageModelItsScoreHead) {
  const Overrides score = {"model_config.score_head=True"};
  struct Case {
    Overrides model;
    const char* score_class;
  };
  for (const Case& c : {Case{testing::llama({testing::kUntied}), "LlamaForSequenceClassification"},
                        Case{testing::llama({testing::kQkvBias}), "Qwen2ForSequenceClassification"},
                        Case{{}, "GPT2ForSequenceClassification"},
                        Case{{"model_config.position_embedding_type=none"}, ""}}) {
    SCOPED_TRACE(c.score_class);
    make_base(c.model);
    make_adapter(score);
    EXPECT_EQ(adapted_.lora_config.modules_to_save, std::vector<std::string>{"score"});
    EXPECT_EQ(nlohmann::json::parse(content(adapter_ + "/adapter_config.json")).at("task_type"),
              "SEQ_CLS");
    fs::remove(base_ + "/tokenizer.json");  // is none
    const MergeSummary summary = merge();
    EXPECT_EQ(summary.replaced, 1);
    const auto names = SafetensorsDirectory(output()).names();
    EXPECT_EQ(std::count(names.begin(), names.end(), "score.weight"), 1);
    EXPECT_EQ(std::count(names.begin(), names.end(), "lm_head.weight"), 0);
    const auto json = nlohmann::json::parse(content(output() + "/config.json"));
    EXPECT_EQ(json.at("id2label"), nlohmann::json({{"0", "LABEL_0"}}));
    if (c.score_class[0] != 0) {
      EXPECT_EQ(json.at("architectures"), nlohmann::json({c.score_class}));
    }
    const AllConfig of_merged = testing::small_config(testing::joined(c.model, score));
    const auto merged = get_model(of_merged);
    load_weights(*merged, of_merged.model_config, output());
    EXPECT_FALSE(starts_score_head(of_merged.model_config, output()));
    const data::Batch batch = testing::make_batch(of_merged, 2);
    EXPECT_LE(testing::distance(values_of(*merged, batch), values_of(*adapted_model_, batch)),
              5e-5);
  }
}

TEST_F(MergeAdapter, KeepsFilesAndUntouchedTensors) {
  make_base(testing::llama({testing::kUntied}));
  make_adapter({"lora_config.target_cells=[{target_cells: ['.*q_proj']}]"});
  const MergeSummary summary = merge();
  EXPECT_EQ(summary.modules, 2);
  EXPECT_EQ(summary.replaced, 0);
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja", "model.safetensors.index.json"}) {
    EXPECT_EQ(content(fs::path(output()) / name), content(fs::path(base_) / name)) << name;
  }
  for (const char* name : {"config.yaml", "manifest.json", "adapter_config.json"}) {
    EXPECT_FALSE(fs::exists(fs::path(output()) / name)) << name;
  }
  const SafetensorsDirectory merged(output());
  const SafetensorsDirectory base(base_);
  EXPECT_EQ(merged.names(), base.names());
  int64_t same = 0;
  for (const std::string& name : base.names()) {
    EXPECT_EQ(fs::path(merged.file_of(name)).filename(), fs::path(base.file_of(name)).filename());
    std::vector<char> ours(static_cast<size_t>(base.shape(name).numel()) * 4);
    std::vector<char> theirs(ours.size());
    merged.read(name, ours.data());
    base.read(name, theirs.data());
    EXPECT_EQ(ours != theirs, name.find("q_proj") != std::string::npos) << name;
    same += ours == theirs ? 1 : 0;
  }
  EXPECT_EQ(same, summary.tensors - 2);
}

TEST_F(MergeAdapter, RoundsOnceToAnotherDtype) {
  make_base(testing::llama());
  make_adapter({});
  merge();
  std::map<std::string, NamedValues> exact;
  for (NamedValues& tensor : read_tensors(output())) {
    exact.emplace(tensor.name, std::move(tensor));
  }
  merge(kBFloat16);
  const auto config = nlohmann::json::parse(content(fs::path(output()) / "config.json"));
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  const SafetensorsDirectory rounded(output());
  EXPECT_GT(rounded.names().size(), 1U);
  for (const std::string& name : rounded.names()) {
    ASSERT_EQ(rounded.dtype(name), kBFloat16);
    const Tensor stored = empty(rounded.shape(name), kBFloat16);
    rounded.read(name, stored.raw());
    const std::vector<double> values = stored.to_vector<double>();
    for (size_t i = 0; i < values.size(); ++i) {
      const double from = exact.at(name).values[i];
      ASSERT_LE(std::abs(values[i] - from), std::abs(from) / 255) << name;
    }
  }
  EXPECT_THAT(message_of<ValueError>([&] { merge(kInt32); }), HasSubstr("int32"));
}

TEST_F(MergeAdapter, ATiedModelWithAHeadOfItsOwnGetsTwo) {
  make_base(testing::llama());
  make_adapter({"lora_config.target_cells=[{target_cells: ['.*q_proj']}]"});
  set_key("modules_to_save", {"lm_head"});
  std::vector<float> head(31 * 32, 0.5F);
  rewrite([&](std::vector<NamedValues>& tensors) {
    tensors.push_back({"base_model.model.lm_head.weight", {31, 32}, head});
  });
  const MergeSummary summary = merge();
  ASSERT_EQ(summary.remarks.size(), 1U);
  EXPECT_THAT(summary.remarks.front(), HasSubstr("tie_word_embeddings"));
  EXPECT_EQ(summary.replaced, 1);
  EXPECT_EQ(
      nlohmann::json::parse(content(fs::path(output()) / "config.json"))["tie_word_embeddings"],
      false);
  const AllConfig untied = testing::small_config(testing::llama({testing::kUntied}));
  const auto merged = get_model(untied);
  load_weights(*merged, untied.model_config, output());  // through the index, with its new tensor
  const State state = get_logical_state(*merged);
  EXPECT_EQ(state.at("lm_head.weight").to_vector<float>(), head);
  const auto base = get_model(testing::small_config(testing::llama()));
  load_weights(*base, testing::small_config(testing::llama()).model_config, base_);
  EXPECT_TRUE(testing::same_bits(state.at("tok_embeddings.weight"),
                                 get_logical_state(*base).at("tok_embeddings.weight")));
}

TEST_F(MergeAdapter, RefusesWhatDoesNotFit) {
  make_base(testing::llama({testing::kUntied}));
  make_adapter({"lora_config.target_cells=[{target_cells: ['.*q_proj']}]"});
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj";
  const std::string copy = dir_.file("copy");
  fs::copy(adapter_, copy, fs::copy_options::recursive);
  const auto again = [&] {
    fs::remove_all(adapter_);
    fs::copy(copy, adapter_, fs::copy_options::recursive);
  };
  const auto without = [&](const std::string& ending) {
    rewrite([&](std::vector<NamedValues>& tensors) {
      std::erase_if(tensors, [&](const NamedValues& t) { return t.name == q + ending; });
    });
  };
  without(".lora_B.weight");
  EXPECT_THAT(refusal(), AllOf(HasSubstr(q + ".lora_B.weight"), HasSubstr("lacks")));
  without(".lora_A.weight");
  EXPECT_THAT(refusal(), AllOf(HasSubstr(q), HasSubstr("is missing")));
  again();
  rewrite([&](std::vector<NamedValues>& tensors) {
    tensors.front().shape = {tensors.front().shape[1], tensors.front().shape[0]};
  });
  EXPECT_THAT(refusal(), AllOf(HasSubstr(q), HasSubstr("shape")));
  again();
  set_key("r", 4);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(q), HasSubstr("rank")));
  again();
  set_key("target_modules", {"v_proj"});
  EXPECT_THAT(refusal(), AllOf(HasSubstr(q), HasSubstr("target_modules")));
  again();
  rewrite([&](std::vector<NamedValues>& tensors) {
    tensors.push_back({"base_model.model.model.norm.weight", {32}, std::vector<float>(32, 1.0F)});
  });
  EXPECT_THAT(refusal(), AllOf(HasSubstr("model.norm.weight"), HasSubstr("modules_to_save")));
  again();
  rewrite([&](std::vector<NamedValues>& tensors) { tensors.front().values[3] = NAN; });
  EXPECT_THAT(refusal(), HasSubstr("not finite"));
  again();
  rewrite([&](std::vector<NamedValues>& tensors) {
    for (NamedValues& tensor : tensors) {
      tensor.values.assign(tensor.values.size(), 1e4F);
    }
  });
  fs::remove_all(output());
  EXPECT_THAT(message_of<ValueError>([&] { merge(kFloat16); }),
              AllOf(HasSubstr("q_proj"), HasSubstr("float16")));
  again();
  const std::string weights = adapter_ + "/" + kAdapterWeightsFile;
  fs::resize_file(weights, fs::file_size(weights) - 1);
  EXPECT_THAT(message_of<IoError>([&] { merge(); }), HasSubstr(kAdapterWeightsFile));
  again();
  EXPECT_THAT(message_of<ValueError>(
                  [&] { merge_adapter({.base = "", .adapter = adapter_, .output = base_}); }),
              HasSubstr("is there already"));
  fs::rename(base_, base_ + ".gone");
  EXPECT_THAT(message_of<IoError>([&] { merge(); }), AllOf(HasSubstr(base_), HasSubstr("gone")));
  // One that has moved is found where it is said to be; another one is refused.
  fs::remove_all(output());
  EXPECT_NO_THROW(
      merge_adapter({.base = base_ + ".gone", .adapter = adapter_, .output = output()}));
  const std::string first = adapter_;
  make_base(testing::llama({testing::kUntied, "training_config.seed=8"}));
  fs::remove_all(output());
  EXPECT_THAT(message_of<ValueError>(
                  [&] { merge_adapter({.base = base_, .adapter = first, .output = output()}); }),
              AllOf(HasSubstr("is not the base"), HasSubstr("fingerprint")));
}

}  // namespace
}  // namespace tapestry
