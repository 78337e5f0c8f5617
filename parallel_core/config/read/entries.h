// What a configuration's file and overrides say, before any of it becomes a value.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/config/read/foreign_names.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::config {

/// What is wrong with a configuration, and what its user should know.
struct Findings {
  std::vector<std::string> errors;
  std::vector<std::string> notes;
  std::set<std::string> faulty;           // "section.key" of values that must not be looked at
  std::set<std::string> unread_sections;  // that could not be read: their keys are not missing

  void error(const Place& place, const std::string& message) {
    errors.push_back(place.text() + ": " + message);
  }
};

/// One value as it was written, with the name that it was given by.
struct Entry {
  const Key* key = nullptr;
  RawNode node;
  Place key_place;
  std::string written_as;
  bool is_override = false;
  std::optional<ConfigOrigin> origin = {};  // where its place does not say it
};

/// A value that repeats what another key says, or a name that stands for its True.
struct Repetition {
  const ForeignName* row = nullptr;
  RawNode node;
};

/// Collects values under the canonical names of their keys ("section.key"), whatever spelling they
/// come in.
class Entries {
 public:
  /// `name` stands for the source as a whole in messages; `findings` must outlive this.
  Entries(std::string name, Findings& findings) : name_(std::move(name)), findings_(findings) {}

  /// Reads the sections of a file. `model_type` is the name it has for the model's section.
  void read(const RawNode& root, const std::string& model_type);
  /// Reads "section.key=value", which goes before what the file says.
  void read_override(const std::string& text, const Place& place);

  bool contains(const std::string& path) const { return entries_.contains(path); }
  /// nullptr if nothing was written.
  const Entry* find(const std::string& path) const;
  /// Whether any path begins so.
  bool has_any_below(const std::string& prefix) const;
  void set(const std::string& path, Entry entry) { entries_[path] = std::move(entry); }

  const std::vector<Repetition>& repetitions() const { return repetitions_; }

  /// Where a section stands; nullptr if it does not.
  const Place* place_of_section(std::string_view section) const;
  void set_place_of_section(std::string_view section, const Place& place) {
    section_places_[std::string(section)] = place;
  }

  const std::string& model_section() const { return model_section_; }
  void set_model_section(const std::string& name) { model_section_ = name; }
  /// A section that holds a model where the model's own is missing; may be empty.
  const std::string& other_model() const { return other_model_; }
  /// The name of a section as the file has it.
  std::string shown(std::string_view section) const;

 private:
  void choose_model_section(const RawNode& root, const std::string& model_type);
  void read_sections(const RawNode& root);
  void read_foreign(const RawNode& name, const RawNode& body);
  void read_foreign_value(const ForeignName& row,
                          const RawNode& name,
                          const RawNode& value,
                          bool is_override);
  bool read_top_level(const RawNode& name, const RawNode& body, bool is_override);
  bool read_other_spelling(const std::string& name, const std::string& value, const Place& place);
  void override_option(const Section& section,
                       const Key& mapping,
                       const RawNode& name,
                       const RawNode& value);
  void read_key(const Section& section,
                const std::string& prefix,
                const RawNode& name,
                const RawNode& node,
                bool is_override,
                std::string_view written_as = {});

  std::string name_;
  Findings& findings_;
  std::string model_section_ = "model_config";
  std::string other_model_;
  std::map<std::string, Entry> entries_;
  std::vector<Repetition> repetitions_;
  std::map<std::string, Place> section_places_;
};

}  // namespace tapestry::config
