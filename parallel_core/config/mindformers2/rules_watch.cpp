// Rules of `monitor`, `profiler`, `callbacks` and `lora_config`.
#include <array>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/config/mindformers2/reading.h"

namespace tapestry::config::mindformers2 {
namespace {

// Whether something is measured: True, or texts that are not empty.
bool is_on(const Reading& r, const std::string& path) {
  const RawNode* node = r.find(path);
  if (node == nullptr || node->kind == RawNode::Kind::kNull) {
    return false;
  }
  if (node->kind == RawNode::Kind::kList) {
    return !node->items.empty();
  }
  return !node->scalar.empty() &&
         (r.flag(path) || node->quoted || scalar_kind(node->scalar) == ScalarKind::kString);
}

// An expression that means the text itself.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += std::string_view(R"(\.^$|()[]{}*+?)").find(c) != std::string_view::npos ? "\\" : "";
    out += c;
  }
  return out;
}

void translate_norms(Reading& r) {
  constexpr const char* kLocal = "monitor.train_state.local_norm";
  constexpr const char* kDevice = "monitor.train_state.device_norm";
  if (is_on(r, kLocal)) {
    r.put("monitor_config.local_norm_format", "log", kLocal);
    if (!r.flag(kLocal)) {
      std::vector<std::string> targets;
      for (const std::string& text : r.texts(kLocal)) {
        targets.push_back(escaped(text));
      }
      r.put("monitor_config.target", list_node(targets, r.place(kLocal), true));
    }
  }
  if (is_on(r, kDevice)) {
    r.put("monitor_config.device_local_norm_format", "log", kDevice);
    if (!r.flag(kDevice)) {
      r.note(kDevice, "the norm is that of all parameters of a rank; local_norm shows single ones");
    }
  }
  for (const auto& [key, here] : {std::pair{"local_loss", "local_loss_format"},
                                  std::pair{"device_loss", "device_local_loss_format"}}) {
    if (const std::string path = concat("monitor.train_state.", key); r.flag(path)) {
      r.put(concat("monitor_config.", here), "log", path);
    }
  }
}

void translate_tensorboard(Reading& r) {
  const auto either = [&](const char* newer, const char* older) {
    const std::string path = concat("monitor.tensorboard.", newer);
    return r.given(path) ? path : concat("monitor.tensorboard.", older);
  };
  const std::string folder = either("output_dir", "tensorboard_dir");
  if (!r.given(folder) || r.is_null(folder) || r.text(folder).empty()) {
    return;
  }
  r.put("tensorboard.tensorboard_dir", *r.find(folder));
  const std::string queue = either("queue_size", "tensorboard_queue_size");
  r.put("tensorboard.tensorboard_queue_size", r.text(queue), queue);
  const std::string interval = either("log_interval", "tensorboard_log_interval");
  if (r.integer(interval) != 1) {
    r.put("tensorboard.tensorboard_log_interval", r.text(interval), interval);
  }
  for (const char* name : {"log_loss_scale_to_tensorboard", "log_timers_to_tensorboard"}) {
    r.put(concat("tensorboard.", name), "True", folder);
  }
}

void translate_profiler(Reading& r) {
  if (!r.flag("profiler.enable_profiling")) {
    return;
  }
  const auto put = [&](const char* key, const char* here, const std::string& value) {
    r.put(concat("training_config.", here), value, concat("profiler.", key));
  };
  put("start_step", "profile_step_start", r.text("profiler.start_step"));
  put("end_step", "profile_step_end", r.text("profiler.end_step"));
  put("profiler_level", "profile_level", concat("level", r.text("profiler.profiler_level")));
  put("profile_memory", "profile_memory", r.flag("profiler.profile_memory") ? "True" : "False");
  put("with_stack", "profile_with_stack", r.flag("profiler.with_stack") ? "True" : "False");
  r.put(
      "training_config.profile_save_path",
      scalar_node(r.is_null("profiler.output_path") ? "./profile" : r.text("profiler.output_path"),
                  r.place("profiler.output_path"), true));
}

