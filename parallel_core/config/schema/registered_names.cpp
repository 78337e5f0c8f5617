#include "parallel_core/config/registered_names.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "autograd/tensor/error.h"
#include "parallel_core/config/schema/schema.h"

namespace tapestry::config {
namespace {

// Of the program as its code is: ranks that are threads share it.
struct Names {
  std::mutex mutex;
  std::map<std::pair<ModuleType, std::string>, RegisteredName> entries;
};
Names& names() {
  static Names all;
  return all;
}

bool is_first_of_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_name(const std::string& text) {
  return !text.empty() && is_first_of_name(text.front()) &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return is_first_of_name(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
         });
}

// The row whose value names parts of this type.
std::string path_of_key(ModuleType type, const Key** row) {
  for (const Section& section : schema()) {
    for (const Key& key : section.keys) {
      if (key.registers == type) {
        *row = &key;
        return concat(section.name, ".", key.name);
      }
    }
  }
  throw RuntimeError("no key of the configuration names parts of this type");
}

}  // namespace

void register_name(ModuleType type, const std::string& name, RegisteredName entry) {
  const Key* key = nullptr;
  const std::string path = path_of_key(type, &key);
  check<ValueError>(is_name(name), "'", name, "' cannot be registered for ", path,
                    ": a name begins with a letter and has letters, digits, '_', '-' and '.'");
  check<ValueError>(!is_built_in(*key, name), "'", name, "' cannot be registered for ", path,
                    ": that name is built in; take another one");
  const std::lock_guard lock(names().mutex);
  const bool is_new = names().entries.emplace(std::pair(type, name), std::move(entry)).second;
  check<ValueError>(is_new, "'", name, "' has been registered for ", path, " already");
}

const RegisteredName* find_registered(ModuleType type, const std::string& name) {
  const std::lock_guard lock(names().mutex);
  const auto found = names().entries.find({type, name});
  return found != names().entries.end() ? &found->second : nullptr;
}

std::vector<std::string> registered_names(ModuleType type) {
  const std::lock_guard lock(names().mutex);
  std::vector<std::string> list;
  for (const auto& [key, entry] : names().entries) {
    if (key.first == type) {
      list.push_back(key.second);
    }
  }
  return list;
}

}  // namespace tapestry::config
