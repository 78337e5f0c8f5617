// Replays reference trainings of adapters through the training program, in one process and in
// layouts, and compares every step, the gradients of the first and the adapter at the end.
//
// Reads the directory in TAPESTRY_GOLDEN_LORA, else the project's own small set.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/ops/map.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "diagnosis/accuracy/replay_case.h"
#include "diagnosis/run_parts.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/config/config.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/dist_checkpointing/adapter_folder.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/dist_checkpointing/peft_names.h"
#include "parallel_core/dist_checkpointing/peft_plan.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Tensors = std::map<std::string, std::vector<double>>;

// Those of the reference's documentation.
constexpr double kFirstLoss = 2e-6;
constexpr double kLoss = 1e-5;
constexpr double kGradients = 5e-5;
constexpr double kNorms = 1e-4;
constexpr double kAdapter = 1e-4;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<Json> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

struct LoraLayout {
  std::string name;
  int ranks = 1;
  int data_parallel = 1;
  std::vector<std::string> settings = {};
};

// Those of the issue that the case's sizes allow. Where micro-batches cannot be shared out,
// context-parallel ranks are what gradients and states are sharded over.
std::vector<LoraLayout> layouts_of(const Json& model) {
  const auto set = [](const char* key, const auto& value) {
    return concat("parallel_config.", key, "=", value);
  };
  const auto micro_batches =
      model.at("global_batch_size").get<int>() / model.at("micro_batch_size").get<int>();
  const bool has_two = micro_batches % 2 == 0;
  const auto layers = model.at("num_layers").get<int>();
  std::vector<LoraLayout> out = {
      {"one process"},
      {"tp 2", 2, 1, {set("tensor_model_parallel_size", 2)}},
      {"tp 2 + sp", 2, 1, {set("tensor_model_parallel_size", 2), set("sequence_parallel", "True")}},
      {"tp 4 + sp", 4, 1, {set("tensor_model_parallel_size", 4), set("sequence_parallel", "True")}},
      {"pp 2", 2, 1, {set("pipeline_model_parallel_size", 2)}},
      {"cp 2", 2, 1, {set("context_parallel_size", 2)}},
      {"tp 2, pp 2",
       4,
       1,
       {set("tensor_model_parallel_size", 2), set("pipeline_model_parallel_size", 2)}}};
  if (layers >= 4) {
    out.push_back(
        {"pp 2, vpp 2",
         2,
         1,
         {set("pipeline_model_parallel_size", 2), set("virtual_pipeline_model_parallel_size", 2)}});
  }
  for (const char* level : {"z1", "z2", "z3"}) {
    LoraLayout layout = {concat(level, has_two ? ", dp 2" : ", cp 2"),
                         2,
                         has_two ? 2 : 1,
                         {set("zero_level", level)}};
    if (!has_two) {
      layout.settings.push_back(set("context_parallel_size", 2));
    }
    out.push_back(layout);
  }
  std::erase_if(out, [&](const LoraLayout& layout) {
    const int tp = layout.name.starts_with("tp 4") ? 4 : layout.name.starts_with("tp 2") ? 2 : 1;
    return model.at("num_attention_heads").get<int>() % tp != 0 ||
           model.at("ffn_hidden_size").get<int>() % tp != 0 || layers < 2;
  });
  return out;
}

std::map<std::string, std::pair<double, std::string>>& worst_distances() {
  static std::map<std::string, std::pair<double, std::string>> table;
  return table;
}

void expect_near(const std::string& quantity,
                 double distance,
                 double bound,
                 const std::string& where) {
  EXPECT_LE(distance, bound) << quantity << " at " << where;
  auto& entry = worst_distances()[quantity];
  if (!(distance <= entry.first)) {
    entry = {distance, where};
  }
}

double relative_to(double value, double expected) {
  return std::abs(value - expected) / std::abs(expected);
}

// An adapter's logical tensors as its file has them.
Tensors in_file(const LogicalState& found, const TransformerConfig& config) {
  const FileNames names(name_scheme(config), config);
  Tensors out;
  for (const auto& [logical, tensor] : found) {
    if (!is_adapter_tensor(logical)) {
      continue;
    }
    const FilePlace place = peft_place(names, {}, logical, tensor.shape());
    std::vector<double>& whole = out[place.name];
    whole.resize(static_cast<size_t>(place.shape.numel()));
    const std::vector<double> values = tensor.to_vector<double>();
    const int64_t row = tensor.numel() / tensor.size(0);
    for (int64_t r = 0; r < tensor.size(0); ++r) {
      std::copy_n(values.begin() + r * row, row, whole.begin() + place.row(r) * row);
    }
  }
  return out;
}

Tensors in_reference(const fs::path& file) {
  Tensors out;
  for (const auto& [name, tensor] : read_weights(file.string())) {
    out.emplace(name, tensor.to_vector<double>());
  }
  return out;
}

void compare_adapters(const Tensors& found, const Tensors& expected, const std::string& where) {
  ASSERT_EQ(found.size(), expected.size()) << where;
  for (const auto& [name, reference] : expected) {
    ASSERT_TRUE(found.contains(name)) << where << ": " << name;
    const std::vector<double>& own = found.at(name);
    ASSERT_EQ(own.size(), reference.size()) << name;
    double difference = 0;
    double squares = 0;
    for (size_t i = 0; i < own.size(); ++i) {
      difference += (own[i] - reference[i]) * (own[i] - reference[i]);
      squares += reference[i] * reference[i];
    }
    expect_near("final adapter", std::sqrt(difference / squares), kAdapter, where + ", " + name);
  }
}

