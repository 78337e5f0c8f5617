// Optimizers, schedules, loss scaling and clipping against stored cases.
//
// Reads the directory in TAPESTRY_GOLDEN_OPTIM, else the project's own small set. Anything unknown
// fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "autograd/io/json.h"
#include "autograd/io/safetensors.h"
#include "autograd/ops/shape_ops.h"
#include "autograd/tensor/error.h"
#include "autograd/tensor/factory.h"
#include "optim/optim.h"
#include "parallel_core/optimizer/optimizer_param_scheduler.h"

namespace tapestry {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Tensors = std::map<std::string, Tensor>;

const std::set<std::string> kOptimizers = {"sgd",  "adam", "adamw", "adafactor",
                                           "came", "lion", "muon"};

std::map<std::string, double>& worst() {
  static std::map<std::string, double> table;
  return table;
}

void expect_within(const std::string& quantity, double used, const std::string& where) {
  EXPECT_LE(used, 1.0) << quantity << " at " << where << " (in units of its tolerance)";
  double& entry = worst()[quantity];
  entry = std::isnan(used) ? used : std::max(entry, used);
}

Json read_json(const fs::path& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path;
  return Json::parse(file);
}

Tensors read_tensors(const fs::path& path) {
  const SafetensorsReader reader(path.string());
  Tensors out;
  for (const auto& [name, entry] : reader.entries()) {
    Tensor tensor = empty(entry.shape, reader.dtype(name));
    reader.read(name, tensor.raw());
    out.emplace(name, tensor);
  }
  return out;
}

double largest(const std::vector<double>& values) {
  double out = 0;
  for (const double value : values) {
    out = std::isfinite(value) ? std::max(out, std::abs(value)) : out;
  }
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double out = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    out = std::max(out, std::abs(a[i] - b[i]));
  }
  return out;
}

template <class T>
std::optional<T> maybe(const Json& config, const char* key) {
  return config.contains(key) && !config.at(key).is_null()
             ? std::optional<T>(config.at(key).get<T>())
             : std::nullopt;
}

std::unique_ptr<optim::Optimizer> make_factored(const std::string& type,
                                                std::vector<optim::ParamGroup> groups,
                                                const Json& attrs) {
  if (type == "came") {
    return std::make_unique<optim::Came>(
        std::move(groups),
        optim::CameOptions{.beta1 = attrs.at("beta1"),
                           .beta2 = maybe<double>(attrs, "beta2"),
                           .beta3 = attrs.at("beta3"),
                           .decay_rate = attrs.value("decay_rate", Json()).is_null()
                                             ? 0.8
                                             : attrs.at("decay_rate").get<double>(),
                           .eps1 = attrs.at("eps1"),
                           .eps2 = attrs.at("eps2"),
                           .eps3 = attrs.at("eps3"),
                           .clip_threshold = attrs.at("clip_threshold"),
                           .scale_parameter = attrs.at("scale_parameter")});
  }
  const Json& lr = attrs.at("lr");
  return std::make_unique<optim::Adafactor>(
      std::move(groups),
      optim::AdafactorOptions{.lr = lr.is_null() ? std::nullopt : std::optional<double>(0),
                              .warmup_init = attrs.at("warmup_init"),
                              .scale_parameter = attrs.at("scale_parameter"),
                              .eps1 = attrs.at("eps1"),
                              .eps2 = attrs.at("eps2"),
                              .clip_threshold = attrs.at("clip_threshold"),
                              .decay_rate = attrs.at("decay_rate"),
                              .beta1 = maybe<double>(attrs, "beta1")});
}

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& type,
                                                 std::vector<optim::ParamGroup> groups,
                                                 const Json& attrs) {
  if (type == "sgd") {
    return std::make_unique<optim::SGD>(std::move(groups),
                                        optim::SGDOptions{.momentum = attrs.at("momentum"),
                                                          .dampening = attrs.at("dampening"),
                                                          .nesterov = attrs.at("nesterov")});
  }
  if (type == "came" || type == "adafactor") {
    return make_factored(type, std::move(groups), attrs);
  }
  if (type == "lion") {
    return std::make_unique<optim::Lion>(
        std::move(groups),
        optim::LionOptions{.beta1 = attrs.at("beta1"), .beta2 = attrs.at("beta2")});
  }
  if (type == "muon") {
    return std::make_unique<optim::Muon>(
        std::move(groups), optim::MuonOptions{.momentum = attrs.at("momentum"),
                                              .nesterov = attrs.at("nesterov"),
                                              .ns_steps = attrs.at("ns_steps"),
                                              .scale = attrs.at("adjust_lr") == "original"
                                                           ? optim::MuonScale::kOriginal
                                                           : optim::MuonScale::kMatchRmsAdamW,
                                              .matched_adamw_rms = attrs.at("matched_adamw_rms"),
                                              .products = kFloat32,
                                              .beta1 = attrs.at("beta1"),
                                              .beta2 = attrs.at("beta2"),
                                              .eps = attrs.at("adamw_eps")});
  }
  const optim::AdamOptions options{
      .beta1 = attrs.at("beta1"), .beta2 = attrs.at("beta2"), .eps = attrs.at("eps")};
  if (type == "adam") {
    return std::make_unique<optim::Adam>(std::move(groups), options);
  }
  return std::make_unique<optim::AdamW>(std::move(groups), options);
}

