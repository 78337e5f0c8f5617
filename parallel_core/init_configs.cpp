// The functions of config.h and init_configs.h. They are here, and not with the rest of the
// configuration, because they hand it the reader of models' folders, which lies above it.
#include "parallel_core/config/init_configs.h"

#include <algorithm>
#include <string>
#include <vector>

#include "autograd/io/input_file.h"
#include "interop/architectures/read_hf_config.h"
#include "parallel_core/config/convert/spelling.h"
#include "parallel_core/config/read/load.h"
#include "parallel_core/config/read/loader.h"
#include "parallel_core/config/yaml/raw_json.h"
#include "parallel_core/config/yaml/raw_yaml.h"

namespace tapestry {

using config::Loader;
using config::Place;
using config::RawNode;

AllConfig init_configs_from_text(const std::string& text,
                                 const std::string& name,
                                 const LoadOptions& options) {
  return Loader(name, options, read_hf_config).load(text);
}

void resolve(AllConfig& config) {
  const LoadOptions options{.model_type = config.model_section};
  config = Loader("C++", options, read_hf_config).load(config);
}

AllConfig init_configs_from_dict(const nlohmann::json& dict, const LoadOptions& options) {
  std::vector<std::string> errors;
  const RawNode root = config::raw_node(dict, Place{"dict"}, errors);
  if (!errors.empty()) {
    throw ConfigError(errors);
  }
  return Loader("dict", options, read_hf_config).load(root);
}

namespace {

// A file that was named by mistake, weights say, is not read into memory to be no YAML.
constexpr uint64_t kMaxConfigBytes = uint64_t{1} << 24U;

std::string read_config_file(const std::string& path) {
  if (!path.ends_with(".yaml") && !path.ends_with(".yml")) {
    throw ConfigError({path + ": the name of a configuration file must end in .yaml or .yml; "
                              "presets are examples/gpt/pretrain_gpt_*.yaml"});
  }
  return read_file(path, kMaxConfigBytes,
                   "give the path of a YAML file, for example "
                   "examples/gpt/pretrain_gpt_tiny.yaml");
}

}  // namespace

AllConfig init_configs_from_yaml(const std::string& path, const LoadOptions& options) {
  return Loader(path, options, read_hf_config).load(read_config_file(path));
}

AllConfig init_configs_for_ranks(const std::string& path,
                                 int64_t ranks,
                                 const LoadOptions& options) {
  Loader loader(path, options, read_hf_config);
  loader.set_ranks(ranks);
  return loader.load(read_config_file(path));
}

std::string spelled_yaml(const AllConfig& config, const std::string& spelling, int64_t ranks) {
  const auto read = [&](const std::string& text) {
    Loader loader("the converted file", {}, read_hf_config);
    loader.set_ranks(ranks);
    return loader.load(text);
  };
  check<ValueError>(spelling == "1.x" || spelling == "2.0", "there is no spelling '", spelling,
                    "'; expected 1.x or 2.0");
  if (spelling == "1.x") {
    return config::old_spelling(config, read);
  }
  const ModelParallelConfig& p = config.parallel_config;
  const int64_t model =
      p.tensor_model_parallel_size * p.pipeline_model_parallel_size * p.context_parallel_size;
  return config::new_spelling(
      config, p.data_parallel_size.value_or(std::max<int64_t>(1, ranks / model)), read);
}

AllConfig init_configs_from_args(const std::vector<std::string>& words,
                                 const LoadOptions& options) {
  const config::CommandLine asked = config::read_command_line(words);
  if (asked.path.empty()) {
    return Loader("command line", options, read_hf_config, asked.overrides)
        .load(RawNode{.kind = RawNode::Kind::kMap});
  }
  return Loader(asked.path, options, read_hf_config, asked.overrides)
      .load(read_config_file(asked.path));
}

AllConfig init_configs_from_args(int argc, const char* const* argv, const LoadOptions& options) {
  return init_configs_from_args(std::vector<std::string>(argv + std::min(argc, 1), argv + argc),
                                options);
}

}  // namespace tapestry
