// Configurations that do not come from a YAML file: made in C++, from a dictionary, from a command
// line. All go the way of a file: the same checks, defaults and derived values, the same messages.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "parallel_core/config/config.h"

namespace tapestry {

/// Completes and checks a configuration whose members were set in C++, or were changed after it had
/// been read: what follows from other keys is made anew, unless it was changed itself. A member
/// that has its default counts as not given. ConfigError with all findings, which name the keys,
/// and then nothing is changed; what belongs to features not built yet goes to
/// `config.unsupported`, as it does for a file.
void resolve(AllConfig& config);

/// From sections of keys: {{"model_config", {{"vocab_size", 512}, ...}}, ...}. Numbers and booleans
/// are not taken from strings. ConfigError as for a file, its places "dict".
AllConfig init_configs_from_dict(const nlohmann::json& dict, const LoadOptions& options = {});

/// From the words of a command line, without the program's name; the last of two that give the same
/// key counts.
///
/// - `--section.key=value` or `--section.key value`, the value in YAML, for any key
/// - `--key value`, where several sections have the key as the table below says; a word without
///   value is `True`
/// - Megatron's names for others: `--lr`, `--micro-batch-size`, `--train-iters`, `--swiglu`, ...
/// (see
///   docs/configuration.md). `--global-batch-size` gives micro_batch_num, with
///   `--data-parallel-size` (1), to which the run is then held; `--seq-length` is the model's,
///   `--overlap-grad-reduce` the training's
/// - `--config_path FILE`: a YAML file that the other words go before; `--global-batch-size` then
///   needs `--micro-batch-size` beside it
///
/// An override of LoadOptions may be such a word with its value, too ("--lr 1e-3"), and goes before
/// those that are none.
///
/// Dashes in names are underscores. ConfigError for a name that is not known, and as for a file;
/// IoError if the file cannot be read.
AllConfig init_configs_from_args(const std::vector<std::string>& words,
                                 const LoadOptions& options = {});
AllConfig init_configs_from_args(int argc,
                                 const char* const* argv,
                                 const LoadOptions& options = {});

/// Reads the configuration with the overrides added to those that it was given.
using ConfigLoader = std::function<AllConfig(const std::vector<std::string>& more_overrides)>;

}  // namespace tapestry