void compare_gradients(const Tensors& found, const Tensors& expected, const std::string& where) {
  ASSERT_EQ(found.size(), expected.size()) << where;
  for (const auto& [name, reference] : expected) {
    ASSERT_TRUE(found.contains(name)) << where << ": " << name;
    const std::vector<double>& own = found.at(name);
    ASSERT_EQ(own.size(), reference.size()) << name;
    double difference = 0;
    double largest = 0;
    for (size_t i = 0; i < own.size(); ++i) {
      difference = std::max(difference, std::abs(own[i] - reference[i]));
      largest = std::max(largest, std::abs(reference[i]));
    }
    expect_near("gradient elements of step 1", difference / largest, kGradients,
                where + ", " + name);
  }
}

// Norms by the names of the file; those of parts of one tensor are put together.
std::map<std::string, double> norms_in_file(const Json& found, const TransformerConfig& config) {
  const FileNames names(name_scheme(config), config);
  std::map<std::string, double> out;
  for (const auto& [logical, norm] : found.items()) {
    const bool is_vector = logical.ends_with("vector");
    double& sum = out[peft_place(names, {}, logical, is_vector ? Shape{1} : Shape{1, 1}).name];
    sum = std::hypot(sum, norm.get<double>());
  }
  return out;
}

void compare_step(const Json& found,
                  const Json& expected,
                  const TransformerConfig& config,
                  const std::string& name) {
  const auto step = expected.at("step").get<int64_t>();
  const std::string where = concat(name, ", step ", step);
  ASSERT_EQ(found.at("step").get<int64_t>(), step) << where;
  expect_near(step == 1 ? "loss of step 1" : "loss",
              relative_to(found.at("loss").get<double>(), expected.at("loss").get<double>()),
              step == 1 ? kFirstLoss : kLoss, where);
  const auto norm = expected.at("grad_norm").get<double>();
  expect_near("gradient norm", relative_to(found.at("grad_norm").get<double>(), norm), kNorms,
              where);
  EXPECT_EQ(found.at("loss_tokens").get<double>(), expected.at("loss_tokens").get<double>());
  const std::map<std::string, double> norms = norms_in_file(found.at("grad_norms"), config);
  ASSERT_EQ(norms.size(), expected.at("grad_norms").size()) << where;
  for (const auto& [tensor, value] : expected.at("grad_norms").items()) {
    const auto own = norms.find(std::string(kPeftPrefix) + tensor);
    ASSERT_NE(own, norms.end()) << where << ": " << tensor;
    expect_near(
        "gradient norm of a tensor",
        std::abs(own->second - value.get<double>()) / std::max(value.get<double>(), 1e-3 * norm),
        kNorms, where + ", " + tensor);
  }
}

void replay(const fs::path& folder, const LoraLayout& layout, const fs::path& scratch) {
  const std::string name = folder.filename().string() + " (" + layout.name + ")";
  SCOPED_TRACE(name);
  const Json given = Json::parse(text_of(folder / "case.json"));
  const fs::path output = scratch / (folder.filename().string() + " " + layout.name);
  fs::create_directories(output);
  const std::string last = std::to_string(given.at("model").at("train_iters").get<int64_t>());
  std::vector<std::string> settings = layout.settings;
  settings.push_back("training_config.load_checkpoint='" + fs::absolute(folder / "base").string() +
                     "'");
  settings.push_back("training_config.dump_grad_steps=[1]");
  settings.push_back("training_config.dump_weight_steps=[" + last + "]");
  AllConfig config = init_configs_from_text(
      replay_case_yaml(given.at("model").dump(), fs::absolute(folder).string(), output.string(),
                       layout.data_parallel),
      name + ".yaml", {.overrides = settings});
  configure_adapter(config, fs::absolute(folder / "adapter_start").string());
  resolve(config);
  run_thread_ranks(layout.ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
    pretrain(config, {.world = world, .parts = diagnosis::run_parts()});
    destroy_model_parallel();
  });
  const TransformerConfig& model = config.model_config;
  const std::vector<Json> expected = lines_of(folder / "trace.jsonl");
  const std::vector<Json> found = lines_of(output / "metrics.jsonl");
  ASSERT_FALSE(expected.empty());
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    compare_step(found[i], expected[i], model, name);
  }
  compare_gradients(in_file(read_weights((output / "grads_step_1.safetensors").string()), model),
                    in_reference(folder / "grads_step_1.safetensors"), name);
  compare_adapters(
      in_file(read_weights((output / ("weights_step_" + last + ".safetensors")).string()), model),
      in_reference(folder / "adapter_final" / "adapter_model.safetensors"), name);
}

TEST(GoldenLora, ReplaysEveryTraceInEveryLayout) {
  const char* const directory = std::getenv("TAPESTRY_GOLDEN_LORA");
  const fs::path root = directory != nullptr ? directory : "tests/data/golden_lora";
  ASSERT_TRUE(fs::is_directory(root)) << root;
  std::vector<fs::path> cases;
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    if (entry.is_directory() && fs::exists(entry.path() / "case.json")) {
      cases.push_back(entry.path());
    }
  }
  std::sort(cases.begin(), cases.end());
  ASSERT_FALSE(cases.empty()) << root << " holds no cases";
  const fs::path scratch =
      fs::temp_directory_path() / ("tapestry_golden_lora_" + std::to_string(getpid()));
  for (const fs::path& folder : cases) {
    for (const LoraLayout& layout :
         layouts_of(Json::parse(text_of(folder / "case.json")).at("model"))) {
      replay(folder, layout, scratch);
    }
  }
  if (!HasFailure()) {
    fs::remove_all(scratch);
  }
  std::cout << cases.size() << " cases in " << root << "; worst distances:\n";
  for (const auto& [quantity, entry] : worst_distances()) {
    std::cout << "  " << quantity << ": " << entry.first << " (" << entry.second << ")\n";
  }
}

}  // namespace
}  // namespace tapestry
