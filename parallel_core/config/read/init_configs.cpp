#include "parallel_core/config/init_configs.h"

#include <string>
#include <vector>

#include "autograd/io/input_file.h"
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
  return Loader(name, options).load(text);
}

void resolve(AllConfig& config) {
  const LoadOptions options{.model_type = config.model_section};
  config = Loader("C++", options).load(config);
}

AllConfig init_configs_from_dict(const nlohmann::json& dict, const LoadOptions& options) {
  std::vector<std::string> errors;
  const RawNode root = config::raw_node(dict, Place{"dict"}, errors);
  if (!errors.empty()) {
    throw ConfigError(errors);
  }
  return Loader("dict", options).load(root);
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
  return Loader(path, options).load(read_config_file(path));
}

AllConfig config::load_with(const std::string& path,
                            const std::vector<Override>& overrides,
                            const LoadOptions& options) {
  if (path.empty()) {
    return Loader("command line", options, overrides).load(RawNode{.kind = RawNode::Kind::kMap});
  }
  return Loader(path, options, overrides).load(read_config_file(path));
}

}  // namespace tapestry
