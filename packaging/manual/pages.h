// Man pages and completions for shells, from a program's tables.
#pragma once

#include <string>

#include "packaging/manual/tables.h"

namespace tapestry::manual {

/// What the head of each page says.
struct Edition {
  std::string version;
  std::string date;  ///< "2026-11-28"
};

/// A line that says what a program is for; std::runtime_error for one that has none yet.
std::string purpose_of(const std::string& program);

/// The page NAME(1).
std::string man_page(const Program& program, const Edition& edition);

/// The page pretrain_gpt.yaml(5): the keys of a configuration.
std::string configuration_page(const Program& program, const Edition& edition);

/// The files that bash and zsh read when the program's name is completed. `logic` is
/// complete.bash, the part that is the same for all programs.
std::string bash_completion(const Program& program, const std::string& logic);
std::string zsh_completion(const Program& program, const std::string& logic);

/// "_tapestry_pretrain_gpt_sh": a program's name as a part of a function's.
std::string function_name(const Program& program);

}  // namespace tapestry::manual