// Tolerances are those of the cases' documentation, section "Optimizers".
void compare_state(const std::string& state,
                   const Tensor& found,
                   const Tensor& expected,
                   double tolerance,
                   const std::string& where) {
  const std::vector<double> a = found.to_vector<double>();
  const std::vector<double> b = expected.to_vector<double>();
  ASSERT_EQ(a.size(), b.size()) << where;
  if (state == "exp_avg" || state == "momentum_buffer") {
    expect_within(state, largest_difference(a, b) / (tolerance * largest(b) + 1e-36), where);
    return;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    expect_within(state, std::abs(a[i] - b[i]) / (tolerance * std::abs(b[i]) + 1e-36), where);
  }
}

void check_optimizer_case(const std::string& type, const Json& entry, const Tensors& tensors) {
  const std::string name = entry.at("case");
  SCOPED_TRACE(type + " " + name);
  const Json& attrs = entry.at("attrs");
  const bool is_double = entry.at("dtype") == "float64";
  std::vector<optim::ParamGroup> groups;
  for (const Json& p : entry.at("params")) {
    const std::string parameter = p.at("name");
    optim::ParamGroup group;
    group.params = {tensors.at(name + ".input." + parameter).clone().set_requires_grad()};
    group.names = {parameter};
    group.weight_decay = p.value("weight_decay", attrs.at("weight_decay").get<double>());
    group.adamw = !p.value("use_muon", true);
    groups.push_back(group);
  }
  const auto optimizer = make_optimizer(type, groups, attrs);
  const auto stored = entry.at("stored_after").get<std::vector<int64_t>>();
  for (int64_t t = 1; t <= entry.at("steps").get<int64_t>(); ++t) {
    const Json& lr = attrs.at("lr");
    for (optim::ParamGroup& group : optimizer->param_groups()) {
      group.lr = lr.is_array()  ? lr.at(static_cast<size_t>(t - 1)).get<double>()
                 : lr.is_null() ? 0.0
                                : lr.get<double>();
      const Tensor all = tensors.at(name + ".input." + group.names[0] + ".grad");
      group.params[0].set_grad(all.select(0, t - 1).clone());
    }
    optimizer->step();
    if (std::find(stored.begin(), stored.end(), t) == stored.end()) {
      continue;
    }
    const std::string prefix = name + ".output.step_" + std::to_string(t) + ".";
    for (const optim::ParamGroup& group : optimizer->param_groups()) {
      const std::string& parameter = group.names[0];
      const std::vector<double> before =
          tensors.at(name + ".input." + parameter).to_vector<double>();
      const std::vector<double> after = tensors.at(prefix + parameter).to_vector<double>();
      const std::vector<double> found = group.params[0].to_vector<double>();
      const double movement = largest_difference(after, before);
      const double tolerance = is_double ? 1e-11 : 1e-4;
      expect_within(type + " parameter",
                    largest_difference(found, after) /
                        std::max(tolerance * (movement + 0.01 * largest(after)), 1e-300),
                    prefix + parameter);
      size_t states = 0;
      for (const auto& [key, tensor] : tensors) {
        states += key.starts_with(prefix + parameter + ".") ? 1 : 0;
      }
      EXPECT_EQ(optimizer->state(parameter).size(), states) << prefix << parameter;
      for (const auto& [state, tensor] : optimizer->state(parameter)) {
        compare_state(state, tensor, tensors.at(prefix + parameter + "." + state),
                      is_double ? 1e-11 : 1e-5, prefix + parameter + "." + state);
      }
    }
  }
}

