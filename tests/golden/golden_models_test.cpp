// Replays reference trainings through pretrain_gpt itself and compares every step. A case in
// bfloat16 is replayed twice: without fused kernels, where every rounding is the reference's, and
// with them.
//
// Reads the directories in TAPESTRY_GOLDEN_MODELS and, with mixtures of experts,
// TAPESTRY_GOLDEN_MOE_MODELS, else the project's own small set. A case whose configuration needs a
// feature that is not built yet is listed with the reason and passed over.
#include <gtest/gtest.h>
#include <sys/wait.h>

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
#include "autograd/tensor/error.h"
#include "diagnosis/accuracy/replay_case.h"
#include "diagnosis/run_parts.h"
#include "parallel_core/comm/thread_ranks.h"
#include "parallel_core/config/config.h"
#include "parallel_core/dist_checkpointing/checkpoint.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Bounds of the reference's documentation: suggested ones for float32 runs, wider ones for runs
// whose products are rounded to bfloat16.
struct Bounds {
  double first_loss = 2e-6;
  double first_norm = 2e-6;
  double first_gradients = 5e-5;
  double loss = 1e-5;
  double norm = 5e-4;
  double parameter_norm = 1e-3;
  double weights = 1e-4;
  double weights_without_gradient = 5e-2;

  /// One rounding that falls the other way changes all that follows, so these say little; what a
  /// bfloat16 computation is held to are its first values, see compare_roundings.
  static Bounds of_bfloat16() {
    return {.first_loss = 3e-4,
            .first_norm = 3e-3,
            .first_gradients = 0.1,
            .loss = 2e-3,
            .norm = 2e-2,
            .parameter_norm = 5e-2,
            .weights = 2e-2};
  }
};

/// One way to run a case.
struct Variant {
  std::string name;
  std::string options;  // of the command line
  Bounds bounds = {};
  std::vector<std::string> rounded_equally;  // values of step 1 that must agree bit for bit in 99 %
  int ranks = 1;                             // threads of this program
  int data_parallel = 1;                     // of these
  std::vector<std::string> layout = {};      // settings
  // A choice that was closer than this may fall otherwise. With bfloat16 a router reads what was
  // rounded in steps of 2^-8: the reference's own variants differ in such choices.
  double closest_choice = 0;

  /// Variants are reported apart.
  std::string of(const std::string& quantity) const {
    return name.empty() ? quantity : quantity + (ranks > 1 ? ", " : ", bfloat16 ") + name;
  }
};

bool has_mixtures(const Json& config) {
  return config.contains("num_moe_experts") && config.at("num_moe_experts").is_number();
}

// Layouts that spread experts over ranks which share the micro-batches of one.
std::vector<Variant> expert_layouts(const Json& config) {
  struct Sizes {
    int tp, cp, pp, ep, etp;
    bool sp;
  };
  std::vector<Variant> out;
  for (const Sizes& s :
       {Sizes{2, 1, 1, 2, 1, false}, Sizes{2, 1, 1, 1, 2, false}, Sizes{2, 1, 1, 2, 1, true},
        Sizes{1, 2, 1, 2, 1, false}, Sizes{2, 2, 1, 2, 2, true}, Sizes{1, 2, 2, 2, 1, false}}) {
    if (config.at("num_moe_experts").get<int>() % s.ep != 0 ||
        config.at("moe_ffn_hidden_size").get<int>() % s.etp != 0 ||
        config.at("num_layers").get<int>() < s.pp) {
      continue;
    }
    const auto set = [](const char* key, const auto& value) {
      return concat("parallel_config.", key, "=", value);
    };
    out.push_back(
        {.name = concat("tp ", s.tp, s.sp ? " sp" : "", ", cp ", s.cp, ", pp ", s.pp, ", ep ", s.ep,
                        ", etp ", s.etp),
         .ranks = s.tp * s.cp * s.pp,
         .layout = {set("tensor_model_parallel_size", s.tp),
                    set("sequence_parallel", s.sp ? "True" : "False"),
                    set("context_parallel_size", s.cp), set("pipeline_model_parallel_size", s.pp),
                    set("expert_model_parallel_size", s.ep),
                    set("expert_tensor_parallel_size", s.etp)}});
  }
  return out;
}

