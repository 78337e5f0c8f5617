#include "diagnosis/verify/train_or_verify.h"

#include <algorithm>
#include <charconv>
#include <iostream>
#include <optional>
#include <utility>

#include "autograd/tensor/error.h"
#include "diagnosis/run_parts.h"
#include "diagnosis/verify/verify_layout.h"
#include "parallel_core/config/init_configs.h"
#include "parallel_core/config/show/render.h"
#include "parallel_core/parallel_state.h"
#include "parallel_core/training/program.h"

namespace tapestry {

namespace {

// Takes "NAME VALUE" or "NAME=VALUE" out of the words.
std::optional<std::string> take(std::vector<std::string>& words, const std::string& name) {
  for (auto word = words.begin(); word != words.end(); ++word) {
    if (word->starts_with(name + "=")) {
      std::string value = word->substr(name.size() + 1);
      words.erase(word);
      return value;
    }
    if (*word == name) {
      check<ValueError>(word + 1 != words.end(), name, ": expected a value");
      std::string value = *(word + 1);
      words.erase(word, word + 2);
      return value;
    }
  }
  return std::nullopt;
}

// The answer to --help or -h, alone or with a section or key behind it.
std::optional<std::string> take_help(std::vector<std::string>& words) {
  for (auto word = words.begin(); word != words.end(); ++word) {
    if (*word != "-h" && *word != "--help") {
      continue;
    }
    if (word + 1 != words.end() && !(word + 1)->starts_with('-')) {
      return render_configuration_help(*(word + 1));
    }
    return concat(
        "Usage: PROGRAM [--config_path FILE] [--section.key=VALUE | --key VALUE]...\n"
        "Trains the program's model with the configuration that FILE and the words give.\n"
        "docs/configuration.md lists the keys that need no section.\n\n"
        "  --config_path FILE      YAML file of the run; the other words go before it\n"
        "  --verify_layout LAYOUT  compare a layout, such as \"tp=2,pp=2\", with one process\n"
        "  --verify_steps N        steps that --verify_layout trains (3)\n"
        "  -h, --help [SECTION]    print this page, or the keys of a section or one key\n\n"
        "Sections:\n",
        render_sections_help());
  }
  return std::nullopt;
}

// Takes a word that stands alone out of the words.
bool take_flag(std::vector<std::string>& words, const std::string& name) {
  return std::erase(words, name) > 0;
}

int64_t parse_steps(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check<ValueError>(error == std::errc() && end == text.data() + text.size(), "--verify_steps '",
                    text, "': expected an integer");
  return value;
}

}  // namespace

int train_or_verify(std::vector<std::string> words,
                    const Distributed& job,
                    PretrainOptions options) {
  if (const auto help = take_help(words)) {
    if (job.world()->rank() == 0) {
      std::cout << *help;
    }
    return kFinished;
  }
  const std::optional<std::string> layout = take(words, "--verify_layout");
  const std::optional<std::string> steps = take(words, "--verify_steps");
  options.overwrite = take_flag(words, "--overwrite") || options.overwrite;
  options.replace = take_flag(words, "--replace") || options.replace;
  if (!layout) {
    check<ValueError>(!steps, "--verify_steps: has no effect without --verify_layout");
    options.stop_requested = stop_on_signals();
    options.world = job.world();
    options.ranks_on_host = job.ranks_on_host();
    options.rank_on_host = job.rank_on_host();
    const std::vector<RunPartFactory> parts = diagnosis::run_parts();
    options.parts.insert(options.parts.begin(), parts.begin(), parts.end());
    pretrain(init_configs_from_args(words), options);
    return kFinished;
  }
  check<ValueError>(job.world()->size() == 1,
                    "--verify_layout runs all ranks in one process; this job has ",
                    job.world()->size(), " processes");
  const LayoutPair pair = load_layout_pair(*layout, [&](const std::vector<std::string>& more) {
    return init_configs_from_args(words, {.overrides = more});
  });
  VerifyOptions verify;
  verify.model = options.model;
  verify.param_groups = options.param_groups;
  if (options.data) {
    verify.parts.data = [&options](const AllConfig& config) {
      return open_own_data(config, options.data, get_world_group()).train;
    };
  }
  if (steps) {
    verify.steps = parse_steps(*steps);
  }
  const LayoutReport report = compare_layout(pair, verify);
  std::cout << report_text(report, pair);
  return report.agrees() ? kFinished : kFailure;
}

}  // namespace tapestry
