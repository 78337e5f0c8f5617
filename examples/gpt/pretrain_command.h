// What pretrain_gpt does with its command line.
#pragma once

#include <boost/program_options.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "parallel_core/comm/distributed.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/training/pretrain.h"

namespace tapestry::examples {

/// What a program can do besides training as configured. The base class can do nothing: these are
/// the modes of pretrain_gpt_diagnosis, which pretrain_gpt starts where one of them is asked for.
class PretrainModes {
 public:
  using Arguments = boost::program_options::variables_map;

  PretrainModes() = default;
  PretrainModes(const PretrainModes&) = delete;
  PretrainModes& operator=(const PretrainModes&) = delete;
  virtual ~PretrainModes() = default;

  /// For PretrainOptions::parts.
  virtual std::vector<RunPartFactory> parts() const = 0;

  // Each is asked in turn; an exit code ends the program.

  /// Needs no configuration.
  virtual std::optional<int> answer(const Arguments& /*arguments*/, const Distributed& /*job*/) {
    return std::nullopt;
  }
  /// Loads the configuration itself, in more than one form.
  virtual std::optional<int> answer_file(const Arguments& /*arguments*/,
                                         const ConfigLoader& /*load*/,
                                         const Distributed& /*job*/) {
    return std::nullopt;
  }
  /// What an answer makes of the configuration before it is loaded.
  virtual std::vector<std::string> overrides(const Arguments& /*arguments*/) { return {}; }
  virtual std::optional<int> answer_config(const Arguments& /*arguments*/,
                                           const AllConfig& /*config*/,
                                           const Distributed& /*job*/) {
    return std::nullopt;
  }
  /// Trains, and returns the exit code.
  virtual int train(const Arguments& arguments,
                    const AllConfig& config,
                    const PretrainOptions& options,
                    const Distributed& job);
};

/// The body of the program, for run_program.
int run_pretrain(const std::vector<std::string>& words,
                 const Distributed& job,
                 PretrainModes& modes);

/// What of the command line only another program can answer, which has more parts than these: an
/// option, or the key of the configuration that asks for it. Empty where there is nothing, and
/// where the command line or the configuration is wrong, which run_pretrain says.
std::optional<std::string> beyond(std::vector<std::string> words,
                                  const std::vector<RunPartFactory>& parts);

}  // namespace tapestry::examples