std::unique_ptr<optim::Schedule> make_schedule(const std::string& family, const Json& c) {
  if (family == "LearningRateScheduler") {
    return std::make_unique<optim::LearningRateScheduler>(
        optim::LearningRateSchedulerOptions{.learning_rate = c.at("learning_rate"),
                                            .end_learning_rate = c.at("end_learning_rate"),
                                            .warmup_steps = c.at("warmup_steps"),
                                            .decay_steps = c.at("decay_steps"),
                                            .power = c.value("power", 1.0),
                                            .use_cosine = c.value("use_cosine", true),
                                            .weight_decay = c.value("weight_decay", 0.0)});
  }
  check<ValueError>(family == "OptimizerParamScheduler", "unknown family ", family);
  const int64_t batch = c.value("batch_size", int64_t{1}) * c.value("micro_batch_num", int64_t{1}) *
                        c.value("data_parallel", int64_t{1});
  return std::make_unique<OptimizerParamScheduler>(OptimizerParamSchedulerOptions{
      .learning_rate = c.at("learning_rate"),
      .min_lr = c.value("min_lr", 0.0),
      .lr_warmup_init = c.value("lr_warmup_init", 0.0),
      .lr_decay_style = c.value("lr_decay_style", "constant"),
      .lr_wsd_decay_style = c.value("lr_wsd_decay_style", "linear"),
      .weight_decay = c.value("weight_decay", 0.0),
      .start_weight_decay = maybe<double>(c, "start_weight_decay"),
      .end_weight_decay = maybe<double>(c, "end_weight_decay"),
      .weight_decay_incr_style = c.value("weight_decay_incr_style", "constant"),
      .lr_warmup_fraction = maybe<double>(c, "lr_warmup_fraction"),
      .global_batch_size = batch,
      .training_iters = c.value("training_iters", int64_t{0}),
      .lr_warmup_iters = c.value("lr_warmup_iters", int64_t{0}),
      .lr_decay_iters = maybe<int64_t>(c, "lr_decay_iters"),
      .lr_wsd_decay_iters = maybe<int64_t>(c, "lr_wsd_decay_iters"),
      .train_samples = c.value("train_samples", int64_t{0}),
      .lr_warmup_samples = c.value("lr_warmup_samples", int64_t{0}),
      .lr_decay_samples = maybe<int64_t>(c, "lr_decay_samples"),
      .lr_wsd_decay_samples = maybe<int64_t>(c, "lr_wsd_decay_samples")});
}

void check_schedule_case(const Json& entry) {
  SCOPED_TRACE(entry.at("case").get<std::string>());
  const Json& config = entry.at("config");
  if (entry.contains("error")) {
    const std::string key = entry.at("error");
    try {
      make_schedule(entry.at("family"), config);
      ADD_FAILURE() << "no error, expected one that names " << key;
    } catch (const ValueError& error) {
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
    return;
  }
  const auto schedule = make_schedule(entry.at("family"), config);
  double peak = 0;
  for (const Json& line : entry.at("values")) {
    peak = std::max(peak, line.at(1).get<double>());
  }
  for (const Json& line : entry.at("values")) {
    const auto n = line.at(0).get<int64_t>();
    const optim::Schedule::Position position{.applied = n, .seen = n};
    const std::string where = entry.at("case").get<std::string>() + " n=" + std::to_string(n);
    expect_within(
        "learning rate",
        std::abs(schedule->learning_rate(position) - line.at(1).get<double>()) / (1e-12 * peak),
        where);
    expect_within(
        "weight decay",
        std::abs(schedule->weight_decay(position).value() - line.at(2).get<double>()) / 1e-12,
        where);
  }
}

void check_loss_scale_case(const Json& entry) {
  SCOPED_TRACE(entry.at("case").get<std::string>());
  const Json& config = entry.at("config");
  const double initial = config.at("initial");
  optim::GradScaler scaler =
      config.at("factor").is_null()
          ? optim::GradScaler(initial)
          : optim::GradScaler(initial, config.at("factor"), config.at("window"));
  int64_t updates = 0;
  for (const Json& step : entry.at("steps")) {
    const bool finite = step.at("finite");
    EXPECT_NEAR(scaler.scale() / step.at("scale").get<double>(), 1.0, 1e-6);
    EXPECT_EQ(step.at("applied").get<bool>(), finite);
    updates += finite ? 1 : 0;
    scaler.update(finite);
    EXPECT_NEAR(scaler.scale() / step.at("next_scale").get<double>(), 1.0, 1e-6);
    EXPECT_EQ(scaler.good_steps(), step.at("good_steps").get<int64_t>());
    EXPECT_EQ(updates, step.at("updates_done").get<int64_t>());
  }
}

void compare_clipped(const Tensor& found,
                     const Tensor& expected,
                     bool applied,
                     double tolerance,
                     const std::string& where) {
  const std::vector<double> a = found.to_vector<double>();
  const std::vector<double> b = expected.to_vector<double>();
  ASSERT_EQ(a.size(), b.size()) << where;
  const double scale = largest(b);
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(b[i]) || !applied) {
      EXPECT_TRUE(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])))
          << where << "[" << i << "]";
    } else {
      expect_within("clipped gradient", std::abs(a[i] - b[i]) / std::max(tolerance * scale, 1e-300),
                    where);
    }
  }
}

