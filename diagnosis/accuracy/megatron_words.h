// What is written in arguments of Megatron-LM's pretrain_gpt.py, and the program's own defaults.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "parallel_core/config/yaml/value.h"

namespace tapestry::accuracy::megatron {

enum class Kind : uint8_t { kInteger, kNumber, kText, kSwitch };

struct Argument {
  std::string_view name;  ///< as in the program: "num_layers"
  Kind kind;
  std::string_view fallback;  ///< as it would be written; "-": it has none, and must be said
  /// Of the checklist's item whose value it is, where no more is to be done.
  std::string_view key = {};
};

/// What an item of the checklist needs. Others are not understood, and need not be.
std::span<const Argument> known_arguments();

/// How many of them a text has, which is a command line, a script or JSON of their names.
int count_known(const std::string& text);

/// Typed access to what such a text says, or to the defaults. ValueError, naming the file, for what
/// is no value of its argument. Names are those of known_arguments().
class Arguments {
 public:
  Arguments(const std::string& text, std::string file);

  /// It is written or has a default.
  bool has(const std::string& name) const;
  bool is_written(const std::string& name) const { return written_.contains(name); }
  std::string text(const std::string& name) const;
  double number(const std::string& name) const;
  int64_t integer(const std::string& name) const;
  bool on(const std::string& name) const;
  std::optional<int64_t> maybe_integer(const std::string& name) const;
  config::Value value(const Argument& argument) const;

 private:
  std::map<std::string, std::string> written_;
  std::string file_;
};

}  // namespace tapestry::accuracy::megatron