// `has_activations`: the case has acts_step_1.safetensors.
std::vector<Variant> variants_of(const Json& config, bool has_activations) {
  if (config.at("compute_dtype") != "bfloat16") {
    std::vector<Variant> out = {{.name = "", .options = ""}};
    if (const int ranks = config.value("data_parallel_size", 1); ranks > 1) {
      for (const char* level : {"null", "z1", "z2", "z3"}) {
        out.push_back({.name = concat(ranks, " ranks, zero ", level),
                       .ranks = ranks,
                       .data_parallel = ranks,
                       .layout = {concat("parallel_config.zero_level=", level)}});
        if (has_mixtures(config)) {
          out.push_back(out.back());
          out.back().name += ", ep 2";
          out.back().layout.emplace_back("parallel_config.expert_model_parallel_size=2");
        }
      }
    }
    const auto add_layout = [&](int tp, bool sp, int pp) {
      const bool divides = config.at("num_attention_heads").get<int>() % tp == 0 &&
                           config.at("ffn_hidden_size").get<int>() % tp == 0 &&
                           config.at("num_layers").get<int>() >= pp;
      if (divides) {
        out.push_back(
            {.name = concat("tp ", tp, sp ? " sp" : "", ", pp ", pp),
             .ranks = tp * pp,
             .layout = {concat("parallel_config.tensor_model_parallel_size=", tp),
                        concat("parallel_config.sequence_parallel=", sp ? "True" : "False"),
                        concat("parallel_config.pipeline_model_parallel_size=", pp)}});
      }
    };
    add_layout(2, false, 1);
    add_layout(4, true, 1);  // more than some models have groups of keys
    add_layout(1, false, 2);
    add_layout(2, true, 2);
    if (has_mixtures(config)) {
      const std::vector<Variant> experts = expert_layouts(config);
      out.insert(out.end(), experts.begin(), experts.end());
    }
    return out;
  }
  const std::string dump =
      has_activations ? " --set training_config.dump_activation_steps=[1]" : "";
  std::vector<Variant> out = {
      {.name = "elementary",
       .options = "--set model_config.use_fused_kernels=False" + dump,
       .bounds = Bounds::of_bfloat16(),
       .rounded_equally = {"layers.0.attention.v", "layers.0.attention.context", "layers.0.mlp"},
       .closest_choice = 1.0 / 256},
      {.name = "fused",
       .options = "--set model_config.use_fused_kernels=True" + dump,
       .bounds = Bounds::of_bfloat16(),
       .rounded_equally = {"layers.0.attention.v"},
       .closest_choice = 1.0 / 256}};
  if (!has_activations) {
    for (Variant& variant : out) {
      variant.rounded_equally.clear();
    }
  }
  return out;
}

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<Json> read_lines(const fs::path& path) {
  std::ifstream file(path);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

// The worst distance of each quantity, over all cases.
std::map<std::string, std::pair<double, std::string>>& worst() {
  static std::map<std::string, std::pair<double, std::string>> table;
  return table;
}

void expect_within(const std::string& quantity,
                   double distance,
                   double bound,
                   const std::string& where) {
  EXPECT_LE(distance, bound) << quantity << " at " << where;
  auto& entry = worst()[quantity];
  if (!(distance <= entry.first)) {
    entry = {distance, where};
  }
}

double relative(double value, double expected) {
  return std::abs(value - expected) / std::max(std::abs(expected), 1e-300);
}

// Parameters whose true gradient is zero: a key bias adds the same number to all scores of a query,
// unless a rotation turns it.
bool has_zero_gradient(const std::string& name, const Json& config) {
  const bool fully_rotated = config.at("position_embedding_type") == "rope" &&
                             config.at("rotary_percent").get<double>() == 1.0;
  return !fully_rotated &&
         (name.ends_with("attention.wk.bias") || name.ends_with("attention.k_norm.bias"));
}

void compare_elements(const LogicalState& found,
                      const LogicalState& expected,
                      double bound,
                      const Variant& variant,
                      const std::string& where) {
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << where << ": " << name;
    const std::vector<double> a = found.at(name).to_vector<double>();
    const std::vector<double> b = tensor.to_vector<double>();
    ASSERT_EQ(a.size(), b.size()) << where << ": " << name;
    double difference = 0;
    double largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      difference = std::max(difference, std::abs(a[i] - b[i]));
      largest = std::max(largest, std::abs(b[i]));
    }
    if (largest < 1e-6) {
      // The true gradient is zero: what either program has is rounding.
      EXPECT_LT(difference, 1e-6) << where << ", " << name;
      continue;
    }
    expect_within(variant.of("gradient elements"), difference / std::max(largest, 1e-30), bound,
                  where + ", " + name);
  }
}