void check_clip_case(const Json& entry, const Tensors& tensors) {
  const std::string name = entry.at("case");
  SCOPED_TRACE("clip " + name);
  const std::string type = entry.at("attrs").at("type");
  const double limit = entry.at("attrs").at("clip_value");
  const double tolerance = entry.at("dtype") == "float64" ? 1e-14 : 1e-6;
  TensorList gradients;
  for (const Json& input : entry.at("inputs")) {
    gradients.push_back(tensors.at(name + ".input." + input.get<std::string>()).clone());
  }
  if (type == "ClipGlobalNorm") {
    const double norm = optim::clip_grad_norm(gradients, limit);
    const double expected = tensors.at(name + ".output.total_norm").item();
    if (std::isfinite(expected)) {
      expect_within("norm", std::abs(norm - expected) / std::max(tolerance * expected, 1e-300),
                    name);
    } else {
      EXPECT_EQ(std::isnan(norm), std::isnan(expected));
      EXPECT_EQ(std::isinf(norm), std::isinf(expected));
    }
  } else {
    ASSERT_EQ(type, "GradClipByValue");
    optim::clip_grad_value(gradients, limit);
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    const std::string input = entry.at("inputs").at(i);
    compare_clipped(gradients[i], tensors.at(name + ".output." + input), entry.at("applied"),
                    tolerance, name + "." + input);
  }
}

TEST(GoldenOptim, EveryCase) {
  const char* given = std::getenv("TAPESTRY_GOLDEN_OPTIM");
  const fs::path root = given != nullptr ? fs::path(given) : fs::path("tests/data/golden_optim");
  ASSERT_TRUE(fs::is_directory(root)) << root;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    if (entry.path().extension() == ".json") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  int64_t count = 0;
  for (const fs::path& path : files) {
    const Json content = read_json(path);
    if (!content.contains("cases")) {
      continue;  // a file beside the cases
    }
    const std::string name = path.stem().string();
    const fs::path data = fs::path(path).replace_extension(".safetensors");
    const Tensors tensors = fs::exists(data) ? read_tensors(data) : Tensors();
    for (const Json& entry : content.at("cases")) {
      ++count;
      if (content.contains("optimizer")) {
        ASSERT_TRUE(kOptimizers.contains(name)) << "unknown optimizer " << name;
        check_optimizer_case(name, entry, tensors);
      } else if (name == "schedules") {
        check_schedule_case(entry);
      } else if (name == "loss_scale") {
        check_loss_scale_case(entry);
      } else {
        ASSERT_EQ(name, "clip") << "unknown cases";
        check_clip_case(entry, tensors);
      }
    }
  }
  ASSERT_GT(count, 0) << root << " holds no cases";
  std::cout << count << " cases in " << root << "; worst distances, in units of their tolerance:\n";
  for (const auto& [quantity, value] : worst()) {
    std::cout << "  " << quantity << ": " << value << "\n";
  }
}

}  // namespace
}  // namespace tapestry
