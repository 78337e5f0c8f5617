// What follows from other keys, and what cannot stand together.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry::config {

/// Access to the configuration while it is completed. Keys are "section.key".
class Resolution {
 public:
  /// `faulty` holds the keys that are wrong by themselves already: rules that read one are passed
  /// over, so that one mistake gives one message. `place_of` gives the place for messages.
  Resolution(AllConfig& config,
             const std::set<std::string>& faulty,
             std::function<std::string(const std::string&)> place_of,
             std::vector<std::string>& errors)
      : config_(config), faulty_(faulty), place_of_(std::move(place_of)), errors_(errors) {}

  AllConfig& config() { return config_; }
  /// True if none of the keys is faulty.
  bool sound(std::initializer_list<const char*> keys) const;
  /// True if the key was written in the file or on the command line.
  bool given(const std::string& key) const;
  /// Whether the key was written on the command line: there the default is a wish too (0, False),
  /// while a file may be a resolved configuration, which has every key.
  bool overridden(const std::string& key) const;
  /// Whether somebody wants the key's value: it is not the default, or is overridden.
  bool asked(const char* section, const char* name) const;
  /// The same beside `other`, which excludes it: a command line that gives both takes a file's
  /// value back by the default, since not every key has a null.
  bool asked_beside(const std::string& other, const char* section, const char* name) const;
  /// Records that the key's value follows from others.
  void derived(const std::string& key, const std::string& from);
  void error(const std::string& key, const std::string& message);
  void unsupported(const std::string& key, const std::string& message);
  void note(const std::string& key, const std::string& message);
  /// Notes that the key's value "has no effect `why`", unless it is the default, which says
  /// nothing: a resolved configuration has every key. The next one has the default in its place.
  void idle(const std::string& key, const std::string& why);

 private:
  std::string shown(const std::string& key) const;  // "place: section.key: "

  AllConfig& config_;
  const std::set<std::string>& faulty_;
  std::function<std::string(const std::string&)> place_of_;
  std::vector<std::string>& errors_;
};

/// Whether a key's value is another than its default.
bool differs_from_default(const AllConfig& config, const char* section, const char* name);

/// Completes derived values and checks all combinations.
void resolve(Resolution& resolution);

/// The parts of resolve, by subject.
void resolve_model(Resolution& resolution);
void resolve_rotary(Resolution& resolution);
void resolve_layers(Resolution& resolution);
void resolve_moe(Resolution& resolution);
void resolve_score_head(Resolution& resolution);
void resolve_lora(Resolution& resolution);
void resolve_ahead(Resolution& resolution);
void resolve_hyper_connections(Resolution& resolution);
void resolve_training(Resolution& resolution);
void resolve_data(Resolution& resolution);
void resolve_examples(Resolution& resolution);
void resolve_registered(Resolution& resolution);
void resolve_optimizer(Resolution& resolution);
void resolve_attention_scores(Resolution& resolution);
void resolve_schedule(Resolution& resolution);
void resolve_tensorboard(Resolution& resolution);
void resolve_telemetry(Resolution& resolution);
void resolve_monitor(Resolution& resolution);
void resolve_post_training(Resolution& resolution);
void resolve_task_data(Resolution& resolution);
void resolve_preferences(Resolution& resolution);
void resolve_grpo(Resolution& resolution);
void resolve_one_order(Resolution& resolution);
void resolve_exact(Resolution& resolution);

}  // namespace tapestry::config