void compare_weights(const LogicalState& found,
                     const LogicalState& expected,
                     const Json& config,
                     const Variant& variant,
                     const std::string& where) {
  const Bounds& bounds = variant.bounds;
  ASSERT_EQ(found.size(), expected.size()) << where;
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(found.contains(name)) << where << ": " << name;
    const std::vector<double> a = found.at(name).to_vector<double>();
    const std::vector<double> b = tensor.to_vector<double>();
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += b[i] * b[i];
    }
    const bool loose = has_zero_gradient(name, config);
    expect_within(variant.of(loose ? "final weights without gradient" : "final weights"),
                  std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30),
                  loose ? bounds.weights_without_gradient : bounds.weights, where + ", " + name);
  }
}

// How close the choices of a step's mixtures were.
double smallest_gap(const Json& expected) {
  double gap = 1e9;
  const Json layers = expected.value("moe", Json::object());
  for (const auto& [layer, reference] : layers.items()) {
    for (const auto& [name, value] : reference.items()) {
      gap = name.ends_with("_gap") ? std::min(gap, value.get<double>()) : gap;
    }
  }
  return gap;
}

bool is_count(const std::string& name) { return name.ends_with("_per_expert"); }

// Whether the mixtures of a step surely have made all choices of the reference. They must, unless
// one of them was too close; equal counts do not say then that they were made for the same tokens.
bool have_same_choices(const Json& found,
                       const Json& expected,
                       const Variant& variant,
                       const std::string& where) {
  bool same = true;
  for (const auto& [layer, reference] : expected.at("moe").items()) {
    double gap = 1e9;
    for (const auto& [name, value] : reference.items()) {
      gap = name.ends_with("_gap") ? std::min(gap, value.get<double>()) : gap;
    }
    same = same && gap >= variant.closest_choice;
    for (const auto& [name, value] : reference.items()) {
      const Json& own = found.at("moe").at(layer).at(name);
      if (is_count(name) && own != value) {
        same = false;
        EXPECT_LT(gap, variant.closest_choice)
            << where << ", " << layer << ", " << name << ": " << own << ", not " << value;
      }
    }
  }
  return same;
}

// What else the mixtures of a step did.
void compare_mixtures(const Json& found,
                      const Json& expected,
                      const Variant& variant,
                      const std::string& where) {
  const Bounds& bounds = variant.bounds;
  const bool first = expected.at("step").get<int64_t>() == 1;
  expect_within(variant.of("auxiliary loss"),
                relative(found.at("aux_loss").get<double>(), expected.at("aux_loss").get<double>()),
                first ? std::max(bounds.first_loss, 2e-6) : bounds.loss, where);
  ASSERT_EQ(found.at("moe").size(), expected.at("moe").size()) << where;
  for (const auto& [layer, reference] : expected.at("moe").items()) {
    const Json& ours = found.at("moe").at(layer);
    ASSERT_EQ(ours.size(), reference.size()) << where << ", " << layer;
    for (const auto& [name, value] : reference.items()) {
      const Json& own = ours.at(name);
      if (is_count(name)) {
        continue;
      }
      if (name == "expert_bias") {
        for (size_t e = 0; e < value.size(); ++e) {
          EXPECT_NEAR(own.at(e).get<double>(), value.at(e).get<double>(), 1e-6) << where;
        }
      } else if (first && value.get<double>() < 1e9) {
        // How close a choice was follows from logits.
        expect_within(variant.of("gap of a choice"),
                      std::abs(own.get<double>() - value.get<double>()),
                      std::max(1e-5, variant.closest_choice), where + ", " + layer + ", " + name);
      }
    }
  }
}

