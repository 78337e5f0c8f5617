#include "parallel_core/register.h"

#include <map>
#include <mutex>

#include "autograd/tensor/error.h"

namespace tapestry {

namespace {

struct Items {
  std::mutex mutex;
  std::map<std::pair<ModuleType, std::string>, std::any> entries;
};
Items& items() {
  static Items all;
  return all;
}

template <class T>
T option(const OwnOptions& options, const std::string& name, const char* kind) {
  const auto found = options.values.find(name);
  check<ValueError>(found != options.values.end(), "there is no option '", name,
                    "'; register it with its default");
  check<ValueError>(found->second.is<T>(), "the option '", name, "' is ",
                    config::to_yaml(found->second), ", not ", kind);
  return found->second.as<T>();
}

}  // namespace

void ModuleRegistry::enter(ModuleType type,
                           const std::string& name,
                           std::any item,
                           config::RegisteredName entry) {
  check<ValueError>(item.has_value(), "'", name, "': the function to register is empty");
  const bool takes_options = type == ModuleType::kOptimizer || type == ModuleType::kLrScheduler ||
                             type == ModuleType::kDataset;
  check<ValueError>(takes_options || entry.options.values.empty(), "'", name,
                    "': parts of this type have no options in a configuration");
  config::register_name(type, name, std::move(entry));
  const std::lock_guard lock(items().mutex);
  items().entries.emplace(std::pair(type, name), std::move(item));
}

bool ModuleRegistry::has_item(ModuleType type, const std::string& name) {
  const std::lock_guard lock(items().mutex);
  return items().entries.contains({type, name});
}

std::any ModuleRegistry::find(ModuleType type, const std::string& name) {
  std::string known;
  for (const std::string& each : config::registered_names(type)) {
    known += concat(known.empty() ? "" : ", ", each);
  }
  const std::lock_guard lock(items().mutex);
  const auto found = items().entries.find({type, name});
  check<ValueError>(
      found != items().entries.end(), "'", name, "' has not been registered; ",
      known.empty() ? "this program registers none of this type" : concat("registered: ", known));
  return found->second;
}

double number_option(const OwnOptions& options, const std::string& name) {
  return option<double>(options, name, "a number with a fraction, as its default should be");
}

int64_t integer_option(const OwnOptions& options, const std::string& name) {
  return option<int64_t>(options, name, "an integer");
}

bool bool_option(const OwnOptions& options, const std::string& name) {
  return option<bool>(options, name, "True or False");
}

std::string text_option(const OwnOptions& options, const std::string& name) {
  return option<std::string>(options, name, "a text");
}

}  // namespace tapestry
