// From what was written to a whole configuration: values, defaults, what follows from them, and
// everything that is wrong, told at once.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"
#include "parallel_core/config/read/entries.h"
#include "parallel_core/config/read/load.h"
#include "parallel_core/config/read/model_folder.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry::config {

/// Loads one configuration, once. Each load() throws ConfigError with all findings.
class Loader {
 public:
  /// `name` stands for the source in messages; `overrides` go before it, those of `options` last.
  /// One of `options` may also be a flag with its value, as read_flags takes them; those come last.
  /// `read_folder` reads what model_config.from_hf names.
  Loader(const std::string& name,
         const LoadOptions& options,
         ReadModelFolder read_folder,
         const std::vector<Override>& overrides = {});
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  AllConfig load(const std::string& text);
  AllConfig load(const RawNode& root);
  /// What was set in C++, or read earlier and not changed since.
  AllConfig load(const AllConfig& values);

 private:
  AllConfig complete();
  std::optional<HfConfig> take_from_hf();
  bool starts_from_dense() const;
  bool has_short(const HfSetting& setting) const;
  void take_hf_setting(const HfSetting& setting, const std::string& file);
  void take_value(const AllConfig& values, const Section& section, const Key& key);
  void assign_all();
  void assign(const Section& section, const Key& key);
  void missing(const Section& section,
               const Key& key,
               const std::string& parent,
               const std::string& path);
  void switch_on();
  void check_repetitions();
  void find_unsupported();
  bool is_written(const std::string& section, const std::string& key) const;
  bool is_present(const Key& mapping, const std::string& path) const;
  std::string model_hint(const Section& section) const;
  std::string place_of(const std::string& path) const;

  std::string name_;
  ReadModelFolder read_folder_;
  std::string model_type_;
  std::vector<Override> overrides_;
  Findings findings_;
  Entries entries_;
  AllConfig config_;
  std::set<std::string> missing_sections_;
};

}  // namespace tapestry::config