void compare_step(const Json& found,
                  const Json& expected,
                  const Json& config,
                  const Variant& variant,
                  const std::string& name) {
  const Bounds& bounds = variant.bounds;
  const auto step = expected.at("step").get<int64_t>();
  const std::string where = name + ", step " + std::to_string(step);
  ASSERT_EQ(found.at("step").get<int64_t>(), step) << where;
  const double loss = relative(found.at("loss").get<double>(), expected.at("loss").get<double>());
  const double global = expected.at("grad_norm").get<double>();
  const double norm = relative(found.at("grad_norm").get<double>(), global);
  if (step == 1) {
    expect_within(variant.of("loss of step 1"), loss, bounds.first_loss, where);
    expect_within(variant.of("gradient norm of step 1"), norm, bounds.first_norm, where);
  }
  expect_within(variant.of("loss"), loss, bounds.loss, where);
  expect_within(variant.of("gradient norm"), norm, bounds.norm, where);
  EXPECT_EQ(found.at("loss_tokens").get<double>(), expected.at("loss_tokens").get<double>())
      << where;
  EXPECT_TRUE(found.at("finite").get<bool>()) << where;
  ASSERT_EQ(found.contains("moe"), expected.contains("moe")) << where;
  bool same_choices = true;
  if (expected.contains("moe")) {
    same_choices = have_same_choices(found, expected, variant, where);
    if (same_choices) {
      compare_mixtures(found, expected, variant, where);
    }
  }
  for (const Json& lr : found.at("lr")) {
    expect_within("learning rate",
                  std::abs(lr.get<double>() - expected.at("lr").get<double>()) /
                      config.at("lr").get<double>(),
                  1e-12, where);
  }
  ASSERT_EQ(found.at("grad_norms").size(), expected.at("grad_norms").size()) << where;
  for (const auto& [parameter, value] : expected.at("grad_norms").items()) {
    const double reference = value.get<double>();
    const double ours = found.at("grad_norms").at(parameter).get<double>();
    if (!same_choices ||
        (has_zero_gradient(parameter, config) && reference < 1e-6 && ours < 1e-6)) {
      continue;
    }
    expect_within(variant.of("parameter gradient norm"),
                  std::abs(ours - reference) / std::max(reference, 0.001 * global),
                  bounds.parameter_norm, where + ", " + parameter);
  }
}

// Products of layer 0 must be the reference's roundings, and what a bfloat16 product returns must
// be a bfloat16 number.
void compare_roundings(const LogicalState& found,
                       const LogicalState& expected,
                       const Variant& variant,
                       const std::string& where) {
  for (const std::string& name : variant.rounded_equally) {
    ASSERT_TRUE(found.contains(name) && expected.contains(name)) << where << ": " << name;
    const std::vector<float> a = found.at(name).to_vector<float>();
    const std::vector<float> b = expected.at(name).to_vector<float>();
    ASSERT_EQ(a.size(), b.size()) << where << ": " << name;
    int64_t different = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      different += a[i] != b[i] ? 1 : 0;
    }
    expect_within(variant.of("share of values rounded otherwise"),
                  static_cast<double>(different) / static_cast<double>(a.size()), 0.01,
                  where + ", " + name);
  }
  if (found.contains("logits")) {
    for (const float value : found.at("logits").to_vector<float>()) {
      ASSERT_EQ(value, static_cast<float>(BFloat16(value))) << where << ": logits";
    }
  }
}