void translate_callbacks(Reading& r) {
  for (const char* name : {"MaxLogitsMonitor", "MaxLogitsReset"}) {
    const std::string type = concat("callbacks.", name, ".type");
    const std::string steps = concat("callbacks.", name, ".step_interval");
    if (r.given(type)) {
      r.put("monitor_config.max_logits_interval", r.text(steps), r.given(steps) ? steps : type);
    }
  }
}

// What is measured at every step has to be switched on.
void switch_on(Reading& r) {
  for (const char* key : {"local_norm", "device_norm", "local_loss", "device_loss"}) {
    if (const std::string path = concat("monitor.train_state.", key); is_on(r, path)) {
      r.put("monitor_config.monitor_on", "True", path);
      r.put("monitor_config.step_interval", "1", path);
      return;
    }
  }
}

// One number is that of the first layers here, and a list of one layer there is that layer.
void translate_layers(Reading& r) {
  constexpr const char* kLayers = "monitor.moe_monitor.target_layers";
  const RawNode* node = r.find(kLayers);
  if (node == nullptr || node->kind == RawNode::Kind::kNull) {
    return;
  }
  RawNode layers = *node;
  if (layers.items.size() == 1) {
    layers.items.push_back(layers.items.front());
  }
  r.put("monitor_config.tokens_per_expert_layers", std::move(layers));
}

// Names of MindFormers' modules in an expression, as those in memory here.
std::string renamed(std::string text) {
  struct Name {
    std::string_view theirs;
    std::string_view ours;
  };
  static constexpr std::array<Name, 6> kNames = {{{"self_attention", "attention"},
                                                  {"linear_qkv", "qkv_proj"},
                                                  {"linear_proj", "out_proj"},
                                                  {"linear_fc1", "mapping"},
                                                  {"linear_fc2", "projection"},
                                                  {"decoder", "encoder"}}};
  for (const Name& name : kNames) {
    for (size_t at = text.find(name.theirs); at != std::string::npos;
         at = text.find(name.theirs, at + name.ours.size())) {
      text.replace(at, name.theirs.size(), name.ours);
    }
  }
  return text;
}

}  // namespace

void translate_watch(Reading& r) {
  translate_norms(r);
  switch_on(r);
  translate_layers(r);
  translate_tensorboard(r);
  translate_profiler(r);
  translate_callbacks(r);
}

void translate_lora(Reading& r) {
  if (!r.has_section("lora_config")) {
    return;
  }
  constexpr const char* kTargets = "lora_config.target_modules";
  if (r.text(kTargets).empty()) {
    r.error(kTargets, "is needed: an expression such as .*linear_qkv");
    return;
  }
  const auto anywhere = [](const std::string& text) { return concat(".*(", renamed(text), ").*"); };
  r.put("lora_config.use_lora", "True", kTargets);
  RawNode targets{.kind = RawNode::Kind::kMap, .place = r.place(kTargets)};
  put_below(targets, {"target_cells"},
            list_node({anywhere(r.text(kTargets))}, r.place(kTargets), true));
  RawNode list{.kind = RawNode::Kind::kList, .place = r.place(kTargets)};
  list.items.push_back(std::move(targets));
  r.put("lora_config.target_cells", std::move(list));
  constexpr const char* kExclude = "lora_config.exclude_layers";
  if (r.given(kExclude) && !r.is_null(kExclude)) {
    r.put("lora_config.exclude_cells",
          list_node({anywhere(r.text(kExclude))}, r.place(kExclude), true));
  }
  for (const char* key : {"lora_rank", "lora_alpha", "lora_dropout", "lora_a_std"}) {
    r.put(concat("lora_config.", key), r.text(concat("lora_config.", key)),
          concat("lora_config.", key));
  }
  if (r.number("lora_config.lora_b_std") != 0) {
    r.put("lora_config.lora_b_std", r.text("lora_config.lora_b_std"), "lora_config.lora_b_std");
  }
}

}  // namespace tapestry::config::mindformers2
