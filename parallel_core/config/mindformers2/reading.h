// A file of MindFormers 2.0 while it is translated: its values by the paths of their keys, and what
// they have become so far.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel_core/config/mindformers2/keys.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::config::mindformers2 {

/// What stands for the place of a value that the file leaves to MindFormers.
inline constexpr const char* kDefaultPlace = "default of MindFormers 2.0";

class Reading {
 public:
  explicit Reading(std::optional<int64_t> data_parallel_size) : ranks_(data_parallel_size) {}

  /// Takes the values of all sections; unknown sections and keys, and values of another type than
  /// the table's, are errors.
  void read(const RawNode& root);

  // Values, by path: what was written, else the initial one of the table.

  bool given(std::string_view path) const { return find(path) != nullptr; }
  /// nullptr if it was not written.
  const RawNode* find(std::string_view path) const;
  bool is_null(std::string_view path) const;
  bool flag(std::string_view path) const;
  int64_t integer(std::string_view path) const;
  double number(std::string_view path) const;
  std::string text(std::string_view path) const;
  /// Of a list, or of one text.
  std::vector<std::string> texts(std::string_view path) const;
  /// Where the value stands, or kDefaultPlace.
  Place place(std::string_view path) const;
  /// The keys of a section that were written, by their paths.
  std::vector<std::string> given_below(std::string_view prefix) const;
  bool has_section(std::string_view name) const { return section_places_.contains(name); }
  /// Whether the class of the model is qwen3's.
  bool is_qwen3() const;
  /// Data-parallel ranks; empty: not known.
  std::optional<int64_t> data_parallel_size() const { return ranks_; }

  // Results.

  /// `here` has the value, which comes from what stands at `path`.
  void put(std::string_view here, const std::string& yaml, std::string_view path);
  void put(std::string_view here, RawNode value);
  bool has(std::string_view here) const;
  void error(std::string_view path, const std::string& message);
  void note(std::string_view path, const std::string& message);
  /// "parallelism.x: is V; ..." of a value that cannot be, for the reason.
  void refuse(std::string_view path, std::string_view reason);

  /// The keys of ours that stand in the section `tapestry`, which go before the others.
  const RawNode* own_section() const { return own_section_ ? &*own_section_ : nullptr; }
  void merge_own_section();

  const RawNode& result() const { return result_; }
  std::vector<std::string> errors;
  std::vector<std::string> notes;

 private:
  void read_section(const RawNode& name, const RawNode& body);
  void walk(const std::string& path, const RawNode& body);
  void take_list(const std::string& path, const RawNode& list);
  void take(const std::string& path, const RawNode& name, const RawNode& value);
  void unknown_key(const std::string& section, const RawNode& name, const std::string& path);
  void unknown_section(const RawNode& name);
  std::string scalar(std::string_view path) const;

  std::optional<int64_t> ranks_;
  std::map<std::string, RawNode, std::less<>> values_;
  std::map<std::string, Place, std::less<>> section_places_;
  std::optional<RawNode> own_section_;
  RawNode result_{.kind = RawNode::Kind::kMap};
};

/// What is wrong with the type of a value, "expected int, got 'x'", or nothing.
std::string type_complaint(std::string_view type, const RawNode& value);

/// A scalar, and a list of such.
RawNode scalar_node(const std::string& text, const Place& place, bool quoted = false);
RawNode list_node(const std::vector<std::string>& items, const Place& place, bool quoted = false);

/// Puts a value below a mapping, whose entries on the way are made; its key has the place of the
/// value unless another is given.
void put_below(RawNode& root,
               const std::vector<std::string>& path,
               RawNode value,
               const std::optional<Place>& key_place = {});
std::vector<std::string> parts_of(std::string_view path);

// The rules, by subject. Each reads its sections and puts what follows.
void translate_training(Reading& r);
void translate_optimizer(Reading& r);
void translate_schedule(Reading& r);
void translate_layout(Reading& r);
void translate_recompute(Reading& r);
void translate_data(Reading& r);
void translate_model(Reading& r);
void translate_experts(Reading& r);
void translate_watch(Reading& r);
void translate_lora(Reading& r);

}  // namespace tapestry::config::mindformers2
