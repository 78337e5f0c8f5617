// Replays trainings of TRL on preferences, of reward models and on stored completions through the
// training program, in one process and in layouts, and compares loss, gradient norm and every
// metric of each step.
//
// Reads the directory in TAPESTRY_GOLDEN_POST_TRAINING, else the project's own small set. A case is
// a folder with case.json (task, data, settings) and trace_fp64.jsonl (what TRL computes in
// float64); float32_spread.json says how far TRL's float32 lies from it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/tensor/error.h"
#include "diagnosis/run_parts.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/post_training/preference_task.h"
#include "parallel_core/post_training/run_task.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kPairs = 4;  // of a step

bool is_grpo(const Json& given) { return given.at("task") == "grpo"; }

// What batch_size counts: pairs, or completions.
int64_t units_of(const Json& given) {
  return is_grpo(given) ? std::ssize(given.at("completions")) : kPairs;
}

Json json_of(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return Json::parse(file);
}

std::vector<Json> lines_of(const fs::path& path) {
  std::ifstream file(path);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

struct Layout {
  std::string name;
  int ranks = 1;
  std::vector<std::string> settings = {};
};

std::vector<Layout> layouts(int64_t units) {
  const auto parallel = [](const char* key) { return concat("parallel_config.", key, "=2"); };
  const auto batch = [](int64_t size, int64_t count) {
    return std::vector<std::string>{concat("dataset_config.batch_size=", size),
                                    concat("dataset_config.micro_batch_num=", count)};
  };
  Layout both{"pp 2, dp 2, 2 micro-batches", 4, batch(units / 4, 2)};
  both.settings.push_back(parallel("pipeline_model_parallel_size"));
  return {{"one process"},
          {"2 micro-batches", 1, batch(units / 2, 2)},
          {"dp 2", 2, batch(units / 2, 1)},
          {"tp 2", 2, {parallel("tensor_model_parallel_size")}},
          {"cp 2", 2, {parallel("context_parallel_size")}},
          both};
}

// How far a step may lie from TRL's in float64: four times TRL's own float32, with floors.
struct Bounds {
  explicit Bounds(const Json& spread)
      : loss(4 * spread.at("loss").get<double>()),
        norm(std::max(4 * spread.at("grad_norm").get<double>(), 5e-6)),
        metrics(std::max(4 * spread.at("metrics_step_1").get<double>(), 1e-5)) {}

  double loss;
  double norm;     // relative
  double metrics;  // relative, of the first step
};

// vespo weighs a completion with the exponential of a sum of its log-probabilities, which float32
// forward passes know to a unit in the last place of that sum at best; TRL's own float32 happens to
// lie nearer in one layout.
double rounding_of_weights(const fs::path& folder, const Json& given) {
  if (given.at("settings").value("loss_type", Json()) != "vespo") {
    return 0;
  }
  double largest = 0;
  for (const Json& line : lines_of(folder / "rollouts.jsonl")) {
    double sum = 0;
    for (const Json& log_prob : line.at("logprobs")) {
      sum += log_prob.get<double>();
    }
    largest = std::max(largest, std::abs(sum));
  }
  return std::ldexp(largest, -23);
}

// The pairs of a file without their column of margins, in a file of their own.
std::string without_margins(const fs::path& path, const fs::path& output) {
  fs::create_directories(output.parent_path());
  const std::string made = output.string() + " pairs.jsonl";
  std::ofstream file(made);
  for (Json line : lines_of(path)) {
    line.erase("margin");
    file << line.dump() << "\n";
  }
  return made;
}

std::string config_text(const fs::path& root,
                        const std::string& name,
                        const Json& given,
                        size_t steps,
                        const fs::path& output) {
  const fs::path folder = root / name;
  Json task = given.at("settings");
  task["task"] = given.at("task");
  if (is_grpo(given)) {
    task["rollouts"] = (folder / "rollouts.jsonl").string();
    task["num_generations"] = given.at("groups");
    task["max_completion_length"] = given.at("max_completion_length");
    task["num_iterations"] = steps;
    if (task.contains("beta")) {
      task["reference"] = (root / "reference").string();
    }
  } else {
    task["data"] = {(root / "data" / (given.at("data").get<std::string>() + ".jsonl")).string()};
  }
  const bool has_adapter = fs::is_directory(folder / "adapter");
  if (given.contains("reference")) {
    task["reference"] =
        has_adapter ? "adapter_off" : (root / given.at("reference").get<std::string>()).string();
  }
  const bool is_reward = given.at("task") == "reward";
  if (is_reward && !given.at("margin").get<bool>()) {
    task["data"] = {without_margins(task["data"][0].get<std::string>(), output)};
  }
  const fs::path start = is_reward     ? folder / "start"
                         : has_adapter ? root / "reference"
                                       : root / "policy";
  Json config;
  config["training_config"] = {{"training_iters", steps}, {"output_dir", output.string()}};
  config["model_config"] = {{"from_hf", start.string()}, {"seq_length", 64}};
  config["post_training_config"] = task;
  config["dataset_config"] = {{"batch_size", units_of(given)},
                              {"shuffle", false},
                              {"tokenizer_type", "huggingface"},
                              {"tokenizer_model", (root / "policy").string()}};
  config["optimizer_config"] = {{"optimizer_type", "AdamW"},
                                {"learning_rate", given.at("lr")},
                                {"lr_decay_style", "constant"},
                                {"weight_decay", given.at("weight_decay")},
                                {"betas", given.at("betas")},
                                {"eps", given.at("eps")},
                                {"clip_grad", 0.0}};
  if (has_adapter) {
    const Json adapter = json_of(folder / "adapter" / "adapter_config.json");
    config["lora_config"] = {{"use_lora", true},
                             {"adapter", (folder / "adapter").string()},
                             {"lora_rank", adapter.at("r")},
                             {"lora_alpha", adapter.at("lora_alpha")}};
  }
  return config.dump();
}

void compare_step(const Json& found, const Json& expected, const Bounds& bounds) {
  const auto step = expected.at("step").get<int64_t>();
  SCOPED_TRACE(concat("step ", step));
  ASSERT_EQ(found.at("step").get<int64_t>(), step);
  const auto loss = expected.at("loss").get<double>();
  EXPECT_NEAR(found.at("loss").get<double>(), loss,
              std::max(bounds.loss, 2e-6 * std::max(1.0, std::abs(loss))));
  const auto norm = expected.at("grad_norm").get<double>();
  EXPECT_NEAR(found.at("grad_norm").get<double>(), norm, bounds.norm * norm + 1e-9);
  for (const auto& [name, value] : expected.at("metrics").items()) {
    ASSERT_TRUE(found.contains(name)) << name;
    const auto number = value.get<double>();
    // The weights of later steps differ in what was rounded.
    const double bound = bounds.metrics * (step == 1 ? 1 : 20);
    EXPECT_NEAR(found.at(name).get<double>(), number, bound * std::max(1.0, std::abs(number)))
        << name;
  }
}

// What TRL says of completions when they are made, in float32. Its functions have names, the lists
// of stored rewards have none.
void compare_generation(const Json& found, const Json& logged) {
  for (const auto& [name, value] : logged.items()) {
    std::string own = name;
    for (const auto& [theirs, ours] :
         {std::pair{"/first/", "/reward_1/"}, std::pair{"/second/", "/reward_2/"}}) {
      if (const size_t at = own.find(theirs); at != std::string::npos) {
        own.replace(at, std::string(theirs).size(), ours);
      }
    }
    ASSERT_TRUE(found.contains(own)) << own;
    EXPECT_NEAR(found.at(own).get<double>(), value.get<double>(), 1e-6) << own;
  }
}

class PostTrainingCases : public testing::Test {
 protected:
  PostTrainingCases() {
    const char* const given = std::getenv("TAPESTRY_GOLDEN_POST_TRAINING");
    root_ = fs::absolute(given != nullptr ? given : "tests/data/golden_post_training");
    const Json spread = json_of(root_ / "float32_spread.json");
    for (const auto& [name, values] : spread.items()) {
      const Json task = json_of(root_ / name / "case.json").at("task");
      if (task == "grpo" || task == "reward" ||
          post_training::is_preference_task(task.get<std::string>())) {
        Bounds& bounds = bounds_.emplace(name, Bounds(values)).first->second;
        bounds.loss = std::max(
            bounds.loss, rounding_of_weights(root_ / name, json_of(root_ / name / "case.json")));
      }
    }
  }

  void replay(const std::string& name, const Bounds& bounds, const Layout& layout) const {
    SCOPED_TRACE(name + " (" + layout.name + ")");
    const std::vector<Json> expected = lines_of(root_ / name / "trace_fp64.jsonl");
    const Json given = json_of(root_ / name / "case.json");
    const fs::path output = scratch_ / (name + " " + layout.name);
    const AllConfig config =
        init_configs_from_text(config_text(root_, name, given, expected.size(), output),
                               name + ".yaml", {.overrides = layout.settings});
    run_thread_ranks(layout.ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
      pretrain(config,
               {.world = world, .parts = diagnosis::run_parts(), .task = post_training::run_task});
      destroy_model_parallel();
    });
    const std::vector<Json> found = lines_of(output / "metrics.jsonl");
    ASSERT_EQ(found.size(), expected.size());
    ASSERT_FALSE(found.empty());
    for (size_t i = 0; i < found.size(); ++i) {
      compare_step(found[i], expected[i], bounds);
      if (is_grpo(given)) {
        compare_generation(found[i], given.at("logged_at_generation"));
      }
    }
  }

  fs::path root_;
  fs::path scratch_ =
      fs::temp_directory_path() / concat("tapestry_golden_post_training_", getpid());
  std::map<std::string, Bounds> bounds_;
};

TEST_F(PostTrainingCases, AreWhatTrlComputesInEveryLayout) {
  ASSERT_FALSE(bounds_.empty()) << root_ << " holds no cases";
  // Of many cases each in one process, and in one layout after the other.
  constexpr size_t kFew = 20;
  size_t next = 0;
  for (const auto& [name, bounds] : bounds_) {
    const std::vector<Layout> all = layouts(units_of(json_of(root_ / name / "case.json")));
    const size_t chosen = 1 + next++ % (all.size() - 1);
    for (size_t i = 0; i < all.size(); ++i) {
      if (bounds_.size() <= kFew || i == 0 || i == chosen) {
        replay(name, bounds, all[i]);
      }
    }
  }
  if (!HasFailure()) {
    fs::remove_all(scratch_);
  }
  std::cout << bounds_.size() << " cases in " << root_ << "\n";
}

}  // namespace
}  // namespace tapestry