// Runs the program; its output goes to a file.
int run_pretrain(const fs::path& yaml, const std::string& options, const fs::path& log) {
  const std::string command = std::string(TAPESTRY_PRETRAIN_GPT) + " --config_path '" +
                              yaml.string() + "' " + options + " > '" + log.string() + "' 2>&1";
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The same on ranks that are threads.
void pretrain_on_ranks(const fs::path& yaml, const Variant& variant) {
  const AllConfig config = init_configs_from_yaml(yaml.string(), {.overrides = variant.layout});
  run_thread_ranks(variant.ranks, [&](const std::shared_ptr<ProcessGroup>& world) {
    pretrain(config, {.world = world, .parts = diagnosis::run_parts()});
    destroy_model_parallel();
  });
}

// Why a configuration cannot be replayed yet; empty if it can.
std::string missing_feature(const std::string& yaml, const std::string& name) {
  const AllConfig config = init_configs_from_text(yaml, name + ".yaml");
  std::string reason;
  for (const std::string& finding : config.unsupported) {
    reason += (reason.empty() ? "" : "; ") + finding;
  }
  return reason;
}

void replay(const fs::path& folder, const Variant& variant, const fs::path& scratch) {
  const std::string name =
      folder.filename().string() + (variant.name.empty() ? "" : " (" + variant.name + ")");
  SCOPED_TRACE(name);
  const std::string json = read_text(folder / "config.json");
  const Json config = Json::parse(json);
  const fs::path output = scratch / (folder.filename().string() + variant.name);
  fs::create_directories(output);
  const std::string yaml =
      replay_case_yaml(json, fs::absolute(folder).string(), output.string(), variant.data_parallel);
  if (const std::string reason = missing_feature(yaml, name); !reason.empty()) {
    std::cout << "skipped: " << name << ": " << reason << "\n";
    return;
  }
  const fs::path yaml_path = output.string() + ".yaml";
  std::ofstream(yaml_path) << yaml;
  const fs::path log = output.string() + ".log";
  if (variant.ranks > 1) {
    pretrain_on_ranks(yaml_path, variant);
  } else {
    ASSERT_EQ(run_pretrain(yaml_path, variant.options, log), 0) << read_text(log);
  }

  const Bounds& bounds = variant.bounds;
  const std::vector<Json> expected = read_lines(folder / "trace.jsonl");
  const std::vector<Json> found = read_lines(output / "metrics.jsonl");
  ASSERT_EQ(found.size(), expected.size());
  ASSERT_FALSE(expected.empty());
  Variant held = variant;
  for (size_t i = 0; i < expected.size(); ++i) {
    compare_step(found[i], expected[i], config, held, name);
    if (smallest_gap(expected[i]) < held.closest_choice) {
      // From here on the weights may differ by more than rounding.
      held.closest_choice = 4 * variant.closest_choice;
    }
  }
  for (const Json& step : config.at("dump_grad_steps")) {
    const std::string file = "grads_step_" + std::to_string(step.get<int64_t>()) + ".safetensors";
    // Later steps inherit what the steps before them rounded differently.
    const double bound =
        step.get<int64_t>() == 1 ? bounds.first_gradients : std::max(1e-3, bounds.first_gradients);
    compare_elements(read_weights((output / file).string()), read_weights((folder / file).string()),
                     bound, variant, name + ", " + file);
  }
  const std::string last =
      "weights_step_" + std::to_string(config.at("train_iters").get<int64_t>()) + ".safetensors";
  compare_weights(read_weights((output / last).string()),
                  read_weights((folder / "final.safetensors").string()), config, variant, name);
  if (!variant.rounded_equally.empty()) {
    const std::string file = "acts_step_1.safetensors";
    compare_roundings(read_weights((output / file).string()),
                      read_weights((folder / file).string()), variant, name);
  }
}

void replay_folder(const fs::path& root) {
  ASSERT_TRUE(fs::is_directory(root)) << root;
  std::vector<fs::path> cases;
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    if (entry.is_directory() && fs::exists(entry.path() / "config.json")) {
      cases.push_back(entry.path());
    }
  }
  std::sort(cases.begin(), cases.end());
  ASSERT_FALSE(cases.empty()) << root << " holds no cases";
  const fs::path scratch =
      fs::temp_directory_path() / ("tapestry_golden_" + std::to_string(getpid()));
  fs::create_directories(scratch);
  for (const fs::path& folder : cases) {
    const Json config = Json::parse(read_text(folder / "config.json"));
    for (const Variant& variant :
         variants_of(config, fs::exists(folder / "acts_step_1.safetensors"))) {
      replay(folder, variant, scratch);
    }
  }
  if (!::testing::Test::HasFailure()) {
    fs::remove_all(scratch);
  }
  std::cout << cases.size() << " cases in " << root << "; worst distances:\n";
  for (const auto& [quantity, entry] : worst()) {
    std::cout << "  " << quantity << ": " << entry.first << " (" << entry.second << ")\n";
  }
}

TEST(GoldenModels, ReplaysEveryTrace) {
  const char* given = std::getenv("TAPESTRY_GOLDEN_MODELS");
  replay_folder(given != nullptr ? given : "tests/data/golden_models");
}

TEST(GoldenModels, ReplaysEveryTraceOfMixtures) {
  const char* given = std::getenv("TAPESTRY_GOLDEN_MOE_MODELS");
  if (given == nullptr) {
    GTEST_SKIP() << "TAPESTRY_GOLDEN_MOE_MODELS names no directory";
  }
  replay_folder(given);
}

}  // namespace
}  // namespace tapestry
