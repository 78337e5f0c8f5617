#include "parallel_core/config/convert/spelling.h"

#include "autograd/tensor/error.h"
#include "parallel_core/config/convert/new_keys.h"
#include "parallel_core/config/convert/tree.h"
#include "parallel_core/config/mindformers2/keys.h"
#include "parallel_core/config/schema/schema.h"
#include "parallel_core/config/show/render.h"

namespace tapestry::config {
namespace {

const std::vector<std::string> kOwn = {std::string(mindformers2::kOwnSection)};

std::string file_of(const Tree& tree) {
  std::string text;
  for (const mindformers2::SectionRow& section : mindformers2::sections()) {
    text += tree.section(section.name);
  }
  if (const std::string own = tree.section(kOwn.front()); !own.empty()) {
    text +=
        concat("# What the sections above have no word for. MindFormers passes over it.\n", own);
  }
  return text;
}

// Whether the text reads as the configuration; else the keys that differ.
std::vector<std::string> faults_of(const AllConfig& config,
                                   const std::string& text,
                                   const ReadText& read) {
  return differing_keys(config, read(text));
}

}  // namespace

std::string old_spelling(const AllConfig& config, const ReadText& read) {
  Tree tree;
  put_changed(tree, config, {});
  std::string text;
  for (const Section& section : schema()) {
    text += tree.section(section.name);
  }
  return faults_of(config, text, read).empty() ? text : resolved_yaml(config);
}

std::string new_spelling(const AllConfig& config,
                         int64_t data_parallel_size,
                         const ReadText& read) {
  Tree tree;
  put_new_keys(tree, config, data_parallel_size);
  if (!tree.has("model")) {
    put_changed(tree, config, kOwn, "model_config");
    put_changed(tree, config, kOwn, "moe_config");
  }
  std::vector<std::string> faults;
  constexpr int kRounds = 4;  // what was put may change what follows from it
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = file_of(tree);
    faults = faults_of(config, text, read);
    if (faults.empty()) {
      return text;
    }
    for (const std::string& path : faults) {
      const size_t dot = path.find('.');
      put_key(tree, config, kOwn, path.substr(0, dot), path.substr(dot + 1));
    }
  }
  std::string keys;
  for (const std::string& key : faults) {
    keys += concat(keys.empty() ? "" : ", ", key);
  }
  throw RuntimeError(concat("cannot be written with the sections of MindFormers 2.0: ", keys));
}

}  // namespace tapestry::config
